"""Tests that compile, load and run random graphs of all operators, compare them with ONNX Runtime
without optimisers, and run every pass on them. `make random-graphs` draws thousands of graphs."""

import itertools
import logging

import numpy as np
import onnx
import pytest
from poprt import Converter
from random_graphs import BUILDERS, NEWEST_OPSET, OLDEST_OPSET, draw
from random_graphs.judging import DIFFERS, EQUAL, REFUSED, WRONG, Outcome, judge
from random_graphs.passes import find_passes, judge_pass, judge_passes
from random_graphs.running import CRASHES, Judge, judge_all

MIN_OPERATORS, CI_GRAPHS = 116, 100
MAX_REFUSED = 0.06
"""Maximum share of valid models that may be refused, for example because shapes depend on data."""


@pytest.fixture(autouse=True)
def log_again():
    """Switch the log on again, which `judge` switches off."""
    yield
    logging.disable(logging.NOTSET)


def test_the_same_seed_draws_the_same_graph():
    for seed in (3, 14, 15):
        one, other = draw(seed), draw(seed)
        assert one.model.SerializeToString() == other.model.SerializeToString()
        assert all(np.array_equal(one.feeds[name], value) for name, value in other.feeds.items())
        onnx.checker.check_model(one.model)


@pytest.mark.slow
def test_graphs_are_of_all_operators_and_opsets():
    drawn = [draw(seed).model for seed in range(120)]
    assert len(BUILDERS) >= MIN_OPERATORS
    found = {node.op_type for model in drawn for node in model.graph.node}
    assert found <= set(BUILDERS)
    assert len(found) > 100
    opsets = {model.opset_import[0].version for model in drawn}
    assert opsets == set(range(OLDEST_OPSET, NEWEST_OPSET + 1))
    assert {"If", "Loop", "Scan"} <= found


@pytest.mark.slow
def test_a_wrong_answer_is_found(monkeypatch):
    """The comparison must detect an operator that computes something else."""
    drawn = find_graph_with("Cos")
    assert judge(drawn, "fp32").word == EQUAL
    wrong = onnx.ModelProto()
    wrong.CopyFrom(drawn.model)
    next(node for node in wrong.graph.node if node.op_type == "Cos").op_type = "Sin"
    convert = "random_graphs.judging.Converter.convert"
    own = Converter.convert
    monkeypatch.setattr(convert, lambda self, model: own(self, wrong))
    assert judge(drawn, "fp32").word == DIFFERS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "seeds"), [("fp32", range(CI_GRAPHS)), ("fp16", range(0, CI_GRAPHS, 2))]
)
def test_random_graphs_answer_as_in_onnxruntime(precision, seeds):
    found = list(judge_all(seeds, [precision]))
    assert [each for each in found if each.word in WRONG] == []
    assert sum(each.word == REFUSED for each in found) <= MAX_REFUSED * len(found)
    assert sum(each.word == EQUAL for each in found) > len(found) / 2


def find_wrong(outcomes):
    return [(seed, name, found) for seed, name, found in outcomes if found.word in WRONG]


@pytest.mark.slow
def test_every_pass_keeps_the_answers_of_random_graphs():
    names = find_passes()
    assert len(names) > 100
    assert find_wrong(judge_passes(range(20), names)) == []


def copy(model):
    return model


def find_graph_with(op_type):
    """Return the first random graph that contains the operator."""
    drawn = map(draw, itertools.count())
    return next(
        each for each in drawn if any(node.op_type == op_type for node in each.model.graph.node)
    )


def test_a_pass_that_changes_answers_is_found(monkeypatch):
    def change(model):
        next(node for node in model.graph.node if node.op_type == "Cos").op_type = "Sin"
        return model

    drawn = find_graph_with("Cos")
    monkeypatch.setattr(
        "random_graphs.passes.get_pass", lambda name: change if name == "x" else copy
    )
    assert judge_pass("x", drawn, 0).word == DIFFERS


@pytest.mark.slow
def test_a_graph_that_ends_the_process_is_an_outcome(monkeypatch):
    judge_child = Judge(limit_seconds=30.0)
    try:
        judge_child._child.kill()
        assert judge_child.ask(0, "fp32").word == CRASHES
        assert judge_child.ask(0, "fp32").word == EQUAL
    finally:
        judge_child.close()
    assert Outcome(EQUAL).why == ""
