"""Text recognition: what does this line say?

Preparation and decoding are those of the package rapidocr-onnxruntime 1.4.4.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from popef._tools.arrays import Array

from .example import Case, Tensors, read_lines

# Shape of the picture for which the model is compiled (recipe.json, and the package's config.yaml).
HEIGHT = 48
WIDTH = 320
BLANK = 0
"""Class of no character in CTC's output."""

LINES = ("Hello, Triton!", "Poplar on a CPU", "1234567890", "PopEF: 20% faster?", "Read me aloud")


def line(text: str) -> Image.Image:
    """Draw a line of printed text, black on white, with a margin."""
    font = ImageFont.load_default(40)
    left, top, right, bottom = font.getbbox(text)
    margin = 10
    size = (math.ceil(right - left) + 2 * margin, math.ceil(bottom - top) + 2 * margin)
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((margin - left, margin - top), text, fill="black", font=font)
    return image


def prepare(image: Image.Image) -> Array:
    """Convert a picture of a line into the model's input: float32 [3, 48, 320]."""
    width = min(WIDTH, math.ceil(HEIGHT * image.width / image.height))
    resized = image.convert("RGB").resize((width, HEIGHT), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, np.float32)[:, :, ::-1].transpose(2, 0, 1)
    row = np.zeros((3, HEIGHT, WIDTH), np.float32)
    row[:, :, :width] = (pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    return row


class TextRecognition:
    """Demonstration with lines set in the typeface that Pillow includes."""

    model = "text_recognition"
    # Sums in half precision change the probability of an uncertain character by up to a sixth. The
    # text stays the same.
    half_tolerance = 0.25

    def __init__(self, directory: Path) -> None:
        self._characters = read_lines(directory / "characters.txt")

    def cases(self) -> list[Case]:
        """Return a request for each line."""
        return [
            Case(f'a picture of "{text}"', {"image": prepare(line(text))[None]}, (text,))
            for text in LINES
        ]

    def decide(self, outputs: Tensors) -> list[str]:
        """Return the text of each picture."""
        # The model sometimes reads the margins of the picture as spaces.
        paths = map(_collapse, outputs["characters"])
        return ["".join(self._characters[index] for index in path).strip() for path in paths]

    def describe(self, outputs: Tensors, _case: Case) -> list[str]:
        """Describe the text that was read."""
        return [f'reads "{text}"' for text in self.decide(outputs)]


def _collapse(scores: Array) -> list[int]:
    """Return the best path of connectionist temporal classification (CTC): repeats count as one
    character, and blanks are dropped."""
    best = scores.argmax(axis=-1)
    first = np.append(True, best[1:] != best[:-1])
    return [int(index) for index in best[first & (best != BLANK)]]
