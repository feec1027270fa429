"""A script's process ends, soon and quietly, whatever the script leaves behind.

What a script drops before that ends before that.
"""

import gc
import os
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from model_runtime import (
    ModelRunner,
    ModelRunnerConfig,
    RequestFlow,
    Session,
    SessionConfig,
    StoppedError,
    shutdown,
)
from model_runtime.shutdown import exit_daemon_thread
from sample_models import loop_model, write_handmade
from shutdown_scripts import SCRIPTS, find_faults, fork_scripts, run_scripts
from simipu import RunCancelledError
from simipu.processes.watchdog import WATCHDOG
from waiting import PATIENCE_SECONDS, held_by_another_thread, wait_until


@pytest.fixture
def linear_file(linear, compile_popef):
    return str(compile_popef(linear))


@pytest.fixture
def loop_file(tmp_path):
    path = tmp_path / "loop.popef"
    write_handmade(path, loop_model())
    return str(path)


@pytest.fixture
def files(linear_file, loop_file):
    return [linear_file, loop_file]


JOBS = 4
"""Number of scripts at a time; most of them wait more than they compute."""


@pytest.mark.slow
def test_scripts_end_in_forks(files):
    """The slow test below runs all of them."""
    names = list(SCRIPTS)[::3]
    ended = fork_scripts([SCRIPTS[name] for name in names], files, JOBS)
    assert find_faults(names, ended) == []


@pytest.mark.slow
def test_scripts_end_in_interpreters_of_their_own(files):
    ended = run_scripts(list(SCRIPTS.values()), files, JOBS)
    assert find_faults(SCRIPTS, ended) == []


def find_children():
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def after_collection(holds):
    """Return a function that collects garbage, which may hold a session, and then asks."""

    def check():
        gc.collect()
        return holds()

    return check


def test_runners_that_are_dropped_leave_no_thread(linear_file):
    x = {"x": np.ones((4, 4), np.float32)}
    config = ModelRunnerConfig(
        num_threads=1
    )  # ONNX Runtime's own threads are not Python's, but would be many
    ModelRunner(linear_file, config).execute(x)
    threads = threading.active_count() - 1
    for index in range(50):
        runner = ModelRunner(linear_file, config)
        if index % 2:
            runner.execute(x)
        if index % 3 == 0:
            runner.itself = runner
    del runner
    wait_until(after_collection(lambda: threading.active_count() <= threads), "the threads end")


def test_a_dropped_runner_ends_its_run_and_gives_up_its_session(loop_file):
    runner = ModelRunner(loop_file)
    session = weakref.ref(runner.session)
    runner.executeAsync({"turns": np.array(10**9, np.int64)})
    time.sleep(0.1)
    del runner
    wait_until(after_collection(lambda: session() is None), "the session goes")


def test_a_runner_lives_as_long_as_somebody_holds_its_result(linear_file):
    future = ModelRunner(
        linear_file, ModelRunnerConfig(timeout_ns=50_000_000, batching_dim=0)
    ).executeAsync({"x": np.ones((1, 4), np.float32)})
    gc.collect()
    session = weakref.ref(future._runner.session)
    assert future.wait(PATIENCE_SECONDS)["z"].tolist() == [[2] * 4]
    wait_until(after_collection(lambda: session() is None), "the session goes")


def test_dropping_a_runner_waits_for_nothing(loop_file):
    """It waits neither for the run in flight nor for the lock of its queues.

    A thread that goes on when we return may hold that lock.
    """
    runner = ModelRunner(loop_file)
    runner.executeAsync({"turns": np.array(10**9, np.int64)})
    with held_by_another_thread(runner._request_flow.queues.lock):
        began = time.monotonic()
        del runner
        assert time.monotonic() - began < 10


def test_isolated_sessions_that_are_dropped_leave_no_process(linear_file):
    before = find_children()
    for _ in range(2):
        session = Session(linear_file, SessionConfig(isolated=True))
        session.runLoadPrograms()
    assert find_children() - before
    del session
    wait_until(after_collection(lambda: find_children() <= before), "the children end")


def test_a_cancelled_run_of_a_child_is_over_at_once_and_no_child_takes_its_place(loop_file):
    before = find_children()
    session = Session(loop_file, SessionConfig(isolated=True))
    pipeline = RequestFlow(session, timeout_ns=None)
    answers = []
    with pipeline.queues.lock:
        pipeline.enqueue_request({"turns": np.array([10**9], np.int64)}, 1)
        pipeline.set_request_outputs({"sum": None}, 1, answers.append)
    pipeline.start()
    time.sleep(0.5)
    pipeline.abandon()
    wait_until(lambda: answers, "the request is answered")
    assert isinstance(answers[0], StoppedError)
    wait_until(after_collection(lambda: find_children() <= before), "the children end")


def test_a_run_cancelled_by_another_thread_returns_no_rows(loop_file):
    session = Session(loop_file)
    session.runLoadPrograms()
    session.setUserInputHandler(lambda anchor: lambda array: array.fill(10**9))
    threading.Timer(0.2, session.cancel).start()
    assert session.runMainPrograms() == 0
    assert session.runMainPrograms() == 0
    with pytest.raises(RunCancelledError, match="its session was stopped"):
        session.run({"turns": np.array([1], np.int64)})


@pytest.mark.slow
def test_a_fork_leaves_its_parents_runners_alone(linear_file):
    runner = ModelRunner(linear_file)
    session = Session(linear_file, SessionConfig(isolated=True))
    session.runLoadPrograms()
    with held_by_another_thread(runner._request_flow.queues.lock):
        pid = os.fork()
        if not pid:
            try:
                session = runner = None
                gc.collect()
                shutdown._stop_all()
                WATCHDOG.close()
            finally:
                os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    x = {"x": np.ones((4, 4), np.float32)}
    np.testing.assert_array_equal(session.run(x)["z"], runner.execute(x)["z"])
    runner.close()
    session.unloadFromDevice()


@pytest.mark.parametrize("daemon", [False, True])
def test_no_thread_ends_while_the_interpreter_goes_on(daemon):
    reached = []

    def work():
        exit_daemon_thread()
        reached.append(True)

    thread = threading.Thread(target=work, daemon=daemon)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert reached == [True]
