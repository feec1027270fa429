"""Tests of where half and float results first differ: the nodes, and the cause reported for
each."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper
from poprt.comparing import divergence
from poprt.comparing.divergence import find_divergences
from poprt.comparing.mending import explain

F = TensorProto.FLOAT


@dataclass
class Given:
    """Side of the comparison that answers with given values, by name."""

    model: onnx.ModelProto
    values: dict
    asked: list
    weights: dict = field(default_factory=dict)

    def run(self, feeds, names=None):
        self.asked.append(list(names))
        return [[np.asarray(self.values[name], np.float32) for name in names]]


def chain(*op_types):
    """Return the chain x -> t0 -> t1 -> ...; operators of two operands take the same one twice."""
    nodes, source = [], "x"
    for i, op_type in enumerate(op_types):
        taken = [source] * (2 if op_type in ("Add", "Div", "Mul", "Sub") else 1)
        nodes.append(helper.make_node(op_type, taken, [f"t{i}"], name=f"n{i}"))
        source = f"t{i}"
    inputs, outputs = ([helper.make_tensor_value_info(name, F, [4])] for name in ("x", source))
    graph = helper.make_graph(nodes, "chain", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def sides(model, half, whole):
    return Given(model, half, []), Given(model, whole, [])


ONES = [1, 1, 1, 1]


def test_nodes_part_them_whose_own_operands_are_alike():
    """Later differences belong to the node that caused them. Where the values are equal again, no
    node is reported."""
    model = chain("Neg", "Abs", "Relu", "Exp", "Floor")
    alike, other = ONES, [3, 1, 1, 1]
    half = {"t0": alike, "t1": other, "t2": other, "t3": alike, "t4": other}
    whole = dict.fromkeys(half, alike)
    assert [each.node.name for each in find_divergences(*sides(model, half, whole), {})] == [
        "n1",
        "n4",
    ]


def test_empty_tensors_and_infinities_in_float_too_do_not_diverge():
    model = chain("Neg", "Abs")
    half = {"t0": [np.inf, 0, 0, 0], "t1": [np.nan, 0, 0, 0]}
    whole = {"t0": [np.inf, 0, 0, 0], "t1": [np.inf, 0, 0, 0]}
    assert find_divergences(*sides(model, half, whole), {}) == []


def test_of_a_large_graph_a_sample_is_looked_at_and_what_lies_before_the_first_that_parts(
    monkeypatch,
):
    monkeypatch.setattr(divergence, "MAX_TENSORS", 5)
    model = chain(*["Neg"] * 20)
    half = {f"t{i}": ONES if i < 10 else [3, 1, 1, 1] for i in range(20)}
    ours, theirs = sides(model, half, dict.fromkeys(half, ONES))
    (found,) = find_divergences(ours, theirs, {})
    assert found.node.name == "n10"
    assert ours.asked[:2] == [["t0", "t4", "t8", "t12", "t16"], ["t9", "t10", "t11", "t12"]]


def test_of_large_tensors_no_more_are_looked_at_than_a_few_runs_can_give(monkeypatch):
    monkeypatch.setattr(divergence, "_CHUNK_BYTES", 2 * 16)
    monkeypatch.setattr(divergence, "_MAX_CHUNKS", 2)
    model = chain(*["Neg"] * 20)
    half = {f"t{i}": ONES if i < 10 else [3, 1, 1, 1] for i in range(20)}
    ours, theirs = sides(model, half, dict.fromkeys(half, ONES))
    (found,) = find_divergences(ours, theirs, {})
    assert found.node.name == "n10"
    assert ours.asked[:5] == [["t0", "t5"], ["t10", "t15"], ["t6", "t7"], ["t8", "t9"], ["t10"]]


def test_of_a_sample_nothing_is_looked_at_behind_the_first_that_parts(monkeypatch):
    monkeypatch.setattr(divergence, "_CHUNK_BYTES", 16)
    monkeypatch.setattr(divergence, "_MAX_CHUNKS", 4)
    model = chain(*["Neg"] * 20)
    half = {f"t{i}": ONES if i < 10 else [3, 1, 1, 1] for i in range(20)}
    ours, theirs = sides(model, half, dict.fromkeys(half, ONES))
    assert [each.node.name for each in find_divergences(ours, theirs, {})] == ["n10"]
    assert ["t10"] in ours.asked
    assert ["t15"] not in ours.asked


def test_the_beginning_of_a_large_graph_is_looked_at_first(monkeypatch):
    monkeypatch.setattr(divergence, "MAX_TENSORS", 16)
    model = chain(*["Neg"] * 64)
    beginning, rest = ["t0", "t4"], [f"t{i}" for i in range(8, 64, 4)]
    for first, asked in ((2, [beginning]), (50, [beginning, rest])):
        half = {f"t{i}": ONES if i < first else [3, 1, 1, 1] for i in range(64)}
        ours, theirs = sides(model, half, dict.fromkeys(half, ONES))
        assert [found.node.name for found in find_divergences(ours, theirs, {})] == [f"n{first}"]
        assert ours.asked[: len(asked)] == theirs.asked[: len(asked)] == asked
        assert any("t60" in names for names in ours.asked) == (first == 50)


def test_tensors_are_looked_at_in_pieces_that_fit_into_memory(monkeypatch):
    monkeypatch.setattr(divergence, "_CHUNK_BYTES", 2 * 16)
    model = chain("Neg", "Abs", "Relu")
    ours, theirs = sides(
        model, dict.fromkeys(("t0", "t1", "t2"), ONES), dict.fromkeys("t0 t1 t2".split(), ONES)
    )
    assert find_divergences(ours, theirs, {}) == []
    assert ours.asked == theirs.asked == [["t0", "t1"], ["t2"]]


def test_without_a_way_to_mend_it_the_first_three_are_named_and_the_option():
    model = chain("Neg", "Abs", "Relu", "Exp", "Floor", "Ceil", "Abs")
    alike, other = ONES, [3, 1, 1, 1]
    half = {f"t{i}": alike if i % 2 == 0 else other for i in range(7)}
    half["t6"] = other
    told = explain(*sides(model, half, dict.fromkeys(half, alike)), [{}], [], 0, None)
    assert told.startswith("They first differ at node 'n1' (Abs)")
    assert "'n5'" in told
    assert "'n6'" not in told
    assert told.endswith(
        "Keep such operators in float with fp16_skip_op_types, or the model in fp32"
    )
    same = dict.fromkeys(half, alike)
    assert explain(*sides(model, same, same), [{}], [], 0, None).startswith(
        "No single node causes it"
    )
