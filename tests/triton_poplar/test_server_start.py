"""The time limit of loads while a server starts."""

import os
import socket
import time

import hostile_graphs
import pytest
from onnx import helper
from sample_models import write_executable
from simipu import LoadTimeoutError
from triton_poplar import server_start, sessions
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState
from triton_poplar.parameters import BackendOptions, Parameters
from triton_poplar.server_start import ServerStart
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


@pytest.mark.parametrize("limit", [1.0, 24.0, LIMIT, 3600.0])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_loads_that_never_end_one_after_the_other_end_before_the_start(clock, limit, count):
    """Each takes its limit, and what its process may take to report it (simipu.isolation)."""
    start = ServerStart(clock[0], limit)
    for _ in range(count):
        seconds = start.limit_first(90)
        clock[0] += seconds + min(0.25 * seconds, 10)
    assert clock[0] < 1000 + limit


@pytest.mark.parametrize("count", [1, 3, 8])
def test_slow_loads_one_after_the_other_end_before_the_start(clock, count):
    """A load that succeeds is done twice: in a child process first."""
    start = ServerStart(clock[0], LIMIT)
    for _ in range(count):
        clock[0] += 2 * start.limit_first(90)
    assert clock[0] < 1000 + LIMIT


def test_a_load_of_a_known_file_may_take_what_is_left(clock):
    start = ServerStart(clock[0], LIMIT)
    assert start.limit(90) == start.limit_first(90) == 90
    clock[0] += 200
    assert start.limit(90) == pytest.approx(70)
    assert start.limit_first(90) == pytest.approx(70 / 3)
    clock[0] += 90
    assert start.limit(90) == start.limit_first(90) == pytest.approx(2)


def test_after_the_start_a_load_has_its_own_limit(clock):
    assert ServerStart().limit_first(90) == 90
    start = ServerStart(clock[0], LIMIT)
    clock[0] += LIMIT + 1
    assert start.limit_first(90) == 90


def test_a_server_has_started_once_it_listens():
    start = ServerStart.of_process(os.getpid(), 10**6)
    assert start.began < time.monotonic()
    start = ServerStart(time.monotonic(), 30, os.getpid())
    assert start.limit_first(90) == pytest.approx(9, abs=1)
    with socket.create_server(("127.0.0.1", 0)):
        assert start.limit_first(90) == 90


def test_a_server_that_is_not_shown_sets_no_limit():
    assert ServerStart.of_process(2**30, 300).limit_first(90) == 90


def test_models_get_the_limits_of_the_start(clock, tmp_path, make_state):
    known, isolated = make_state(), make_state(sim_isolation="process")
    for state in (known, isolated):
        state.backend.start = ServerStart(clock[0], 90)
    assert make_graph_options(known).ready_seconds == pytest.approx(81)
    assert make_graph_options(isolated).ready_seconds == pytest.approx(27)


def test_a_first_load_that_the_start_cuts_short_says_so(make_state, monkeypatch):
    def run_out_of_time(trial, options, label):
        raise LoadTimeoutError(f"{label}: it was not ready within {options.ready_seconds:g} s")

    monkeypatch.setattr(sessions, "try_in_child", run_out_of_time)
    state = make_state()
    state.backend.start = ServerStart(time.monotonic(), 100)
    words = r"^model 'model': it was not ready within 2\d s; while the server starts, .* of 100 s: "
    with pytest.raises(ModelConfigError, match=words):
        sessions.load_first(state, make_graph_options(state), load_session)
    state.backend.start = ServerStart()
    with pytest.raises(ModelConfigError, match=r"^model 'model': it was not ready within 90 s$"):
        sessions.load_first(state, make_graph_options(state), load_session)
