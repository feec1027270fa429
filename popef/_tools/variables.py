"""Options of the real libraries in environment variables: JSON objects, as Poplar reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

ENGINE_OPTIONS = "POPLAR_ENGINE_OPTIONS"
"""Options of every engine that a program makes; they override those of the program."""
RUNTIME_OPTIONS = "POPLAR_RUNTIME_OPTIONS"
"""Options of the runtime."""
_MAX_SHOWN = 100


def read_options(name: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options in an environment variable, by default of this process, as texts.

    An empty variable has none. Raises ValueError, which names the variable, for anything but a JSON
    object of texts, numbers and truth values.
    """
    text = (os.environ if environ is None else environ).get(name, "")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _error(name, text, "a JSON object", f": {error}") from error
    if not isinstance(options, dict) or any(
        isinstance(value, (dict, list)) for value in options.values()
    ):
        raise _error(name, text, "a JSON object of texts")
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in options.items()
    }


def _error(name: str, text: str, expected: str, cause: str = "") -> ValueError:
    return ValueError(f"{name}: expected {expected}, found {text[:_MAX_SHOWN]!r}{cause}")
