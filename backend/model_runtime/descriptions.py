"""Descriptions of the tensors that users feed or receive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import popef


@dataclass(frozen=True, slots=True)
class DataDesc:
    """Description of a tensor of one compiled batch.

    Args:
        name: the anchor's name.
        size_in_bytes: size in bytes.
        shape: the shape, which includes the batch if the model has one.
        data_type: the PopEF element type.
    """

    name: str
    size_in_bytes: int
    shape: tuple[int, ...]
    data_type: popef.DataType

    def numpy_data_type(self) -> np.dtype[Any]:
        """Return the element type as a numpy dtype."""
        return np.dtype(popef.popefTypeToNumpyDType(self.data_type))


class InputDesc(DataDesc):
    """A tensor that every request must provide."""


class OutputDesc(DataDesc):
    """A tensor that every response holds."""


def describe_anchor(metadata: popef.Metadata, anchor: popef.Anchor) -> DataDesc:
    """Return the description of an anchor for one batch of one replica: InputDesc or OutputDesc, by
    its type."""
    kind = InputDesc if anchor.type() == popef.TensorType.INPUT else OutputDesc
    data_type, shape = anchor.tensorInfo().dataType(), popef.replica_shape(metadata, anchor)
    dtype = np.dtype(popef.popefTypeToNumpyDType(data_type))
    return kind(anchor.name(), math.prod(shape) * dtype.itemsize, shape, data_type)
