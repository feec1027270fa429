"""Names that users give to operators and tensors for debugging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceLocation:
    """Place in a user's program."""

    functionName: str
    fileName: str
    lineNumber: int


class DebugContext:
    """Name for debugging, below the names of an outer `DebugInfo`.

    Args:
        *args: An outer `DebugInfo`, a name, and a `SourceLocation`; each can be missing.
        **kwargs: The same by name: `debugInfo`, `name`, `loc`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = (*args, *kwargs.values())
        outer = [value.path for value in values if isinstance(value, DebugInfo)]
        names = [value for value in values if isinstance(value, str)]
        self.path = "/".join(filter(None, outer + names))


class DebugInfo:
    """Record of a layer that others are debugged below."""

    def __init__(self, debugContext: DebugContext | str, layer: str = "") -> None:
        self.path = get_path_name(debugContext)
        self.layer = layer
        self._values: dict[str, Any] = {}

    def setValue(self, name: str, value: Any) -> bool:
        """Record a value; returns True."""
        self._values[name] = value
        return True

    def getId(self) -> int:
        """Return a number that no other live record has."""
        return id(self)


def get_path_name(context: Any) -> str:
    """Return the name that a debug context gives a node."""
    if isinstance(context, DebugContext):
        return context.path
    if not isinstance(context, str):
        raise TypeError(f"expected a str or a DebugContext, found {context!r}")
    return context
