"""PopTorch's own tests on this project's poptorch.

    tests/conformance/conformance_poptorch.py CHECKOUT [--files LIST] [--only PATTERN ...] [--json FILE]

CHECKOUT is a checkout of graphcore/poptorch; nothing is downloaded. Each file runs in a pytest
process of its own, without the tests that are marked as requiring hardware. Run this script with an
interpreter that has torch, torchvision and parameterized. Tests that call trainingModel are out of
scope and not counted. LIST holds a path a line, relative to the checkout, and optionally the number
of cases of that file.

--results keeps, for each file, pytest's output (.log) and a line of JSON for each case (.jsonl).
Exits with 1 if fewer than --goal percent of the cases pass.
"""

from __future__ import annotations

import re
from pathlib import Path

import upstream_tests
from upstream_tests import ListedFile, Suite

TESTS = Path("tests")


def find_all(checkout: Path) -> list[ListedFile]:
    """Return every file with tests, without those of poptorch_geometric, another package."""
    paths = sorted((checkout / TESTS).glob("*.py"))
    files = [path for path in paths if re.search(r"^\s*def test_", path.read_text(), re.MULTILINE)]
    return [ListedFile(str(path.relative_to(checkout))) for path in files]


SUITE = Suite(
    repository="graphcore/poptorch",
    title="PopTorch's tests",
    tests=TESTS,
    find_all=find_all,
    words=("-p", "poptorch_compat", "--no-hw-tests", "--show-capture=no"),
    paths=(TESTS,),
    preloaded=("poptorch", "torch.export", "torch.onnx"),
)


if __name__ == "__main__":
    raise SystemExit(upstream_tests.main(SUITE, __doc__))
