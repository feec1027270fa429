"""Tests of a graph in a child process: its results equal those in this process, and its death is an
error of one run."""

import fcntl
import operator
import os
import resource
import signal
import time
from functools import partial

import numpy as np
import pytest
from compiled_models import compile_once
from onnx import TensorProto, helper, numpy_helper
from simipu import (
    Device,
    DeviceLostError,
    Engine,
    GraphOptions,
    LoadError,
    LoadLostError,
    Lowered,
    RunError,
    RunTimeoutError,
)
from simipu.engines import isolation
from simipu.processes.sandbox import find_missing
from waiting import PATIENCE_SECONDS, wait_until

from popef._tools import channel, stalls
from popef._tools.memory import offer_to_oom_killer


def make_isolated(linear, limit_seconds=60.0, **options):
    """Return an engine of the linear model whose graph is in a child process."""
    compiled = compile_once(linear, options=options)
    graph_options = GraphOptions(num_threads=1, limit_seconds=limit_seconds)
    engine = Engine(
        compiled.executable,
        Device(compiled.executable.target),
        isolated=True,
        graph_options=graph_options,
    )
    engine.collected = {}
    engine.x = np.ones((3, 4), np.float32)
    engine.connect_input("h2d_x", lambda most: engine.x)
    engine.connect_output("anchor_d2h_z", lambda rows: engine.collected.update(z=rows))
    for name, value in compiled.weights.items():
        engine.connect_input(f"h2d_{name}", lambda most, value=value: value[None])
    engine.run(0)
    engine.load(5)
    return engine


@pytest.fixture
def make_engine(linear):
    engines = []

    def make(**options):
        engines.append(make_isolated(linear, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.unload()


@pytest.fixture(scope="module")
def lasting(linear):
    """Return an engine for the tests after which its child lives on."""
    engine = make_isolated(linear)
    yield engine
    engine.unload()


def child(engine):
    return engine._mains[5].graph.pid


def kill_in_a_run(engine, death):
    """Kill the child process after it was checked and before it answers."""
    graph = engine._mains[5].graph
    ask = graph._ask

    def dying(*question):
        os.kill(graph.pid, death)
        graph._ask = ask
        return ask(*question)

    graph._ask = dying


def test_the_child_computes_the_same(lasting):
    assert lasting.run(5) == 3
    np.testing.assert_array_equal(lasting.collected["z"], 2 * lasting.x)
    assert child(lasting) != os.getpid()


def test_the_child_computes_the_same_with_streamed_weights(make_engine):
    engine = make_engine(constant_weights=False)
    assert engine.run(5) == 3
    np.testing.assert_array_equal(engine.collected["z"], 2 * engine.x)


@pytest.mark.parametrize(
    "death", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)]
)
def test_a_dead_child_costs_one_run(make_engine, death):
    engine = make_engine()
    for _ in range(2):
        before = child(engine)
        kill_in_a_run(engine, death)
        with pytest.raises(
            DeviceLostError, match=f"process died .signal {death.name}.; a new one takes its place"
        ):
            engine.run(5)
        assert engine.run(5) == 3
        assert child(engine) != before
        assert not os.path.exists(f"/proc/{before}")


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the waits of seconds to fractions of a second."""
    monkeypatch.setattr(isolation, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(channel, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(isolation, "_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(stalls, "STALL_SECONDS", 0.1)


@pytest.mark.slow
def test_a_child_that_is_stopped_in_a_run_is_replaced_long_before_the_limit(
    impatient, make_engine, monkeypatch
):
    engine = make_engine()
    before = child(engine)
    monkeypatch.setattr(channel.Channel, "has_unread", False)  # it had read the request
    os.kill(before, signal.SIGSTOP)
    with pytest.raises(
        DeviceLostError, match=r"made no progress \(it is stopped\) and was ended; a new one"
    ):
        engine.run(5)
    assert engine.run(5) == 3
    assert not os.path.exists(f"/proc/{before}")


@pytest.mark.slow
def test_an_idle_child_that_is_stopped_right_before_a_run_costs_none(
    impatient, make_engine, caplog
):
    """Only after a pause it is looked at before a run: a look costs as much as a small run."""
    engine = make_engine()
    before = child(engine)
    assert engine.run(5) == 3
    os.kill(before, signal.SIGSTOP)
    assert engine.run(5) == 3
    assert not os.path.exists(f"/proc/{before}")
    assert "the idle engine's process made no progress (it is stopped)" in caplog.text


@pytest.fixture
def idle(impatient, monkeypatch):
    """Treat any pause as a long one, and return the seconds of such a pause."""
    monkeypatch.setattr(isolation, "STALL_SECONDS", 0.1)
    return 0.15


@pytest.mark.slow
def test_a_child_that_is_stopped_between_runs_costs_none(idle, make_engine):
    engine = make_engine()
    before = child(engine)
    os.kill(before, signal.SIGSTOP)
    time.sleep(idle)
    assert engine.run(5) == 3
    assert not os.path.exists(f"/proc/{before}")


def test_a_child_that_goes_on_soon_is_kept(idle, lasting, monkeypatch):
    before = child(lasting)
    os.kill(before, signal.SIGSTOP)
    time.sleep(idle)
    monkeypatch.setattr(isolation.time, "sleep", lambda _: os.kill(before, signal.SIGCONT))
    assert lasting.run(5) == 3
    assert child(lasting) == before


@pytest.mark.slow
def test_a_stopped_child_that_takes_no_question_is_replaced(impatient, make_engine, caplog):
    """Arrays larger than the pipe's buffer would otherwise wait for ever."""
    engine = make_engine()
    os.kill(child(engine), signal.SIGSTOP)
    with pytest.raises(RunError):  # of the next child, which reads that there are too many
        engine._mains[5].graph.run([], {"x": np.zeros(1 << 20)})
    assert "read nothing for 0.1 s and was ended" in caplog.text
    assert engine.run(5) == 3


