"""Reader of a model folder's name_map.json: the names of the anchors in requests.

The rooms above define what the names mean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ._tools.file_kinds import FileKind, explain
from ._tools.text import decode_text, escape, find_name_fault
from .errors import PopefError

MAX_BYTES = 16 << 20
"""Maximum bytes of a name map; a map of 4096 anchors with names of maximum length has half of
that."""
_JSON = FileKind("JSON text", "")
_ADVICE = "correct or remove the file"


def read_names(file: Path) -> dict[str, str]:
    """Return the friendly name of each anchor in the file; all names are fit to be shown.

    Raises PopefError, in one line, unless the file is one JSON object of strings to strings in
    UTF-8, without duplicate keys.
    """
    try:
        pairs = json.loads(
            decode_text(_read(file)),
            object_pairs_hook=_Pairs,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_Number,
        )
    except OSError as error:
        raise PopefError(f"name map {escape(file)}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        what = explain(file, _JSON)
        raise _error(file, f"expected a JSON object of strings, found {error}{what}") from error
    if not isinstance(pairs, _Pairs):
        raise _error(file, f"expected a JSON object of strings, found {_describe(pairs)}")
    names: dict[str, str] = {}
    for anchor, friendly in pairs:
        if anchor in names:
            raise _error(file, f"expected every anchor once, found {anchor!r} twice")
        if not isinstance(friendly, str):
            raise _error(file, f"{anchor!r}: expected a string, found {_describe(friendly)}")
        for name in (anchor, friendly):
            if fault := find_name_fault(name):
                raise _error(file, f"{anchor!r}: {fault}")
        names[anchor] = friendly
    return names


class _Pairs(tuple[tuple[str, object], ...]):
    """Items of a JSON object as written; a dict would lose duplicate keys."""

    def __new__(cls, pairs: Sequence[tuple[str, object]]) -> _Pairs:
        return super().__new__(cls, pairs)


class _Number:
    """Placeholder for a JSON number, which is rejected unread: parsing thousands of digits is a
    separate error."""

    def __init__(self, text: str) -> None:
        pass


def _read(file: Path) -> bytes:
    if not file.is_file():
        raise ValueError("no regular file" if file.exists() else "no file")
    with file.open("rb") as source:
        content = source.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return content


def _describe(value: object) -> str:
    kinds = (
        (_Number, "a number"),
        (str, "a string"),
        (_Pairs, "an object"),
        (list, "a list"),
        (bool, "a truth value"),
    )
    return next((text for kind, text in kinds if isinstance(value, kind)), "null")


def _error(file: Path, text: str) -> PopefError:
    return PopefError(escape(f"name map {file}: {text}; {_ADVICE}"))
