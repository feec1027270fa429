"""Entries of docs/errors.md: a message, who raises it, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
_ENTRY = re.compile(
    r"^### `(?P<message>[^\n]+)`\n\n\*(?P<raiser>[^*]*)\*\s(?P<advice>.*?)(?=\n##|\Z)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Message of the page; "..." in it stands for anything."""

    message: str
    raiser: str
    """First word or words of those who raise it: Triton, The backend, poprt, ..."""
    advice: str

    def pattern(self) -> str:
        """Return a regular expression that finds the message in a line."""
        return "[^\n]*?".join(map(re.escape, self.message.split("...")))


def read_entries() -> list[Entry]:
    """Return the entries of the page. Fail if a heading is none."""
    text = PAGE.read_text()
    entries = [
        Entry(
            match["message"],
            re.split(r"[,;:.]| (?:and|install|tfserving|export)\b", match["raiser"])[0],
            match["advice"],
        )
        for match in _ENTRY.finditer(text)
    ]
    assert len(entries) == text.count("\n### ")
    return entries
