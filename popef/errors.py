"""The errors of popef, sorted by whose fault they are, and the limits of a reader.

Nothing here reads or writes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .rules import Rule


class PopefError(Exception):
    """Base of all errors of popef; raised directly if the library is used incorrectly."""


class FormatError(PopefError):
    """The bytes break a rule of FORMAT.md; `offset` counts from the start of the file."""

    def __init__(self, rule: Rule, offset: int, blob: str, expected: str, got: str) -> None:
        super().__init__(
            f"{blob}, byte {offset}: expected {expected}, got {got}; the file is damaged or not "
            f"PopEF ({rule})"
        )
        self.rule = rule
        self.offset = offset
        self.blob = blob
        self.expected = expected
        self.got = got

    def __reduce__(self) -> tuple[type[FormatError], tuple[Rule, int, str, str, str]]:
        return FormatError, (self.rule, self.offset, self.blob, self.expected, self.got)


class UnsupportedError(PopefError):
    """The file or request is valid, but this installation does not support it."""


class LimitError(PopefError):
    """The file is larger or deeper than a `Limits` field allows; the message names the field to
    raise."""


def _limit(default: int, doc: str) -> int:
    limit: int = field(default=default, metadata={"doc": doc})
    return limit


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a reader spends on one file; the defaults are far above what known frameworks
    write."""

    max_structure_bytes: int = _limit(16 << 20, "Bytes of one message (a header, a Metadata, ...).")
    max_depth: int = _limit(
        16,
        "Pointers that a word dump follows from the root of a message; readers follow the 4 PopEF "
        "has.",
    )
    max_list_items: int = _limit(
        1 << 18, "Elements of one list in a structure (anchors, options, shape)."
    )
    max_rank: int = _limit(32, "Dimensions of a tensor; 32 is what every numpy can represent.")
    max_blobs: int = _limit(1_000_000, "Blobs in one file.")
    max_stream_bytes: int = _limit(
        16 << 30, "Bytes read from a stream or pipe, which are kept in memory."
    )
    max_executable_bytes: int = _limit(4 << 30, "Bytes of one executable after decompression.")
