"""ONNX's backend test suite as an independent witness.

Tests check one case of each operator, and the reports of cases that fail.
"""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import suite_runs
from conformance import Result, count_outcomes, list_differences, list_refusals, make_sections
from report import make_document
from suite_cases import Case, find_operator, load_cases
from suite_findings import find_reason, find_unnamed
from suite_runs import Outcome, Status, Worker


def find_cases(*names):
    return [case for case in load_cases() if case.name in names]


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "step"), [("fp32", 1), ("fp16", 6)])
def test_one_case_of_each_operator_differs_for_known_reasons_only(precision, step):
    by_operator = {}
    for case in load_cases():
        by_operator.setdefault(find_operator(case), []).append(case)
    cases = [found[len(found) // 2] for found in by_operator.values()][::step]
    with Worker(cases, precision) as worker:
        results = [(case.name, precision, outcome) for case, outcome in worker.run()]
    assert find_unnamed(results) == []
    passed = sum(outcome.status is Status.PASSED for _, _, outcome in results)
    assert passed > 0.7 * len(results) > 0


def test_a_case_that_ends_its_process_or_takes_too_long_is_an_outcome(monkeypatch):
    ends = {
        "killed": lambda: os.kill(os.getpid(), 9),
        "late": lambda: time.sleep(60),
        "fine": lambda: None,
    }

    def run(case, precision):
        ends[case]()
        return Outcome(Status.PASSED)

    monkeypatch.setattr(suite_runs, "run_case", run)
    with Worker(list(ends), "fp32", max_seconds=0.2) as worker:
        found = dict(worker.run())
    assert found["killed"] == Outcome(Status.CRASHED, "the process ended with SIGKILL")
    assert found["late"] == Outcome(Status.CRASHED, "it took longer than 0.2 s")
    assert found["fine"].status is Status.PASSED


@pytest.mark.slow
def test_each_outcome_is_distinguished():
    names = ("test_abs", "test_add_uint64", "test_reduce_sum_keepdims_example", "test_dft")
    outcomes = {case.name: suite_runs.run_case(case, "fp32") for case in find_cases(*names)}
    assert [outcomes[name].status.value for name in names] == [
        "passed",
        "refused",
        "passed",
        "differs",
    ]
    assert outcomes["test_reduce_sum_keepdims_example"].fixed == ("axes",)
    assert "UINT64, which the IPU lacks" in outcomes["test_add_uint64"].found


def test_only_listed_differences_have_a_reason():
    off = Outcome(Status.DIFFERS, "y: 1 of 2 elements", error=1e-6)
    assert find_reason("test_dft", "fp32", off).startswith("sums of a Fourier transform")
    assert find_reason("test_dft", "fp32", Outcome(Status.DIFFERS, error=0.1)) == ""
    assert find_reason("test_reduce_prod_x", "fp16", off)
    results = [
        ("test_abs", "fp32", off),
        ("test_abs", "fp32", Outcome(Status.FAILED, "LoadError: no")),
    ]
    results += [("test_reduce_prod_x", "fp32", off), ("test_dft", "fp32", off)]
    assert [line.partition(":")[0] for line in find_unnamed(results)] == [
        "test_abs in fp32",
        "test_abs in fp32",
        "test_reduce_prod_x in fp32",
    ]


def test_values_are_compared_within_the_suites_tolerance():
    case = Case("test_abs", "node", 1e-3, 1e-7, None)
    assert not suite_runs.compare(
        np.float32([1, np.nan]), np.float64([1.0009, np.nan]), case, "fp32"
    )
    assert "1 of 2 elements, e.g. 1.0 for 1.00999" in suite_runs.compare(
        np.float32([1, 2]), np.float32([1.01, 2]), case, "fp32"
    )
    assert not suite_runs.compare(np.float16([1, 2]), np.float32([1.01, 2]), case, "fp16")
    assert "3 for 4" in suite_runs.compare(np.int32([3]), np.int64([4]), case, "fp16")
    assert "shape [1], expected []" in suite_runs.compare(np.int32([3]), np.int64(3), case, "fp32")


@pytest.mark.slow
def test_the_document_has_a_place_for_every_table():
    template = Path("docs/conformance.md").read_text()
    abs_, dft = find_cases("test_abs", "test_dft")
    results = [
        Result(abs_, "fp32", Outcome(Status.PASSED)),
        Result(
            abs_, "fp16", Outcome(Status.REFUSED, "input 'x' has type STRING, which the IPU lacks")
        ),
        Result(dft, "fp32", Outcome(Status.DIFFERS, "y: 1", error=1e-6)),
        Result(
            dft, "fp32", Outcome(Status.REFUSED, "input 'x' has type STRING, which the IPU lacks")
        ),
    ]
    text = make_document(template, make_sections(results))
    assert "| Abs | 1 passed | 1 refused |" in text
    assert "| fp32 | all | 3 | 1 | 1 | 1 | 0 | 0 |" in text
    assert list_differences(results)[0][1:] == ["1", "`test_dft` (fp32)"]
    assert list_refusals(results) == [["a type that the IPU lacks: STRING", "1", "DFT 1"]]
    assert count_outcomes(results)[0] == ["fp32", "node", "3", "1", "1", "1", "0", "0"]
