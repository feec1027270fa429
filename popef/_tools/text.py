"""Texts from outside: the escaping of names and messages on their way to a terminal, a log or a
file, the encoding of text files, and of file names.

This is the only place in the project that escapes. It also finds the name that a misspelt one
probably stands for.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

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


_SIMILARITY = 0.6
"""Similarity of difflib from which a name counts as near: difflib's own default."""
_MIN_WORD = 3
"""Minimum characters of a name that is looked for as a part of others; shorter ones are in many."""
_WORDS = re.compile(r"[_.:/ ]")
"""Characters between the words of a name."""
_MAX_WORD = 300
_LONG_WORD = re.compile(rf"[^\s/]{{{_MAX_WORD + 1},}}")
"""Word, or part of a path, that is shortened in errors: longer than a file name can be."""
_UTF_16 = ((codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16"))
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF
"""Surrogates by which Python represents bytes of a name that are not UTF-8 (PEP 383,
surrogateescape)."""
_BYTES = re.compile(f"[{chr(_FIRST_BYTE)}-{chr(_LAST_BYTE)}]+")
"""Code points by which Python writes bytes of a file name that it cannot decode (PEP 383)."""


def decode_text(content: bytes) -> str:
    """Return the text of a file in UTF-8. A byte-order mark, which some editors write, is skipped.

    Raises ValueError, which says what the bytes are, for text in UTF-16 and for other bytes.
    """
    utf_16 = next((name for mark, name in _UTF_16 if content.startswith(mark)), None)
    if utf_16 is None and content[:1] != content[1:2] and b"\0" in content[:2]:
        utf_16 = "UTF-16 without a byte-order mark"
    if utf_16:
        raise ValueError(f"expected text in UTF-8, found {utf_16}; save the file as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"expected text in UTF-8, found the byte 0x{content[error.start]:02x} at {error.start} "
            "that is none; save the file as UTF-8"
        ) from None


def restore_characters(text: str) -> str:
    """Return a text in which bytes that Python could not decode are characters again, as far as
    they are UTF-8.

    Python cannot decode file names if its locale is C, as in Triton's stub, whatever the
    environment says.
    """
    return _BYTES.sub(
        lambda run: run[0].encode("ascii", "surrogateescape").decode("utf-8", "surrogateescape"),
        text,
    )


def name_file(text: str) -> str:
    """Return a file name as this process writes it, given its characters. The two differ only if
    the locale of the process is C (`restore_characters`)."""
    try:
        return os.fsdecode(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return text


def write_utf_8(stream: Any) -> None:
    """Let a stream write characters that its encoding lacks. One in ASCII, which the locale C has,
    gets UTF-8, as other programs print file names there: escapes could not be copied. A user who
    asks for ASCII (PYTHONIOENCODING) gets escapes."""
    if hasattr(stream, "reconfigure"):
        is_ascii = codecs.lookup(stream.encoding or "ascii").name == "ascii"
        is_ascii = is_ascii and "PYTHONIOENCODING" not in os.environ
        stream.reconfigure(encoding="utf-8" if is_ascii else None, errors="backslashreplace")


def escape(text: object, most: int = 10_000) -> str:
    """Return `str(text)` in one line without control characters, each written as in Python
    (`\\x1b`, `\\n`).

    A text longer than about `most` characters is shortened in the middle.
    """
    plain = str(text)
    if not plain.isascii():
        plain = restore_characters(plain)
    if len(plain) > most:
        plain = f"{plain[: most // 2]} [{len(plain) - most} characters] {plain[-(most // 2) :]}"
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(
        _escape(character) if _is_unseen(character) else character for character in plain
    )


def shorten_words(text: str) -> str:
    """Return a message in which long words, such as a value of a thousand digits, are shortened in
    the middle."""
    return _LONG_WORD.sub(lambda word: escape(word[0], _MAX_WORD), text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" with the nearest of the known names; "" if none is near."""
    near = find_near(name, known)
    return f"; did you mean {near}?" if near else ""


def find_near(name: str, known: Iterable[str], similarity: float = 0.0) -> str | None:
    """Return the name that a misspelt one probably stands for, or None.

    Letters may be in the other case, and `-` stands for `_`. A name may be a word of the known one,
    or its beginning (batch of batch_size), unless a `similarity` above that of difflib's default is
    requested.
    """
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(_fold(candidate), candidate)
    key = _fold(name[:MAX_NAME_CHARACTERS])
    import difflib  # few programs meet a name that they do not know

    near = difflib.get_close_matches(key, folded, 1, similarity or _SIMILARITY)
    if not near and not similarity and len(key) >= _MIN_WORD:
        near = sorted(
            (other for other in folded if other.startswith(key) or key in _WORDS.split(other)),
            key=len,
        )
    return folded[near[0]] if near else None


def _fold(name: str) -> str:
    return name.lower().replace("-", "_").lstrip("_")


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
    special = next((character for character in path if character in _SHELL_CHARACTERS), None)
    if special is None:
        return None
    return (
        "expected no blank, quote or other special character of the shell, through which Triton "
        f"starts the model's process; found {special!r}"
    )


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN


def _escape(character: str) -> str:
    if _FIRST_BYTE <= ord(character) <= _LAST_BYTE:  # a byte of a name that is no UTF-8
        return f"\\x{ord(character) & 0xFF:02x}"
    return character.encode("unicode_escape").decode("ascii")


def name_some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"
