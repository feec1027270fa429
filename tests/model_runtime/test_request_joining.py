"""Rules of joining: which waiting requests share a run, and which requests of a failed run are run
again alone. test_both_ways.py tests the runs themselves."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_runtime import StoppedError, is_retried_alone, take_next_run
from simipu import DeviceLostError, RunError

ROWS = st.lists(st.integers(1, 9), max_size=12)


@given(ROWS, st.integers(1, 12), st.integers(0, 15))
def test_a_run_takes_the_oldest_requests_until_it_is_full(rows, max_rows, begun):
    waiting = deque(rows)
    taken = take_next_run(waiting, max_rows, int, begun)
    assert [*taken, *waiting] == rows
    assert not taken or begun + sum(taken[:-1]) < max_rows, "the last one began in a full run"
    assert not waiting or begun + sum(taken) >= max_rows, "there was room for another"


@given(ROWS, st.integers(1, 12))
def test_every_request_is_in_one_of_the_runs(rows, max_rows):
    waiting, runs = deque(rows), []
    while waiting:
        runs.append(take_next_run(waiting, max_rows, int))
    assert [each for run in runs for each in run] == rows
    assert all(runs)


@pytest.mark.parametrize(
    ("error", "num_requests", "expected"),
    [
        (RunError("index 9 of 4"), 2, True),
        (RunError("index 9 of 4"), 1, False),
        (DeviceLostError("gone"), 2, False),
        (StoppedError("stopped"), 2, False),
        (None, 2, False),
    ],
)
def test_only_rejected_values_have_the_requests_of_a_run_tried_alone(error, num_requests, expected):
    assert is_retried_alone(error, num_requests) is expected
