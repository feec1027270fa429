"""The core shared by the interpreter's threads."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import pytest
from poplar_triton.tfserving.threads import Core, Threads
from waiting import PATIENCE_SECONDS

CORES = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(CORES) == 1, reason="one core is all that there is")


@contextmanager
def on_a_thread_of_its_own():
    """Restore the CPU affinity afterwards, so that the tests' own thread keeps its mask."""
    mask = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mask)


def write_times(tasks, thread, ran_seconds, waited_seconds):
    folder = tasks / str(thread)
    folder.mkdir(exist_ok=True)
    (folder / "schedstat").write_text(f"{ran_seconds * 1e9:.0f} {waited_seconds * 1e9:.0f} 17\n")


def test_a_thread_is_on_the_core_and_may_leave_it():
    with on_a_thread_of_its_own():
        core = Core(0)
        core.enter()
        assert os.sched_getaffinity(0) == {core.core}
        core.leave()
        assert sorted(os.sched_getaffinity(0)) == CORES


def test_numbers_go_around():
    assert [Core(number).core for number in range(2 * len(CORES))] == 2 * CORES


def test_a_thread_started_on_the_core_stays_on_it():
    found = []
    with on_a_thread_of_its_own():
        core = Core(1)
        core.enter()
        thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert found == [{core.core}]


@several
@pytest.mark.parametrize("seconds", [0.5, 2])
def test_threads_that_others_keep_from_their_core_go_to_the_next(tmp_path, seconds):
    with on_a_thread_of_its_own():
        core = Core(0, tmp_path)
        core.enter()
        write_times(tmp_path, threading.get_native_id(), 10, 10)
        core.move_if_starved(1)
        ran, waited = 10 + 0.4 * seconds, 10 + 0.5 * seconds
        write_times(tmp_path, threading.get_native_id(), ran, waited)
        assert core.move_if_starved(seconds)
        assert core.core == CORES[1]
        assert os.sched_getaffinity(0) == {CORES[1]}


@pytest.mark.parametrize("seconds", [0.5, 2])
@pytest.mark.parametrize(("ran", "waited"), [(0.9, 0.9), (0.2, 0.1), (0.0, 0.0)])
def test_threads_that_are_busy_themselves_or_idle_stay(tmp_path, ran, waited, seconds):
    with on_a_thread_of_its_own():
        core = Core(0, tmp_path)
        core.enter()
        write_times(tmp_path, threading.get_native_id(), 10, 10)
        core.move_if_starved(1)
        ran, waited = 10 + ran * seconds, 10 + waited * seconds
        write_times(tmp_path, threading.get_native_id(), ran, waited)
        assert not core.move_if_starved(seconds)
        assert core.core == CORES[0]


@several
def test_a_thread_that_has_ended_or_is_elsewhere_is_left_alone(tmp_path):
    with on_a_thread_of_its_own():
        core = Core(0, tmp_path)
        mask = os.sched_getaffinity(0)
        write_times(tmp_path, threading.get_native_id(), 1, 1)  # not on the core
        write_times(tmp_path, 2**22 + 1, 1, 1)  # no such thread
        assert not core.move_if_starved(1)
        assert os.sched_getaffinity(0) == mask


def test_calls_are_on_the_core_but_while_they_wait():
    core = Core(0)
    threads = Threads("test", core)

    def look():
        before = os.sched_getaffinity(0)
        with threads.waiting():
            meanwhile = os.sched_getaffinity(0)
        return before, meanwhile, os.sched_getaffinity(0)

    try:
        before, meanwhile, after = threads.submit(look).result(PATIENCE_SECONDS)
    finally:
        threads.shutdown()
    assert before == after == {core.core}
    assert sorted(meanwhile) == CORES
