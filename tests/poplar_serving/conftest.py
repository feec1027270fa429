"""Fixtures: the operators, built once, and an exported model."""

import os
import shlex
import subprocess
import sys

import poplar_serving
import pytest
from model_runtime import ModelRunner
from poplar_serving import library
from sample_models import linear_model
from saved_models import TENSORFLOW, X
from waiting import PATIENCE_SECONDS


@pytest.fixture(scope="session", autouse=True)
def operators(tmp_path_factory):
    """Build the library of operators with the command, and check that it gives no warning."""
    if not TENSORFLOW:
        yield
        return
    made = tmp_path_factory.mktemp("library") / "application_runtime.so"
    command = [sys.executable, "-m", "poplar_serving", "build", "--output", str(made)]
    compiler = shlex.join([*library.find_cxx(), "-Werror"])
    done = subprocess.run(
        command,
        env={**os.environ, "CXX": compiler},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, f"wrote {made}\n"), done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.LIBRARY_VARIABLE, str(made))
        yield


@pytest.fixture
def tf():
    return pytest.importorskip("tensorflow")


@pytest.fixture
def file(compile_popef):
    return compile_popef(linear_model())


@pytest.fixture
def expected(file):
    with ModelRunner(file) as runner:
        return runner.execute({"x": X})


@pytest.fixture
def exported(file, tmp_path, tf):
    folder = tmp_path / "model" / "1"
    poplar_serving.export(file, folder)
    return folder
