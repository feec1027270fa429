"""pytest plugin that records whether one of PopTorch's own tests trains.

pytest -p case_results -p poptorch_compat --no-hw-tests .../ops_test.py
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from case_results import note_training


def pytest_configure(config: pytest.Config) -> None:
    """Let poptorch.trainingModel record that it was called, before a test file is imported."""
    del config
    poptorch: Any = importlib.import_module("poptorch")
    wrap = poptorch.trainingModel

    def train(*args: Any, **named: Any) -> Any:
        note_training()
        return wrap(*args, **named)

    poptorch.trainingModel = train
