"""Runners and sessions in other processes: what a fork inherits, and what a pickle carries."""

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from forked import ask_fork
from model_runtime import (
    DeviceManager,
    ModelRunner,
    ModelRunnerConfig,
    Session,
    SessionConfig,
    StoppedError,
)
from sample_models import loop_model, write_handmade
from simipu import WATCHDOG, GraphOptions
from waiting import PATIENCE_SECONDS, held_by_another_thread

X = np.arange(16, dtype=np.float32).reshape(4, 4)
ANY_ROWS = ModelRunnerConfig(batching_dim=0, timeout_ns=1_000_000, num_threads=4)


@pytest.fixture
def file(linear, compile_popef):
    return str(compile_popef(linear))


def double(runner, rows=4):
    """Return the rows of the linear model's z; all are twice those of x."""
    return np.asarray(runner.execute({"x": X[:rows]})["z"])


def test_a_runner_answers_in_a_fork_and_afterwards_in_its_parent(file):
    with ModelRunner(file, ANY_ROWS) as runner:
        np.testing.assert_array_equal(double(runner), 2 * X)
        for rows in (4, 1, 3):
            np.testing.assert_array_equal(
                ask_fork(lambda rows=rows: double(runner, rows)), 2 * X[:rows]
            )
        np.testing.assert_array_equal(double(runner), 2 * X)


def test_a_fork_of_a_fork_answers(file):
    with ModelRunner(file, ANY_ROWS) as runner:

        def ask_twice():
            return double(runner), ask_fork(lambda: double(runner))

        for answer in ask_fork(ask_twice):
            np.testing.assert_array_equal(answer, 2 * X)


def test_a_fork_answers_though_a_thread_of_its_parent_had_the_lock(file):
    with ModelRunner(file) as runner, held_by_another_thread(runner._request_flow.queues.lock):
        np.testing.assert_array_equal(ask_fork(lambda: double(runner)), 2 * X)


@pytest.mark.slow
def test_a_fork_leaves_the_requests_in_flight_to_its_parent(tmp_path):
    path = tmp_path / "loop.popef"
    write_handmade(path, loop_model())
    runner = ModelRunner(path)
    over = runner.executeAsync({"turns": np.array(3, np.int64)})
    over.wait()
    endless = runner.executeAsync({"turns": np.array(10**9, np.int64)})

    def look():
        with pytest.raises(StoppedError, match="before this process was forked"):
            endless.wait()
        return over.done(), endless.done(), float(over["sum"]), float(runner.execute(three)["sum"])

    three = {"turns": np.array(3, np.int64)}
    assert ask_fork(look)[:2] == (True, True)
    assert ask_fork(look)[2] == ask_fork(look)[3] == float(over["sum"])
    assert not endless.done()
    runner.session.cancel()
    runner.close()


def test_a_runner_that_was_closed_stays_closed_in_a_fork(file):
    runner = ModelRunner(file)
    runner.close()

    def ask():
        with pytest.raises(StoppedError):
            runner.execute({"x": X})

    ask_fork(ask)


def test_a_runner_can_be_closed_in_a_fork_with_and_without_requests(file):
    with ModelRunner(file) as runner:

        def close(ask):
            if ask:
                double(runner)
            runner.close()
            with pytest.raises(StoppedError):
                runner.execute({"x": X})

        for ask in (False, True):
            ask_fork(lambda ask=ask: close(ask))
        np.testing.assert_array_equal(double(runner), 2 * X)


