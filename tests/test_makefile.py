"""Tests that the commands of each target of the Makefile name files and modules that exist."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
CHECKOUTS = ("POPART=popart", "POPTORCH=poptorch", "POPTRANSFORMER=poptransformer")
LOOP = re.compile(r"for (\w+) in ([^;]*); do ([^;]*)")
FILE = re.compile(r"(?<![\w/.])(?:backend|benchmarks|docs|popef|tests|\.ci)/[\w./]+\.\w+")
MODULE = re.compile(r"(?:cd (\S+) && )?\S*python -m ([\w.]+)")


def read_commands(target):
    """Return what make would run, with the loops of the shell unrolled."""
    command = ["make", "--dry-run", "--always-make", target, *CHECKOUTS]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return LOOP.sub(
        lambda loop: "; ".join(loop[3].replace(f"${loop[1]}", word) for word in loop[2].split()),
        text,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_the_files_of_a_target_exist(target):
    commands = read_commands(target)
    assert commands.strip()
    for path in FILE.findall(commands):
        assert (ROOT / path).exists(), path
    for folder, module in MODULE.findall(commands):
        name = module.replace(".", "/")
        folder = ROOT / folder
        if (folder / name.partition("/")[0]).exists():
            assert (folder / f"{name}.py").exists() or (folder / name).is_dir(), module


def test_the_loops_are_unrolled():
    commands = read_commands("bench")
    assert "benchmarks/serving.py" in commands
    assert "benchmarks/capacity.py" in commands
