"""Passes that write operators in the forms that the chip's compiler supports."""

from poprt.passes.chip import (
    chip_operators,
    contractions,
    host_concat,
    overlap,
    replacements,
    serialisation,
    workarounds,
)

__all__ = [
    "chip_operators",
    "contractions",
    "host_concat",
    "overlap",
    "replacements",
    "serialisation",
    "workarounds",
]
