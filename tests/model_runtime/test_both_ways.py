"""Rows that a caller has and rows that wait in queues take the same path.

Answers, clocks and counters, the second try, and the end after a lost device are the same.
"""

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fake_time import FakeTime
from model_runtime import (
    ModelRuntimeError,
    OutputSlot,
    RequestFlow,
    Session,
    SessionConfig,
    StoppedError,
    compute_joined,
)
from sample_models import gather_model
from simipu import DeviceLostError, RunError
from waiting import PATIENCE_SECONDS

MAIN = 5
"""Index of the main program that poprt compiles."""


def patch_time(monkeypatch):
    """Replace the clock of every module on the path of a run by a fake one that starts at 0."""
    fake = FakeTime()
    for module in ("simipu.chip.clock", "simipu.engine", *(f"model_runtime.{m}" for m in MODULES)):
        monkeypatch.setattr(f"{module}.time", fake)
    return fake


MODULES = ("session", "queues", "request_flow", "request_joining")


class ByCall:
    """Path of the requests of one call, in the calling thread."""

    def __init__(self, session):
        self.session = session

    def ask(self, requests):
        """Return the outcome of each request."""
        return list(
            compute_joined(
                self.session,
                [SimpleNamespace(inputs=inputs, memory=None) for inputs in requests],
                0,
            )
        )

    def close(self):
        pass


class ByQueues:
    """Path of requests that wait in queues until the session thread takes them."""

    def __init__(self, session):
        self.session = session
        self.pipeline = RequestFlow(session, timeout_ns=None)
        self.started = False

    def ask(self, requests):
        """Enqueue all requests at once and return the outcome of each."""
        outcomes, answered = {}, threading.Semaphore(0)
        with self.pipeline.queues.lock:
            for number, inputs in enumerate(requests):
                self.enqueue(number, inputs, outcomes, answered)
        if not self.started:
            self.pipeline.start()
            self.started = True
        for _ in requests:
            assert answered.acquire(timeout=PATIENCE_SECONDS), (
                f"{len(outcomes)} of {len(requests)} answers"
            )
        return [outcomes[number] for number in range(len(requests))]

    def enqueue(self, number, inputs, outcomes, answered):
        slots = {anchor.name(): OutputSlot() for anchor in self.session.getUserOutputAnchors()}
        rows = len(next(iter(inputs.values())))

        def done(error):
            outcomes[number] = error or {name: slot.array for name, slot in slots.items()}
            answered.release()

        try:
            self.pipeline.enqueue_request(inputs, rows)
        except ModelRuntimeError as error:
            done(error)
        else:
            self.pipeline.set_request_outputs(slots, rows, done)

    def close(self):
        self.pipeline.stop()


WAYS = {"by call": ByCall, "by queues": ByQueues}


@pytest.fixture
def open_way(compile_popef, linear):
    """Yield a function that opens a path to a session of its own and records its runs."""
    opened = []

    def build(way, model=None, batch=4, iterations=1, **config):
        file = compile_popef(model or linear, batch=batch, options={"batches_per_step": iterations})
        session = Session(file, SessionConfig(**config))
        session.runLoadPrograms()
        opened.append(way(session))
        opened[-1].runs = []
        session.observer = lambda *run: opened[-1].runs.append(run[:-1])  # without its cost
        return opened[-1]

    yield build
    for way in opened:
        way.close()


def ones(*sizes):
    return [{"x": np.full((rows, 4), number, np.float32)} for number, rows in enumerate(sizes)]


def fail_on(session, errors):
    """Make runs with a value of `errors` raise its error, or call it if it is a function."""
    main = session._engine._mains[MAIN]
    compute = main.compute

    def failing(values, first, last, out=None):
        for value, error in errors.items():
            if (values[0][first:last] == value).any():
                if isinstance(error, Exception):
                    raise error
                error()
        return compute(values, first, last, out)

    main.compute = failing


def describe(outcomes):
    """Return answers and errors in a form that can be compared."""
    return [
        (type(outcome), str(outcome))
        if isinstance(outcome, Exception)
        else {name: array.tolist() for name, array in outcome.items()}
        for outcome in outcomes
    ]


def look_at(way, fake_time, requests):
    """Return the answers, and the values of clocks and counters after them."""
    outcomes = describe(way.ask(requests))
    return outcomes, way.runs, way.session._engine.free_at_ns, fake_time.now_ns


