"""Check of the values of `Options.toDict`, and their log lines at the level DEBUG.

PopTorch passes its options, and those that `_Popart.set` stored, on to PopART by name. A name that
neither of them knows is an error when a model is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import popart

from poptorch._logging import logger
from poptorch.errors import Error

_IGNORED: Final = {"patterns_level", "anchored_tensors", "available_memory_proportion"}
"""Entries that PopTorch reads itself."""
_KINDS: Final = {bool: "bool", int: "integer", float: "float", str: "string"}
_PREFIX: Final = "location_"
_EXTRA: Final = frozenset({"enableExplicitIR", "saveInitializersToFile"})
"""Names that are no field of PopART's options: a method, and a file for weights of huge graphs."""


def validate_options(values: Mapping[str, Any], known: Iterable[str]) -> None:
    """Check options and log them.

    Args:
        values: Options by name.
        known: Names of PopTorch's own options.

    Raises:
        Error: If a name is unknown or a value has a type that no option has.
    """
    names = frozenset(known)
    for name, value in values.items():
        if name in _IGNORED:
            continue
        if not isinstance(value, (bool, int, float, str, set, frozenset, list, tuple, Mapping)):
            raise Error(f"Unknown value type {type(value).__name__} for option {name}")
        if name not in names and not name.startswith(_PREFIX) and not _is_popart(name):
            kind = _KINDS.get(type(value), "container")
            raise Error(f"Unknown {kind} option {name} for value {value}")
        _log(name, value)


def _is_popart(name: str) -> bool:
    """Return whether PopART has an option, or a setting within one, of a name."""
    settings: Any = popart.SessionOptions()
    for part in name.split("."):
        if part in _EXTRA or name == "patterns":
            return True
        settings = getattr(settings, part, _IGNORED)
        if settings is _IGNORED:
            return False
    return True


def _log(name: str, value: Any) -> None:
    match value:
        case bool():
            logger.debug("poptorch.Options set %s to value %s", name, str(value).lower())
        case Mapping():
            for key, item in value.items():
                logger.debug("poptorch.Options set %s[%s] to %s", name, key, item)
        case int() | float() | str():
            shown = int(value) if isinstance(value, int) else value
            logger.debug("poptorch.Options set %s to value %s", name, shown)
        case _:
            for item in value:
                logger.debug("poptorch.Options added %s to %s", item, name)
