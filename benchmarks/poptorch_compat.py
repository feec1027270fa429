"""pytest plugin that records whether one of PopTorch's own tests trains.

pytest -p case_results -p poptorch_compat --no-hw-tests .../ops_test.py
"""

from __future__ import annotations

import copy
import functools
import importlib
from typing import Any

import pytest
from case_results import note_training


def pytest_configure(config: pytest.Config) -> None:
    """Let poptorch.trainingModel record that it was called, before a test file is imported."""
    del config
    share_operators()
    poptorch: Any = importlib.import_module("poptorch")
    wrap = poptorch.trainingModel

    def train(*args: Any, **named: Any) -> Any:
        note_training()
        return wrap(*args, **named)

    poptorch.trainingModel = train


def share_operators() -> None:
    """Give each export a copy of the same table of operators."""
    registration: Any = importlib.import_module("torch.onnx._internal.exporter._registration")
    registry = registration.ONNXRegistry
    build = functools.cache(registry.from_torchlib)

    def from_torchlib(*args: Any, **named: Any) -> Any:
        made = copy.copy(build(*args, **named))
        made.functions = {name: list(found) for name, found in made.functions.items()}
        return made

    registry.from_torchlib = staticmethod(from_torchlib)
