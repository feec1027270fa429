"""--config_yaml: the options of `poprt` in a file, by their long names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from popef.arguments import Parser
from popef.console import UsageError
from popef.text import escape

_MOST_BYTES = 1 << 20
"""Of a file of options."""
_MOST_WORDS = 10_000
_Scalar = (str, int, float, bool)


def read_arguments(file: Path, parser: Parser) -> list[str]:
    """The words that the command line would have for the options of `file`. Raises UsageError that names the
    file and the key."""
    found = _read(file)
    known = parser.option_names()
    if "model_fusion" in found:
        raise UsageError(f"{file}: model_fusion is not there yet: models are not fused here")
    words: list[str] = []
    for key, value in found.items():
        option = f"--{key}"
        if option not in known or key == "config_yaml":
            raise UsageError(f"{file}: {escape(repr(key))} is no option of poprt; see poprt --help")
        words += _words(file, option, value)
    return words


def _read(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise UsageError(f"{file}: expected at most {_MOST_BYTES} bytes of options")
        found = yaml.safe_load(text) or {}
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(escape(str(error)).split())
        raise UsageError(f"{file} is not valid YAML: {reason}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UsageError(f"{file}: expected options by their names, found {type(found).__name__}")
    return found


def _words(file: Path, option: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, dict):
        value = [f"{key}={each}" for key, each in _items(file, option, value)]
    values = value if isinstance(value, list) else [value]
    if len(values) > _MOST_WORDS or not all(isinstance(each, _Scalar) for each in values):
        raise UsageError(f"{file}: {option}: expected a value, or a list of values, found another structure")
    return [option, *map(str, values)] if values else []


def _items(file: Path, option: str, value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    for key, each in value.items():
        if not isinstance(each, _Scalar):
            raise UsageError(f"{file}: {option}: {key!r}: expected one value")
        yield key, each
