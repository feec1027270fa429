"""Large requests of one run are computed joined or apart, whichever is faster; the answers, and what
the observer sees, are the same."""

from types import SimpleNamespace

import numpy as np
import pytest
from model_runtime import JoinChoice, Session, SessionConfig, compute_joined
from model_runtime.request_joining import MIN_BYTES, SAMPLE_CALLS
from sample_models import linear_model
from simipu import DeviceLostError, RunError, RunTimeoutError
from simipu.errors import RunUnwantedError

WIDTH = MIN_BYTES // 4
"""Elements of a row that is large enough for a choice."""
BATCH = 8


def make_requests(count, rows=1, width=WIDTH):
    random = np.random.default_rng(count)
    return [
        SimpleNamespace(
            inputs={"x": random.standard_normal((rows, width), dtype=np.float32)}, memory=None
        )
        for _ in range(count)
    ]


@pytest.fixture
def open_session(compile_popef):
    def build(width=WIDTH, **options):
        session = Session(str(compile_popef(linear_model(width), batch=BATCH)), **options)
        session.runLoadPrograms()
        session.runs = []
        session.observer = lambda _start, _end, rows, _lateness, _cost: session.runs.append(rows)
        return session

    return build


class Played(JoinChoice):
    """Choice that is decided in advance, and notes what was measured."""

    def __init__(self, num_apart):
        super().__init__()
        self.num_apart, self.measured = num_apart, []

    def count_apart(self, num_requests):
        return min(self.num_apart, num_requests)

    def record(self, requests, ns):
        assert ns > 0
        self.measured.append(len(requests))


@pytest.mark.parametrize(
    ("num_apart", "measured"), [(0, [5]), (1, [1, 4]), (4, [1] * 5), (5, [1] * 5)]
)
def test_answers_and_statistics_are_the_same_in_any_parts(open_session, num_apart, measured):
    session, requests, choice = open_session(), make_requests(5), Played(num_apart)
    for request in requests[::2]:
        request.memory = {"y": np.empty((1, 3), np.float32), "z": np.empty((1, WIDTH), np.float32)}
    outcomes = list(compute_joined(session, requests, None, choice))
    assert session.runs == [5]
    assert choice.measured == measured
    for request, outcome in zip(requests, outcomes, strict=True):
        expected = session.run(request.inputs)
        assert set(outcome) == {"y", "z"}
        for name, value in outcome.items():
            np.testing.assert_array_equal(value, expected[name])
        if request.memory is not None:
            assert all(outcome[name] is memory for name, memory in request.memory.items())


def test_requests_that_fill_whole_runs_are_not_joined(open_session):
    session, requests = open_session(4), make_requests(3, rows=BATCH, width=4)
    for request in requests:
        request.memory = {"y": np.empty((BATCH, 3), np.float32), "z": np.empty((BATCH, 4), "f4")}
    for request, outcome in zip(requests, compute_joined(session, requests), strict=True):
        assert outcome["z"] is request.memory["z"]
        np.testing.assert_array_equal(outcome["z"], 2 * request.inputs["x"])
    assert session.runs == [BATCH] * 3


@pytest.mark.parametrize(
    ("width", "count", "options"),
    [
        pytest.param(WIDTH // 2, 3, {}, id="small"),
        pytest.param(WIDTH, BATCH + 1, {}, id="more than a run"),
        pytest.param(WIDTH, 3, {"config": SessionConfig(paced=True)}, id="paced"),
    ],
)
def test_others_are_joined(open_session, width, count, options):
    choice = Played(count)
    session, requests = open_session(width, **options), make_requests(count, width=width)
    for request, outcome in zip(
        requests, compute_joined(session, requests, None, choice), strict=True
    ):
        np.testing.assert_array_equal(outcome["z"], 2 * request.inputs["x"])
    assert not choice.measured


@pytest.mark.parametrize("num_apart", [0, 1, 3])
def test_a_request_that_fails_fails_alone(open_session, num_apart, monkeypatch):
    session, requests = open_session(), make_requests(3)
    requests[1].inputs["x"][:] = np.nan
    run = session.run

    def fail(inputs, *rest, **options):
        if np.isnan(inputs["x"]).any():
            raise RunError("not a number")
        return run(inputs, *rest, **options)

    monkeypatch.setattr(session, "run", fail)
    outcomes = list(compute_joined(session, requests, None, Played(num_apart)))
    assert [isinstance(outcome, RunError) for outcome in outcomes] == [False, True, False]
    assert sum(session.runs) == 2


@pytest.mark.parametrize("error", [RunTimeoutError, DeviceLostError, RunUnwantedError])
@pytest.mark.parametrize("num_apart", [0, 1, 4])
def test_a_run_that_is_ended_is_over_for_all_that_have_no_outputs_yet(
    open_session, num_apart, error, monkeypatch
):
    session, requests, asked = open_session(), make_requests(4), []
    run = session.run

    def end(inputs, *rest, **options):
        asked.append(len(inputs["x"]))
        if len(asked) > 1 or not num_apart:
            raise error("ended")
        return run(inputs, *rest, **options)

    monkeypatch.setattr(session, "run", end)
    outcomes = list(compute_joined(session, requests, None, Played(num_apart)))
    num_computed = min(num_apart, 1)
    assert [isinstance(outcome, error) for outcome in outcomes] == [
        index >= num_computed for index in range(4)
    ]
    assert len(asked) == 1 + num_computed
    assert session.runs == [1] * num_computed


def teach(choice, count, apart_ns, joined_ns, calls):
    """Make calls of `count` requests of one size, and return how many of each were apart."""
    requests, numbers = make_requests(count), []
    for _ in range(calls):
        number = choice.count_apart(count)
        numbers.append(number)
        for _ in range(number):
            choice.record(requests[:1], apart_ns)
        if number < count:
            rest = requests[number:]
            choice.record(rest, joined_ns * len(rest) if len(rest) > 1 else apart_ns)
    return numbers


@pytest.mark.parametrize("count", [2, 3, 16])
@pytest.mark.parametrize("is_faster", [True, False])
def test_the_faster_way_is_found_and_the_other_is_tried_now_and_then(count, is_faster):
    times = (10, 20) if is_faster else (20, 10)
    numbers = teach(JoinChoice(), count, *times, 4 * SAMPLE_CALLS)
    chosen = count if is_faster else 0
    assert sum(number != chosen for number in numbers) <= 11
    assert numbers[-2] == chosen


@pytest.mark.parametrize("count", [2, 16])
def test_a_choice_follows_the_times(count):
    choice = JoinChoice()
    teach(choice, count, 10, 20, SAMPLE_CALLS)
    assert teach(choice, count, 20, 10, 6 * SAMPLE_CALLS)[-2] == 0
    assert teach(choice, count, 10, 20, 6 * SAMPLE_CALLS)[-2] == count