@pytest.mark.slow
def test_a_child_that_died_between_runs_costs_none(make_engine):
    engine = make_engine()
    before = child(engine)
    os.kill(before, signal.SIGKILL)
    engine._mains[5].graph._child.process.reap()
    assert engine.run(5) == 3
    assert child(engine) != before


def test_a_child_ends_with_its_parent_in_the_middle_of_a_run(make_engine):
    engine = make_engine()
    before = child(engine)
    graph = engine._mains[5].graph
    graph._child.channel.close()
    assert graph._child.process.wait(PATIENCE_SECONDS)
    graph._child.process.reap()
    assert not os.path.exists(f"/proc/{before}")


@pytest.mark.slow
def test_a_stuck_child_is_replaced(make_engine):
    engine = make_engine(limit_seconds=0.5)
    os.kill(child(engine), signal.SIGSTOP)
    with pytest.raises(RunTimeoutError, match=r"took longer than its limit of 0\.5 s"):
        engine.run(5)
    assert engine.run(5) == 3


def test_refused_values_leave_the_child_alive(lasting, monkeypatch):
    before = child(lasting)
    with monkeypatch.context() as patch:
        patch.setattr(lasting, "x", np.ones((3, 5), np.float32))
        with pytest.raises(RunError):
            lasting.run(5)
    assert lasting.run(5) == 3
    assert child(lasting) == before


def test_unloading_ends_the_child(make_engine):
    engine = make_engine()
    before = child(engine)
    engine.unload()
    wait_until(lambda: not os.path.exists(f"/proc/{before}"), "the child ends")


def test_the_kernel_ends_the_child_first_when_memory_runs_out(lasting):
    with open(f"/proc/{child(lasting)}/oom_score_adj") as file:
        assert int(file.read()) == 1000


def test_a_process_that_is_gone_is_not_offered_to_the_oom_killer():
    offer_to_oom_killer(1 << 30)


def test_the_child_is_confined(lasting):
    if find_missing():
        pytest.skip("this system confines nothing")
    with open(f"/proc/{child(lasting)}/status") as file:
        status = file.read()
    assert "Seccomp:\t2\n" in status
    assert "NoNewPrivs:\t1\n" in status
    lasting.run(5)


