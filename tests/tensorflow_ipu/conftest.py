"""IPUs for each test; tests that need TensorFlow are collected where it is installed.

See `make test-tensorflow`.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    if find_spec("tensorflow") is None and "pytest.mark.tensorflow" in path.read_text()
]

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture
def ipus():
    """Return a function that configures a number of IPUs; they are released afterwards."""
    pytest.importorskip("tensorflow")
    from tensorflow.python import ipu

    def configure(count=1):
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = count
        config.configure_ipu_system()
        return ipu

    ipu.config.reset_ipu_configuration()
    yield configure
    ipu.config.reset_ipu_configuration()


@pytest.fixture
def compiled():
    """Return a function that returns the number of programs that were compiled in the test."""
    pytest.importorskip("tensorflow")
    from tensorflow_ipu.execution import counters

    before = counters.compiled
    return lambda: counters.compiled - before
