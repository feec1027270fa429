"""Tests that need TensorFlow are collected where it is installed: see `make test-tensorflow`."""

from importlib.util import find_spec
from pathlib import Path

collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    if find_spec("tensorflow") is None and "pytest.mark.tensorflow" in path.read_text()
]
