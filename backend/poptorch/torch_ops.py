"""Functions of the namespace torch.ops.poptorch, which hooks and modules of user code call.

They are PopTorch's internal operators; its public functions and classes do the same and are
preferred.
"""

from __future__ import annotations

from typing import Any

import torch

from poptorch.errors import Error
from poptorch.operators import scopes
from poptorch.operators.placement import Block
from poptorch.ops import ipu_print_tensor, nop, set_available_memory

_TYPES = {
    "FLOAT": torch.float32,
    "FLOAT16": torch.float16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}


def _internal_cast(tensor: Any, dtype: str) -> Any:
    """Return a tensor in another type, by PopART's name of it."""
    if dtype not in _TYPES:
        raise Error(f"internal_cast: unknown type {dtype!r}; expected one of {', '.join(_TYPES)}")
    return tensor.to(_TYPES[dtype])


def _begin_ipu_block(stage_id: int, phase_id: int, ipu_id: int) -> None:  # noqa: ARG001
    Block.start(str(stage_id), ipu_id)


def _end_ipu_block() -> None:
    Block().__exit__(None, None, None)


_FUNCTIONS = {
    "begin_ipu_block": _begin_ipu_block,
    "end_ipu_block": _end_ipu_block,
    "internal_cast": _internal_cast,
    "ipu_print_tensor": ipu_print_tensor,
    "nop": nop,
    "pop_name_scope": scopes.pop,
    "push_name_scope": scopes.push,
    "set_available_memory": set_available_memory,
}


def install() -> None:
    """Put the functions into torch.ops.poptorch."""
    for name, function in _FUNCTIONS.items():
        setattr(torch.ops.poptorch, name, function)
