"""Tests of where the constants of a model are stored."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracles import unoptimised_session
from poprt.passes import get_pass
from sample_models import make_model

B, F = TensorProto.BOOL, TensorProto.FLOAT


def branch(kind, nodes, held, output):
    weights = [
        numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in held.items()
    ]
    return helper.make_graph(
        nodes, kind, [], [helper.make_tensor_value_info(output, F, [2])], weights
    )


def branches(yes, no):
    node = helper.make_node("If", ["which"], ["y"], name="if", then_branch=yes, else_branch=no)
    inputs = {"x": (F, [2]), "which": (B, [])}
    return make_model([node], inputs, {"y": (F, [2])}, {"w": np.float32([9, 8])})


def answers(model):
    session = unoptimised_session(model)
    x = np.float32([1, 2])
    return [
        session.run(None, {"x": x, "which": np.array(which)})[0].tolist() for which in (True, False)
    ]


def test_bodies_side_by_side_may_use_one_name_for_two_tensors():
    yes, no = (
        branch(kind, [helper.make_node("Add", ["x", "v"], [f"{kind}y"])], {"v": value}, f"{kind}y")
        for kind, value in (("yes", [1, 2]), ("no", [3, 4]))
    )
    model = branches(yes, no)
    expected = answers(model)
    changed = get_pass("move_subgraph_initializer")(model)
    onnx.checker.check_model(changed, full_check=True)
    assert [tensor.name for tensor in changed.graph.initializer] == ["w", "v", "v_"]
    assert answers(changed) == expected == [[2, 4], [4, 6]]


def test_a_body_returns_copies_of_unchanged_weights():
    yes = branch("yes", [helper.make_node("Neg", ["x"], ["yesy"])], {}, "yesy")
    model = branches(yes, branch("no", [], {"noy": [5, 6]}, "noy"))
    changed = get_pass("move_subgraph_initializer")(model)
    onnx.checker.check_model(changed, full_check=True)
    assert answers(changed) == [[-1, -2], [5, 6]]


def test_bodies_inside_bodies_hand_their_constants_out_too():
    inner = helper.make_node(
        "If",
        ["which"],
        ["i"],
        name="inner",
        then_branch=branch("a", [helper.make_node("Add", ["x", "v"], ["ay"])], {"v": [1, 1]}, "ay"),
        else_branch=branch("b", [helper.make_node("Mul", ["x", "u"], ["by"])], {"u": [2, 2]}, "by"),
    )
    outer = [inner, helper.make_node("Add", ["i", "t"], ["yesy"])]
    model = branches(
        branch("yes", outer, {"t": [10, 10]}, "yesy"),
        branch("no", [helper.make_node("Neg", ["x"], ["noy"])], {}, "noy"),
    )
    changed = get_pass("move_subgraph_initializer")(model)
    assert {tensor.name for tensor in changed.graph.initializer} == {"w", "v", "u", "t"}
    assert answers(changed) == [[12, 13], [-1, -2]]


def test_equal_constants_of_bodies_are_those_around_them():
    yes, no = (
        branch(
            kind,
            [helper.make_node("Add", ["x", f"{kind}v"], [f"{kind}y"])],
            {f"{kind}v": value},
            f"{kind}y",
        )
        for kind, value in (("yes", [9, 8]), ("no", [3, 4]))
    )
    changed = get_pass("remove_duplicated_initializer")(branches(yes, no))
    graphs = [each.g for each in changed.graph.node[0].attribute]
    assert sorted(t.name for graph in graphs for t in graph.initializer) == ["nov"]
    assert answers(changed) == [[10, 10], [4, 6]]


def test_weights_that_are_not_trained_yet_stay_apart():
    weights = {"v": np.float32([0, 0]), "u": np.float32([0, 0])}
    nodes = [helper.make_node("Add", ["x", "v"], ["a"]), helper.make_node("Add", ["a", "u"], ["y"])]
    model = make_model(nodes, {"x": (F, [2])}, {"y": (F, [2])}, weights)
    for name in ("remove_duplicated_initializer", "eliminate_nop_arithmetic"):
        model = get_pass(name)(model)
    assert {tensor.name for tensor in model.graph.initializer} == {"v", "u"}
    assert [list(node.input) for node in model.graph.node] == [["x", "v"], ["a", "u"]]


@pytest.mark.parametrize(
    ("held", "element", "value"),
    [
        ({"value": numpy_helper.from_array(np.int32([[1]]))}, TensorProto.INT32, [[1]]),
        ({"value_int": 3}, TensorProto.INT64, 3),
        ({"value_ints": [3, 4]}, TensorProto.INT64, [3, 4]),
        ({"value_float": 0.5}, F, 0.5),
        ({"value_floats": [0.5]}, F, [0.5]),
    ],
)
def test_constants_are_extracted_however_they_are_written(held, element, value):
    nodes = [helper.make_node("Constant", [], ["c"], **held), helper.make_node("Neg", ["c"], ["y"])]
    model = make_model(nodes, {}, {"y": (element, None)}, {})
    changed = get_pass("extract_constant_to_initializer")(model)
    (found,) = changed.graph.initializer
    assert (found.name, found.data_type, numpy_helper.to_array(found).tolist()) == (
        "c",
        element,
        value,
    )
    assert [node.op_type for node in changed.graph.node] == ["Neg"]


def test_strings_stay_nodes():
    nodes = [helper.make_node("Constant", [], ["c"], value_strings=["a"])]
    nodes.append(helper.make_node("Identity", ["c"], ["y"]))
    model = make_model(nodes, {}, {"y": (TensorProto.STRING, [1])}, {})
    assert len(get_pass("extract_constant_to_initializer")(model).graph.node) == 2
