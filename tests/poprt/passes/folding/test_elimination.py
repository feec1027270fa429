"""Tests of elimination: unneeded nodes are removed, and an If whose condition is known becomes the
nodes of the branch taken."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from poprt.passes.base_pass import find_pass

F, BOOL = TensorProto.FLOAT, TensorProto.BOOL


def value(name, shape=(3,), kind=F):
    return helper.make_tensor_value_info(name, kind, shape)


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def branch(nodes, *outputs, weights=()):
    tensors = [
        numpy_helper.from_array(np.full(3, number, np.float32), name) for name, number in weights
    ]
    return helper.make_graph(nodes, "branch", [], [value(name) for name in outputs], tensors)


def choose(condition, outputs, then_branch, else_branch):
    return helper.make_node(
        "If", [condition], outputs, then_branch=then_branch, else_branch=else_branch
    )


def model_of(nodes, known=None, inputs=(), outputs=("y",)):
    weights = [numpy_helper.from_array(np.array(known), "c")] if known is not None else []
    graph = helper.make_graph(
        nodes, "main", [value("x"), *inputs], [value(name) for name in outputs], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def eliminate(model):
    given = onnx.ModelProto()
    given.CopyFrom(model)
    eliminated = find_pass("eliminate_nop_if")().run(given)
    onnx.checker.check_model(eliminated, full_check=True)
    x = np.array([-1, 0, 2], np.float32)
    ours, theirs = (ReferenceEvaluator(each).run(None, {"x": x}) for each in (eliminated, model))
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our, their)
    return eliminated.graph


BRANCHES = (
    branch([node("Neg", "x", "r"), node("Add", "r w", "own")], "own", weights=[("w", 5)]),
    branch([node("Abs", "x", "r"), node("Mul", "r w", "other")], "other", weights=[("w", 7)]),
)


@pytest.mark.parametrize(("known", "made"), [(True, ["Neg", "Add"]), (False, ["Abs", "Mul"])])
def test_the_branch_taken_is_computed_and_only_names_that_both_use_change(known, made):
    graph = eliminate(model_of([choose("c", ["y"], *BRANCHES)], known))
    assert [each.op_type for each in graph.node] == [*made, "Identity"]
    own = "own" if known else "other"
    assert [each.output[0] for each in graph.node] == ["y/r", own, "y"]
    assert list(graph.node[1].input) == ["y/r", "y/w"]
    assert [tensor.name for tensor in graph.initializer] == ["c", "y/w"]


def test_branches_in_branches_are_taken_and_names_stay_apart():
    inner = branch([choose("c", ["r"], *BRANCHES)], "r")
    graph = eliminate(
        model_of(
            [
                choose("c", ["a"], inner, inner),
                choose("c", ["y"], inner, inner),
            ],
            True,
        )
    )
    made = [name for each in graph.node for name in each.output]
    assert "If" not in {each.op_type for each in graph.node}
    assert len(made) == len(set(made))


def test_a_condition_of_shapes_is_known_and_one_of_values_is_not():
    sized = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Equal", "n three", "c"),
        choose("c", ["y"], *BRANCHES),
    ]
    model = model_of(sized)
    for name, number in (("zero", 0), ("three", 3)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    assert "If" not in {each.op_type for each in eliminate(model).node}
    asked = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Cast", "s", "c", to=BOOL),
        choose("c", ["y"], *BRANCHES),
    ]
    assert [each.op_type for each in eliminate(model_of(asked)).node] == ["ReduceSum", "Cast", "If"]


def test_a_condition_of_random_numbers_is_not_folded():
    drawn = [
        node("RandomUniform", "", "u", shape=[1]),
        node("Cast", "u", "c", to=BOOL),
        choose("c", ["y"], BRANCHES[0], BRANCHES[0]),
    ]
    model = model_of(drawn)
    found = find_pass("eliminate_nop_if")().run(model).graph
    assert [each.op_type for each in found.node] == ["RandomUniform", "Cast", "If"]


def test_a_branch_inside_a_loop_is_taken_too():
    body = helper.make_graph(
        [node("Identity", "go", "on"), choose("c", ["next"], *BRANCHES)],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], BOOL), value("state")],
        [value("on", [], BOOL), value("next")],
    )
    model = model_of([helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)], True)
    model.graph.initializer.append(numpy_helper.from_array(np.array(2), "trips"))
    (loop,) = eliminate(model).node
    assert [each.op_type for each in loop.attribute[0].g.node] == [
        "Identity",
        "Neg",
        "Add",
        "Identity",
    ]


def test_unused_results_of_an_if_get_no_name():
    both = branch([node("Neg", "x", "a"), node("Abs", "x", "b")], "a", "b")
    graph = eliminate(model_of([choose("c", ["", "y"], both, both)], True))
    assert [name for each in graph.node for name in each.output if each.op_type == "Identity"] == [
        "y"
    ]
