"""Operators of PopTorch's own tests, whose C++ library is not built here.

Its tests load `tests/libcustom_*` with ctypes. They run in a folder with an empty library, and
Python says what the operators compute. So these cases show that attributes arrive, not that a
library's code runs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from simipu.kernels.build import link

DOMAIN = "test.poptorch"
MANY = {
    "float_one": 1.0,
    "float_minus_two": -2.0,
    "int_zero": 0,
    "int_minus_five": -5,
    "floats_one_two_three": [1.0, 2.0, 3.0],
    "floats_minus_one_two_three": [-1.0, -2.0, -3.0],
    "ints_one_two_three": [1, 2, 3],
    "ints_minus_one_two_three": [-1, -2, -3],
    "a_string": "string with quotes and slash \" ' \\ end",
    "strs": ["\x01", "\x02", "\x03"],
}
"""Attributes for which ManyAttributeOp gives 1."""


def add_bodies() -> None:
    """Register what the operators compute."""
    poptorch: Any = importlib.import_module("poptorch")
    torch: Any = importlib.import_module("torch")

    def add_vector(x: Any, vec: Iterable[float]) -> Any:
        return x + torch.tensor(list(vec), dtype=x.dtype)

    def compare_many(x: Any, **given: Any) -> Any:
        return torch.full_like(x, float(given == MANY))

    def reduce_all(*inputs: Any, reductions: Iterable[str]) -> list[Any]:
        return [getattr(torch, name)(x) for x, name in zip(inputs, reductions, strict=True)]

    bodies: dict[str, Callable[..., Any]] = {
        "AddScalarFloat": lambda x, scalar: x + scalar,
        "AddScalarInt": lambda x, scalar: x + scalar,
        "AddScalarVecFloat": add_vector,
        "AddScalarVecInt": add_vector,
        "AddVecScalarMulFloat": lambda x, vec, scalar: add_vector(x, vec) * scalar,
        "ManyAttributeOp": compare_many,
        "ReduceOp": lambda x, reduction: getattr(torch, reduction)(x),
        "ThreeReduceOp": reduce_all,
    }
    for name, body in bodies.items():
        poptorch.register_custom_op_body(name, DOMAIN)(body)


def build_library(folder: Path) -> None:
    """Write an empty shared library to a folder, under a name that the tests look for.

    Raises:
        CompilerError: If there is no C compiler, or it fails.
    """
    folder.mkdir()
    link(["-x", "c", os.devnull], folder / "libcustom_empty.so")
