"""Modules of TorchScript, as modules that torch.export captures.

torch's converter reads their graph; a branch in it on a tensor's value becomes an If. What
`torch.jit.trace` has frozen already is frozen here, too, and it has warned of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from poptorch.arguments import Arguments
from poptorch.errors import Error


def convert(
    model: Callable[..., Any], arguments: Arguments, tensors: list[Any]
) -> Callable[..., Any]:
    """Return a module that can be captured in place of one of TorchScript.

    Args:
        model: A module or function; one that is not of TorchScript is returned.
        arguments: Arguments of its call.
        tensors: The tensors in them, flattened.

    Returns:
        A module with the same parameters and buffers.

    Raises:
        Error: If torch cannot convert it.
    """
    if not isinstance(model, torch.jit.ScriptModule):
        return model
    args, keywords = arguments.replace(tensors)
    try:
        converter: Any = importlib.import_module("torch._export.converter").TS2EPConverter
        module: Callable[..., Any] = converter(model, tuple(args), keywords).convert().module()
    except Exception as error:
        raise Error(
            "this module of TorchScript cannot be captured: "
            f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}. Give "
            "poptorch.inferenceModel the module that torch.jit.script or trace was given"
        ) from error
    return module
