"""Tests of models of opsets before 7: operands are broadcast along the axis that an attribute
names, also where all sizes agree. numpy is the witness, as ONNX Runtime has no kernels for these
opsets."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import find_opset
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.passes import get_pass
from simipu import CompileError

F, I32, B = TensorProto.FLOAT, TensorProto.INT32, TensorProto.BOOL
SHAPE = (3, 3, 3, 3)
RNG = np.random.default_rng(0)
X = RNG.integers(1, 9, SHAPE).astype(np.float32)
FUNCTIONS = {
    "Add": np.add,
    "And": np.logical_and,
    "Div": np.divide,
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
    "Mul": np.multiply,
    "Or": np.logical_or,
    "Pow": np.power,
    "Sub": np.subtract,
    "Xor": np.logical_xor,
}
LOGIC, COMPARED = ("And", "Or", "Xor"), ("And", "Or", "Xor", "Equal", "Greater", "Less")


def model_of(nodes, inputs, output=F, opset=6, weights=None):
    values = [
        helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    output = helper.make_tensor_value_info("y", output, ["?"] * 4)
    graph = helper.make_graph(nodes, "old", values, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def compute(model, **feeds):
    return unoptimised_session(model).run(None, feeds)[0]


def upgrade(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy = get_pass("upgrade_legacy_opset")(copy)
    onnx.checker.check_model(copy)
    assert find_opset(copy) == 7
    assert get_pass("upgrade_legacy_opset")(copy) is copy
    return copy


def operands_of(op_type, shape):
    kind = bool if op_type in LOGIC else np.int32 if op_type == "Equal" else np.float32
    limit = 2 if op_type in LOGIC else 5
    return [
        RNG.integers(0 if limit == 2 else 1, limit, each).astype(kind) for each in (SHAPE, shape)
    ]


@pytest.mark.parametrize(
    ("shape", "axis", "aligned"),
    [
        ((3,), 1, (3, 1, 1)),
        ((3,), 0, (3, 1, 1, 1)),
        ((3,), -2, (3, 1)),
        ((3, 3), 1, (3, 3, 1)),
        ((1, 3), 1, (1, 3, 1)),
        ((3,), None, (3,)),
        ((), None, ()),
        ((), 1, ()),
    ],
)
@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_an_operand_lies_along_the_axis_that_the_attribute_names(op_type, shape, axis, aligned):
    one, other = operands_of(op_type, shape)
    kind = helper.np_dtype_to_tensor_dtype(one.dtype)
    axes = {} if axis is None else {"axis": axis}
    node = helper.make_node(op_type, ["x", "w"], ["y"], broadcast=1, **axes)
    inputs = {"x": (kind, SHAPE), "w": (kind, shape)}
    model = model_of([node], inputs, B if op_type in COMPARED else kind, 6)
    expected = FUNCTIONS[op_type](one, other.reshape(aligned))
    np.testing.assert_array_equal(compute(upgrade(model), x=one, w=other), expected)


@pytest.mark.parametrize("opset", [1, 6])
def test_slopes_are_one_for_each_channel(opset):
    slopes = np.array([0.5, 2, 3], np.float32)
    model = model_of(
        [helper.make_node("PRelu", ["x", "w"], ["y"])], {"x": (F, SHAPE)}, F, opset, {"w": slopes}
    )
    x = X - 5
    expected = np.where(x < 0, x * slopes.reshape(3, 1, 1), x)
    np.testing.assert_array_equal(compute(upgrade(model), x=x), expected)


@pytest.mark.parametrize("options", [{}, {"convert_version": 13}, {"precision": "fp16"}, None])
def test_a_compiled_model_does_so_too(options):
    """The result is the same with and without conversion."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], broadcast=1, axis=1),
        helper.make_node("PRelu", ["a", "slopes"], ["y"]),
    ]
    weights = {"w": np.array([-9, 0, 1], np.float32), "slopes": np.array([0.5, 2, 3], np.float32)}
    model = model_of(nodes, {"x": (F, SHAPE)}, F, 6, weights)
    compiled = Compiler.compile(model if options is None else Converter(**options).convert(model))
    graph = onnx.load_model_from_string(compiled.executable.program(5).graph)
    for constant in compiled.executable.constants:
        assert constant.name not in weights
    added = X + weights["w"].reshape(3, 1, 1)
    expected = np.where(added < 0, added * weights["slopes"].reshape(3, 1, 1), added)
    kind = np.float16 if options and "precision" in options else np.float32
    np.testing.assert_array_equal(compute(graph, x=X.astype(kind)), expected.astype(kind))