@pytest.mark.slow
def test_a_child_reads_what_it_tries_to_load_and_nothing_else(tmp_path):
    if find_missing():
        pytest.skip("this system confines nothing")
    for folder in ("model", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("text")
    limits = GraphOptions(num_threads=1, ready_seconds=60.0)

    def load(folder):
        work = partial(operator.methodcaller("read_text"), tmp_path / folder / "file")
        isolation.try_in_child(
            isolation.Trial(work, 0, (str(tmp_path / "model"),)), limits, "model 'm'"
        )

    load("model")
    with pytest.raises(LoadError, match="died"):
        load("other")


def test_a_child_has_no_descriptor_of_its_parent_but_the_channel(tmp_path):
    limits = GraphOptions(num_threads=1, ready_seconds=60.0)
    with open(tmp_path / "secret", "w") as file:
        # Above all numbers that the child uses itself.
        secret = fcntl.fcntl(file, fcntl.F_DUPFD, 200)
        try:
            os.set_inheritable(secret, True)
            with pytest.raises(LoadError, match="died"):
                isolation.try_in_child(isolation.Trial(partial(os.fstat, secret), 0), limits, "m")
        finally:
            os.close(secret)


def test_a_child_of_root_can_raise_no_limit():
    if find_missing():
        pytest.skip("this system confines nothing")
    limits = GraphOptions(num_threads=1, ready_seconds=60.0)
    infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    raising = isolation.Trial(partial(resource.setrlimit, resource.RLIMIT_DATA, infinite), 0)
    with pytest.raises(LoadError, match="died"):
        isolation.try_in_child(raising, limits, "model 'm'")
    lowering = isolation.Trial(partial(resource.setrlimit, resource.RLIMIT_CORE, (0, 0)), 0)
    isolation.try_in_child(lowering, limits, "model 'm'")


USES = {
    "private memory": "mmap.mmap(-1, {size}, flags=0x22)",
    "private memory that is made read-only": (
        "[libc.mprotect(ctypes.byref(ctypes.c_char.from_buffer(kept)), 1 << 20, 1)"
        " for _ in range({size} >> 20) for kept in [keep(mmap.mmap(-1, 1 << 20, flags=0x22))]]"
    ),
    "page tables of memory that is only read": "mmap.mmap(-1, {size} << 9, flags=0x4022, prot=1)",
}
"""Code that uses so many bytes of memory, or as much for page tables, and lets go of none."""


@pytest.mark.parametrize("use", USES)
def test_no_use_of_memory_exceeds_the_limit_by_much(use):
    if find_missing():
        pytest.skip("this system confines nothing")
    limits = GraphOptions(num_threads=1, ready_seconds=60.0, memory_bytes=1 << 28)
    head = (
        "import ctypes, mmap\nlibc = ctypes.CDLL(None, use_errno=True)\nall = []\n"
        "def keep(memory):\n    all.append(memory)\n    return memory\n"
    )
    trial = isolation.Trial(partial(exec, head + USES[use].format(size=16 << 30), {}), 0)
    with pytest.raises(LoadError, match=r"died|memory"):
        isolation.try_in_child(trial, limits, "model 'm'")


def test_threads_of_the_reference_are_not_pinned(capfd):
    """The sandbox forbids it, and ONNX Runtime would log an error."""
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    x = np.ones((2, 3), np.float32)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)]
    axis = numpy_helper.from_array(np.int64(1), "axis")
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(
        helper.make_graph([node], "sums", inputs, outputs, [axis]), opset_imports=imports
    )
    model.ir_version = 8
    options = GraphOptions(num_threads=1)
    graph = isolation.IsolatedGraph("m", Lowered(model.SerializeToString(), {}), {}, options, None)
    try:
        (found,) = graph.run(["y"], {"x": x})
    finally:
        graph.close()
    np.testing.assert_array_equal(found, [[1, 2, 3]] * 2)
    assert "affinity" not in capfd.readouterr().err


LIMITS = GraphOptions(num_threads=1, ready_seconds=60.0)


@pytest.fixture
def started(monkeypatch):
    """Return the pids of the children that load, which are signalled as `deaths` says, in turn."""
    monkeypatch.setattr(isolation, "_RETRY_SECONDS", 0.01)
    start = isolation.IsolatedGraph._start

    class Pids(list):
        deaths = ()

    pids = Pids()

    def start_and_signal(graph):
        start(graph)
        pids.append(graph.pid)
        if pids.deaths:
            os.kill(graph.pid, pids.deaths.pop(0))

    monkeypatch.setattr(isolation.IsolatedGraph, "_start", start_and_signal)
    return pids


@pytest.mark.slow
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
def test_a_load_whose_process_a_signal_ends_is_tried_again(started, impatient, linear, death):
    started.deaths = [death, death]
    isolation.try_in_child(isolation.Trial(partial(int, "1"), 0), LIMITS, "model 'm'")
    assert len(started) == 3
    started.deaths = [death]
    engine = make_isolated(linear)
    assert engine.run(5) == 3
    engine.unload()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("death", "error", "words"),
    [
        (signal.SIGKILL, LoadLostError, "its process was lost while loading 3 times.*SIGKILL"),
        (signal.SIGSTOP, LoadLostError, "its process was lost while loading 3 times.*is stopped"),
        (signal.SIGSEGV, LoadError, "the process that loaded it was lost 3 times.*died .*SIGSEGV"),
    ],
)
def test_a_load_whose_processes_all_die_is_an_error_that_names_it(
    started, impatient, death, error, words
):
    started.deaths = [death] * 3
    with pytest.raises(error, match=f"^model 'm': {words}") as caught:
        isolation.try_in_child(isolation.Trial(partial(int, "1"), 0), LIMITS, "model 'm'")
    assert (type(caught.value) is LoadLostError) == (error is LoadLostError)
    assert len(started) == 4  # the last one was ended at once: nobody needs it


def test_a_load_that_ends_its_process_is_tried_once(started):
    with pytest.raises(LoadError, match=r"was lost; it died \(exit status 3\)$"):
        isolation.try_in_child(isolation.Trial(partial(os._exit, 3), 0), LIMITS, "model 'm'")
    assert len(started) == 2
