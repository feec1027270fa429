"""Tests of inputs that a model gives a size of 0: they are computed as ONNX Runtime does without
its optimisers, and said to be empty."""

import logging

import numpy as np
import onnx
import pytest
from empty_graphs import make_empty_graph
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.cli import main
from sample_models import make_model
from simipu import CompileError

F = TensorProto.FLOAT
ERRORS = {"fp32": 1e-5, "fp16": 5e-2}


def find_shape(model):
    return [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


def answer(model, feeds, precision, numerics="exact", **options):
    converter = Converter(precision=precision, disable_progress_bar=True, **options)
    executable = Compiler.compile(converter.convert(model))
    config = ModelRunnerConfig(timeout_ns=1_000, num_threads=1, numerics=numerics)
    with ModelRunner(executable.getPopefModel(), config) as runner:
        types = {each.name: each.numpy_data_type() for each in runner.getExecuteInputs()}
        given = {name: np.asarray(feeds[name], kind) for name, kind in types.items()}
        return dict(runner.execute(given))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "numerics"), [("fp32", "exact"), ("fp16", "exact"), ("fp16", "fast")]
)
@pytest.mark.parametrize("seed", range(30))
def test_graphs_of_empty_tensors_are_computed(seed, precision, numerics):
    model = make_empty_graph(seed)
    x = np.zeros(find_shape(model), np.float32)
    (expected,) = unoptimised_session(model).run(None, {"x": x})
    found = answer(model, {"x": x}, precision, numerics)["y"]
    assert found.shape == expected.shape
    bound = ERRORS[precision]
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=bound, atol=bound)


def concat(shape=(0, 3)):
    nodes = [helper.make_node("Concat", ["x", "w"], ["y"], axis=0)]
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    return make_model(nodes, {"x": (F, list(shape))}, {"y": (F, None)}, weights)


def test_an_input_of_size_0_is_reported_as_empty(caplog):
    caplog.set_level(logging.WARNING, "poprt")
    assert answer(concat(), {"x": np.zeros((0, 3))}, "fp32")["y"].shape == (2, 3)
    (said,) = (each for each in caplog.messages if "'x'" in each)
    assert said.startswith("input 'x' of shape [0, 3] is empty")
    assert "input_shape" in said


@pytest.mark.parametrize("options", [{"input_shape": {"x": [1, 3]}}, {"batch_size": 1}])
def test_a_size_of_0_can_be_fixed_as_a_variable_one(options):
    found = answer(concat(), {"x": np.ones((1, 3))}, "fp32", **options)["y"]
    np.testing.assert_array_equal(found, [[1, 1, 1], [0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("size", ["n", None, -1])
def test_variable_dimensions_are_still_asked_for(size):
    model = concat((4, 3))
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    if isinstance(size, str):
        dim.dim_param = size
    elif size is not None:
        dim.dim_value = size
    with pytest.raises(CompileError, match="variable shapes must be fixed at compile time"):
        Converter().convert(model)
    with pytest.raises(CompileError, match="dimension 0 must be at least 1, found 0"):
        Converter(input_shape={"x": [0, 3]}).convert(model)


def test_dims_of_a_servers_configuration_are_open_where_a_tensor_is_empty(tmp_path):
    """Triton has no dims of 0, but takes such requests."""
    model = make_model(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": (F, ["n", 0])}, {"y": (F, None)}, {}
    )
    onnx.save(model, tmp_path / "model.onnx")
    words = ["-i", str(tmp_path / "model.onnx"), "--batch_size", "2"]
    assert main([*words, "--triton_model_dir", str(tmp_path / "m")]) == 0
    assert (tmp_path / "m" / "config.pbtxt").read_text().count("dims: [-1]") == 2
