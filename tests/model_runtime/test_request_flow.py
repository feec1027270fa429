"""Requests through a session thread: joined, flushed and each answered once.

Failures do not spread between them.
"""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from model_runtime import (
    ModelRuntimeError,
    OutputSlot,
    RequestFlow,
    Session,
    SessionConfig,
    StoppedError,
)
from sample_models import loop_model, write_handmade
from simipu import DeviceLostError, RunError, RunTimeoutError
from waiting import PATIENCE_SECONDS

BATCH = 4


@pytest.fixture
def make_pipeline(linear, compile_popef):
    """Yield a function that makes a pipeline over the linear model, whose z is 2 x.

    All pipelines are stopped at the end.
    """
    made = []

    def make(started=True, auto_reset=True, **options):
        session = Session(compile_popef(linear, batch=BATCH), SessionConfig(auto_reset=auto_reset))
        session.runLoadPrograms()
        runs = []
        session.observer = lambda start, end, rows, lateness, cost: runs.append(rows)
        pipeline = RequestFlow(session, **{"timeout_ns": 0, **options})
        pipeline.runs = runs
        made.append(pipeline)
        if started:
            pipeline.start()
        return pipeline

    yield make
    for pipeline in made:
        pipeline.stop()


class Ask:
    """One request: its rows, its answers and how often they came."""

    def __init__(self, pipeline, rows, value=1.0, fail=None):
        self.x = np.full((rows, 4), value, np.float32)
        self.slot = OutputSlot()
        self.answers = []
        self.starts = 0
        self.event = threading.Event()
        with pipeline.queues.lock:
            pipeline.enqueue_request({"x": self.x}, rows, self.started)
            pipeline.set_request_outputs({"y": None, "z": self.slot}, rows, self.done, owner=self.x)

    def started(self):
        self.starts += 1

    def done(self, error):
        self.answers.append(error)
        self.event.set()

    def wait(self):
        assert self.event.wait(PATIENCE_SECONDS), "no answer"
        (error,) = self.answers
        if error is not None:
            raise error
        np.testing.assert_array_equal(self.slot.array, 2 * self.x)


def test_rows_of_several_calls_join_into_one_run(make_pipeline):
    pipeline = make_pipeline()
    asks = [Ask(pipeline, 1, value) for value in range(BATCH)]
    for ask in asks:
        ask.wait()
    assert pipeline.runs == [BATCH]


def test_a_large_request_spans_several_runs(make_pipeline):
    pipeline = make_pipeline()
    Ask(pipeline, 3 * BATCH).wait()
    assert pipeline.runs == [BATCH] * 3


def test_an_incomplete_batch_waits_for_its_timeout_and_no_longer(make_pipeline):
    pipeline = make_pipeline(timeout_ns=50_000_000)
    began = time.monotonic()
    Ask(pipeline, 1).wait()
    assert time.monotonic() - began >= 0.05
    assert pipeline.runs == [1]


def test_a_timeout_of_0_waits_for_ever_and_flushing_ends_the_wait(make_pipeline):
    pipeline = make_pipeline(timeout_ns=0)
    ask = Ask(pipeline, 1)
    assert not ask.event.wait(0.3)
    pipeline.queues.flushAll()
    ask.wait()


def test_a_request_is_started_when_its_first_row_is_read(make_pipeline):
    pipeline = make_pipeline(started=False)
    ask = Ask(pipeline, BATCH + 1)
    assert ask.starts == 0
    pipeline.start()
    pipeline.queues.flushAll()
    ask.wait()
    assert ask.starts == 1


def test_answers_come_in_the_order_of_the_requests(make_pipeline):
    pipeline = make_pipeline(timeout_ns=1_000_000)
    order = []
    asks = []
    for index in range(40):
        ask = Ask(pipeline, 1 + index % 7, index)
        ask.started = None
        asks.append(ask)
    for ask in asks:
        ask.wait()
        order.append(ask)
    assert sum(pipeline.runs) == sum(1 + index % 7 for index in range(40))


def test_without_a_timeout_what_waits_is_run_at_once(make_pipeline):
    pipeline = make_pipeline(started=False, timeout_ns=None)
    asks = [Ask(pipeline, rows) for rows in (3, 3, 1)]
    pipeline.start()
    for ask in asks:
        ask.wait()
    assert pipeline.runs == [4, 3]


def fail_on(pipeline, error, value):
    """Make runs with that value in them raise the error."""
    main = pipeline.session._engine._mains[5]
    compute = main.compute

    def failing(values, first, last, out=None):
        if (values[0][first:last] == value).any():
            raise error
        return compute(values, first, last, out)

    main.compute = failing


def test_only_the_culprit_of_a_joined_run_fails(make_pipeline):
    pipeline = make_pipeline(started=False, timeout_ns=None)
    fail_on(pipeline, RunError("13"), 13)
    asks = [Ask(pipeline, rows, value) for rows, value in ((1, 1), (2, 13), (9, 2), (1, 3))]
    pipeline.start()
    for ask in (asks[0], asks[2], asks[3]):
        ask.wait()
    with pytest.raises(RunError, match="13"):
        asks[1].wait()


