"""Names of the real module's C++ part that scripts touch."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import popart

from poptorch.errors import Error, RecoverableError, UnrecoverableError
from poptorch.operators.tracing import isRunningOnIpu
from poptorch.options.checks import validate_options
from poptorch.options.model_options import known_names

__all__ = [
    "Error",
    "RecoverableError",
    "TestErrorType",
    "UnrecoverableError",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "isCompilingWithDispatcher",
]

_BACKTRACE: Final = "throwTestError::bottomLevel > throwTestError::topLevel"


class TestErrorType(Enum):
    """Kinds of errors that a script can raise to test how it handles them."""

    __test__ = False
    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


def _make_error(kind: str, message: str) -> Callable[[], Error]:
    return lambda: Error(message, kind, _BACKTRACE)


_TEST_ERRORS: Final[dict[TestErrorType, Callable[[], Error]]] = {
    TestErrorType.Poptorch: _make_error("poptorch_cpp_error", "This is a PopTorch error"),
    TestErrorType.Popart: _make_error("popart_exception", "This is a PopART error"),
    TestErrorType.PopartInternal: _make_error(
        "popart_internal_exception", "This is an internal PopART error"
    ),
    TestErrorType.Poplibs: _make_error("poplibs_exception", "This is a PopLibs error"),
    TestErrorType.PoplarUnrecoverable: lambda: UnrecoverableError(
        "This error is not recoverable", location=_BACKTRACE
    ),
    TestErrorType.PoplarUnknown: _make_error(
        "poplar_unknown_runtime_error", "This is an unknown Poplar error"
    ),
    TestErrorType.PoplarRecoverableFullReset: lambda: RecoverableError(
        "A full reset mends this error", location=_BACKTRACE, recovery_action="FULL_RESET"
    ),
    TestErrorType.PoplarLinkError: _make_error(
        "poplar_link_error", "This is a link error. Output: -lfoo not found"
    ),
}


def _throwTestError(error_type: TestErrorType) -> None:
    """Raise an error of a kind."""
    raise _TEST_ERRORS[error_type]()


def _validateOptions(values: dict[str, Any]) -> None:
    """Raise Error unless all options are known; log them at the level DEBUG."""
    validate_options(values, known_names())


def isCompilingWithDispatcher() -> bool:
    """Return whether a model is being captured."""
    return isRunningOnIpu()


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return whether the simulated machine has a device of a number of IPUs, free or not.

    Args:
        num_ipus: Number of IPUs.
    """
    return ipuHardwareVersion(num_ipus) != 0


def ipuHardwareVersion(num_ipus: int = 1) -> int:
    """Return the version of the simulated machine's IPUs, as 21.

    Args:
        num_ipus: Number of IPUs of a device.

    Returns:
        The version; 0 if there is no such device.
    """
    devices = popart.DeviceManager().enumerateDevices(numIpus=num_ipus)
    return int(devices[0].ipuVersion.removeprefix("ipu")) if devices else 0
