"""Names of the real module's private parts that scripts and its tests touch."""

from __future__ import annotations

from typing import Any

from poptorch.errors import Error
from poptorch.operators.tracing import isRunningOnIpu


def isDispatchTracing() -> bool:
    """Return whether forward is being captured."""
    return isRunningOnIpu()


def createPoptorchError(msg: str) -> Error:
    """Return an error of PopTorch."""
    return Error(msg)


def unwrapModelIfNecessary(model: Any) -> None:
    """Accept a module whose parameters become plain: here they always are.

    Args:
        model: The module.
    """
    del model


def rewrapModelIfNecessary(model: Any) -> None:
    """Accept a module whose parameters belong to an executor again: here they always do.

    Args:
        model: The module.
    """
    del model
