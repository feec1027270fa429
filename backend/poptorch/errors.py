"""PopTorch's exceptions.

Scripts catch them by name and read `type`, `message` and `location`. Their text is that of the
real module: `'TYPE': MESSAGE`, with `In LOCATION: ` in front if a location is known.
"""

from __future__ import annotations

from typing import Any


class Error(RuntimeError):
    """A model, an option or a call that PopTorch rejects.

    Attributes:
        type: Component and kind of the error, as "poptorch_py_error".
        message: What is wrong.
        location: Where it happened, or "".
    """

    def __init__(self, message: str, type: str = "poptorch_py_error", location: str = "") -> None:
        where = f"In {location}: " if location else ""
        super().__init__(f"{where}'{type}': {message}")
        self.type = type
        self.message = message
        self.location = location

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by parts: worker processes of a DataLoader send errors."""
        return type(self), (self.message, self.type, self.location)


class RecoverableError(Error):
    """An error of the IPU system that a reset mends.

    Attributes:
        recovery_action: The reset: IPU_RESET, LINK_RESET, PARTITION_RESET or FULL_RESET.
    """

    def __init__(
        self,
        message: str,
        type: str = "poplar_recoverable_runtime_error",
        location: str = "",
        recovery_action: str = "IPU_RESET",
    ) -> None:
        super().__init__(message, type, location)
        self.recovery_action = recovery_action

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.type, self.location, self.recovery_action)


class UnrecoverableError(Error):
    """An error of the IPU system that no reset mends."""

    def __init__(
        self,
        message: str,
        type: str = "poplar_unrecoverable_runtime_error",
        location: str = "",
    ) -> None:
        super().__init__(message, type, location)


class VersionError(Error, AssertionError):
    """A file of another version: `load` of PopTorch raises AssertionError for it, others Error."""


class ConfigFileError(Exception):
    """A file of options, or POPTORCH_DEFAULT_OPTIONS, that cannot be read."""
