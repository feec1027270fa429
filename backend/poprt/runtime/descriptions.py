"""What a runner says of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import model_runtime
import numpy as np
import numpy.typing as npt

import popef


@dataclass(slots=True)
class DataDesc:
    """A tensor of one compiled batch. `shape` is a list, the caller's own: scripts assign into it."""

    name: str
    size_in_bytes: int
    shape: list[int]
    data_type: popef.DataType
    popef_contains_tensor_data: bool = False
    """Whether the PopEF file has its values, as of streamed weights."""

    def numpy_data_type(self) -> np.dtype[Any]:
        """The element type as numpy has it."""
        return np.dtype(popef.popefTypeToNumpyDType(self.data_type))

    @classmethod
    def of(cls, description: model_runtime.DataDesc) -> DataDesc:
        """Of a description of model_runtime's."""
        shape = list(description.shape)
        return cls(description.name, description.size_in_bytes, shape, description.data_type)

    @classmethod
    def of_weight(cls, name: str, value: npt.NDArray[Any]) -> DataDesc:
        """Of a streamed weight."""
        data_type = popef.numpyDTypeToPopefType(value.dtype)
        return cls(name, value.nbytes, list(value.shape), data_type, True)
