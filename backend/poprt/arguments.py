"""What several commands read from their arguments about a model."""

from __future__ import annotations

import argparse


def read_shape(text: str) -> tuple[str, list[int]]:
    """An argparse type: the name of an input and its sizes, NAME=d0,d1."""
    name, separator, value = text.rpartition("=")
    try:
        sizes = [int(size) for size in value.strip("[]").split(",") if size]
    except ValueError:
        separator = ""
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=d0,d1,..., found {text!r}")
    return name, sizes
