"""TensorFlow's types: their numbers (tensorflow/core/framework/types.proto), names and numpy's
types."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class DataType(NamedTuple):
    """Data type; strings are of dtype object and hold bytes."""

    number: int
    name: str
    dtype: np.dtype[Any]


TYPES = tuple(
    DataType(number, name, np.dtype(dtype))
    for number, name, dtype in (
        (1, "DT_FLOAT", np.float32),
        (2, "DT_DOUBLE", np.float64),
        (3, "DT_INT32", np.int32),
        (4, "DT_UINT8", np.uint8),
        (5, "DT_INT16", np.int16),
        (6, "DT_INT8", np.int8),
        (7, "DT_STRING", np.object_),
        (9, "DT_INT64", np.int64),
        (10, "DT_BOOL", np.bool_),
        (17, "DT_UINT16", np.uint16),
        (19, "DT_HALF", np.float16),
        (22, "DT_UINT32", np.uint32),
        (23, "DT_UINT64", np.uint64),
    )
)
"""Types that a tensor of a request or a response may have."""
BY_NUMBER = {each.number: each for each in TYPES}
BY_DTYPE = {each.dtype: each for each in TYPES}
