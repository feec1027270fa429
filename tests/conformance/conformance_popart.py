"""PopART's own integration tests on this project's popart.

    tests/conformance/conformance_popart.py CHECKOUT [--files LIST] [--only PATTERN ...] [--json FILE]

CHECKOUT is a checkout of graphcore/popart; nothing is downloaded. Each file runs in a pytest
process of its own, which is ended when it takes too long. The tests compare with torch, so run this
script with an interpreter that has it. A file runs on the device that PopART's build files
(CMakeLists.txt) name for it; a chip (Hw) is a modelled one here. Files that they disable are left
out. A test that makes a TrainingSession or an optimizer trains, which is out of scope, and is not
counted. LIST holds a path a line, relative to the checkout, and optionally the number of inference
cases of that file: where a process ends early, those that it did not reach count as failed.

--results keeps, for each file, pytest's output (.log) and a line of JSON for each case (.jsonl).
Exits with 1 if fewer than --goal percent of the inference cases pass.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import upstream_tests
from upstream_tests import ListedFile, Suite

TESTS = Path("tests", "integration")
DEVICES: Final = ("Hw", "IpuModel2", "Cpu")
"""Devices of the tests, those that are most like a chip first."""


def find_all(checkout: Path) -> list[ListedFile]:
    """Return every file with tests, without those of popxl, which is another front end."""
    paths = sorted((checkout / TESTS).rglob("*.py"))
    files = [path for path in paths if re.search(r"^\s*def test_", path.read_text(), re.MULTILINE)]
    relative = [path.relative_to(checkout) for path in files]
    return [ListedFile(str(path)) for path in relative if "popxl" not in path.parts]


class Target(NamedTuple):
    """What PopART's build says of a file of tests."""

    device: str
    """Device of the option --device-type: Cpu, IpuModel2 or Hw."""
    is_disabled: bool
    """Whether the build runs no test of the file."""


def read_targets(folder: Path) -> dict[str, Target]:
    """Return what the build file of a folder says of its files with tests, by name.

    A file may be named several times, for parts of its tests, and with several devices. The one
    that is most like a chip counts: the others model less of it.
    """
    path = folder / "CMakeLists.txt"
    text = re.sub(r"#[^\n]*", "", path.read_text()) if path.is_file() else ""
    targets: dict[str, Target] = {}
    for name, rest in re.findall(r"add_popart_py_unit_test\(\s*([\w.]+)([^)]*)\)", text):
        words = re.findall(r"\w+", rest)
        named_devices = [
            device for device in DEVICES if device in words or f"{device.upper()}_" in rest
        ]
        target = targets.get(name, Target(DEVICES[-1], is_disabled=True))
        device = min([*named_devices[:1], target.device], key=DEVICES.index)
        targets[name] = Target(device, target.is_disabled and "DISABLED" in words)
    return targets


def find_target(file: Path) -> Target:
    """Return the device that a file's tests are meant for; by default a CPU."""
    return read_targets(file.parent).get(file.stem, Target(DEVICES[-1], is_disabled=False))


def is_run(file: Path) -> bool:
    """Return whether PopART's build runs the tests of a file."""
    return not find_target(file).is_disabled


def make_words(file: Path) -> tuple[str, ...]:
    """Return the option that names the device: the tests' conftest.py reads no variable."""
    return ("--device-type", find_target(file).device)


SUITE = Suite(
    repository="graphcore/popart",
    title="PopART's integration tests",
    tests=TESTS,
    find_all=find_all,
    words=("-p", "popart_compat"),
    paths=(TESTS, Path("tests")),
    runs=is_run,
    make_words=make_words,
    preloaded=("onnx.backend.test.case.node.resize", "popart", "torch"),
)


if __name__ == "__main__":
    raise SystemExit(upstream_tests.main(SUITE, __doc__))
