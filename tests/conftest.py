"""Fixtures that several rooms share: a compiled model, and no time limit for an example."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from example_counts import examples
from hypothesis import settings
from poprt import Compiler, CompilerOptions, Converter
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
# The collected tests are never garbage; searching them took a tenth of the fast tests' time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def linear() -> onnx.ModelProto:
    return linear_model()


_compiled: dict[tuple, object] = {}


@pytest.fixture
def compile_popef(tmp_path: Path) -> Build:
    """Return a function that compiles a model into a PopEF file of the test's folder.

    Streamed weights go to weights.popef.
    A model that a test of this run has compiled before is only written again, because a compilation
    takes half a second.
    """

    def build(
        model: onnx.ModelProto,
        *,
        batch: int | None = 4,
        name: str = "executable.popef",
        options: dict | None = None,
        **convert,
    ) -> Path:
        key = (model.SerializeToString(deterministic=True), batch, repr(options), repr(convert))
        if key not in _compiled:
            converted = Converter(batch_size=batch, **convert).convert(model)
            axis = convert.get("batch_axis") or 0
            _compiled[key] = Compiler.compile(
                converted, None, CompilerOptions.from_dict(options or {}), batch_axis=axis
            )
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _compiled[key].export(path, path.parent / "weights.popef")
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
