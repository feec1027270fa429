"""SavedModels with PopEF inside: asked, in this process and in fresh ones, and their processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from waiting import PATIENCE_SECONDS

TENSORFLOW = bool(importlib.util.find_spec("tensorflow"))
X = np.random.default_rng(3).normal(size=(4, 4)).astype("float32")
"""The input of sample_models.linear_model in batches of 4."""


def ask(loaded: Any, **inputs: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the answer of a SavedModel by its signature."""
    answer = loaded.signatures["serving_default"](**inputs)
    return {name: value.numpy() for name, value in answer.items()}


def run_fresh(code: str, *arguments: object, status: int = 0, **environment: str) -> str:
    """Run `code` in another Python and return its output, or its stderr if it must fail."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def list_children(pid: int | str = "self", program: bytes = b"poplar_serving.child") -> list[int]:
    """Return the ids of a process's child processes that run a program, by default an engine."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if program in Path(f"/proc/{child}/cmdline").read_bytes():
                    pids.append(int(child))
    return pids


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
