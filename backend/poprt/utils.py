"""Small helpers that the real tool's scripts import from here."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxgraph import find_inputs
from simipu import CompileError
from simipu.numerics import FORMATS, encode

from popef._tools.arrays import Array

__all__ = [
    "LazyImport",
    "convert_float_to_uint8",
    "get_input_info_from_model_proto",
    "onnx_tensor_dtype_to_np_dtype",
]


def onnx_tensor_dtype_to_np_dtype(data_type: int) -> np.dtype[Any]:
    """Return NumPy's type of an ONNX element type.

    Raises CompileError for a type that NumPy lacks.
    """
    if data_type not in onnx.helper.get_all_tensor_dtypes():
        raise CompileError(f"element type {data_type}: expected one of onnx.TensorProto.DataType")
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))


def get_input_info_from_model_proto(
    model: onnx.ModelProto,
) -> tuple[dict[str, list[int]], dict[str, np.dtype[Any]]]:
    """Return shapes and types of a model's inputs, by name; a variable dimension is 0."""
    inputs = {value.name: value.type.tensor_type for value in find_inputs(model.graph)}
    shapes = {name: [dim.dim_value for dim in tensor.shape.dim] for name, tensor in inputs.items()}
    types = {
        name: onnx_tensor_dtype_to_np_dtype(tensor.elem_type) for name, tensor in inputs.items()
    }
    return shapes, types


def convert_float_to_uint8(array: Array, fp8_format: str, scale: int = 0) -> npt.NDArray[np.uint8]:
    """Return the codes of the nearest 8-bit floats of `fp8_format` (F143, F152) at a scale, a power
    of two.

    A code stands for its value times 2 ** scale. Raises CompileError for another format.
    """
    if fp8_format not in FORMATS:
        raise CompileError(f"fp8 format {fp8_format!r}: expected {' or '.join(FORMATS)}")
    return encode(np.asarray(array, np.float32), FORMATS[fp8_format], scale).astype(np.uint8)


class LazyImport(ModuleType):
    """Module that is imported when one of its attributes is first used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if self.__module is None:
            self.__module = importlib.import_module(self.__name__)
        return getattr(self.__module, name)
