"""pytest plugin with which PopART's own tests of 2023 run beside today's libraries.

    pytest -p case_results -p popart_compat -p no:hypothesispytest .../atan2_test.py

It restores what numpy and onnx removed since then, and records whether a test makes a
TrainingSession or an optimizer: training is out of scope here. One process runs one file: some
files replace functions of numpy when they are imported.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from case_results import note_training

NUMPY_NAMES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "object": object,
    "str": str,
    "float_": np.float64,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "alltrue": np.all,
    "sometrue": np.any,
    "in1d": np.isin,
}
"""Names that numpy 1.20 had and later versions removed."""


def pytest_configure(config: pytest.Config) -> None:
    """Restore removed names before a test file is imported."""
    del config
    for name, value in NUMPY_NAMES.items():
        if name not in vars(np):
            setattr(np, name, value)
    restore_arrays()
    restore_mapping()
    restore_interpolation()
    watch_training()


def restore_arrays() -> None:
    """Let arrays of unsigned integers take negative numbers, and linspace count in double, as
    before numpy 2."""
    array, linspace = np.array, np.linspace

    def make_array(*args: Any, **named: Any) -> Any:
        try:
            return array(*args, **named)
        except OverflowError:
            return array(args[0]).astype(named.pop("dtype"))

    def make_line(start: Any, stop: Any, *args: Any, **named: Any) -> Any:
        return linspace(np.float64(start), np.float64(stop), *args, **named)

    setattr(np, "array", make_array)  # noqa: B010  a type checker knows another type
    setattr(np, "linspace", make_line)  # noqa: B010


def restore_mapping() -> None:
    """Restore onnx.mapping, which onnx 1.19 removed."""
    if hasattr(onnx, "mapping"):
        return
    numbers = [number for number in onnx.TensorProto.DataType.values() if number]
    to_numpy = {number: onnx.helper.tensor_dtype_to_np_dtype(number) for number in numbers}
    module: Any = types.ModuleType("onnx.mapping")
    module.TENSOR_TYPE_TO_NP_TYPE = to_numpy
    # The standard's own types come first: later ones of the same numpy type do not replace them.
    module.NP_TYPE_TO_TENSOR_TYPE = {to_numpy[number]: number for number in reversed(numbers)}
    sys.modules["onnx.mapping"] = module
    setattr(onnx, "mapping", module)  # noqa: B010  unknown to a type checker


def restore_interpolation() -> None:
    """Let onnx's reference of Resize call functions of the ratio alone, as it did up to 1.12."""
    resize: Any = importlib.import_module("onnx.backend.test.case.node.resize")
    interpolate = resize.interpolate_nd

    def interpolate_nd(data: Any, get_coeffs: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if "scale" in inspect.signature(get_coeffs).parameters:
            return interpolate(data, get_coeffs, *args, **named)
        return interpolate(data, lambda ratio, _scale: get_coeffs(ratio), *args, **named)

    resize.interpolate_nd = interpolate_nd


def watch_training() -> None:
    """Let a TrainingSession and the optimizers record that one was made."""
    popart: Any = importlib.import_module("popart")
    for name in ("TrainingSession", "Optimizer"):
        kind = getattr(popart, name)
        kind.__init__ = _noting(kind.__init__)


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that notes that the present test trains, and calls another one."""

    def call(*args: Any, **named: Any) -> Any:
        note_training()
        return function(*args, **named)

    return call
