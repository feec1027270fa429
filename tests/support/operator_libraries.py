"""A user's custom-operator library of ONNX Runtime (custom_library.c), built and forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from onnxgraph import inference
from simipu.engines import libraries, library_operators
from simipu.kernels import build
from simipu.operators import table

SOURCE = Path(__file__).with_name("custom_library.c")


def build_library(folder: Path) -> str:
    """Build the library in a folder and return its path; skip the test without a C compiler."""
    made = folder / "libmy_ops.so"
    try:
        compiler = build.find_compiler()
    except build.CompilerError as error:
        pytest.skip(str(error))
    include = f"-I{build.SOURCES}"
    build.run([*compiler, "-std=c11", "-shared", "-fPIC", include, str(SOURCE), "-o", str(made)])
    return str(made)


@contextmanager
def forget_libraries() -> Iterator[None]:
    """Let the process forget the libraries that are registered meanwhile."""
    kept = libraries.LIBRARIES, table._DOMAINS, inference._DOMAIN_FUNCTIONS
    try:
        yield
    finally:
        for each in kept:
            each.clear()
        library_operators._run_on_zeros.cache_clear()
