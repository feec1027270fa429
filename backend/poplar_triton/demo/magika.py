"""Magika: what kind of file is it?

The features are those of the package magika 1.0.3 (`Magika._extract_features_from_seekable`).
"""

from __future__ import annotations

import inspect
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from popef._tools.arrays import Array

from .example import HALF_TOLERANCE, Case, Tensors, read_lines

# config.min.json of the model standard_v3_3: beg_size and end_size, block_size, padding_token.
EDGE_BYTES = 1024
BLOCK_BYTES = 4096
"""Bytes that are read from each end of a file, before white space at the ends is removed."""
PADDING = 256
"""Token of a position behind the content: bytes are 0 to 255."""


def features(content: bytes) -> Array:
    """Return the start and the end of a file as the model's input: int32 [2048]."""
    start = content[:BLOCK_BYTES].lstrip()[:EDGE_BYTES]
    end = content[-BLOCK_BYTES:].rstrip()[-EDGE_BYTES:]
    row = np.full(2 * EDGE_BYTES, PADDING, np.int32)
    row[: len(start)] = np.frombuffer(start, np.uint8)
    row[len(row) - len(end) :] = np.frombuffer(end, np.uint8)
    return row


class Magika:
    """Demonstration with files found on every machine that runs it, and files made on the spot."""

    model = "magika"
    half_tolerance = HALF_TOLERANCE

    def __init__(self, directory: Path) -> None:
        self._readme = directory.parent / "README.md"
        self._labels = read_lines(directory / "labels.txt")

    def cases(self) -> list[Case]:
        """Return a request for each file."""
        return [_case(title, content) for title, content in self._files().items()]

    def decide(self, outputs: Tensors) -> list[str]:
        """Return the content type of each file."""
        return [self._labels[index] for index in outputs["scores"].argmax(axis=-1)]

    def describe(self, outputs: Tensors, _case: Case) -> list[str]:
        """Describe the content type of each file and its score."""
        best = outputs["scores"].max(axis=-1)
        answers = zip(self.decide(outputs), best, strict=True)
        return [f"{label} ({score:.2f})" for label, score in answers]

    def _files(self) -> dict[str, bytes]:
        document = {"models": ["magika"], "rows": list(range(40))}
        files = {
            "Python's inspect.py": Path(inspect.__file__).read_bytes(),
            f"the program {Path(sys.executable).name}": _edges(Path(sys.executable).resolve()),
            "a zip archive made here": _zip_archive(),
            "a PNG picture made here": _picture(),
            "a JSON text made here": json.dumps(document, indent=2).encode(),
        }
        if self._readme.is_file():
            files["model_repository/README.md"] = self._readme.read_bytes()
        return files


def _case(title: str, content: bytes) -> Case:
    return Case(title, {"content": features(content)[None]}, (title,))


def _edges(path: Path) -> bytes:
    # Only the first and last blocks matter, and an interpreter may be large.
    with path.open("rb") as file:
        start = file.read(BLOCK_BYTES)
        length = file.seek(0, io.SEEK_END)
        file.seek(max(length - BLOCK_BYTES, 0))
        return start + file.read() if length > BLOCK_BYTES else start


def _zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        # A fixed date, so that the bytes are the same in every run.
        for name in ("letters/first.txt", "letters/second.txt"):
            entry = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
            archive.writestr(entry, f"This is {name}.\n" * 20)
    return buffer.getvalue()


def _picture() -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").rotate(30).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()
