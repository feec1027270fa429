"""Tests of io_precision: the types of inputs and outputs beside those inside."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.passes import get_pass
from poprt.runtime import Runner
from sample_models import make_model
from simipu import CompileError

F, F16, I32 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32
WEIGHT = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


def node(op_type, inputs, output, **attributes):
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


def product():
    """Return a product with a Gather of integers, and an inner tensor that is an output as well."""
    nodes = [node("MatMul", "x w", "inner"), node("Gather", "inner i", "y", axis=1)]
    inputs = {"x": (F, ["n", 4]), "i": (I32, [2])}
    return make_model(nodes, inputs, {"y": (F, ["n", 2]), "inner": (F, ["n", 4])}, {"w": WEIGHT})


def convert(model, **options):
    return Converter(input_shape={"x": [2, 4]}, **options).convert(model)


def types(model):
    values = (*model.graph.input, *model.graph.output)
    return {value.name: value.type.tensor_type.elem_type for value in values}


@pytest.mark.parametrize(
    ("precision", "io_precision", "expected"),
    [
        ("fp32", "model", F),
        ("fp32", "fp32", F),
        ("fp32", "fp16", F16),
        ("fp16", "model", F16),
        ("fp16", "fp32", F),
        ("fp16", "fp16", F16),
        ("fp8", "fp32", F),
    ],
)
def test_inputs_and_outputs_of_floats_have_the_requested_type(precision, io_precision, expected):
    converted = convert(product(), precision=precision, io_precision=io_precision)
    assert types(converted) == {"x": expected, "i": I32, "y": expected, "inner": expected}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_graph_inside_computes_the_same(precision):
    """The oracle rounds the inputs and outputs by hand and runs the model with its own types."""
    own = convert(product(), precision=precision)
    other = "fp32" if precision == "fp16" else "fp16"
    cast = convert(product(), precision=precision, io_precision=other)
    narrow, inside = (np.float32, np.float16) if other == "fp32" else (np.float16, np.float32)
    x = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float16)
    i = np.int32([3, 0])
    expected = unoptimised_session(own).run(None, {"x": x.astype(inside), "i": i})
    found = unoptimised_session(cast).run(None, {"x": x.astype(narrow), "i": i})
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == narrow
        np.testing.assert_array_equal(one, two.astype(narrow))


def test_a_compiled_model_in_half_takes_and_returns_floats():
    converted = convert(product(), precision="fp16", io_precision="fp32")
    runner = Runner(Compiler.compile(converted))
    x = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    answer = {"y": np.zeros((2, 2), np.float32), "inner": np.zeros((2, 4), np.float32)}
    runner.execute({"x": x, "i": np.int32([3, 0])}, answer)
    np.testing.assert_allclose(answer["inner"], x @ WEIGHT, atol=1e-2)
    np.testing.assert_array_equal(answer["y"], answer["inner"][:, [3, 0]])


def test_an_output_that_is_an_input_and_one_that_is_a_weight_keep_their_names():
    held = {"w": np.ones((2, 4), np.float16)}
    nodes = [node("Add", "x w", "y")]
    shape = {"x": (F16, [2, 4])}
    model = make_model(nodes, shape, {"y": (F16, [2, 4]), "w": (F16, [2, 4]), **shape}, held)
    found = get_pass("io_precision")(model)
    assert set(types(found).values()) == {F}
    x = np.float32([[1, 2, 3, 7]] * 2)
    y, w, same = unoptimised_session(found).run(None, {"x": x})
    np.testing.assert_array_equal(y, [[2, 3, 4, 8]] * 2)
    np.testing.assert_array_equal(w, np.ones((2, 4)))
    np.testing.assert_array_equal(same, x)


def test_another_type_is_refused():
    with pytest.raises(
        CompileError, match="io_precision: expected model, fp32, fp16, found 'half'"
    ):
        Converter(io_precision="half")
    with pytest.raises(CompileError, match="io_precision: expected fp32 or fp16, found 'fp8'"):
        get_pass("io_precision", "fp8")
