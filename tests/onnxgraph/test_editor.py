"""Tests of the rewriting engine: the editor of a graph, and the names that it gives."""

import numpy as np
import onnx
import pytest
from onnx import parser
from onnxgraph import GraphEditor, NameScope, drop_unread
from poprt.rewrite.rules import GraphRule, NodeRule

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[2] x) => (float[2] y, float[2] z) <float[1] w = {2.0}> {
   a = Neg(x)
   b = Identity(a)
   c = Mul(b, w)
   y = Add(c, b)
   d = Abs(a)
   z = Identity(d)
}
"""


@pytest.fixture
def model():
    return parser.parse_model(TEXT)


@pytest.fixture
def editor(model):
    made = GraphEditor(NameScope.of(model), model.graph)
    made.index()
    return made


def show(graph):
    return [(node.op_type, *node.input, *node.output) for node in graph.node]


def test_readers_of_a_bypassed_node_read_its_source(editor, model):
    assert editor.bypass(editor.maker("b"), "a")
    assert editor.count_reads("a") == 3
    editor.finish()
    assert show(model.graph)[:3] == [
        ("Neg", "x", "a"),
        ("Mul", "a", "w", "c"),
        ("Add", "c", "a", "y"),
    ]


def test_an_output_keeps_its_name_when_its_node_is_bypassed(editor, model):
    assert editor.bypass(editor.maker("z"), "d")
    editor.finish()
    assert show(model.graph)[-1] == ("Abs", "a", "z")


def test_an_output_is_not_bypassed_to_an_input(model):
    model.graph.node[-1].input[0] = "x"
    editor = GraphEditor(NameScope.of(model), model.graph)
    editor.index()
    assert not editor.bypass(editor.maker("z"), "x")


def test_nodes_that_nothing_reads_any_more_go(editor, model):
    editor.set_input(editor.maker("y"), 0, "b")
    editor.finish()
    assert "Mul" not in {node.op_type for node in model.graph.node}
    assert editor.names.maybe_unread >= {"w"}


def test_a_node_that_reads_a_tensor_twice_counts_as_one_reader(editor):
    editor.set_inputs(editor.maker("y"), ["c", "c"])
    assert editor.is_read_once("c")
    assert editor.count_reads("c") == 2
    assert editor.private_maker("c") is None


def test_taken_names_get_underscores_or_numbers(model):
    names = NameScope.of(model)
    assert [names.take("a"), names.take("a")] == ["a_", "a__"]
    assert [names.take("b", is_numbered=True), names.take("b", is_numbered=True)] == ["b_1", "b_2"]
    assert [names.take_prefix("a"), names.take_prefix("a")] == ["a", "a_"]


def test_a_node_rule_sees_the_graph_as_it_is_given(model):
    seen = []

    class Rule(NodeRule):
        op_types = frozenset(("Neg", "Identity"))

        def replace(self, op, site):
            maker = site.facts.maker(site.node.input[0])
            seen.append(maker.op_type if maker is not None else "")
            return op.Sqrt(op.Abs(site.x))

    changed = Rule().run(model)
    assert seen == ["", "Neg", "Abs"]
    assert "a/new/0" in {name for node in changed.graph.node for name in node.output}


def test_a_graph_rule_sees_what_it_has_made_and_drops_the_weights_it_leaves(model):
    class Rule(GraphRule):
        op_types = frozenset(("Mul", "Add"))

        def rewrite_at(self, node, view):
            made = view.start(node, "new")
            made.add_as(node.output[0], "Abs", node.input[0])
            assert node.op_type == "Mul" or view.maker("c", "Abs") is not None
            view.replace(node, made.nodes)

    changed = Rule().run(model)
    onnx.checker.check_model(changed, full_check=True)
    assert not changed.graph.initializer
    assert {node.op_type for node in changed.graph.node} == {"Neg", "Identity", "Abs"}


def test_inputs_of_a_node_that_is_removed_already_are_not_set(model):
    """Nothing reads the result of a bypassed node, so the node before it is removed too."""
    model.graph.node.append(onnx.helper.make_node("Neg", ["w"], ["dead"]))
    model.graph.node.append(onnx.helper.make_node("Identity", ["dead"], ["unread"]))
    editor = GraphEditor(NameScope.of(model), model.graph)
    editor.index()
    node = editor.maker("dead")
    assert editor.bypass(editor.maker("unread"), "dead")
    editor.set_input(node, 0, editor.hold("w/scaled", np.ones(1, np.float32)))
    editor.finish()
    drop_unread(model.graph, editor.names)
    assert show(model.graph)[-1] == ("Identity", "d", "z")
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
