"""Tests of looking at graphs: bodies, captured names, makers and users."""

import onnx
import pytest
from onnx import TensorProto, helper
from onnxgraph import (
    attribute,
    find_makers,
    find_makers_anywhere,
    find_opset,
    fresh_name,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    iter_reads,
    used_names,
)
from onnxgraph.nodes import find_users, iter_any_bodies

F = TensorProto.FLOAT


def value(name):
    return helper.make_tensor_value_info(name, F, [2])


def body(nodes, inputs=(), outputs=(), weights=()):
    tensors = [helper.make_tensor(name, F, [2], [1, 2]) for name in weights]
    return helper.make_graph(
        nodes, "body", list(map(value, inputs)), list(map(value, outputs)), tensors
    )


def nested():
    """Return a graph with a loop in a branch. Both read `outer`, and the loop's body reads its own
    `own` and `weight`."""
    loop = body(
        [
            helper.make_node("Add", ["own", "outer"], ["sum"]),
            helper.make_node("Mul", ["sum", "weight"], ["m"]),
        ],
        ["own"],
        ["m"],
        ["weight"],
    )
    then = body(
        [helper.make_node("Loop", ["", "go", "outer"], ["looped"], body=loop)], (), ["looped"]
    )
    other = body([helper.make_node("Neg", ["outer"], ["negative"])], (), ["negative"])
    nodes = [
        helper.make_node("Abs", ["x"], ["outer"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    return helper.make_graph(nodes, "main", [value("x"), value("c"), value("go")], [value("y")])


def test_nodes_and_graphs_of_bodies_come_after_the_node_that_holds_them():
    assert [node.op_type for node in iter_nodes(nested())] == [
        "Abs",
        "If",
        "Neg",
        "Loop",
        "Add",
        "Mul",
    ]
    assert sum(1 for _ in iter_graphs(nested())) == 4


def test_a_node_reads_what_its_bodies_capture_and_not_what_they_make():
    condition = nested().node[1]
    assert set(iter_reads(condition)) == {"c", "outer", "go"}


def test_a_bodys_own_name_hides_the_one_outside():
    inner = body([helper.make_node("Neg", ["x"], ["y"])], ["x"], ["y"])
    assert list(iter_reads(helper.make_node("Loop", ["", "", "start"], ["end"], body=inner))) == [
        "start"
    ]


def test_an_output_of_a_body_that_it_does_not_make_is_captured():
    branch = body([], (), ["outside"])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    assert set(iter_reads(node)) == {"c", "outside"}


def test_makers_are_of_the_main_graph_or_of_all_graphs():
    assert set(find_makers(nested())) == {"outer", "y"}
    anywhere = find_makers_anywhere(nested())
    assert set(anywhere) == {"outer", "y", "looped", "own", "sum", "m", "negative"}
    assert anywhere["own"].op_type == "Loop"


def test_users_are_listed_once_and_a_bodys_reading_is_its_nodes():
    graph = nested()
    graph.node.append(helper.make_node("Mul", ["outer", "outer"], ["z"]))
    users = find_users(graph)
    assert [node.op_type for node in users["outer"]] == ["If", "Mul"]
    assert "" not in users


def test_used_and_defined_names_are_those_of_all_graphs():
    assert {"own", "weight", "outer", "looped"} <= used_names(nested())
    assert {"x", "own", "weight", "m", "negative", "y"} <= set(iter_defined(nested()))


def test_a_body_in_an_attribute_that_says_it_holds_a_number_is_seen_by_those_who_look():
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=body([helper.make_node("Neg", ["x"], ["y"])])
    )
    node.attribute[0].type = onnx.AttributeProto.INT
    assert not list(iter_bodies(node))
    assert len(list(iter_any_bodies(node))) == 1


@pytest.mark.parametrize(
    ("taken", "expected"), [((), "a"), (("a",), "a_"), (("a", "a_", "a__"), "a___")]
)
def test_a_fresh_name_is_apart_from_all_that_are_taken(taken, expected):
    assert fresh_name("a", set(taken)) == expected


def test_the_opset_is_the_standards_under_either_spelling():
    model = helper.make_model(body([]), opset_imports=[helper.make_opsetid("ai.graphcore", 1)])
    with pytest.raises(LookupError):
        find_opset(model)
    assert find_opset(model, 11) == 11
    model.opset_import.add(domain="ai.onnx", version=13)
    assert find_opset(model, 11) == 13


def test_an_attribute_is_found_by_its_name_and_has_a_default():
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2, strides=[1, 3])
    assert attribute(node, "strides") == [1, 3]
    assert attribute(node, "group", 1) == 2
    assert attribute(node, "dilations", [1, 1]) == [1, 1]
    assert attribute(node, "dilations") is None
