"""Names of the real module's private parts that scripts and its tests touch."""

from __future__ import annotations

from poptorch.errors import Error
from poptorch.tracing import isRunningOnIpu


def isDispatchTracing() -> bool:
    """Return whether forward is being captured."""
    return isRunningOnIpu()


def createPoptorchError(msg: str) -> Error:
    """Return an error of PopTorch."""
    return Error(msg)
