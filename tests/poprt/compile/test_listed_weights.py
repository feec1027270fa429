"""Tests of models that also list their initializers in graph.input, as IR version 3 requires: they
are never inputs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Compiler, CompilerOptions, Converter
from poprt.compile.adoption import adopt_graph
from poprt.compile.model_fusion import MFConverter
from poprt.performance.model_profile import make_profile
from poprt.runtime import ModelRunner
from sample_models import make_model
from simipu import Device, Direction, Engine, ProgramKind, Stream
from simipu.chip.target import TARGETS
from simipu.cost import CostOptions

F = TensorProto.FLOAT
ROWS = 4
X = np.random.default_rng(0).standard_normal((ROWS, 3), np.float32)


def listed_model(batch=ROWS, opset=13):
    """Return x @ w + b with `w` before and `b` after the input, as exporters of IR version 3 list
    them."""
    weights = {"w": np.arange(12, dtype=np.float32).reshape(3, 4) / 8, "b": np.ones(4, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    model = make_model(nodes, {"x": (F, [batch, 3])}, {"y": (F, [batch, 4])}, weights, opset)
    given = helper.make_tensor_value_info("w", F, [3, 4]), *model.graph.input
    del model.graph.input[:]
    model.graph.input.extend([*given, helper.make_tensor_value_info("b", F, [4])])
    model.ir_version = 3
    return model


def expect(model, x):
    return unoptimised_session(model).run(["y"], {"x": x})[0]


def answer(executable, names=("x", "y"), x=X):
    runner = ModelRunner(executable)
    inputs = {each.name: each for each in runner.get_model_inputs()}
    assert set(inputs) - {"index"} == {names[0]}
    feeds = {names[0]: x.astype(inputs[names[0]].numpy_data_type())}
    feeds |= {
        name: np.zeros(each.shape, each.numpy_data_type()) for name, each in inputs.items()
    } | feeds
    outputs = {
        each.name: np.zeros(each.shape, each.numpy_data_type())
        for each in runner.get_model_outputs()
    }
    runner.execute(feeds, outputs)
    return outputs[names[1]].astype(np.float32)


@pytest.mark.parametrize("constant_weights", [True, False])
@pytest.mark.parametrize(
    "convert",
    [
        lambda model: model,
        Converter().convert,
        Converter(skip_passes=["remove_initializer_from_input"]).convert,
    ],
    ids=["as it is", "converted", "converted without the pass"],
)
def test_a_model_that_lists_its_weights_compiles_and_is_served(convert, constant_weights):
    options = CompilerOptions(constant_weights=constant_weights)
    compiled = Compiler.compile(convert(listed_model()), None, options)
    np.testing.assert_allclose(answer(compiled), expect(listed_model(), X), rtol=1e-6, atol=1e-6)


def test_it_compiles_in_half_beside_a_model_in_float_that_lists_its_weights_too():
    half = Converter(precision="fp16").convert(listed_model())
    compiled = Compiler.compile(half, float_model=listed_model())
    assert compiled.findings.comparison is not None
    np.testing.assert_allclose(answer(compiled), expect(listed_model(), X), atol=2e-2)


def test_its_rows_are_independent():
    (main,) = (
        program
        for program in Compiler.compile(listed_model()).executable.programs
        if program.kind is ProgramKind.MAIN
    )
    assert main.row_independent
    assert [stream.tensor for stream in main.streams] == ["x", "y"]


def test_models_exported_with_a_batch_of_one_are_widened():
    converted = Converter(batch_size=ROWS, skip_passes=["remove_initializer_from_input"]).convert(
        listed_model(batch=1)
    )
    compiled = Compiler.compile(converted)
    np.testing.assert_allclose(answer(compiled), expect(listed_model(), X), rtol=1e-6, atol=1e-6)


def test_fused_models_keep_their_own_inputs():
    fused = MFConverter().convert([listed_model(), listed_model()])
    compiled = Compiler.compile(fused)
    found = answer_of_fused(compiled)
    np.testing.assert_allclose(found, expect(listed_model(), X), rtol=1e-6, atol=1e-6)


def answer_of_fused(executable):
    names = {
        stream.tensor
        for program in executable.executable.programs
        for branch in program.branches
        for stream in branch.streams
        if stream.direction is Direction.HOST_TO_DEVICE
    }
    assert len(names) == 2, names
    runner = ModelRunner(executable)
    feeds = {
        each.name: np.zeros(each.shape, each.numpy_data_type())
        for each in runner.get_model_inputs()
    }
    feeds |= {name: X for name in feeds if name in names}
    outputs = {
        each.name: np.zeros(each.shape, each.numpy_data_type())
        for each in runner.get_model_outputs()
    }
    runner.execute(feeds, outputs)
    return next(iter(outputs.values()))


def test_such_a_graph_takes_the_place_of_a_real_executable(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(listed_model(batch="n"), path)
    streams = [
        Stream("h", "x", Direction.HOST_TO_DEVICE, np.dtype(np.float32), (ROWS, 3)),
        Stream("i", "y", Direction.DEVICE_TO_HOST, np.dtype(np.float32), (ROWS, 4)),
    ]
    executable = adopt_graph(path, "real", TARGETS["ipu2"], {1: ProgramKind.MAIN}, streams, {})
    assert executable.program(1).row_independent
    engine, collected = Engine(executable, Device(executable.target)), {}
    engine.connect_input("h", lambda most: X)
    engine.connect_output("i", lambda rows: collected.update(y=rows))
    engine.run(1)
    np.testing.assert_allclose(collected["y"], expect(listed_model(), X), rtol=1e-6, atol=1e-6)


def test_listed_weights_are_not_counted_as_input():
    listed, plain = listed_model(), Converter().convert(listed_model())
    found, wanted = (
        make_profile("m", "fp32", model, TARGETS["ipu2"], CostOptions())
        for model in (listed, plain)
    )
    assert found.batch_size == wanted.batch_size == ROWS
    assert found.as_json() == wanted.as_json()
