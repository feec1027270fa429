"""Tests of graphs that are rejected: functions of their own, data of another size, files, names
that are not text, and shapes of millions of numbers."""

import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from onnxgraph import GraphError, GraphTooLargeError, check_graph
from onnxgraph.admission import MAX_SHAPE_NUMBERS
from onnxgraph.nodes import MAX_DEPTH

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model_of(*nodes, weights=()):
    graph = helper.make_graph(nodes, "main", [], [], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def within(depth, *nodes):
    """Return a model with the nodes in a body that is nested `depth` levels deep."""
    for _ in range(depth):
        nodes = (
            helper.make_node(
                "If", ["c"], ["y"], then_branch=helper.make_graph(nodes, "body", [], [])
            ),
        )
    return model_of(*nodes)


def constant(tensor):
    return helper.make_node("Constant", [], ["k"], value=tensor)


def tensor(data_type=FLOAT, dims=(2,), name="w", **data):
    return TensorProto(name=name, data_type=data_type, dims=dims, **data)


@pytest.mark.parametrize(
    "data",
    [
        {"float_data": [1, 2]},
        {"raw_data": bytes(8)},
        {"dims": (0,)},
        {"dims": (), "float_data": [1]},
        {"data_type": TensorProto.COMPLEX64, "float_data": [1, 2, 3, 4]},
        {"data_type": TensorProto.INT4, "dims": (5,), "int32_data": [1, 2, 3]},
        {"data_type": TensorProto.INT4, "dims": (5,), "raw_data": bytes(3)},
        {"data_type": TensorProto.BFLOAT16, "raw_data": bytes(4)},
        {"data_type": TensorProto.FLOAT8E5M2, "raw_data": bytes(2)},
        {"data_type": TensorProto.STRING, "string_data": [b"a"]},
    ],
    ids=repr,
)
def test_a_tensor_with_the_data_of_its_shape_passes_wherever_it_stands(data):
    check_graph(model_of(weights=[tensor(**data)]))
    check_graph(within(1, constant(tensor(**data))))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "size of its data does not match its shape"),
        ({"float_data": [1, 2, 3]}, "size of its data does not match its shape"),
        ({"raw_data": bytes(7)}, "size of its data does not match its shape"),
        ({"raw_data": bytes(16)}, "size of its data does not match its shape"),
        (
            {"data_type": TensorProto.INT4, "int32_data": [1, 2, 3]},
            "size of its data does not match its shape",
        ),
        ({"data_type": TensorProto.UNDEFINED}, "expected an element type of ONNX and sizes"),
        ({"data_type": 99}, "expected an element type of ONNX and sizes"),
        ({"dims": (-1,)}, "expected an element type of ONNX and sizes"),
        ({"data_location": TensorProto.EXTERNAL}, "refers to a file"),
    ],
    ids=repr,
)
def test_a_tensor_without_them_is_refused_wherever_it_stands(data, reason):
    for model in (model_of(weights=[tensor(**data)]), within(2, constant(tensor(**data)))):
        with pytest.raises(GraphError, match=reason):
            check_graph(model)


@pytest.mark.parametrize("data", [{}, {"data_location": TensorProto.EXTERNAL}], ids=repr)
def test_only_weights_of_the_main_graph_may_lack_their_data_and_only_where_that_is_asked_for(data):
    check_graph(model_of(weights=[tensor(**data)]), without_weights=True)
    with pytest.raises(GraphError):
        check_graph(model_of(weights=[tensor(**data)]))
    with pytest.raises(GraphError):
        check_graph(model_of(constant(tensor(**data))), without_weights=True)
    sparse = model_of()
    sparse.graph.sparse_initializer.add(
        values=tensor(**data), indices=tensor(INT64, int64_data=[0, 1])
    )
    with pytest.raises(GraphError):
        check_graph(sparse, without_weights=True)


def test_weights_that_may_lack_their_data_may_not_have_others():
    with pytest.raises(GraphError, match="size of its data does not match"):
        check_graph(model_of(weights=[tensor(float_data=[1])]), without_weights=True)


def test_sparse_attributes_are_looked_into_where_there_are_any():
    node = helper.make_node("Constant", [], ["k"])
    node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
    node.attribute[0].sparse_tensor.dims.append(2)
    check_graph(model_of(node))
    node.attribute[0].sparse_tensor.values.CopyFrom(tensor(float_data=[1]))
    with pytest.raises(GraphError, match="size of its data does not match"):
        check_graph(model_of(node), without_weights=True)


@pytest.mark.parametrize("field", ["functions", "training_info"])
def test_functions_and_training_are_refused(field):
    model = model_of()
    getattr(model, field).add()
    with pytest.raises(GraphError, match="functions or training steps of its own"):
        check_graph(model)


