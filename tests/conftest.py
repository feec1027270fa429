"""Fixtures that several rooms share: a compiled model, and no time limit for an example."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import pytest
from compiled_models import compile_once
from example_counts import examples
from hypothesis import settings
from sample_models import linear_model

import popef

Build = Callable[..., Path]

# No test asserts a time. By default hypothesis allows an example 200 ms; a busy machine needs more.
settings.register_profile("untimed", deadline=None, max_examples=examples(100))
settings.load_profile("untimed")
# Programs that a shell starts in the background ignore SIGINT, and so do their child processes.
# Tests that send Ctrl-C would fail.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _SleepingThreads(onnxruntime.SessionOptions):
    """Options of sessions whose threads sleep between runs: by default they spin for some 50 ms, on
    a core that another worker needs."""

    def __init__(self) -> None:
        super().__init__()
        self.add_session_config_entry("session.intra_op.allow_spinning", "0")


onnxruntime.SessionOptions = _SleepingThreads
# The collected tests are never garbage; searching them took a tenth of the fast tests' time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def linear() -> onnx.ModelProto:
    return linear_model()


@pytest.fixture
def compile_popef(tmp_path: Path) -> Build:
    """Return a function that compiles a model into a PopEF file of the test's folder.

    Streamed weights go to weights.popef.
    """

    def build(
        model: onnx.ModelProto,
        *,
        batch: int | None = 4,
        name: str = "executable.popef",
        options: dict | None = None,
        **convert,
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        compiled = compile_once(model, batch=batch, options=options, **convert)
        compiled.export(path, path.parent / "weights.popef")
        return path

    return build


@pytest.fixture
def open_model() -> Callable[..., popef.Model]:
    def build(*paths: Path) -> popef.Model:
        reader = popef.Reader()
        for path in paths:
            reader.parseFile(path)
        return popef.ModelBuilder(reader).createModel()

    return build
