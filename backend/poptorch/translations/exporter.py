"""Table of operators of torch's ONNX exporter, which is built once for all captures.

The exporter builds it for each export from the source text of 500 functions, which is most of the
time of a small module. The names used here are private: without them captures only take longer.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_MODULE = "torch.onnx._internal.exporter._registration"
_BUILD = "from_torchlib"
"""Class method of torch's table that makes one with all operators."""


@contextmanager
def share_operators() -> Iterator[None]:
    """Give exports within copies of one table of operators.

    Yields:
        Nothing.
    """
    table = _find_table()
    if table is None:
        yield
        return
    kind, build = table
    original = vars(kind)[_BUILD]

    def copy_table(*args: Any, **keywords: Any) -> Any:
        copied = copy.copy(build(*args, **keywords))
        copied.functions = {name: list(functions) for name, functions in copied.functions.items()}
        return copied

    setattr(kind, _BUILD, staticmethod(copy_table))
    try:
        yield
    finally:
        setattr(kind, _BUILD, original)


@functools.cache
def _find_table() -> tuple[Any, Callable[..., Any]] | None:
    """Return torch's class of tables and its method that builds one, called once for the same
    arguments; None where torch has no such class."""
    try:
        kind = importlib.import_module(_MODULE).ONNXRegistry
        is_known = isinstance(vars(kind)[_BUILD], classmethod) and isinstance(
            kind().functions, dict
        )
    except (ImportError, AttributeError, KeyError, TypeError):
        return None
    return (kind, functools.cache(getattr(kind, _BUILD))) if is_known else None
