"""What a user must know of a tensor to feed or receive it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import popef


@dataclass(frozen=True, slots=True)
class DataDesc:
    """A tensor of one compiled batch: its shape holds the batch where the model has one."""

    name: str
    size_in_bytes: int
    shape: tuple[int, ...]
    data_type: popef.DataType

    def numpy_data_type(self) -> np.dtype[Any]:
        return np.dtype(popef.popefTypeToNumpyDType(self.data_type))


class InputDesc(DataDesc):
    """A tensor that every request brings."""


class OutputDesc(DataDesc):
    """A tensor that every request gets."""


def describe_anchor(anchor: popef.Anchor) -> DataDesc:
    """The description of an anchor: InputDesc or OutputDesc after its type."""
    kind = InputDesc if anchor.type() == popef.TensorType.INPUT else OutputDesc
    info = anchor.tensorInfo()
    dtype = np.dtype(popef.popefTypeToNumpyDType(info.dataType()))
    return kind(anchor.name(), math.prod(info.shape()) * dtype.itemsize, tuple(info.shape()), info.dataType())
