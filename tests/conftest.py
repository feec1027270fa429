"""What several rooms' tests share: a compiled model, and no limit of time for an example."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import settings
from poprt import Compiler, CompilerOptions, Converter
from sample_models import linear_model

import popef

Build = Callable[..., Path]

# No test asserts a time: hypothesis by itself gives each example 200 ms, which a busy machine exceeds.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# What was collected stays: looking for garbage among it took a tenth of the fast tests' time.
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
    """Compile a model into a PopEF file of the test's folder; weights go to weights.popef where they are
    streamed.

    What a test of this run has compiled before is written again: a compilation takes half a second.
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
