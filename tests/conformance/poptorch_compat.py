"""pytest plugin that records whether one of PopTorch's own tests trains.

pytest -p case_results -p poptorch_compat --no-hw-tests .../ops_test.py

A file that needs PopTorch's library of operators finds an empty one: see poptorch_test_ops.py.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import poptorch_test_ops
import pytest
from case_results import note_training

FOLDER = pytest.StashKey[TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Let poptorch.trainingModel record that it was called, before a test file is imported."""
    poptorch: Any = importlib.import_module("poptorch")
    wrap = poptorch.trainingModel

    def train(*args: Any, **named: Any) -> Any:
        note_training()
        return wrap(*args, **named)

    poptorch.trainingModel = train
    for name in config.args:
        file = Path(name.partition("::")[0])
        if file.is_file() and "libcustom_" in file.read_text():
            config.stash[FOLDER] = TemporaryDirectory()
            folder = Path(config.stash[FOLDER].name)
            poptorch_test_ops.add_bodies()
            poptorch_test_ops.build_library(folder / "tests")
            os.chdir(folder)  # the file looks for the library in ./tests
            break


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the empty library."""
    if FOLDER in config.stash:
        os.chdir(config.invocation_params.dir)
        config.stash[FOLDER].cleanup()
