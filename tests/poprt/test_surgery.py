"""What a model says of itself: the version of its format, and which outputs it has."""

import pytest
from onnx import helper
from poprt.passes.base_pass import find_pass
from simipu import CompileError


def model(ir_version=8, outputs="abc"):
    nodes = [helper.make_node("Neg", ["x"], [name]) for name in outputs]
    infos = [helper.make_tensor_value_info(name, 1, [2]) for name in outputs]
    graph = helper.make_graph(nodes, "main", [helper.make_tensor_value_info("x", 1, [2])], infos)
    return helper.make_model(graph, ir_version=ir_version)


@pytest.mark.parametrize(("given", "made"), [(3, 8), (7, 8), (8, 8), (9, 9), (10, 10), (11, 10), (13, 10)])
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
def test_outputs_that_there_are_not_are_named(name, outputs, reason):
    with pytest.raises(CompileError, match=reason):
        outputs_after(name, outputs)
