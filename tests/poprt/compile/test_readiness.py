"""Tests that a model that compiles is ready to serve in time; the compiler rejects any other."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Compiler, Converter, comparing
from poprt.comparing import sides
from poprt.compile import dry_run
from sample_models import make_model
from simipu import CompileError, GraphOptions
from simipu.engines.computed import OrtGraph
from simipu.errors import LoadTimeoutError

F = TensorProto.FLOAT
stoppable = pytest.mark.skipif(
    not hasattr(onnxruntime.SessionOptions, "set_load_cancellation_flag"),
    reason="ONNX Runtime before 1.21 cannot be stopped",
)


def long_model(nodes):
    names = ["x", *(f"h{i}" for i in range(1, nodes)), "y"]
    chain = [helper.make_node("Softmax", [names[i]], [names[i + 1]]) for i in range(nodes)]
    return make_model(chain, {"x": (F, ["n", 4])}, {"y": (F, ["n", 4])}, {})


@pytest.mark.slow
@stoppable
def test_making_a_graph_ready_is_ended_in_time():
    model = long_model(40_000).SerializeToString()
    with pytest.raises(LoadTimeoutError, match=r"not make the graph ready within 0.2 s"):
        OrtGraph(model, {}, GraphOptions(ready_seconds=0.2))


@stoppable
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_model_that_would_not_be_ready_in_time_is_refused(precision, monkeypatch):
    converted = Converter(batch_size=2, precision=precision).convert(long_model(3000))
    Compiler.compile(converted)
    for module in (sides, dry_run, comparing):
        monkeypatch.setattr(module, "READY_SECONDS", 0.01)
    with pytest.raises(
        CompileError,
        match=r"would not be ready to serve in time: .*not make the graph ready within 0.01 s",
    ):
        Compiler.compile(converted)


def test_a_model_is_not_refused_for_what_it_is_compared_with(monkeypatch, caplog):
    half, whole = Converter(batch_size=2, precision="fp16").convert_beside_float(long_model(20))
    run = sides.Side.run

    def late(side, *arguments, **options):
        if side.numerics is None:
            raise LoadTimeoutError("the model in float was not ready")
        return run(side, *arguments, **options)

    monkeypatch.setattr(sides.Side, "run", late)
    assert Compiler.compile(half, float_model=whole).findings.comparison is None
    assert (
        "the effect of half precision is unknown: the model in float was not ready" in caplog.text
    )


@pytest.mark.slow
def test_a_kernel_of_many_positions_is_ready_at_once(compile_popef):
    """The kernel is from a network for music: 256 positions, in blocks of 16 channels, with sums
    kept in half."""
    from model_runtime import ModelRunner, ModelRunnerConfig

    weights = {
        "w": np.random.default_rng(0).standard_normal((32, 48, 1, 256)).astype(np.float32) / 100
    }
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[0, 128, 0, 127])]
    model = make_model(nodes, {"x": (F, ["n", 48, 1, 300])}, {"y": (F, ["n", 32, 1, 300])}, weights)
    file = compile_popef(model, batch=1, precision="fp16", options={"partials_type": "half"})
    with ModelRunner(file, ModelRunnerConfig()) as runner:
        x = np.random.default_rng(1).standard_normal((1, 48, 1, 300)).astype(np.float16)
        found = runner.execute({"x": x})["y"]
    expected = unoptimised_session(model).run(None, {"x": x.astype(np.float32)})[0]
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
