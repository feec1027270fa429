"""PopART's own integration tests on this project's popart.

    benchmarks/conformance_popart.py CHECKOUT [--files LIST] [--only PATTERN ...] [--json FILE]

CHECKOUT is a checkout of graphcore/popart; nothing is downloaded. Each file runs in a pytest
process of its own, which is ended when it takes too long. The tests compare with torch, so run this
script with an interpreter that has it. Tests that make a TrainingSession are out of scope and not
counted. LIST holds a path a line, relative to the checkout, and optionally the number of inference
cases of that file: where a process ends early, those that it did not reach count as failed.

--results keeps, for each file, pytest's output (.log) and a line of JSON for each case (.jsonl).
Exits with 1 if fewer than --goal percent of the inference cases pass.
"""

from __future__ import annotations

import re
from pathlib import Path

import upstream_tests
from upstream_tests import ListedFile, Suite

TESTS = Path("tests", "integration")


def find_all(checkout: Path) -> list[ListedFile]:
    """Return every file with tests, without those of popxl, which is another front end."""
    paths = sorted((checkout / TESTS).rglob("*.py"))
    found = [path for path in paths if re.search(r"^\s*def test_", path.read_text(), re.MULTILINE)]
    relative = [path.relative_to(checkout) for path in found]
    return [ListedFile(str(path)) for path in relative if "popxl" not in path.parts]


def find_target(file: Path) -> str:
    """Return the device of a file's tests: a CPU, or a model of an IPU where a test requires it."""
    return "IpuModel2" if "@tu.requires_ipu_model" in file.read_text() else "Cpu"


def make_environment(file: Path) -> dict[str, str]:
    """Return the variable that names the device of a file's tests."""
    return {"TEST_TARGET": find_target(file)}


SUITE = Suite(
    repository="graphcore/popart",
    title="PopART's integration tests",
    tests=TESTS,
    find_all=find_all,
    words=("-p", "popart_compat"),
    paths=(TESTS, Path("tests")),
    make_environment=make_environment,
    preloaded=("onnx.backend.test.case.node.resize", "popart", "torch"),
)


if __name__ == "__main__":
    raise SystemExit(upstream_tests.main(SUITE, __doc__))
