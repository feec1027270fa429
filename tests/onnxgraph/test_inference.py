"""Shapes: what is inferred, of the standard's operators and of others, and what is remembered."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import collect_values, infer_shapes, inference, register_shapes, remember_inferences

F = TensorProto.FLOAT
DOMAIN = "test.onnxgraph"


def model_of(nodes, shape=(2, 3), weights=()):
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", F, shape)],
        [helper.make_tensor_value_info("y", F, None)],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def neg(source, result):
    return helper.make_node("Neg", [source], [result])


@pytest.fixture
def doubled(monkeypatch):
    """An operator whose result has twice the rows."""
    monkeypatch.setattr(inference, "_RULES", dict(inference._RULES))

    @register_shapes(DOMAIN, "Double")
    def double(node, taken):
        made = onnx.TypeProto()
        made.CopyFrom(taken[0])
        made.tensor_type.shape.dim[0].dim_value *= 2
        return [made]


def double(source, result):
    return helper.make_node("Double", [source], [result], domain=DOMAIN)


def test_the_rules_of_other_domains_and_those_of_onnx_take_turns(doubled):
    nodes = [double("x", "a"), neg("a", "b"), double("b", "c"), double("c", "d"), neg("d", "y")]
    values = collect_values(model_of(nodes))
    assert [values[name].shape for name in "abcdy"] == [(4, 3), (4, 3), (8, 3), (16, 3), (16, 3)]


def test_an_operator_without_a_rule_leaves_shapes_open():
    assert "y" not in collect_values(model_of([double("x", "a"), neg("a", "y")]))


def test_a_rule_waits_for_what_its_node_takes(doubled):
    model = model_of([double("x", "a"), neg("a", "y")], shape=("n", 3))
    assert "y" not in collect_values(model)


@pytest.fixture
def inferences(monkeypatch):
    """Counts the calls of ONNX's inference."""
    calls, infer = [], onnx.shape_inference.infer_shapes

    def counted(model, **options):
        calls.append(options["strict_mode"])
        return infer(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    return calls


def test_the_same_graph_is_inferred_once_while_inferences_are_remembered(inferences):
    model = model_of([neg("x", "y")])
    with remember_inferences():
        first = infer_shapes(model)
        with remember_inferences():
            assert infer_shapes(model) == first
        model.graph.node[0].op_type = "Abs"
        infer_shapes(model)
    assert len(inferences) == 2
    infer_shapes(model)
    assert len(inferences) == 3


def test_one_inference_serves_those_who_are_strict_and_those_who_are_not(inferences):
    with remember_inferences():
        for strict in (False, True, False):
            infer_shapes(model_of([neg("x", "y")]), strict=strict)
    assert inferences == [True]


def test_what_is_wrong_is_said_each_time_to_those_who_are_strict_only(inferences):
    wrong = model_of([helper.make_node("MatMul", ["x", "x"], ["y"])])
    with remember_inferences():
        for _ in range(2):
            with pytest.raises(onnx.shape_inference.InferenceError):
                infer_shapes(wrong, strict=True)
            assert infer_shapes(wrong).graph.node[0].op_type == "MatMul"
    assert inferences == [True, False]


def test_what_one_asker_does_to_the_answer_the_next_does_not_see():
    model = model_of([neg("x", "y")])
    with remember_inferences():
        infer_shapes(model).graph.node[0].op_type = "Abs"
        assert infer_shapes(model).graph.node[0].op_type == "Neg"


def test_only_the_values_that_shapes_depend_on_travel(inferences):
    large = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    sizes = numpy_helper.from_array(np.array([3, 2]), "s")
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"]), helper.make_node("Neg", ["w"], ["z"])]
    inferred = infer_shapes(model_of(nodes, weights=[large, sizes]))
    assert [bool(tensor.raw_data) for tensor in inferred.graph.initializer] == [False, True]
    assert collect_values(model_of(nodes, weights=[large, sizes]))["y"].shape == (3, 2)
