"""Tests of passes to 8 bits: parameters by node, weights of integers, images of bytes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxgraph import attribute
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.passes import get_pass
from sample_models import make_model
from simipu import CompileError
from simipu.numerics.quarter import F143, F152

F, F16, U8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8


def node(op_type, inputs, output="y", **attributes):
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


def products():
    """Return a model with two products of one weight, and a node that takes rows of it."""
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a w", "b"), node("Gather", "b i")]
    held = {"w": np.eye(4, dtype=np.float16), "i": np.int64([0])}
    return make_model(nodes, {"x": (F16, [2, 4])}, {"y": (F16, [1, 4])}, held)


def convert(**options):
    return get_pass("float_to_fp8", **options)(products())


def scales(model):
    """Return the type and scale of the weights and activations in 8 bits by tensor name."""
    return {
        each.output[0]: tuple(attribute(each, name) for name in ("to", "scale"))
        for each in model.graph.node
        if each.op_type == "Cast"
    }


def test_settings_of_a_node_override_those_of_all_nodes():
    found = convert(
        fp8_params=["F143", "F143", -1, -2],
        fp8_input_dict={"b": ("F152", 3)},
        fp8_weight_dict={"b": ["F152", 4]},
    )
    types = {t.name: t.data_type for t in found.graph.initializer if t.name != "i"}
    assert types == {"w/fp8": F143.data_type, "w/fp8_": F152.data_type}
    found = scales(found)
    assert found["x/fp8"] == (F143.data_type, -1)
    assert found["a/fp8"] == (F152.data_type, 3)
    assert (found["w/fp8/half"][1], found["w/fp8_/half"][1]) == (-2, 4)


def test_names_of_other_operators_may_be_among_those_to_be_skipped():
    assert list(scales(convert(skip_op_names=["y", "a"]))) == ["w/fp8/half", "a/fp8", "a/fp8/half"]
    assert convert(skip_op_names=["a"], skip_op=False) == convert()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"skip_op_names": ["q"]}, "fp8_skip_op_names: the model has no Conv, Gemm or MatMul 'q'"),
        (
            {"fp8_input_dict": {"q": ("F143", 0)}},
            "fp8_input_dict: the model has no Conv, Gemm or MatMul 'q'",
        ),
        (
            {"fp8_weight_dict": {"a": ("F143", 99)}},
            r"fp8 of node 'a': expected a format, .* found \('F143', 99",
        ),
        ({"fp8_weight_dict": {"a": 3}}, "fp8 of node 'a': expected a format"),
        ({"convert_model": "int8"}, "convert_model: expected fp8 or fp8_weight, found 'int8'"),
    ],
)
def test_invalid_fp8_options_are_rejected(options, reason):
    with pytest.raises(CompileError, match=reason):
        convert(**options)


def given(**changes):
    return {"w": {"value": np.ones((4, 4), np.int8), "offset": 1, "scale": 0.5, **changes}}


def test_weights_in_half_are_widened_to_half():
    changed = get_pass("float_to_int8", given())(products())
    onnx.checker.check_model(changed, full_check=True)
    assert [each.op_type for each in changed.graph.node][:2] == ["DequantizeLinear", "Cast"]
    assert get_pass("float_to_int8", given())(changed) is changed


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"q": given()["w"]}, "float_to_int8: the model has no weight 'q'"),
        (given(value=np.ones((4, 4))), "expected value, int8 of shape .* found float64 of shape"),
        (given(value=np.ones((4, 5), np.int8)), r"found int8 of shape \[4, 5\]"),
        (given(offset=200), "offset, a whole number of 8 bits"),
        ({"w": {}}, "expected value, int8"),
    ],
)
def test_weights_of_8_bits_have_to_fit(weights, reason):
    with pytest.raises(CompileError, match=reason):
        get_pass("float_to_int8", weights)(products())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_model_that_takes_bytes_answers_as_one_that_is_given_what_they_stand_for(precision):
    shape = ["n", 3, 4, 4]
    model = make_model([node("Neg", "x")], {"x": (F, shape)}, {"y": (F, shape)}, {})
    converted = Converter(batch_size=2, precision=precision, eightbitsio=True).convert(model)
    assert converted.graph.input[0].type.tensor_type.elem_type == U8
    picture = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4), np.uint8)
    means, deviations = (
        np.reshape(each, (1, 3, 1, 1)) for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    session = unoptimised_session(converted)
    (found,) = session.run(None, {"x": picture})
    np.testing.assert_allclose(found, -(picture / 255 - means) / deviations, atol=5e-3)
    assert Compiler.compile(converted).cycles > 0


def test_inputs_that_are_no_pictures_stay():
    shape = ["n", 4]
    model = make_model([node("Neg", "x")], {"x": (F, shape)}, {"y": (F, shape)}, {})
    converted = Converter(batch_size=2, eightbitsio=True).convert(model)
    assert converted.graph.input[0].type.tensor_type.elem_type == F
