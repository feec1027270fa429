"""A part of the sweep over all methods of the Builder; `make popart-methods` runs the whole."""

from __future__ import annotations

from collections import defaultdict

import popart
import pytest
from popart.lowering.operation import RULES
from popart_methods.cases import Case, compute, iter_runs
from popart_methods.running import iter_cases, list_methods

MAX_CASES = 6
"""Number of cases of each method that are run here."""


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = defaultdict(list)
    for case in iter_cases():
        found[case.method].append(case)
    return found


def test_every_method_has_cases(cases):
    assert set(cases) == set(list_methods())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_methods_are_right_or_refuse_with_an_error_of_popart(cases, part):
    for method in sorted(cases)[part::8]:
        # Evenly spread, so that the first and the last, and those of each kind, are among them.
        step = max(1, (len(cases[method]) - 1) // (MAX_CASES - 1))
        chosen = cases[method][::step][: MAX_CASES + 1]
        outcomes = [
            (case.label, outcome, text)
            for case, outcome, text in iter_runs(chosen)
            if outcome in ("wrong", "escaped")
        ]
        assert not outcomes, method


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "aiGraphcore.bucketize",
        "aiGraphcore.log1p",
        "aiGraphcore.round",
        "aiOnnx.thresholdedrelu",
        "aiOnnx.roialign",
        "aiOnnx.constantofshape",
        "aiOnnx.randomnormal",
        "aiOnnx.randomuniform",
    ],
)
def test_all_cases_of_methods_that_were_wrong_are_right(cases, method):
    outcomes = {
        case.label: (outcome, text)
        for case, outcome, text in iter_runs(cases[method])
        if outcome in ("wrong", "escaped")
    }
    assert not outcomes


def test_signs_of_zeros_and_infinities_turn_an_angle(cases):
    (case,) = (case for case in cases["aiGraphcore.atan2"] if case.label == "float32 special pairs")
    ((_, outcome, text),) = iter_runs([case])
    assert outcome == "right", text


@pytest.mark.parametrize("name", ["add", "mul", "max", "equal"])
def test_whole_numbers_of_64_bits_have_32_on_the_chip(cases, name):
    chosen = [each for each in cases[f"aiOnnx.{name}"] if each.label == "uint64 plain"]
    assert [outcome for _, outcome, _ in iter_runs(chosen)] == ["right"]


def test_an_unexpected_error_of_a_rule_becomes_an_error_of_popart(monkeypatch):
    def fail(_op, _node):
        raise IndexError("three")

    monkeypatch.setitem(RULES, ("", "Abs"), fail)
    case = next(case for case in iter_cases(["elementwise"]) if case.method == "aiOnnx.abs")
    text = r"^Op\(ai.onnx.Abs:6, .*\): IndexError: three; this is a defect of the lowering"
    with pytest.raises(popart.popart_internal_exception, match=text):
        compute(case)
