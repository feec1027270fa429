"""Descriptions of a runner's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import model_runtime
import numpy as np

import popef
from popef._tools.arrays import Array


@dataclass(slots=True)
class DataDesc:
    """A tensor of one compiled batch. `shape` is the caller's own list: scripts assign into it."""

    name: str
    size_in_bytes: int
    shape: list[int]
    data_type: popef.DataType
    popef_contains_tensor_data: bool = False
    """Whether the PopEF file has the tensor's values, as for streamed weights."""

    def numpy_data_type(self) -> np.dtype[Any]:
        """Return the element type as a NumPy dtype."""
        return np.dtype(popef.popefTypeToNumpyDType(self.data_type))

    @classmethod
    def of(cls, description: model_runtime.DataDesc) -> DataDesc:
        """Return the description for a description of model_runtime."""
        shape = list(description.shape)
        return cls(description.name, description.size_in_bytes, shape, description.data_type)

    @classmethod
    def of_weight(cls, name: str, value: Array) -> DataDesc:
        """Return the description of a streamed weight."""
        data_type = popef.numpyDTypeToPopefType(value.dtype)
        return cls(name, value.nbytes, list(value.shape), data_type, True)
