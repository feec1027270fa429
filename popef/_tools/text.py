"""Escaping of texts from outside: names and messages on their way to a terminal, a log or a file.

This is the only place in the project that escapes. It also finds the name that a misspelt one
probably stands for.
"""

from __future__ import annotations

import difflib
import sys
import unicodedata
from collections.abc import Iterable, Sequence

MAX_NAME_CHARACTERS = 1024
"""Maximum characters in the name of a tensor or a model; the longest known names of exported models
have some 200."""
_MAX_NAMED = 5
"""Maximum number of names in one line."""
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Unicode categories of characters that move a terminal's cursor, begin a line, change the
direction of writing, or are invisible."""

_SHELL_CHARACTERS = frozenset(" \t\n|&;()<>{}[]*?$`\\\"'")
"""Characters inside a word that a POSIX shell or bash reads as something else."""


def escape(text: object, most: int = 10_000) -> str:
    """Return `str(text)` in one line without control characters, each written as in Python
    (`\\x1b`, `\\n`).

    A text longer than about `most` characters is shortened in the middle.
    """
    plain = str(text)
    if len(plain) > most:
        plain = f"{plain[: most // 2]} [{len(plain) - most} characters] {plain[-(most // 2) :]}"
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(
        _escape(character) if _is_unseen(character) else character for character in plain
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" with the most similar of the known names; "" if none is."""
    near = difflib.get_close_matches(name[:MAX_NAME_CHARACTERS], list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def escape_lines(text: str) -> str:
    """Escape `text` of any length but keep its lines, for texts whose outside parts are already
    quoted, as in JSON."""
    return "\n".join(escape(line, most=sys.maxsize) for line in text.split("\n"))


def find_name_fault(name: str) -> str | None:
    """Return why `name` is unfit to be shown or written (expected and found), or None if it is
    fit."""
    if not name:
        return "expected a name, found an empty one"
    if len(name) > MAX_NAME_CHARACTERS:
        return f"expected a name of at most {MAX_NAME_CHARACTERS} characters, found {len(name)}"
    unseen = next((place for place, character in enumerate(name) if _is_unseen(character)), None)
    if unseen is not None:
        return (
            f"expected a name without control characters, found {_escape(name[unseen])} at "
            f"character {unseen}"
        )
    return None


def find_shell_fault(path: str) -> str | None:
    """Return why a shell would not read `path` as one word (expected and found), or None if it
    would."""
    found = next((character for character in path if character in _SHELL_CHARACTERS), None)
    if found is None:
        return None
    return (
        "expected no blank, quote or other special character of the shell, through which Triton "
        f"starts the model's process; found {found!r}"
    )


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def name_some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"
