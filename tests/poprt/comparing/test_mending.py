"""Tests of the search for operators to keep in float: what it finds, and what it says when it finds
nothing."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poprt.comparing import mending
from poprt.comparing.divergence import Divergence
from poprt.comparing.mending import FloatSearch, explain
from simipu import CompileError

F = TensorProto.FLOAT
TYPES = "Abs Acos Acosh Asin Asinh Atan Ceil Cos Cosh Erf Exp Floor Log Neg Relu Sigmoid".split()


@dataclass
class Fixed:
    """Side with the outputs of a choice of operators in float."""

    model: onnx.ModelProto
    find_error: Callable
    weights: dict = field(default_factory=dict)

    def run(self, feeds, names=None):
        errors = [self.find_error(batch.get("number", 0)) for batch in feeds]
        return [[np.float32([1 + error])] * len(names or "y") for error in errors]


def chain(types):
    names = ["x", *(f"t{i}" for i in range(len(types) - 1)), "y"]
    nodes = [
        helper.make_node(op_type, [source], [result], name=f"n_{op_type}")
        for op_type, source, result in zip(types, names, names[1:], strict=False)
    ]
    ends = ([helper.make_tensor_value_info(name, F, [1])] for name in ("x", "y"))
    return helper.make_model(helper.make_graph(nodes, "chain", *ends))


MODEL = chain(TYPES)


def search(judge):
    """Return a search where the error of each choice of operators in float is `judge`'s."""
    tried = []

    def renarrow(types):
        tried.append(types)
        return Fixed(MODEL, lambda _: judge(types))

    whole = Fixed(MODEL, lambda _: 0)
    return FloatSearch(whole, [{}], [[np.float32([1])]], [0], renarrow), tried


def test_a_choice_holds_for_all_batches_not_only_for_the_worst():
    """Another batch is tried, too, if the operators that mend the worst one do not mend it."""
    needed = [{"Neg"}, {"Abs", "Sigmoid"}]

    def renarrow(types):
        return Fixed(MODEL, lambda number: 0.001 if needed[number] <= types else 0.5)

    batches, outputs = [{"number": 1}, {"number": 0}], [[np.float32([1])]] * 2
    run = FloatSearch(Fixed(MODEL, lambda _: 0), batches, outputs, [1], renarrow)
    types = run.run([])
    assert types == {"Neg", "Abs", "Sigmoid"}
    assert run.tried_on == [1, 0]
    assert "brings the error to 0.001" in run.describe(types)


def test_a_choice_has_a_margin_if_there_is_one():
    """Other inputs than those of the comparison come."""
    run, _ = search(lambda types: 0.009 if "Neg" not in types else 0.002)
    assert "Neg" in run.run([])
    run, _ = search(lambda types: 0.009 if types else 0.5)
    assert len(run.run([])) == 1


@pytest.mark.parametrize("needed", [{"Neg"}, {"Abs", "Sigmoid"}, {"Exp", "Log", "Acos"}])
def test_operators_are_found_that_no_node_blames(needed):
    run, tried = search(lambda types: 0.001 if needed <= types else 0.5)
    assert run.run([]) == frozenset(needed)
    assert len(tried) < len(TYPES) + 12, "bisected, then each type once"
    option = f"--fp16_skip_op_types {','.join(sorted(needed))}"
    assert run.describe(frozenset(needed)).startswith(f"{option} brings the error to 0.001")


def test_blamed_operators_are_tried_first_and_kept_where_more_are_needed():
    needed = {"Exp", "Log", "Acos"}
    run, tried = search(lambda types: 0.001 if needed <= types else 0.5)
    blamed = Divergence(MODEL.graph.node[0], "", ("Log", "Exp", "Cast"))
    assert run.run([blamed]) == frozenset(needed)
    assert tried[0] == frozenset({"Log", "Exp"}), "there is no Cast to keep in float"


