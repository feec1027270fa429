"""Texts of strangers: names and messages on their way to a terminal, a log or a file. Nothing else in the
project escapes."""

from __future__ import annotations

import sys
import unicodedata

MOST_NAME_CHARACTERS = 1024
"""Of a name of a tensor or a model; the longest known ones of exported models have some 200."""
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Unicode's categories of what moves a terminal's cursor, begins a line, turns the direction of writing, or
shows nothing."""


def escape(text: object, most: int = 10_000) -> str:
    """`str(text)` in one line without control characters, each written as in Python (`\\x1b`, `\\n`), and no
    longer than about `most` characters, the middle left out."""
    plain = str(text)
    if len(plain) > most:
        plain = f"{plain[: most // 2]} [{len(plain) - most} characters] {plain[-(most // 2) :]}"
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(_escape(character) if _is_unseen(character) else character for character in plain)


def escape_lines(text: str) -> str:
    """`text` of any length with its lines kept, for texts whose strangers' parts are quoted already, as in
    JSON."""
    return "\n".join(escape(line, most=sys.maxsize) for line in text.split("\n"))


def find_name_fault(name: str) -> str | None:
    """What makes `name` unfit to be shown or written: expected and found; None when nothing does."""
    if not name:
        return "expected a name, found an empty one"
    if len(name) > MOST_NAME_CHARACTERS:
        return f"expected a name of at most {MOST_NAME_CHARACTERS} characters, found {len(name)}"
    unseen = next((place for place, character in enumerate(name) if _is_unseen(character)), None)
    if unseen is not None:
        return (
            f"expected a name without control characters, found {_escape(name[unseen])} at character {unseen}"
        )
    return None


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
