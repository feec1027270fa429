"""Tests of a model's own declarations: the version of its format, and its outputs."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnxgraph import infer_shapes
from poprt import Converter
from poprt.passes.base_pass import find_pass
from poprt.passes.onnx_helper import topological_sort
from simipu import CompileError


def model(ir_version=8, outputs="abc"):
    nodes = [helper.make_node("Neg", ["x"], [name]) for name in outputs]
    infos = [helper.make_tensor_value_info(name, 1, [2]) for name in outputs]
    graph = helper.make_graph(nodes, "main", [helper.make_tensor_value_info("x", 1, [2])], infos)
    return helper.make_model(graph, ir_version=ir_version)


@pytest.mark.parametrize(
    ("given", "made"), [(3, 8), (7, 8), (8, 8), (9, 9), (10, 10), (11, 10), (13, 10)]
)
def test_the_format_is_one_that_all_that_comes_after_can_read(given, made):
    assert find_pass("limit_ir_version")().run(model(given)).ir_version == made


def outputs_after(name, outputs):
    return [value.name for value in find_pass(name)(outputs=outputs).run(model()).graph.output]


def test_outputs_are_removed_or_kept_in_the_order_asked_for():
    assert outputs_after("remove_outputs", ["b"]) == ["a", "c"]
    assert outputs_after("remove_outputs", []) == ["a", "b", "c"]
    assert outputs_after("keep_outputs", ["c", "a"]) == ["c", "a"]
    assert outputs_after("keep_outputs", None) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "outputs", "reason"),
    [
        ("remove_outputs", ["z", "y"], "remove_outputs names 'y'; the model's outputs are a, b, c"),
        ("remove_outputs", ["a", "b", "c"], "leaves no output; keep at least one of a, b, c"),
        ("keep_outputs", ["a", "z"], "output 'z' is not one of the model's outputs: a, b, c"),
    ],
)
def test_unknown_outputs_are_named(name, outputs, reason):
    with pytest.raises(CompileError, match=reason):
        outputs_after(name, outputs)


def inner_model():
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["a"], ["b"])]
    infos = [helper.make_tensor_value_info(name, 1, ["n"]) for name in "xb"]
    graph = helper.make_graph(nodes, "main", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_checkpoints_are_outputs_of_the_converted_model_under_their_names():
    converted = Converter(batch_size=2, checkpoints=" a ").convert(inner_model())
    assert [value.name for value in converted.graph.output] == ["b", "a"]
    for name in ("nowhere", "x"):
        with pytest.raises(
            CompileError, match=f"checkpoints names '{name}', which no node .* makes"
        ):
            Converter(batch_size=2, checkpoints=name).convert(inner_model())


def test_nodes_of_one_name_get_numbers_that_no_other_has():
    nodes = [helper.make_node("Neg", ["x"], [name], name=called) for name, called in
             zip("abcde", ["n", "n", "n_1", "n", ""], strict=True)]  # fmt: skip
    infos = [helper.make_tensor_value_info(name, 1, [2]) for name in "xe"]
    given = helper.make_model(helper.make_graph(nodes, "main", infos[:1], infos[1:]))
    named = find_pass("unique_name_for_nodes")().run(given)
    assert [node.name for node in named.graph.node] == ["n", "n_2", "n_1", "n_3", "e"]


def test_many_nodes_of_one_name_are_named_in_time():
    nodes = [helper.make_node("Neg", ["x"], [f"y{i}"], name="n") for i in range(20_000)]
    given = helper.make_model(helper.make_graph(nodes, "main", [], []))
    named = find_pass("unique_name_for_nodes")().run(given)
    assert len({node.name for node in named.graph.node}) == 20_000


def test_nodes_are_sorted_with_bodies_counted_as_readers_and_circles_refused():
    inner = [helper.make_node("Abs", ["late"], ["i"])]
    body = helper.make_graph(inner, "b", [], [helper.make_tensor_value_info("i", 1, [2])])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        helper.make_node("Neg", ["x"], ["late"]),
    ]
    graph = helper.make_graph(nodes, "main", [], [])
    assert [node.op_type for node in topological_sort(graph)] == ["Neg", "If"]
    circle = [
        helper.make_node("Neg", ["a"], ["b"], name="n"),
        helper.make_node("Abs", ["b"], ["a"]),
    ]
    with pytest.raises(CompileError, match="depends on its own result"):
        topological_sort(helper.make_graph(circle, "main", [], []))


def test_a_sort_of_a_long_chain_the_wrong_way_round_does_not_recurse():
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"]) for i in range(5_000)]
    ordered = topological_sort(helper.make_graph(nodes[::-1], "main", [], []))
    assert [node.input[0] for node in ordered] == [f"t{i}" for i in range(5_000)]


def test_shapes_are_known_where_bodies_take_constants_from_around_them():
    made = helper.make_node("Reshape", ["x", "s"], ["i"])
    body = helper.make_graph([made], "b", [], [helper.make_tensor_value_info("i", 1, None)])
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)],
        "main",
        [helper.make_tensor_value_info("x", 1, [2, 3]), helper.make_tensor_value_info("c", 9, [])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.int64([3, 2]), "s")],
    )
    given = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    inferred = infer_shapes(given)
    assert [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim] == [3, 2]
    assert not inferred.graph.node[0].attribute[0].g.initializer