@pytest.mark.parametrize("sizes", [(1,), (4,), (1, 2, 1), (3, 3, 3), (1, 9, 2, 30)])
@pytest.mark.parametrize("paced", [False, True])
def test_answers_clocks_and_counters_are_the_same(open_way, monkeypatch, sizes, paced):
    seen = []
    for way in WAYS.values():
        fake_time = patch_time(monkeypatch)
        opened = open_way(way, paced=paced)
        graph = opened.session._engine._mains[MAIN].graph
        # Every other batch takes the CPU longer than the chip.
        graph.run = slow(graph.run, fake_time, opened.session.modelled_seconds)
        seen.append(look_at(opened, fake_time, ones(*sizes)))
    by_call, by_queues = seen
    assert by_call == by_queues
    assert [run[2] for run in by_call[1]] == [4] * (sum(sizes) // 4) + [sum(sizes) % 4] * bool(
        sum(sizes) % 4
    )
    assert any(lateness for *_, lateness in by_call[1]) == (paced and sum(sizes) > 4)


def slow(run, fake_time, modelled_seconds):
    """Return the graph's `run`, of which every other call takes longer than on the chip."""
    factors = itertools.cycle((0.5, 1.5))
    return lambda *arguments: fake_time.sleep(modelled_seconds * next(factors)) or run(*arguments)


def test_device_iterations_are_paced_alike(open_way, monkeypatch):
    """Rows of one come together by call, and one iteration after another from queues.

    The times at which they end are the same.
    """
    seen = []
    for way in WAYS.values():
        fake_time = patch_time(monkeypatch)
        outcomes, runs, free_at_ns, now_ns = look_at(
            open_way(way, iterations=3, paced=True), fake_time, ones(1, 9, 2, 7)
        )
        seen.append((outcomes, [(rows, late_ns) for *_, rows, late_ns in runs]))
        # Of the second run's 7 rows the third iteration has none: no request waits for it.
        assert now_ns == pytest.approx(free_at_ns * 5 / 6, abs=10)
    assert seen[0] == seen[1]
    assert seen[0][1] == [(12, 0), (7, 0)]


def test_the_requests_of_a_failed_run_are_run_again_alone(open_way, monkeypatch):
    seen = []
    for way in WAYS.values():
        fake_time = patch_time(monkeypatch)
        opened = open_way(way, gather_model(), batch=8, paced=True)
        requests = [
            {"ids": np.array(ids, np.int32)} for ids in ([[0, 1]], [[5, 99]], [[9, 9], [2, 3]])
        ]
        seen.append(look_at(opened, fake_time, requests))
    assert seen[0] == seen[1]
    good, culprit, also_good = seen[0][0]
    assert (len(good["rows"]), len(also_good["rows"])) == (1, 2)
    assert culprit[0] is RunError
    assert [run[2] for run in seen[0][1]] == [1, 2]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_nothing_is_run_again_once_the_session_is_stopped(open_way, way):
    opened = open_way(way, batch=8)
    fail_on(opened.session, {1: RunError("13"), 2: opened.session.stop})
    first, culprit, stopping, last = opened.ask(ones(1, 1, 1, 1))
    assert first["z"].tolist() == [[0] * 4]
    assert isinstance(culprit, RunError)
    assert stopping["z"].tolist() == [[4] * 4]
    assert isinstance(last, StoppedError)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_with_auto_reset_a_session_goes_on_after_a_lost_device(open_way, way):
    opened = open_way(way)
    fail_on(opened.session, {1: DeviceLostError("gone")})
    assert [type(outcome) for outcome in opened.ask(ones(2, 2))] == [DeviceLostError] * 2
    (again,) = opened.ask(ones(2))
    assert again["z"].tolist() == [[0] * 4] * 2


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_without_auto_reset_nothing_runs_after_a_lost_device(open_way, way):
    opened = open_way(way, auto_reset=False)
    fail_on(opened.session, {1: DeviceLostError("gone")})
    assert [type(outcome) for outcome in opened.ask(ones(2, 2))] == [DeviceLostError] * 2
    (refused,) = opened.ask(ones(2))
    assert isinstance(refused, ModelRuntimeError)
    assert str(refused) == "the device was lost and auto_reset is off: gone"
    assert opened.runs == []