def test_a_lost_device_takes_the_requests_that_were_on_it(make_pipeline):
    pipeline = make_pipeline(started=False, timeout_ns=None)
    fail_on(pipeline, DeviceLostError("gone"), 13)
    asks = [Ask(pipeline, rows, value) for rows, value in ((1, 1), (3, 13), (4, 2))]
    pipeline.start()
    for ask in asks[:2]:
        with pytest.raises(DeviceLostError):
            ask.wait()
    asks[2].wait()


def test_without_auto_reset_a_lost_device_fails_all_that_wait_and_come(make_pipeline):
    pipeline = make_pipeline(started=False, timeout_ns=None, auto_reset=False)
    fail_on(pipeline, DeviceLostError("gone"), 13)
    asks = [Ask(pipeline, 4, value) for value in (13, 2)]
    pipeline.start()
    for ask in asks:
        with pytest.raises(DeviceLostError):
            ask.wait()
    with pytest.raises(ModelRuntimeError, match="auto_reset is off: gone"):
        Ask(pipeline, 1)


def test_without_auto_reset_a_device_lost_in_the_second_try_fails_all_that_wait(make_pipeline):
    """Requests that wait for more rows without a limit fail, too."""
    pipeline = make_pipeline(started=False, timeout_ns=0, auto_reset=False)
    fail_on(pipeline, RunError("13"), 13)
    fail_on(pipeline, DeviceLostError("gone"), 14)
    asks = [
        Ask(pipeline, rows, value) for rows, value in ((1, 1), (1, 13), (1, 14), (1, 5), (1, 2))
    ]
    main = pipeline.session._engine._mains[5]
    joined, compute = [RunError("13")], main.compute
    main.compute = lambda *arguments: compute(*arguments) if not joined else raise_(joined.pop())
    pipeline.start()
    asks[0].wait()
    with pytest.raises(RunError, match="13"):
        asks[1].wait()
    for ask in asks[2:]:
        with pytest.raises(DeviceLostError):
            ask.wait()


def raise_(error):
    raise error


def test_a_defect_in_a_run_is_answered_too(make_pipeline):
    pipeline = make_pipeline()
    fail_on(pipeline, ZeroDivisionError("a defect"), 13)
    with pytest.raises(ZeroDivisionError):
        Ask(pipeline, BATCH, 13).wait()
    Ask(pipeline, BATCH, 1).wait()


def test_stopping_answers_what_waits_and_refuses_what_comes(make_pipeline):
    pipeline = make_pipeline(timeout_ns=0)
    ask = Ask(pipeline, 1)
    pipeline.stop()
    with pytest.raises(StoppedError):
        ask.wait()
    with pytest.raises(StoppedError):
        Ask(pipeline, 1)


def test_withdrawn_requests_free_their_places(make_pipeline):
    pipeline = make_pipeline(timeout_ns=0)
    asks = [Ask(pipeline, 1, value) for value in (1, 2, 3)]
    assert pipeline.withdraw(lambda owner: owner is asks[1].x) == [asks[1].x]
    assert pipeline.withdraw(lambda owner: owner is asks[1].x) == []
    asks += [Ask(pipeline, 1, value) for value in (4, 5)]
    for ask in (asks[0], *asks[2:]):
        ask.wait()
    assert pipeline.runs == [4]
    assert asks[1].answers == []
    assert pipeline.withdraw(lambda owner: True) == []


def test_many_threads_get_their_own_rows(make_pipeline):
    pipeline = make_pipeline(timeout_ns=1_000_000)

    def client(number):
        for index in range(50):
            Ask(pipeline, 1 + (index + number) % 6, 100 * number + index).wait()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pipeline.runs) < sum(1 + (i + n) % 6 for i in range(50) for n in range(8))


def test_a_waiting_session_uses_no_processor_time(make_pipeline):
    others = set(threading.enumerate())
    make_pipeline(timeout_ns=1_000_000)
    mine = [thread.native_id for thread in threading.enumerate() if thread not in others]
    assert mine

    def processor_ns():
        return sum(
            int(Path(f"/proc/self/task/{number}/schedstat").read_text().split()[0])
            for number in mine
        )

    time.sleep(0.1)
    before = processor_ns()
    time.sleep(0.5)
    assert processor_ns() - before < 50e6


def test_a_run_that_takes_too_long_is_ended_and_the_next_is_well(monkeypatch, tmp_path):
    monkeypatch.setenv("POPLAR_RUNTIME_OPTIONS", '{"target.hostSyncTimeout":"0.3"}')
    write_handmade(tmp_path / "loop.popef", loop_model())
    session = Session(tmp_path / "loop.popef")
    session.runLoadPrograms()
    with pytest.raises(RunTimeoutError, match=r"took longer than its limit of 0\.3 s"):
        session.run({"turns": np.array([10**9], np.int64)})
    assert session.run({"turns": np.array([3], np.int64)})["sum"].tolist() == [3]