def test_graphs_nest_no_deeper_than_any_known_ones():
    neg = helper.make_node("Neg", ["x"], ["y"])
    check_graph(within(MAX_DEPTH - 1, neg))
    with pytest.raises(GraphError, match=f"more than {MAX_DEPTH} deep"):
        check_graph(within(MAX_DEPTH + 1, neg))


@pytest.mark.parametrize("place", ["output", "attribute", "op_type", "value_info", "initializer"])
@pytest.mark.parametrize("depth", [0, 2])
def test_names_that_are_no_text_are_refused_wherever_they_stand(place, depth):
    """When protobuf parses a message, it accepts text that is not UTF-8 and returns it as bytes."""
    node = helper.make_node("Neg", ["x"], ["b@d" if place == "output" else "y"])
    inner = helper.make_graph([node], "inner", [], [])
    if place == "op_type":
        node = inner.node[0]
        node.op_type = "b@d"
    elif place == "attribute":
        inner.node[0].attribute.add(name="b@d", type=onnx.AttributeProto.INT)
    elif place == "value_info":
        inner.value_info.add(name="b@d")
    elif place == "initializer":
        inner.initializer.append(tensor(name="b@d", float_data=[1, 2]))
    model = within(depth, *inner.node)
    innermost = model.graph
    for _ in range(depth):
        innermost = innermost.node[0].attribute[0].g
    innermost.value_info.extend(inner.value_info)
    innermost.initializer.extend(inner.initializer)
    check_graph(model)
    damaged = model.SerializeToString().replace(b"b@d", b"b\xffd")
    try:
        hostile = onnx.load_from_string(damaged)
    except DecodeError:
        pytest.skip("this protobuf refuses such names itself")
    with pytest.raises(GraphError, match="expected names in UTF-8"):
        check_graph(hostile)


def chain(op_type, first, rounds, **more):
    """Yield nodes that each take the result of the previous one twice."""
    for i in range(rounds):
        taken = first if i == 0 else f"r{i - 1}"
        yield helper.make_node(op_type, [taken, taken], [f"r{i}"], **more)


SEED = tensor(INT64, (1 << 10,), name="s", raw_data=bytes(8 << 10))


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("as_weight", [True, False])
def test_shapes_computed_by_chains_of_concat_have_a_limit(depth, as_weight):
    doublings = (MAX_SHAPE_NUMBERS // (1 << 10)).bit_length() - 1
    for rounds, fits in ((doublings, True), (doublings + 1, False)):
        nodes = list(chain("Concat", "s" if as_weight else "k", rounds, axis=0))
        nodes = nodes if as_weight else [constant(SEED), *nodes]
        model = within(depth, *nodes)
        if as_weight:
            model.graph.initializer.append(SEED)
        if fits:
            check_graph(model)
        else:
            with pytest.raises(GraphTooLargeError, match=r"a shape of 2.1e\+06 numbers"):
                check_graph(model)


def test_values_that_are_no_shapes_do_not_count_as_work():
    """Matrices are not shapes, nor are results of operators through which onnx follows no values. A
    sum is as long as its operands."""
    rows = helper.make_node("Exp", ["s"], ["e"])
    check_graph(model_of(rows, *chain("Concat", "e", 20, axis=0), weights=[SEED]))
    matrix = tensor(INT64, (1, 1 << 10), name="s", raw_data=SEED.raw_data)
    check_graph(model_of(*chain("Concat", "s", 20, axis=0), weights=[matrix]))
    check_graph(model_of(*chain("Add", "s", 20), weights=[SEED]))
    shape = helper.make_node("Shape", ["s"], ["n"])
    check_graph(model_of(shape, *chain("Concat", "n", 20, axis=0), weights=[SEED]))
    with pytest.raises(GraphTooLargeError):
        check_graph(model_of(shape, *chain("Concat", "n", 21, axis=0), weights=[SEED]))
    negated = helper.make_node("Neg", ["s"], ["n"])
    with pytest.raises(GraphTooLargeError):
        check_graph(model_of(negated, *chain("Concat", "n", 11, axis=0), weights=[SEED]))


def test_the_limit_counts_every_number_and_nothing_else():
    doubled = list(chain("Concat", "s", 10, axis=0))
    other, one = helper.make_node("Exp", ["s"], ["e"]), helper.make_node("Size", ["s"], ["n"])
    for last, fits in ((["r9", "e", "e"], True), (["r9", "e", "n"], False)):
        model = model_of(
            other, one, *doubled, helper.make_node("Concat", last, ["y"], axis=0), weights=[SEED]
        )
        if fits:
            check_graph(model)
        else:
            with pytest.raises(GraphTooLargeError):
                check_graph(model)