def test_the_best_choice_is_named_where_time_or_trials_end(monkeypatch):
    monkeypatch.setattr(mending, "MAX_TRIALS", 2)
    monkeypatch.setattr(mending, "_TRIALS_PER_ROUND", 1)
    blamed = [Divergence(MODEL.graph.node[0], "", ("Log", "Exp"))]
    run, tried = search(lambda types: 0.2 if types == {"Log", "Exp"} else 0.3)
    monkeypatch.setattr(FloatSearch, "_halve", lambda *_: None)
    assert run.run(blamed) is None
    assert len(tried) == 2, "these, and those that differ first then"
    told = run.describe(None)
    assert re.match(
        r"None of 2 choices of operators kept in float that were tried in \d+ s brings the error below "
        r"0\.01; the best was --fp16_skip_op_types Exp,Log with 0\.2",
        told,
    )
    assert told.endswith("keep the model in fp32")


def test_no_more_choices_are_tried_than_the_limit(monkeypatch):
    monkeypatch.setattr(mending, "MAX_TRIALS", 5)
    run, tried = search(lambda types: 0.001 if len(types) > 12 else 0.5)
    assert len(run.run([])) > 12
    assert len(tried) == 5


@pytest.mark.parametrize(("trials", "least"), [(9, 6), (3, 6), (3, 2)])
def test_fewer_choices_of_a_large_model_are_tried(trials, least, monkeypatch):
    monkeypatch.setattr(mending, "count_all_operations", lambda _: 1000)
    monkeypatch.setattr(mending, "MAX_OPERATIONS", trials * 1000)
    monkeypatch.setattr(mending, "MIN_TRIALS", least)
    run, tried = search(lambda types: 0.001 if len(types) > 12 else 0.5)
    assert len(run.run([])) > 12
    assert len(tried) == max(trials, least)


def test_nodes_that_differ_are_looked_for_again_only_where_many_choices_are_tried(monkeypatch):
    looks = []

    def look(*_):
        looks.append(1)
        return [Divergence(MODEL.graph.node[0], "", (TYPES[len(looks)],))]

    monkeypatch.setattr(mending, "find_divergences", look)
    for trials, num_looks in ((6, 0), (10, 1), (60, 5)):
        looks.clear()
        monkeypatch.setattr(mending, "MAX_TRIALS", trials)
        run, _ = search(lambda types: 0.5 if len(types) < len(TYPES) else 0.001)
        run.run([Divergence(MODEL.graph.node[0], "", TYPES[:1])])
        assert len(looks) == num_looks


def test_a_choice_that_was_tried_on_every_batch_is_not_computed_again():
    run, tried = search(lambda types: 0.001 if {"Abs", "Sigmoid"} <= types else 0.5)
    assert run.run([]) == {"Abs", "Sigmoid"}
    assert len(tried) == len(set(tried))


def test_where_all_operators_in_float_are_wrong_too_that_is_said():
    run, tried = search(lambda _: 0.25)
    assert run.run([]) is None
    assert tried == [frozenset(TYPES)]
    assert "not even all of them (0.25): half cannot hold the inputs" in run.describe(None)


def test_the_search_does_not_warn_of_its_own_options(caplog):
    asked = []

    def renarrow(types):
        asked.append(types)
        logging.getLogger("poprt").warning("fp16_skip_op_types: the model has no operator Cast")
        raise CompileError("no more")

    whole = _Tensors(chain(["Neg", "Abs"]), [1])
    half = _Tensors(chain(["Neg", "Abs"]), [3])
    told = explain(half, whole, [{}], [[np.float32([1])]], 0, renarrow)
    assert "No choice of operators kept in float could be tried: no more" in told
    assert asked
    assert not caplog.messages
    logging.getLogger("poprt").warning("afterwards")
    assert caplog.messages == ["afterwards"]


@dataclass
class _Tensors:
    """Side all of whose tensors have the same values."""

    model: onnx.ModelProto
    values: list
    weights: dict = field(default_factory=dict)

    def run(self, feeds, names=None):
        return [[np.float32(self.values)] * len(names or ["y"]) for _ in feeds]
