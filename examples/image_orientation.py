"""An image model: which way up is a page?

    python examples/image_orientation.py [picture ...]

Runs the example model `document_orientation` (`make models`) in this process, without a server.
Without a picture it draws a page and turns it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from model_runtime import ModelRunner, ModelRunnerConfig
from PIL import Image
from poplar_triton.demo.document_orientation import page, prepare

MODEL = Path(__file__).parents[1] / "model_repository" / "document_orientation"


def main() -> None:
    """Print the angle of each picture."""
    pictures = {name: Image.open(name) for name in sys.argv[1:]} or {
        f"a page turned by {angle}": page().rotate(-angle, expand=True)
        for angle in (0, 90, 180, 270)
    }
    rows = np.stack([prepare(picture) for picture in pictures.values()]).astype(np.float16)
    angles = (MODEL / "labels.txt").read_text().split()
    executable = str(MODEL / "1" / "executable.popef")
    with ModelRunner(executable, ModelRunnerConfig(batching_dim=0)) as runner:
        (image,) = (each.name for each in runner.getExecuteInputs())
        (scores,) = runner.execute({image: rows}).values()  # float16 [pictures, 4]
    for name, row in zip(pictures, scores, strict=True):
        print(f"{name}: {angles[row.argmax()]} degrees ({row.max():.2f})")


if __name__ == "__main__":
    main()
