"""Tests of the writer of nodes, and of the operators written as others beside ONNX's reference."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper
from onnx.reference import ReferenceEvaluator
from onnxgraph import GraphView, NameScope, NoFacts, Site, Tape, UnknownFactError, Value, expand
from onnxgraph.expansions import EXPANSIONS, fast_gelu, vector_product
from onnxgraph.opsets import MOVED
from onnxgraph.tape import _find_type

NEWEST = 26
VALUES = np.array([[-np.inf, -70000.0, -2.5, -0.0], [0.0, 1e-8, 3.0, np.inf]], np.float32)
ATTRIBUTES = {
    "Celu": [{}, {"alpha": 2.5}],
    "Gelu": [{}, {"approximate": "tanh"}],
    "LayerNormalization": [{}, {"axis": 0}, {"axis": -2, "epsilon": 0.5}],
    "RMSNormalization": [{}, {"axis": 0}, {"epsilon": 0.5}],
    "Swish": [{}, {"alpha": 1.7}],
}
SCALED = ("LayerNormalization", "RMSNormalization")


class _Facts(NoFacts):
    """Facts of tensors with known values."""

    def __init__(self, feeds):
        self._feeds = feeds

    def type(self, name):
        return helper.np_dtype_to_tensor_dtype(self._feeds[name].dtype)

    def shape(self, name):
        return self._feeds[name].shape

    def rank(self, name):
        return self._feeds[name].ndim


def compute(nodes, feeds, outputs, opset):
    """Return the results of nodes by ONNX's reference."""
    inputs = [helper.make_tensor_value_info(name, _Facts(feeds).type(name), None) for name in feeds]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "test", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)


def feed(op_type, dtype):
    with np.errstate(over="ignore"):
        values = VALUES.astype(dtype)
    if op_type in SCALED:
        values[~np.isfinite(values) | (abs(values) > 100)] = 5
        scale = np.linspace(0.5, 2, 4).astype(dtype)
        return {"x": values, "scale": scale, "bias": scale[::-1].copy()}
    if op_type.endswith("OrEqual"):
        return {"x": values, "y": np.array([[np.nan, 3, -2.5, 0], [0, 0, 3, np.inf]], dtype)}
    return {"x": values}


@pytest.mark.parametrize(
    ("op_type", "attributes", "dtype"),
    [
        (op_type, attributes, dtype)
        for op_type in EXPANSIONS
        for attributes in ATTRIBUTES.get(op_type, [{}])
        for dtype in (np.float32, np.float16)
        if (op_type, dtype) != ("Celu", np.float16)  # the standard has it in float only
    ],
)
def test_an_expansion_computes_what_the_reference_does(op_type, attributes, dtype):
    since, expansion = EXPANSIONS[op_type]
    feeds = feed(op_type, dtype)
    if attributes.get("axis") in (0, -2):
        feeds |= {name: np.resize(feeds[name], (2, 4)) for name in ("scale", "bias")}
    names = list(feeds)[: 2 if op_type == "RMSNormalization" else None]
    feeds = {name: feeds[name] for name in names}
    node = helper.make_node(op_type, names, ["y"], "named", **attributes)
    with np.errstate(all="ignore"):
        (expected,) = compute([node], feeds, ["y"], max(since, NEWEST))
    for opset in {max(7, since - 1), 11} - set(range(since, 99)):
        nodes = expand(node, expansion, Tape("y/new", opset), _Facts(feeds))
        assert [made.name for made in nodes if "y" in made.output] == ["named"]
        (result,) = compute(nodes, feeds, ["y"], opset)
        assert result.dtype == expected.dtype
        tolerance = 3e-3 if dtype == np.float16 else 3e-6
        np.testing.assert_allclose(
            result.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance
        )


def test_a_gelu_of_the_largest_numbers_does_not_overflow():
    feeds = {"x": np.array([3e38, -3e38, 65504], np.float32)}
    node = helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")
    nodes = expand(node, fast_gelu, Tape("y/new"))
    (result,) = compute(nodes, feeds, ["y"], 17)
    np.testing.assert_array_equal(result, feeds["x"] * [1, 0, 1])


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("shapes", [((3,), (2, 3, 4)), ((2, 5, 3), (3,))])
def test_a_product_with_a_vector_is_that_of_numpy(opset, shapes):
    random = np.random.default_rng(0)
    feeds = {name: random.normal(size=shape) for name, shape in zip("ab", shapes, strict=True)}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    nodes = expand(node, vector_product, Tape("y/new", opset), _Facts(feeds))
    (result,) = compute(nodes, feeds, ["y"], opset)
    np.testing.assert_allclose(result, np.matmul(feeds["a"], feeds["b"]), rtol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "attribute"), [(op, name) for op, names in MOVED.items() for name in names]
)
def test_moved_attributes_are_those_of_the_standard(op_type, attribute):
    since, place, element_type = MOVED[op_type][attribute]
    before, after = (defs.get_schema(op_type, opset) for opset in (since - 1, since))
    assert attribute in before.attributes or attribute == "steps"  # which were always 1
    assert attribute not in after.attributes
    parameter = after.inputs[place]
    expected = after.inputs[0].type_str if element_type == 0 else "tensor(int64)"
    assert expected in (parameter.type_str, *parameter.types)