def test_ranks_that_only_aligned_operands_give_are_found():
    """Opset 1 infers no shapes: a later node's rank is known once the earlier nodes are aligned."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], broadcast=1, axis=1, consumed_inputs=[0, 0]),
        helper.make_node("Relu", ["a"], ["b"], consumed_inputs=[0]),
        helper.make_node("Add", ["b", "w"], ["c"], broadcast=1, axis=1),
        helper.make_node("Sub", ["c", "w"], ["y"], broadcast=1, axis=1),
    ]
    w = np.array([1, 2, 3, 4, 5], np.float32)
    model = model_of(nodes, {"x": (F, (2, 5, 3))}, F, 1, {"w": w})
    x, aligned = X.ravel()[:30].reshape(2, 5, 3) - 4, w.reshape(5, 1)
    expected = np.maximum(x * aligned, 0) + aligned - aligned
    np.testing.assert_array_equal(compute(upgrade(model), x=x), expected)


def one_node(op_type, opset, sizes=(1, 2, 3, 3), weights=None, **attributes):
    node = helper.make_node(op_type, ["x", *(weights or {})], ["y"], **attributes)
    return model_of([node], {"x": (F, sizes)}, F, opset, weights)


def test_older_forms_become_those_of_opset_7():
    x = X.ravel()[:18].reshape(1, 2, 3, 3)
    truncated = one_node("Cast", 1, to="INT32")
    truncated.graph.output[0].type.tensor_type.elem_type = I32
    flat = one_node("Reshape", 1, shape=[2, -1])
    del flat.graph.output[0].type.tensor_type.shape.dim[2:]
    wanted = {
        "Cast": (truncated, x.astype(np.int32)),
        "Concat": (one_node("Concat", 1), x),
        "Pad": (
            one_node("Pad", 1, paddings=[0, 0, 0, 1, 0, 0, 0, 0]),
            np.pad(x, [(0, 0)] * 3 + [(1, 0)]),
        ),
        "Reshape": (flat, x.reshape(2, 9)),
        "Upsample": (one_node("Upsample", 1, height_scale=2.0, width_scale=1.0), x.repeat(2, 2)),
        "GlobalLpPool": (one_node("GlobalLpPool", 1, p=1.0), np.abs(x).sum((2, 3), keepdims=True)),
        "Dropout": (one_node("Dropout", 6, is_test=1, ratio=0.9), x),
    }
    for name, (model, expected) in wanted.items():
        np.testing.assert_array_equal(compute(upgrade(model), x=x), expected, err_msg=name)


ONE = np.ones((), np.float32)
CHANNELS = dict.fromkeys(["scale", "bias", "mean", "variance"], np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (one_node("Dropout", 6), "it trains, as it lacks is_test=1"),
        (one_node("BatchNormalization", 6, weights=CHANNELS), "it trains, as it lacks is_test=1"),
        (one_node("Cast", 1, to="WIDE"), "to='WIDE', which is no type"),
        (one_node("LpPool", 1, p=1.5, kernel_shape=[2, 2]), "it has p=1.5"),
        (
            one_node("Tile", 1, weights={"tiles": ONE, "axis": ONE}),
            "one axis",
        ),
    ],
    ids=["dropout", "normalization", "cast", "norm", "tile"],
)
def test_operators_without_a_newer_form_are_rejected(model, reason):
    with pytest.raises(CompileError, match=f"has no form in opset 7: .*{reason}"):
        Converter().convert(model)


def test_an_operand_of_unknown_rank_is_refused():
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], broadcast=1, axis=1)]
    with pytest.raises(CompileError, match=r"dimensions of 'x' or 'w' is not known.*input_shape"):
        get_pass("upgrade_legacy_opset")(model_of(nodes, {"x": (F, None), "w": (F, (3,))}))
