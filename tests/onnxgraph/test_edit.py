"""Tests of changes to graphs: renaming across bodies, replacing nodes with themselves, and weights
that stay in place."""

import onnx
import pytest
from onnx import TensorProto, helper
from onnxgraph import (
    Tape,
    change_without_weights,
    drop_unread_nodes,
    drop_weights,
    keep_outputs,
    make_body,
    rename,
    replace_inputs,
    replace_nodes,
    set_shape,
    without_weights,
)
from onnxgraph.edit import drop_functions, keep_opsets

F = TensorProto.FLOAT


def value(name):
    return helper.make_tensor_value_info(name, F, [2])


def weight(name, number=1):
    return helper.make_tensor(name, F, [2], [number, number])


def model_of(nodes, inputs=("x",), outputs=("y",), weights=()):
    graph = helper.make_graph(
        nodes,
        "main",
        list(map(value, inputs)),
        list(map(value, outputs)),
        [weight(name) for name in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def add(*names, output="y"):
    return helper.make_node("Add", list(names), [output])


def test_nodes_may_be_replaced_by_nodes_that_are_there():
    graph = model_of([add("x", "x", output="a"), add("a", "a")]).graph
    replace_nodes(graph, reversed(graph.node))
    assert [node.output[0] for node in graph.node] == ["y", "a"]
    replace_inputs(graph, [graph.input[0], value("z")])
    assert [each.name for each in graph.input] == ["x", "z"]


def test_outputs_are_kept_in_the_order_asked_for():
    graph = model_of([], outputs=("a", "b", "c")).graph
    keep_outputs(graph, ["c", "a"])
    assert [each.name for each in graph.output] == ["c", "a"]
    with pytest.raises(KeyError):
        keep_outputs(graph, ["b"])


def test_a_name_is_changed_wherever_bodies_capture_it():
    inner = make_body(Tape("inner", nodes=[helper.make_node("Neg", ["x"], ["n"])]), [], ["n"])
    outer = make_body(
        Tape(
            "outer",
            nodes=[helper.make_node("If", ["c"], ["i"], then_branch=inner, else_branch=inner)],
        ),
        [],
        ["x"],
    )
    graph = model_of(
        [helper.make_node("If", ["c"], ["y"], then_branch=outer, else_branch=outer)]
    ).graph
    rename(graph, {"x": "new", "y": "made"})
    assert list(graph.node[0].output) == ["made"]
    for body in (attribute.g for attribute in graph.node[0].attribute):
        assert body.output[0].name == "new"
        assert body.node[0].attribute[0].g.node[0].input[0] == "new"
    assert [each.name for each in (*graph.input, *graph.output)] == ["x", "y"]


@pytest.mark.parametrize("kind", ["input", "initializer"])
def test_a_body_that_has_the_name_itself_keeps_it(kind):
    body = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"])], "body", [], [value("n"), value("x")]
    )
    getattr(body, kind).append(value("x") if kind == "input" else weight("x"))
    node = helper.make_node("Loop", ["", "", "x"], ["y"], body=body)
    graph = model_of([node]).graph
    rename(graph, {"x": "new"})
    assert list(graph.node[0].input) == ["", "", "new"]
    assert graph.node[0].attribute[0].g == body


def test_weights_go_that_are_not_kept_or_are_there_twice():
    graph = model_of([]).graph
    graph.initializer.extend([weight("a", 1), weight("b"), weight("a", 2)])
    drop_weights(graph, {"a"})
    assert [(tensor.name, tensor.float_data[0]) for tensor in graph.initializer] == [("a", 2)]


def test_a_model_without_weights_has_them_as_inputs_or_not_at_all():
    model = model_of([add("x", "w")], weights=("w", "v"))
    light = without_weights(model, {"w"})
    assert [each.name for each in light.graph.input] == ["x", "w"]
    assert [tensor.name for tensor in light.graph.initializer] == ["v"]
    assert [each.name for each in without_weights(model, {"w"}, as_inputs=False).graph.input] == [
        "x"
    ]
    assert len(model.graph.initializer) == 2


def test_a_change_sees_weights_as_inputs_and_those_still_taken_come_back():
    model = model_of([add("x", "w", output="a"), add("a", "v")], weights=("w", "v", "small"))
    seen = []

    def change(light):
        seen.append([each.name for each in light.graph.input])
        replace_nodes(light.graph, [add("x", "w")])
        return light

    change_without_weights(model, {"w", "v"}, change)
    assert seen == [["x", "w", "v"]]
    assert [tensor.name for tensor in model.graph.initializer] == ["w", "small"]
    assert [each.name for each in model.graph.input] == ["x"]
    onnx.checker.check_model(model)


def test_a_weight_that_is_an_input_too_stays_one():
    model = model_of([add("x", "w")], inputs=("x", "w"), weights=("w",))
    change_without_weights(model, {"w"}, lambda light: light)
    assert [each.name for each in model.graph.input] == ["x", "w"]


def test_shapes_opsets_and_functions_are_set_in_place():
    model = model_of([])
    model.opset_import.add(domain="com.microsoft", version=1)
    model.functions.add(name="f")
    set_shape(model.graph.input[0], (3, 4, 5))
    keep_opsets(model, {""})
    drop_functions(model)
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [3, 4, 5]
    assert [entry.domain for entry in model.opset_import] == [""]
    assert not model.functions


def test_nodes_that_no_output_needs_go_and_what_bodies_read_stays():
    body = helper.make_graph([helper.make_node("Neg", ["b"], ["d"])], "body", [], [value("d")])
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Abs", ["x"], ["b"]),
        helper.make_node("If", ["flag"], ["c"], then_branch=body, else_branch=body),
        helper.make_node("Relu", ["c"], ["e"]),
    ]
    graph = helper.make_graph(nodes, "graph", [value("x")], [value("c")])
    drop_unread_nodes(graph)
    assert [node.output[0] for node in graph.node] == ["b", "c"]
