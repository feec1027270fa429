"""Starts of a server whose processes are killed or stopped before it is ready, all simulated."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from played_proc import PlayedProc
from poplar_triton.errors import LostServerError, ServerError
from poplar_triton.serving import starting, stubs
from poplar_triton.serving.server_state import ServerPhase, ServerState
from poplar_triton.serving.starting import (
    MAX_WAIT_SECONDS,
    RESTART_WINDOW_SECONDS,
    SILENCE_SECONDS,
    Restarts,
    StartWatch,
    start_first,
)

from popef._tools.stalls import LOOK_SECONDS, STALL_SECONDS, StallDetector

SERVER, STUB = 100, 101


class Stage:
    """A server that loads models, its processes and its clock."""

    def __init__(self, folder):
        self.proc = PlayedProc(folder)
        self.now = 1000.0
        self.lines = []
        self.state = ServerState()
        self.killed = []
        self.model_repository = "models"
        self.pid = SERVER
        self.loading_models = frozenset({"m", "n"})
        self.loaded_models = {}
        self.proc.say(SERVER, "S")

    def kill(self):
        self.killed.append(SERVER)

    def add_stub(self, state="S"):
        self.proc.say(STUB, state, parent=SERVER)
        words = [f"/b/{stubs.STUB}", "/models/m/1/model.py", *"abcdef", "m_0_0", "/b"]
        line = "" if state == "Z" else "\0".join(words)
        (self.proc.folder / str(STUB) / "cmdline").write_text(line)

    def wait(self, seconds):
        self.now += seconds
        return False

    def watch(self, *, heals_stubs=True, restarts=True):
        return StartWatch(
            self,
            self.state,
            self.lines.append,
            heals_stubs=heals_stubs,
            restarts=restarts,
            wait=self.wait,
            clock=lambda: self.now,
        )

    def look_for(self, watch, seconds):
        end = self.now + seconds
        while self.now < end:
            assert not watch.pause(LOOK_SECONDS)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    stage = Stage(tmp_path)
    folder, clock = tmp_path, lambda: stage.now
    monkeypatch.setattr(stubs, "StallDetector", lambda: StallDetector(folder, clock))
    watch, zombies = starting.StubWatch, starting.ZombieWatch
    monkeypatch.setattr(starting, "StubWatch", lambda *a, **k: watch(*a, **k, proc=folder))
    monkeypatch.setattr(starting, "ZombieWatch", lambda clock: zombies(clock, folder))
    monkeypatch.setattr(starting, "offer_to_oom_killer", lambda *_: None)
    monkeypatch.setattr(starting.os, "kill", lambda pid, _: stage.killed.append(pid))
    return stage


def test_a_server_that_loads_for_long_is_left_alone(stage):
    stage.add_stub()
    stage.look_for(stage.watch(), 100)
    assert (stage.lines, stage.killed) == ([], [])
    assert stage.state.unready_reason == ServerPhase.STARTING.value


@pytest.mark.parametrize("is_known", [True, False])
def test_a_server_that_waits_for_a_dead_stub_is_killed_and_the_stub_named(stage, is_known):
    watch = stage.watch()
    if is_known:
        stage.add_stub()
        stage.look_for(watch, 1)
    stage.add_stub("Z")
    name = "m_0_0 of model 'm' version 1" if is_known else "a process of tritonserver"
    words = (
        rf"^dead: {name} \(process 101\) in a load, whose end tritonserver waits for "
        r"\(still loading: 'm', 'n'\)$"
    )
    before = stage.now
    with pytest.raises(LostServerError, match=words):
        stage.look_for(watch, 10)
    assert stage.now < before + 2 * STALL_SECONDS
    assert stage.killed == [SERVER]


def test_a_stub_that_ends_in_order_is_reaped(stage):
    watch = stage.watch()
    for _ in range(10):
        stage.add_stub()
        stage.look_for(watch, 2 * LOOK_SECONDS)
        stage.add_stub("Z")
        stage.look_for(watch, STALL_SECONDS / 2)
        (stage.proc.folder / str(STUB) / "stat").unlink()
        stage.look_for(watch, LOOK_SECONDS)
    assert stage.killed == []


def test_a_stub_that_ends_while_its_server_is_stopped_is_not_dead(stage):
    watch = stage.watch(restarts=False)
    stage.add_stub()
    stage.look_for(watch, 1)
    stage.proc.say(SERVER, "T")
    stage.add_stub("Z")
    stage.look_for(watch, 5)
    stage.proc.say(SERVER, "S")
    stage.look_for(watch, STALL_SECONDS / 2)
    (stage.proc.folder / str(STUB) / "stat").unlink()
    stage.look_for(watch, 5)
    assert stage.killed == []


def test_a_stub_that_is_dead_when_its_server_goes_on_is_dead(stage):
    watch = stage.watch(restarts=False)
    stage.proc.say(SERVER, "T")
    stage.add_stub("Z")
    stage.look_for(watch, 5)
    stage.proc.say(SERVER, "S")
    with pytest.raises(LostServerError, match=r"^dead: "):
        stage.look_for(watch, 5)


def test_a_stub_that_dies_after_the_last_look_is_lost_to_the_supervisor(stage):
    watch = stage.watch()
    stage.add_stub()
    stage.look_for(watch, 1)
    stage.add_stub("Z")
    living, lost = watch.hand_over().scan()
    assert (living, [stub.title for stub in lost]) == ([], ["m_0_0 of model 'm' version 1"])


def test_a_stub_that_ended_in_order_during_the_start_is_not_lost(stage):
    watch = stage.watch()
    stage.add_stub()
    stage.look_for(watch, 1)
    (stage.proc.folder / str(STUB) / "stat").unlink()
    stage.look_for(watch, 1)
    assert watch.hand_over().scan() == ([], [])


@pytest.mark.parametrize(("pid", "name"), [(SERVER, "tritonserver"), (STUB, "m_0_0 of model 'm'")])
@pytest.mark.parametrize("heals", [True, False])
def test_a_process_that_is_stopped_is_named_and_killed_where_that_heals(stage, pid, name, heals):
    stage.add_stub()
    watch = stage.watch(heals_stubs=heals, restarts=heals)
    stage.look_for(watch, 1)
    stage.proc.say(pid, "T", parent=SERVER if pid == STUB else 1)
    stage.look_for(watch, 2 * STALL_SECONDS)
    (line,) = stage.lines
    assert line.startswith(f"stalled: {name}")
    assert line.endswith("it is stopped; killing it" if heals else "it is stopped")
    assert stage.killed == ([pid] if heals else [])
    assert stage.state.unready_reason == line.removesuffix("; killing it")
    assert stage.state.hopeless_reason == ""


def test_a_stopped_server_without_restarts_left_ends_supervision(stage):
    watch = stage.watch(restarts=False)
    stage.proc.say(SERVER, "T")
    stage.look_for(watch, SILENCE_SECONDS + 2)
    assert "for a long time" in stage.state.hopeless_reason


def make_restarts(stage, most):
    return Restarts(most, stage.lines.append, lambda: stage.now)


def test_restarts_are_bounded_and_ever_further_apart(stage):
    restarts = make_restarts(stage, 9)
    moments = []
    while restarts.may_begin():
        assert restarts.begin(stage.wait)
        moments.append(stage.now)
    assert stage.lines == ["tritonserver was started 9 times in 10 minutes; giving up"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert pauses == [1, 2, 4, 8, 16, MAX_WAIT_SECONDS, MAX_WAIT_SECONDS, MAX_WAIT_SECONDS]
    stage.now += RESTART_WINDOW_SECONDS
    assert restarts.may_begin()


def test_a_server_that_has_run_for_long_is_restarted_at_once(stage):
    restarts = make_restarts(stage, 9)
    for _ in range(9):
        before = stage.now
        assert restarts.begin(stage.wait)
        assert stage.now == before
        stage.now += MAX_WAIT_SECONDS


def test_a_request_to_stop_ends_the_wait(stage):
    restarts = make_restarts(stage, 2)
    assert restarts.begin(stage.wait)
    assert not restarts.begin(lambda _: True)


def start(stage, outcomes, restarts):
    """Start a server whose starts end so, and return how many there were."""
    count = 0

    def try_to_start(pause):
        nonlocal count
        count += 1
        error = outcomes.pop(0)
        if error is not None:
            raise error

    server = SimpleNamespace(start=try_to_start)
    start_first(server, stage.state, restarts, stage.watch, stage.lines.append, stage.wait)
    return count


def test_a_server_that_is_lost_before_it_is_ready_is_started_again(stage):
    losses = [LostServerError("killed"), LostServerError("stalled")]
    assert start(stage, [*losses, None], make_restarts(stage, 2)) == 3
    assert stage.lines == ["killed", "stalled"]
    assert b"poplar_supervisor_restarts_total 2.0" in stage.state.write_metrics()


@pytest.mark.parametrize(
    ("error", "most"), [(LostServerError("killed"), 0), (ServerError("no such option"), 2)]
)
def test_one_that_may_not_be_restarted_or_says_why_it_cannot_serve_is_an_error(stage, error, most):
    with pytest.raises(ServerError, match=str(error)):
        start(stage, [error], make_restarts(stage, most))
