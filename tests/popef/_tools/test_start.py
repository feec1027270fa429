"""Entry points: --version imports nothing. Interrupts: test_interrupts.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from popef._tools.version import __version__

ROOT = Path(__file__).parents[3]
COMMANDS = {
    "popef": "popef._tools.start:popef",
    "popef_dump": "popef._tools.start:popef_dump",
    "poplar-triton": "poplar_triton.start:poplar_triton",
    "poprt": "poplar_triton.start:poprt",
    "poprt_exec": "poplar_triton.start:poprt_exec",
}
HEAVY = ("argparse", "numpy", "onnx", "onnxruntime")


def call(function: str, *words: str, before: str = "", **options) -> subprocess.CompletedProcess:
    module, _, name = function.partition(":")
    program = (
        f"import sys; from {module} import {name}; {before}\n"
        f"tell = lambda: print(sorted(set(sys.modules) & {set(HEAVY)!r}))\n"
        f"try: status = {name}()\nfinally: tell()\nsys.exit(status)"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        **options,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_version_is_printed_before_anything_is_imported(command):
    ended = call(COMMANDS[command], "--version")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert __version__ in ended.stdout.splitlines()[0]
    assert ended.stdout.splitlines()[-1] == "[]"


def test_the_installed_commands_start_by_these_functions():
    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "popef/pyproject.toml")]
    for command, function in COMMANDS.items():
        assert any(f'\n{command} = "{function}"\n' in text for text in texts), command


@pytest.mark.slow
def test_each_package_tells_its_version():
    packages = (
        "popef model_runtime simipu poprt poplar_serving poplar_triton triton_poplar onnxgraph"
    )
    program = f"for name in {packages.split()!r}: print(__import__(name).__version__)"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(told.stdout.split()) == {__version__}
    assert (ROOT / "popef" / "VERSION").read_text().strip() == __version__


@pytest.mark.parametrize("words", [["--help"], ["--precision", "fp7"], []])
def test_commands_that_compile_nothing_import_no_compiler(words):
    ended = call(COMMANDS["poprt"], *words)
    imported = ended.stdout.splitlines()[-1]
    assert imported == "['argparse']", ended.stderr
