"""The time limit of loads while a server starts."""

import os
import socket
import time

import hostile_graphs
import pytest
import simipu
from onnx import helper
from sample_models import write_executable
from simipu import LoadTimeoutError
from triton_poplar import instance_state, server_start, sessions
from triton_poplar.errors import ModelConfigError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.parameters import BackendOptions, Parameters
from triton_poplar.server_start import CUT_SHORT, ServerStart
from triton_poplar.sessions import load_session, make_graph_options

LIMIT = 300.0


@pytest.fixture
def clock(monkeypatch):
    """Return a list with the time."""
    now = [1000.0]
    monkeypatch.setattr(server_start.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def make_state(tmp_path, monkeypatch):
    """Return a function that makes the state of a model that no cache knows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    graph = hostile_graphs.make_model([helper.make_node("Relu", ["x"], ["y"])])
    write_executable(folder / "executable.popef", hostile_graphs.make_executable(graph))

    def make(**parameters):
        entries = {name: {"string_value": value} for name, value in parameters.items()}
        return ModelState({"name": "model", "parameters": entries}, folder)

    return make


def test_by_default_a_load_takes_a_third_of_a_start_at_most():
    assert (
        3 * Parameters().sim_load_sec
        <= BackendOptions().sim_start_sec
        == server_start.START_SECONDS
    )


@pytest.mark.parametrize("limit", [1.0, 60.0, LIMIT, 3600.0])
@pytest.mark.parametrize("count", [1, 10, 20])
def test_loads_that_never_end_one_after_the_other_end_before_the_start(clock, limit, count):
    """Each takes its limit, what its process may take to report it (simipu.engines.isolation), and the
    start of the processes of its model, which nothing limits."""
    start = ServerStart(clock[0], limit)
    stub_seconds = limit / 60
    for _ in range(count):
        clock[0] += stub_seconds
        if not start.is_used_up:
            seconds = start.limit_first(90)
            clock[0] += seconds + min(0.25 * seconds, 10)
    assert clock[0] < 1000 + limit


@pytest.mark.parametrize("count", [1, 3, 8])
def test_slow_loads_one_after_the_other_end_before_the_start(clock, count):
    """A load that succeeds is done twice: in a child process first."""
    start = ServerStart(clock[0], LIMIT)
    for _ in range(count):
        if not start.is_used_up:
            clock[0] += 2 * start.limit_first(90)
    assert clock[0] < 1000 + LIMIT


def test_a_load_of_a_known_file_may_take_what_is_left(clock):
    start = ServerStart(clock[0], LIMIT)
    assert (start.limit(90), start.limit_first(90)) == (90, pytest.approx(45))
    clock[0] += 120
    assert start.limit(90) == 90
    assert start.limit_first(90) == pytest.approx(15)
    clock[0] += 80
    assert start.limit(90) == pytest.approx(70)
    assert start.is_used_up
    clock[0] += 90
    assert start.limit(90) == pytest.approx(5)


def test_a_part_of_the_start_is_left_to_models_that_are_not_tried(clock):
    start = ServerStart(clock[0], LIMIT)
    clock[0] += 159
    assert not start.is_used_up
    clock[0] += 2
    assert start.is_used_up
    clock[0] += LIMIT
    assert not start.is_used_up


def test_after_the_start_a_load_has_its_own_limit(clock):
    assert ServerStart().limit_first(90) == 90
    start = ServerStart(clock[0], LIMIT)
    clock[0] += LIMIT + 1
    assert start.limit_first(90) == 90


def test_a_server_has_started_once_it_listens():
    start = ServerStart.of_process(os.getpid(), 10**6)
    assert start.began < time.monotonic()
    start = ServerStart(time.monotonic(), 40, os.getpid())
    assert start.limit_first(90) == pytest.approx(6, abs=1)
    with socket.create_server(("127.0.0.1", 0)):
        assert start.limit_first(90) == 90


def test_the_sockets_are_not_looked_at_for_a_load_that_has_time_enough(monkeypatch):
    """That takes 20 ms of processor time where the system's tables are large."""
    monkeypatch.setattr(server_start, "iter_inodes", lambda _: pytest.fail("it looked"))
    start = ServerStart(time.monotonic(), LIMIT, os.getpid())
    assert start.limit(90) == 90
    assert not start.is_used_up


def test_a_server_that_is_not_shown_sets_no_limit():
    assert ServerStart.of_process(2**30, 300).limit_first(90) == 90


def test_models_get_the_limits_of_the_start(clock, tmp_path, make_state):
    known, isolated = make_state(), make_state(sim_isolation="process")
    for state in (known, isolated):
        state.backend.start = ServerStart(clock[0], 90)
    assert make_graph_options(known).ready_seconds == pytest.approx(81)
    assert make_graph_options(isolated).ready_seconds == pytest.approx(13.5)


def test_a_first_load_cut_short_by_the_start_reports_it(make_state, monkeypatch):
    def run_out_of_time(trial, options, label):
        raise LoadTimeoutError(f"{label}: it was not ready within {options.ready_seconds:g} s")

    monkeypatch.setattr(simipu, "try_in_child", run_out_of_time)
    state = make_state()
    state.backend.start = ServerStart(time.monotonic(), 100)
    words = rf"^model 'model': it was not ready within 1\d s; {CUT_SHORT}: .* first 60 s; "
    with pytest.raises(ModelConfigError, match=words):
        sessions.load_first(state, make_graph_options(state), load_session)
    state.backend.start = ServerStart()
    with pytest.raises(ModelConfigError, match=r"^model 'model': it was not ready within 90 s$"):
        sessions.load_first(state, make_graph_options(state), load_session)


@pytest.mark.parametrize("parameters", [{}, {"sim_isolation": "process"}], ids=["own", "isolated"])
def test_unknown_files_are_not_tried_once_the_start_has_no_time_left(
    make_state, clock, monkeypatch, parameters
):
    state = make_state(**parameters)
    state.backend.start = ServerStart(clock[0], 100)
    clock[0] += 59
    monkeypatch.setattr(simipu, "try_in_child", lambda *_: pytest.fail("it was tried"))
    words = rf"^model 'model' was not tried: {CUT_SHORT}: "
    with pytest.raises(ModelConfigError, match=words):
        ModelInstanceState(state, "model_0")
    clock[0] += 42
    if parameters:
        ModelInstanceState(state, "model_0").close()


def test_an_isolated_load_cut_short_by_the_start_reports_it(make_state, monkeypatch):
    def run_out_of_time(_):
        raise LoadTimeoutError("it was not ready within 1 s")

    monkeypatch.setattr(instance_state, "load_session", run_out_of_time)
    state = make_state(sim_isolation="process")
    state.backend.start = ServerStart(time.monotonic(), 100)
    words = rf"^model 'model': it was not ready within 1 s; {CUT_SHORT}: "
    with pytest.raises(ModelConfigError, match=words):
        ModelInstanceState(state, "model_0")