@pytest.mark.parametrize("isolated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_session_answers_in_a_fork(file, isolated):
    session = Session(
        file, SessionConfig(isolated=isolated, graph_options=GraphOptions(num_threads=4))
    )
    session.runLoadPrograms()
    np.testing.assert_array_equal(session.run({"x": X})["z"], 2 * X)
    np.testing.assert_array_equal(ask_fork(lambda: session.run({"x": X})["z"]), 2 * X)
    np.testing.assert_array_equal(session.run({"x": X})["z"], 2 * X)
    session.unloadFromDevice()


def test_a_fork_does_not_destroy_the_session_that_only_the_watchdog_of_its_parent_holds(file):
    """The destructor of ONNX Runtime's threads would wait for ever: they are in the parent."""
    session = Session(file, SessionConfig(graph_options=GraphOptions(num_threads=4)))
    session.runLoadPrograms()
    forked = threading.Event()
    WATCHDOG.soon(forked.wait)
    WATCHDOG.soon(session.cancel)
    del session
    try:
        assert ask_fork(lambda: "alive") == "alive"
    finally:
        forked.set()


def test_a_session_has_its_rows_and_its_handlers_in_a_fork(file):
    session = Session(file)
    queues = session.createQueueManager()
    session.runLoadPrograms()
    z = np.zeros_like(X)

    def run():
        for name, place in (("y", None), ("z", z)):
            queues.outputQueue(name).enqueue(place, 4)
        assert session.runMainPrograms() == 4
        return z

    queues.inputQueue("x").enqueue(X)
    with held_by_another_thread(queues.lock):
        np.testing.assert_array_equal(ask_fork(run), 2 * X)
    assert not z.any()
    np.testing.assert_array_equal(run(), 2 * X)


def test_a_device_manager_attaches_in_a_fork_though_a_thread_of_its_parent_had_the_lock():
    devices = DeviceManager(2)
    with held_by_another_thread(devices._machine._lock):
        assert ask_fork(lambda: devices.getDevice(2).numIpus()) == 2


LEAVES = """
import os, signal, sys
import numpy as np
from model_runtime import ModelRunner, ModelRunnerConfig
runner = ModelRunner(sys.argv[1], ModelRunnerConfig(num_threads=4))
x = {"x": np.ones((4, 4), np.float32)}
runner.execute(x)
pid = os.fork()
if pid:
    signal.alarm(15)
    sys.exit(os.waitpid(pid, 0)[1])
signal.alarm(10)
if sys.argv[2] == "asks":
    runner.execute(x)
if sys.argv[2] == "drops":
    del runner
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["asks", "drops", "keeps"])
def test_a_fork_that_exits_as_a_script_does_ends(file, what):
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, file, what],
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr


def test_a_pickle_of_a_runner_has_path_and_configuration_and_is_small(file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with ModelRunner("executable.popef", ANY_ROWS) as runner:
        pickled = pickle.dumps(runner)
    assert len(pickled) < 2_000
    monkeypatch.chdir("/")
    with pickle.loads(pickled) as other:
        assert other._config == ANY_ROWS
        np.testing.assert_array_equal(double(other, 3), 2 * X[:3])


def test_a_pickle_of_a_session_has_path_and_configuration(file):
    config = SessionConfig(device_manager=DeviceManager(3), join_dependent_rows=True)
    session = Session([file], config)
    session.runLoadPrograms()
    other = pickle.loads(pickle.dumps(session))
    other.runLoadPrograms()
    assert other.runs_alone is session.runs_alone
    assert other._config.device_manager.getNumDevices() == 3
    np.testing.assert_array_equal(other.run({"x": X})["z"], 2 * X)
    again = pickle.loads(pickle.dumps(Session(file, SessionConfig(executable=session.executable))))
    again.runLoadPrograms()
    np.testing.assert_array_equal(again.run({"x": X})["z"], 2 * X)


def test_a_pickle_takes_devices_along_as_others_of_their_kind(file):
    device = DeviceManager().getDevice(1)
    with ModelRunner(file, ModelRunnerConfig(replica_to_device={0: device})) as runner:
        with pickle.loads(pickle.dumps(runner)) as other:
            np.testing.assert_array_equal(double(other), 2 * X)
        np.testing.assert_array_equal(double(runner), 2 * X)


def test_a_runner_of_a_model_in_memory_says_why_it_cannot_be_pickled(file, open_model):
    runner = ModelRunner(open_model(file))
    with pytest.raises(pickle.PicklingError, match="from the paths of its PopEF files"):
        pickle.dumps(runner)
    runner.close()


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_a_pool_of_processes_takes_a_runner_by_every_start_method(file, method):
    context = multiprocessing.get_context(method)
    with ModelRunner(file) as runner:
        double(runner)
        process = context.Process(target=_put, args=(runner, answers := context.SimpleQueue()))
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0
        np.testing.assert_array_equal(answers.get(), 2 * X)
        with ProcessPoolExecutor(2, context) as pool:
            for answer in [pool.submit(double, runner) for _ in range(3)]:
                np.testing.assert_array_equal(answer.result(PATIENCE_SECONDS), 2 * X)


def _put(runner, answers):
    answers.put(double(runner))


@pytest.mark.slow
def test_joblib_takes_a_runner_to_its_workers(file):
    joblib = pytest.importorskip("joblib")
    with ModelRunner(file) as runner:
        for backend in ("loky", "multiprocessing"):
            ask = joblib.Parallel(n_jobs=2, backend=backend, timeout=PATIENCE_SECONDS)
            for answer in ask(joblib.delayed(double)(runner, rows) for rows in (4, 4)):
                np.testing.assert_array_equal(answer, 2 * X)


def test_a_child_does_not_destroy_what_was_garbage_before_the_fork():
    """A session of ONNX Runtime in a cycle: its destructor waits for the parent's threads."""
    destroyed = []

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            destroyed.append(True)

    def collect():
        gc.collect()
        return list(destroyed)

    gc.disable()
    try:
        Cycle()
        assert ask_fork(collect) == []
    finally:
        gc.enable()
    assert collect() == [True]


def test_no_collection_starts_in_a_child_before_the_garbage_of_its_parent_is_set_apart():
    """Python's own hooks allocate in the child before ours is called."""
    mine, theirs = os.pipe()
    parent = os.getpid()

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            if os.getpid() != parent:
                os.write(theirs, b"destroyed")

    thresholds = gc.get_threshold()
    gc.disable()
    Cycle()
    gc.set_threshold(1)
    gc.enable()
    pid = os.fork()
    if not pid:
        os._exit(0)
    assert gc.isenabled()
    gc.set_threshold(*thresholds)
    os.waitpid(pid, 0)
    os.close(theirs)
    with os.fdopen(mine, "rb") as answers:
        assert answers.read() == b""