def test_the_type_of_a_result_is_known_for_each_operator_of_the_standard():
    for schema in defs.get_all_schemas():
        if schema.domain == "" and schema.outputs:
            element_type, place = _find_type(schema.name)
            assert element_type >= 0
            assert -1 <= place < len(schema.inputs)


def test_constants_take_the_type_of_the_values_beside_them():
    op = Tape("new")
    half = op.read("x", TensorProto.FLOAT16)
    op.Where(op.Greater(half, 0.5), 1 - half, 2.0)
    types = [node.attribute[0].t.data_type for node in op.nodes if node.op_type == "Constant"]
    assert types == [TensorProto.FLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT16]


def test_a_value_is_the_name_of_its_tensor():
    op = Tape("new")
    value = op.Relu("x")
    assert value == "new/0"
    assert isinstance(value, Value)
    assert {value: 1}["new/0"] == 1
    assert f"{value}/more" == "new/0/more"


@pytest.mark.parametrize("opset", [12, 13, 17, 18])
def test_attributes_stand_where_the_opset_has_them(opset):
    op = Tape("new", opset)
    op.ReduceMean(op.Squeeze(op.read("x", TensorProto.FLOAT), axes=[0]), axes=[1])
    nodes = op.finish(op.nodes[-1].output[0], ["y"])
    (result,) = compute(nodes, {"x": np.ones((1, 2, 3), np.float32)}, ["y"], opset)
    assert result.shape == (2, 1)


def test_results_that_are_inputs_or_are_wanted_twice_get_identities():
    op = Tape("new", 17)
    x = op.read("x", TensorProto.FLOAT)
    doubled = x + x
    nodes = op.finish([doubled, x, doubled, None], ["a", "b", "c", "d"], "title")
    results = compute(nodes, {"x": np.array([3], np.float32)}, ["a", "b", "c"], 17)
    assert [value.tolist() for value in results] == [[6], [3], [6]]
    assert [node.name for node in nodes if "a" in node.output] == ["title"]


def test_unused_results_are_left_out():
    op = Tape("new", 17)
    nodes = op.finish([op.Abs("x"), op.Neg("x")], ["a", ""])
    assert [list(node.output) for node in nodes] == [["a"], ["new/1"]]


def test_a_result_is_renamed_in_bodies_too():
    op, inner = Tape("new", 17), Tape("inner")
    value = op.Abs("x")
    outputs = [helper.make_empty_tensor_value_info(inner.Neg(value))]
    body = helper.make_graph(inner.nodes, "body", [], outputs)
    op.If("c", then_branch=body, else_branch=body)
    op.finish(value, ["y"])
    assert op.nodes[1].attribute[0].g.node[0].input[0] == "y"


def test_a_copy_keeps_the_name_and_what_is_not_changed():
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], "cell", hidden_size=3, layout=1)
    op = Tape("new", 17)
    results = op.copy(node, ["z", "w", "r"], ["layout"], clip=2.0)
    (copy,) = op.nodes
    assert (copy.name, list(copy.input), results[0]) == ("cell", ["z", "w", "r"], "")
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in copy.attribute}
    assert attributes == {"hidden_size": 3, "clip": 2.0}


def test_a_tape_that_stays_empty_takes_no_prefix():
    node = helper.make_node("Abs", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
    names = NameScope.of(model)
    view = GraphView(names, model.graph)
    view.start(node, "new")
    op = view.start(node, "new")
    assert op.Neg("x") == "y/new/0"
    assert op.constant(2.0) == "y/new/constant_0"
    assert [tensor.name for tensor in names.added] == ["y/new/constant_0"]


def test_a_site_reads_both_forms_of_an_attribute_and_names_what_is_not_known():
    tensor = onnx.numpy_helper.from_array(np.array([2, 1]), "axes")
    node = helper.make_node("ReduceMax", ["x", "axes"], ["y"])
    values = [helper.make_tensor_value_info(name, 1, None) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    view = GraphView(NameScope.of(model), model.graph)
    site = Site(node, view, view.start(node, "new"))
    assert site.get("axes") == [2, 1]
    assert site.get("keepdims", 1) == 1
    with pytest.raises(UnknownFactError, match="the shape of its input 'x' is not known"):
        site.shape()
    node.input[1] = "computed"
    with pytest.raises(UnknownFactError, match="its axes would have to be constant"):
        site.get("axes")


@pytest.mark.parametrize("opset", [10, 11, 17])
def test_bounds_and_fills_are_valid_in_either_form(opset):
    op = Tape("new", opset)
    padded = op.Pad(op.read("x", TensorProto.FLOAT), pads=[0, 1], value=7)
    nodes = op.finish(op.Clip(padded, min=-1, max=6), ["y"])
    values = [helper.make_tensor_value_info(*spec) for spec in (("x", 1, [2]), ("y", 1, [3]))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.checker.check_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), full_check=True
    )
