"""Threads for calls: few work, others wait, and none is left at the end."""

import gc
import random
import threading
import time
import weakref
from concurrent.futures import CancelledError, wait

import pytest
from poplar_triton.tfserving import threads as module
from poplar_triton.tfserving.threads import AT_WORK, Threads
from waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def threads():
    pool = Threads("pool of a test")
    yield pool
    pool.shutdown()
    assert count_threads() == 0


def count_threads():
    return sum(thread.name == "pool of a test" for thread in threading.enumerate())


class Gauge:
    """Counter of the calls at work, now and at most."""

    def __init__(self):
        self.now = self.most = 0
        self.lock = threading.Lock()

    def work(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.0001)
        with self.lock:
            self.now -= 1


def test_calls_get_what_they_are_given_and_give_what_they_return(threads):
    futures = [threads.submit(lambda a, *, b: a - b, number, b=1) for number in range(100)]
    assert [future.result(PATIENCE_SECONDS) for future in futures] == list(range(-1, 99))


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_errors_are_the_callers_and_end_no_thread(threads, error):
    def fail():
        raise error

    for _ in range(3 * AT_WORK):
        assert threads.submit(fail).exception(PATIENCE_SECONDS) is error
    assert count_threads() == AT_WORK


def test_few_are_at_work_at_a_time(threads):
    gauge = Gauge()
    wait([threads.submit(gauge.work) for _ in range(300)], PATIENCE_SECONDS)
    assert (gauge.now, gauge.most, count_threads()) == (0, AT_WORK, AT_WORK)


def test_those_that_wait_let_others_work(threads):
    meeting = threading.Barrier(40)

    def meet():
        with threads.waiting():
            meeting.wait(PATIENCE_SECONDS)

    for future in [threads.submit(meet) for _ in range(40)]:
        future.result(PATIENCE_SECONDS)
    assert count_threads() <= 40 + AT_WORK


def test_threads_that_have_waited_are_used_again_instead_of_new_ones(threads):
    def meet(meeting):
        with threads.waiting():
            meeting.wait(PATIENCE_SECONDS)

    for _ in range(20):
        meeting = threading.Barrier(10)
        for future in [threads.submit(meet, meeting) for _ in range(10)]:
            future.result(PATIENCE_SECONDS)
    assert count_threads() <= 10 + AT_WORK


def test_a_call_may_wait_in_its_wait_and_fail_in_it(threads):
    def fail():
        with threads.waiting(), threads.waiting():
            raise ValueError("no")

    futures = [threads.submit(fail) for _ in range(20)]
    assert all(isinstance(future.exception(PATIENCE_SECONDS), ValueError) for future in futures)


def test_where_all_threads_wait_further_calls_do_and_none_is_lost(threads, monkeypatch):
    most = AT_WORK + 3
    monkeypatch.setattr(module, "MAX_THREADS", most)
    go_on, started = threading.Event(), threading.Semaphore(0)

    def hold(number):
        with threads.waiting():
            started.release()
            assert go_on.wait(PATIENCE_SECONDS)
        with threads.waiting():
            pass
        return number

    futures = [threads.submit(hold, number) for number in range(50)]
    for _ in range(most):
        assert started.acquire(timeout=PATIENCE_SECONDS)
    assert not started.acquire(timeout=0.05)
    assert count_threads() == most
    go_on.set()
    assert [future.result(PATIENCE_SECONDS) for future in futures] == list(range(50))
    assert count_threads() == most


@pytest.mark.parametrize("most", [AT_WORK, AT_WORK + 1, 2 * AT_WORK])
def test_any_order_of_work_and_waits_does_all_calls(threads, monkeypatch, most):
    monkeypatch.setattr(module, "MAX_THREADS", most)
    order = random.Random(most)
    done = []

    def call(number, steps):
        for step in steps:
            if step:
                with threads.waiting():
                    time.sleep(0)
        done.append(number)

    steps = [[order.random() < 0.5 for _ in range(order.randrange(4))] for _ in range(1000)]
    wait(
        [threads.submit(call, number, each) for number, each in enumerate(steps)], PATIENCE_SECONDS
    )
    assert sorted(done) == list(range(1000))
    assert count_threads() <= most


def test_a_shutdown_does_what_waits_and_takes_no_more():
    threads = Threads("pool of a test")
    done = []
    for number in range(100):
        threads.submit(done.append, number)
    threads.shutdown()
    assert len(done) == 100
    assert count_threads() == 0
    with pytest.raises(RuntimeError, match="the threads 'pool of a test' were shut down"):
        threads.submit(done.append, 101)
    threads.shutdown()
    threads.shutdown(cancel_futures=True)


def test_a_shutdown_may_leave_out_what_waits():
    threads = Threads("pool of a test")
    go_on = threading.Event()
    running = [threads.submit(go_on.wait, PATIENCE_SECONDS) for _ in range(AT_WORK)]
    wait_until(lambda: all(future.running() for future in running), "calls that run")
    waiting = [threads.submit(go_on.wait) for _ in range(10)]
    threads.shutdown(wait=False, cancel_futures=True)
    for future in waiting:
        with pytest.raises(CancelledError):
            future.result(PATIENCE_SECONDS)
    go_on.set()
    threads.shutdown()
    assert all(future.result(PATIENCE_SECONDS) for future in running)
    assert count_threads() == 0


def test_threads_started_during_a_shutdown_end_too():
    threads = Threads("pool of a test")
    go_on, meeting = threading.Event(), threading.Barrier(6)

    def call():
        assert go_on.wait(PATIENCE_SECONDS)
        with threads.waiting():
            meeting.wait(PATIENCE_SECONDS)

    futures = [threads.submit(call) for _ in range(6)]
    ending = threading.Thread(target=threads.shutdown)
    ending.start()
    go_on.set()
    ending.join(PATIENCE_SECONDS)
    assert not ending.is_alive()
    assert count_threads() == 0
    for future in futures:
        future.result(0)


def test_a_call_that_is_cancelled_before_its_turn_is_not_made(threads):
    go_on, made = threading.Event(), []
    running = [threads.submit(go_on.wait, PATIENCE_SECONDS) for _ in range(AT_WORK)]
    late = threads.submit(made.append, 1)
    assert late.cancel()
    go_on.set()
    wait(running, PATIENCE_SECONDS)
    assert threads.submit(lambda: made).result(PATIENCE_SECONDS) == []


def test_nothing_is_kept_of_a_call_that_is_done(threads):
    class Thing:
        pass

    thing = Thing()
    seen = weakref.ref(thing)
    threads.submit(lambda given: None, thing).result(PATIENCE_SECONDS)
    del thing
    wait_until(lambda: gc.collect() is not None and seen() is None, "a forgotten argument")
