"""Tests of the operators of the chip's own compiler: their answers in every opset, and their
entries in the table."""

import numpy as np
import onnx
import pytest
from chip_models import build, run
from onnx import TensorProto, helper
from onnxgraph import CHIP_DOMAIN, collect_values
from simipu.numerics import Numerics
from simipu.operators import CHIP_OPERATORS, OPERATORS, Operator, find_operator, operator_of

F, H, B, I32 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.INT32
OPSETS = [11, 13, 17, 20]
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 4, 3, 5)).astype(np.float32)
FLAT = RANDOM.normal(size=(6, 8)).astype(np.float32)


def normed(values, groups, scale, bias, epsilon):
    """Compute a group norm in double, with its statistics."""
    rows = values.astype(np.float64).reshape(len(values) * groups, -1)
    mean, variance = rows.mean(1), rows.var(1)
    inverse = 1 / np.sqrt(variance + epsilon)
    result = ((rows - mean[:, None]) * inverse[:, None]).reshape(values.shape)
    along = (-1, *[1] * (values.ndim - 2))
    return result * scale.reshape(along) + bias.reshape(along), mean, inverse


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("values", "groups"), [(X, 1), (X, 2), (X, 4), (FLAT, 1), (FLAT, 2)])
@pytest.mark.parametrize("outputs", [("y",), ("y", "mean", "inverse")])
def test_a_group_norm_is_one_of_channels_along_axis_1(opset, values, groups, outputs):
    scale, bias = (RANDOM.normal(size=values.shape[1]).astype(np.float32) for _ in range(2))
    weights = {"scale": scale, "bias": bias}
    model = build(
        "GroupNormalization",
        {"x": values},
        weights,
        outputs,
        opset,
        num_groups=groups,
        epsilon=1e-3,
    )
    known = collect_values(model)
    expected = normed(values, groups, scale, bias, 1e-3)
    for name, wanted, found in zip(outputs, expected, run(model, x=values), strict=False):
        assert known[name].shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("op_type", ["FastNorm", "NormCE"])
def test_a_fast_norm_is_along_the_last_axis_of_any_rank(opset, op_type):
    scale, bias = (RANDOM.normal(size=5).astype(np.float32) for _ in range(2))
    model = build(
        op_type, {"x": X}, {"scale": scale, "bias": bias}, opset=opset, epsilon=1e-3, num_groups=1
    )
    mean, variance = X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
    expected = (X - mean) / np.sqrt(variance + 1e-3) * scale + bias
    np.testing.assert_allclose(run(model, x=X)[0], expected, atol=1e-5)


@pytest.mark.parametrize("opset", OPSETS)
def test_a_gelu_is_the_tanh_form_unless_it_says_otherwise(opset):
    from math import erf

    tanh = 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))
    exact = 0.5 * X * (1 + np.vectorize(erf)(X / np.sqrt(2)))
    np.testing.assert_allclose(run(build("Gelu", {"x": X}, opset=opset), x=X)[0], tanh, atol=2e-6)
    model = build("Gelu", {"x": X}, opset=opset, approximate="none")
    np.testing.assert_allclose(run(model, x=X)[0], exact, atol=2e-6)
    assert np.abs(tanh - exact).max() > 1e-4


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("axis", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("op_type", ["SoftmaxV2", "SoftmaxV3"])
def test_a_softmax_is_along_one_axis_in_every_opset(opset, axis, op_type):
    powers = np.exp(X - X.max(axis, keepdims=True))
    found = run(build(op_type, {"x": X}, opset=opset, axis=axis), x=X)[0]
    np.testing.assert_allclose(found, powers / powers.sum(axis, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_not_zero_keeps_the_type(dtype):
    values = np.array([0, 2, -3, 0], dtype)
    found = run(build("NotZero", {"x": values}, opset=11), x=values)[0]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [0, 1, 1, 0])


@pytest.mark.parametrize("data_type", ["FLOAT", "FLOAT16"])
@pytest.mark.parametrize("opset", OPSETS)
def test_an_attention_mask_lets_tokens_see_their_own_segment(data_type, opset):
    mask = np.array([[1, 1, 2, 0]], np.int32)
    scores = np.zeros((1, 3, 4, 4), np.float16 if data_type == "FLOAT16" else np.float32)
    model = build(
        "AttentionMask", {"mask": mask, "scores": scores}, opset=opset, dataType=data_type
    )
    assert model.graph.output[0].type.tensor_type.elem_type == getattr(TensorProto, data_type)
    found = run(model, mask=mask, scores=scores)[0]
    assert found.shape == collect_values(model)["y"].shape == (1, 1, 4, 4)
    np.testing.assert_array_equal(found[0, 0] == 0, mask[0][:, None] == mask[0][None, :])
    assert set(np.unique(found)) == {-10_000.0, 0.0}


def test_concatenated_tensors_split_again():
    joint = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = build("HCSR", {"x": joint}, outputs=("a", "b", "c"), shape=[2, 2])
    for row, found in zip(joint, run(model, x=joint), strict=True):
        np.testing.assert_array_equal(found, row.reshape(2, 2))


@pytest.mark.parametrize(
    ("op_type", "attributes", "expected"),
    [
        ("PrintTileMapping", {}, lambda x: x),
        ("Remap", {"fwd_grain_size": 8, "debug_str": "it"}, lambda x: x),
        ("RoundV2", {}, np.round),
        ("LeakyRelu", {"alpha": 0.25}, lambda x: np.where(x < 0, x / 4, x)),
        ("LeakyRelu", {}, lambda x: np.where(x < 0, np.float32(0.01) * x, x)),
        ("IsInfV2", {}, np.isinf),
    ],
)
@pytest.mark.parametrize("opset", OPSETS)
def test_the_others_say_what_the_standards_say(op_type, attributes, expected, opset):
    values = np.array([-2.5, -0.5, 0.0, 0.5, 1.5, 3.0], np.float32)
    found = run(build(op_type, {"x": values}, opset=opset, **attributes), x=values)[0]
    np.testing.assert_array_equal(found, expected(values))


def test_a_result_in_half_is_rounded_once():
    values = RANDOM.normal(size=(4, 64)).astype(np.float16)
    scale, bias = np.ones(64, np.float16), np.zeros(64, np.float16)
    model = build("FastNorm", {"x": values}, {"scale": scale, "bias": bias}, opset=11, epsilon=1e-5)
    (found,) = run(model, Numerics(), x=values)
    wide = values.astype(np.float64)
    exact = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    assert found.dtype == np.float16
    assert np.abs(found - exact).max() <= np.abs(exact).max() * 2**-11 + 1e-6


def test_the_domain_tells_operators_of_one_name_apart():
    """The standard's GroupNormalization is decomposed; its Gelu and LeakyRelu have kernels."""
    for name in ("GroupNormalization", "Gelu", "LeakyRelu"):
        ours = helper.make_node(name, ["x"], ["y"], domain=CHIP_DOMAIN)
        theirs = helper.make_node(name, ["x"], ["y"])
        assert operator_of(ours) is CHIP_OPERATORS[name]
        assert operator_of(theirs) is OPERATORS[name]
    assert (
        find_operator("Relu", CHIP_DOMAIN)
        == find_operator("Relu", "some.users")
        == find_operator("New")
    )


def test_every_operator_has_a_rule_a_body_and_is_known_to_shape_inference():
    for name, operator in CHIP_OPERATORS.items():
        assert operator.rows or operator.whole_batch != Operator().whole_batch, name
        assert operator.body, name
        assert operator.meaning, name
    assert not any(onnx.defs.has(name) for name in CHIP_OPERATORS.keys() - OPERATORS.keys())
