"""Processes that die in a load or an unload, which Triton does not end; all are played."""

from __future__ import annotations

import shutil

import pytest
from played_proc import PlayedProc
from poplar_triton.serving import stuck_calls
from poplar_triton.serving.server_state import ServerPhase, ServerState
from poplar_triton.serving.stubs import STUB, StubWatch, ZombieWatch
from poplar_triton.serving.stuck_calls import StuckCalls

SERVER = 100
EXIT_SECONDS = 30
DEAD = "dead: m_0_0 of model 'm' version 1"
UNENDED = " in a load or an unload, which tritonserver does not end"


class Stage:
    """A server with its stubs and a clock."""

    loading_models = frozenset({"m"})
    exit_seconds = EXIT_SECONDS

    def __init__(self, folder):
        self.proc = PlayedProc(folder)
        self.now = 1000.0
        self.lines = []
        self.loads = {}
        self.state = ServerState()
        self.state.answers = True
        self.state.enter(ServerPhase.SERVING)
        self.proc.say(SERVER, "S")
        self.watch = StubWatch(SERVER, read_loads=lambda: self.loads, proc=folder)
        self.calls = StuckCalls(self, self.state, self.lines.append, lambda: self.now)

    def start(self, pid, started, model="m"):
        self.proc.say(pid, "S", parent=SERVER, started=started)
        words = [f"/b/{STUB}", f"/models/{model}/1/model.py", *"abcdef", f"{model}_0_0", "/b"]
        (self.proc.folder / str(pid) / "cmdline").write_text("\0".join(words))

    def die(self, pid, started):
        self.proc.say(pid, "Z", parent=SERVER, started=started)
        (self.proc.folder / str(pid) / "cmdline").write_text("")

    def look(self, seconds=4):
        """Look once a second; the server serves no lost instance."""
        for _ in range(seconds):
            self.now += 1
            living, lost = self.watch.scan()
            for stub in lost:
                self.watch.forget(stub)
            self.calls.scan(self.watch, living, ())
            self.state.note_stubs(living, self.calls.dead)
        return self.state.unready_reason

    def count_deaths(self, model="m"):
        line = f'poplar_supervisor_stub_deaths_total{{model="{model}"}} '
        (found,) = [
            text for text in self.state.write_metrics().decode().splitlines() if line in text
        ]
        return float(found.rpartition(" ")[2])


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(stuck_calls, "ZombieWatch", lambda clock: ZombieWatch(clock, tmp_path))
    return Stage(tmp_path)


def test_a_stub_that_dies_in_an_unload_is_reported_and_counts_for_the_exit_timeout(stage):
    stage.start(7, started=5)
    stage.start(8, started=5, model="other")
    assert stage.look() == ""
    stage.die(7, started=5)
    assert stage.look() == DEAD
    assert stage.lines == [f"{DEAD} (process 7){UNENDED}"]
    assert stage.count_deaths() == 1
    assert stage.look(EXIT_SECONDS) == ""
    assert stage.lines[1:] == [
        "model 'm': process 7 no longer counts; only a restart of tritonserver frees what its "
        "model holds"
    ]
    assert stage.look() == ""
    assert stage.count_deaths() == 1


@pytest.mark.parametrize("is_loaded_again", [True, False])
def test_it_counts_no_more_once_triton_has_ended_it_or_the_model_is_served(stage, is_loaded_again):
    stage.start(7, started=5)
    stage.look()
    stage.die(7, started=5)
    assert stage.look() == DEAD
    if is_loaded_again:
        stage.start(9, started=6)
    else:
        shutil.rmtree(stage.proc.folder / "7")
    assert stage.look(1) == ""
    assert len(stage.lines) == 1


def test_a_stub_that_dies_in_a_load_is_reported_while_the_old_one_serves(stage):
    stage.start(7, started=5)
    stage.loads["m"] = 6
    stage.look()
    stage.start(8, started=9)
    stage.look(1)
    stage.die(8, started=9)
    assert stage.look() == ""
    assert stage.lines == [
        f"{DEAD} (process 8) in a load, which tritonserver does not end; process 7 serves on, and "
        "only a restart lets another load of the model end"
    ]
    assert stage.count_deaths() == 1


def test_a_stub_that_dies_unseen_is_reported_with_the_loading_model(stage):
    stage.die(8, started=9)
    assert stage.look() == ""
    assert stage.lines == [
        "dead: a process of tritonserver (process 8) in a load, which tritonserver does not end "
        "(still loading: 'm')"
    ]
    assert stage.count_deaths() == 1


def test_a_dead_stub_whose_model_was_loaded_again_at_once_is_a_death_only(stage):
    stage.start(7, started=5)
    stage.look()
    stage.die(7, started=5)
    stage.start(8, started=6)
    assert stage.look() == ""
    assert stage.lines == [f"{DEAD} (process 7); process 8 has replaced it"]
    assert stage.count_deaths() == 1


def test_processes_that_end_in_order_are_not_reported(stage):
    stage.start(7, started=5)
    stage.start(8, started=5, model="other")
    stage.look()
    stage.calls.account([8])
    stage.die(7, started=5)
    stage.die(8, started=5)
    stage.look(1)
    shutil.rmtree(stage.proc.folder / "7")  # reaped
    assert stage.look() == ""
    assert stage.lines == []
