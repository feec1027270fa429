"""A supervisor whose server dies, goes silent, loses instances or must stop.

All of it is simulated, without a server.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from played_supervisor import HERE, Play, PlayedServer, PlayedWatch, wait_for_reload
from poplar_triton.serving import starting, supervisor
from poplar_triton.serving.healer import MAX_SERVER_RELOADS
from poplar_triton.serving.server_state import ServerPhase
from poplar_triton.serving.stubs import Stall, Stub
from poplar_triton.serving.supervisor import OnDeadStub
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def play():
    return Play


def test_a_server_that_is_asked_to_stop_is_left_to_who_has_started_it(play):
    it = play()
    assert it.run(lambda: None)
    assert it.seen == [("", "")]
    assert (it.server.stops, it.lines) == (0, [])
    assert it.state.unready_reason == ServerPhase.DRAINING.value


def test_a_dead_instance_and_its_return_are_logged_once(play):
    it = play()
    assert it.run(it.lose, lambda: None, lambda: None)
    assert it.seen == [("dead: m_0_0 of model 'm' version 1", "")]
    assert it.lines == ["dead: m_0_0 of model 'm' version 1 (process 7)"]
    it = play()
    assert it.run(it.lose, lambda: it.server.lost.clear(), lambda: None)
    assert it.seen == [("", "")]
    assert it.lines[1:] == ["all instances are alive again"]


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_instance_that_dies_before_the_first_look_is_dead(play, monkeypatch, restarts):
    """Each watch of stubs knows those that it has seen alive, so there is one for each start."""
    it = play(restarts=restarts)
    watches = []

    def make_watch(*_, **__):
        watches.append(it.server.starts)
        return it.server

    monkeypatch.setattr(starting, "StubWatch", make_watch)
    it.supervisor.start(it.supervisor._stop.wait)
    it.lose()
    looks = [it.die] if restarts else []
    assert it.run(*looks, it.lose, it.pass_time)
    assert watches == [1, 2][: 1 + restarts]
    assert it.seen == [("dead: m_0_0 of model 'm' version 1", "")]


def test_an_instance_that_is_served_no_more_is_not_dead(play):
    it = play()
    it.server.served = []
    assert it.run(it.lose, lambda: None)
    assert it.seen == [("", "")]
    assert (it.server.lost, it.lines) == ([], [])


def test_a_dead_instance_is_loaded_anew_where_that_was_asked_for(play):
    it = play(on_dead_stub=OnDeadStub.RELOAD)
    assert it.run(it.lose, lambda: None, lambda: None)
    wait_for_reload()
    assert it.server.loads == ["m"]
    it = play()
    assert it.run(it.lose, lambda: None)
    assert it.server.loads == []


def test_until_its_reload_has_ended_an_instance_with_a_new_process_is_dead(play):
    it = play(on_dead_stub=OnDeadStub.RELOAD)
    gate, reasons = threading.Event(), []
    it.server.load = lambda model, config, seconds: gate.wait(PATIENCE_SECONDS)

    def end():
        gate.set()
        wait_for_reload()
        it.pass_time()

    def note():
        reasons.append(bool(it.state.unready_reason))

    def heal():
        it.server.lost.clear()

    nothing = it.pass_time
    assert it.run(it.lose, nothing, heal, nothing, note, nothing, note, end, nothing, note)
    assert reasons == [True, True, False]


def test_with_exit_a_dead_instance_stops_the_server(play):
    it = play(on_dead_stub=OnDeadStub.EXIT)
    assert not it.run(it.lose, stop=False)
    assert (it.server.stops, it.server.starts) == (1, 0)
    assert it.lines[-1] == "stopping tritonserver for its dead instances"
    assert it.state.hopeless_reason == ServerPhase.ENDED.value


@pytest.mark.parametrize(("restarts", "starts"), [(1, 1), (0, 0)])
def test_a_server_that_was_reloaded_often_is_drained_and_started_again_where_it_may(
    play, restarts, starts
):
    it = play(on_dead_stub=OnDeadStub.RELOAD, restarts=restarts, drain_seconds=0)
    looks = [lambda: it.pass_time(61), wait_for_reload] * MAX_SERVER_RELOADS
    assert it.run(it.lose, *looks, lambda: None, lambda: None)
    reason = "stopping tritonserver for the resources that 16 reloads left"
    assert (it.server.starts, it.server.stops, it.lines.count(reason)) == (starts, starts, starts)
    if restarts:
        assert len(it.server.loads) == 16
        assert it.seen == [("", "")]


@pytest.mark.parametrize(("restarts", "starts"), [(1, 1), (0, 0)])
def test_a_server_that_has_reloaded_is_started_again_before_the_machine_is_full(
    play, monkeypatch, restarts, starts
):
    asked = []

    def look(num_threads):
        asked.append(num_threads)
        return "90 of 100 threads are in use"

    monkeypatch.setattr(supervisor, "find_shortage", look)
    it = play(on_dead_stub=OnDeadStub.RELOAD, restarts=restarts)
    it.run(it.pass_time, it.pass_time)
    assert not asked, "without a reload a new start would free nothing"
    heal = [it.lose, wait_for_reload, it.recover]
    it.supervisor._stop.count = 0
    assert it.run(*heal, it.pass_time, it.pass_time, it.pass_time)
    assert it.server.starts == starts
    lines = [line for line in it.lines if "90 of 100" in line]
    expected = "stopping tritonserver for 90 of 100 threads are in use"
    warning = (
        "warning: 90 of 100 threads are in use; --restart does not allow another restart, "
        "which would free some"
    )
    assert lines == [expected if starts else warning]


def test_a_dead_instance_that_lacks_threads_and_a_new_start_is_beyond_healing(play, monkeypatch):
    monkeypatch.setattr(supervisor, "find_shortage", lambda _: "100 of 100 threads are in use")
    it = play(on_dead_stub=OnDeadStub.RELOAD)
    assert it.run(it.lose, wait_for_reload, it.pass_time, lambda: None)
    assert it.seen[-1][1] == "100 of 100 threads are in use"
    it = play(on_dead_stub=OnDeadStub.RELOAD)
    assert it.run(it.lose, wait_for_reload, it.recover, it.pass_time, lambda: None)
    assert it.seen[-1] == ("", "")


def test_a_sibling_of_a_dead_instance_that_lives_on_is_killed(play, killed):
    it = play(on_dead_stub=OnDeadStub.RELOAD)
    old = Stub(6, 0, "m", "1", "m_0_1")
    it.server.replaced = [old]
    heal = [it.lose, wait_for_reload, it.recover]
    assert it.run(*heal, it.pass_time, lambda: it.pass_time(31))
    assert killed == [6]
    line = (
        "replaced: m_0_1 of model 'm' version 1 (process 6) is still alive but no longer "
        "serves; killing it"
    )
    assert line in it.lines
    assert b'poplar_supervisor_heal_leaks_total{what="stubs"} 1.0' in it.state.write_metrics()


def test_with_exit_and_restart_it_is_started_again(play):
    it = play(on_dead_stub=OnDeadStub.EXIT, restarts=1)
    assert it.run(it.lose, lambda: None)
    assert (it.server.stops, it.server.starts) == (1, 1)
    assert it.seen == [("", "")]
    assert it.lines[-1] == "tritonserver is ready again (start 1 of 1)"


def test_the_memory_of_models_that_are_loaded_later_is_restricted_every_second(play):
    it = play()
    assert it.run(lambda: None, lambda: None, it.pass_time, lambda: None)
    assert it.server.restrictions == 2


def test_each_stub_is_offered_to_the_oom_killer_once(play, quick):
    it = play()

    def come():
        it.server.living = [HERE, Stub(9, 1, "m", "1", "m_0_2")]

    assert it.run(lambda: None, lambda: None, come, lambda: None)
    assert quick == [8, 9]


STALLED = "stalled: m_0_1 of model 'm' version 1 (process 8) makes no progress: it is stopped"


def stall(it, stub):
    def begin():
        it.server.stalled = [Stall(1 if stub is None else stub.pid, "it is stopped", stub)]

    return begin


def test_a_stalled_stub_is_killed_and_healed_like_a_dead_one(play, killed):
    it = play(on_dead_stub=OnDeadStub.RELOAD)
    assert it.run(stall(it, HERE), lambda: None)
    wait_for_reload()
    assert (killed, it.server.loads) == ([8], ["m"])
    assert it.lines[:2] == [
        f"{STALLED}; killing it",
        "dead: m_0_1 of model 'm' version 1 (process 8)",
    ]
    assert it.seen == [("dead: m_0_1 of model 'm' version 1", "")]
    assert b'poplar_supervisor_stalls_total{program="stub"} 1.0' in it.state.write_metrics()


def test_where_dead_stubs_are_only_reported_so_are_stalled_ones(play, killed):
    it = play(restarts=1)
    reasons = []

    def note():
        reasons.append(it.state.unready_reason)

    def go_on():
        it.server.stalled = []

    assert it.run(stall(it, HERE), lambda: None, note, go_on, lambda: None)
    assert (killed, it.server.kills, it.lines) == ([], 0, [STALLED]), "it is said once"
    assert (reasons, it.seen) == ([STALLED], [("", "")])


def test_a_stalled_server_is_killed_and_started_again_where_it_may(play):
    it = play(restarts=1)
    assert it.run(stall(it, None), lambda: None, lambda: None)
    assert (it.server.kills, it.server.starts) == (1, 1)
    assert it.lines == [
        "stalled: tritonserver (process 1) makes no progress: it is stopped; killing it",
        "tritonserver ended by itself, status -9",
        "tritonserver is ready again (start 1 of 1)",
    ]
    assert it.seen == [("", "")]


def test_a_stalled_server_without_restarts_left_ends_supervision(play):
    it = play()
    it.server.is_ready = lambda _: pytest.fail("asked") if it.server.stalled else True

    def wait():
        it.pass_time(31)

    assert it.run(lambda: None, stall(it, None), wait, lambda: None)
    assert it.server.kills == 0
    ((reason, hopeless),) = it.seen
    assert reason == it.lines[0]
    assert "for a long" in hopeless


def test_models_that_do_not_answer_do_not_keep_processes_from_being_looked_at(play):
    it = play()
    it.server.living = [HERE, Stub(9, 1, "n", "1", "n_0_0"), Stub(10, 1, "o", "1", "o_0_0")]
    asked = []

    def ask(model, version, seconds):
        asked.append(model)
        it.pass_time(seconds)
        return False

    it.server.is_model_ready, it.server.served = ask, ["m", "n", "o"]
    assert it.run(lambda: None)
    assert asked[:3] == ["m", "n", "m"], "a look takes two questions at most"


def test_a_server_that_ends_by_itself_ends_it_all(play):
    it = play()
    assert not it.run(it.die, stop=False)
    assert it.lines == ["tritonserver ended by itself, status -9"]
    assert it.state.unready_reason == ServerPhase.ENDED.value


def test_it_is_started_again_so_often_and_not_more(play):
    it = play(restarts=2)
    assert not it.run(it.die, it.die, it.die, stop=False)
    assert it.server.starts == 2
    assert it.lines[-1] == "tritonserver was started 2 times in 10 minutes; giving up"
    it = play(restarts=1)
    assert it.run(it.die, lambda: it.pass_time(601), it.die), "that was long ago"
    assert it.server.starts == 2


def test_a_start_that_fails_counts(play):
    it = play(restarts=3)
    it.server.failing_starts = 2
    assert it.run(it.die)
    assert it.server.starts == 3
    assert it.lines[1:3] == ["port is busy"] * 2
    it = play(restarts=2)
    it.server.failing_starts = 2
    assert not it.run(it.die, stop=False)


def test_a_request_to_stop_ends_a_restart(play):
    it = play(restarts=1)

    def die():
        it.die()
        it.supervisor.ask_to_stop()

    assert it.run(die, stop=False)
    assert it.server.starts == 0


def test_models_loaded_by_clients_are_loaded_again_after_a_restart(play):
    it = play(restarts=1)
    it.server.takes_models = True
    it.server.living = [HERE, Stub(9, 1, "later", "1", "later_0_0")]
    assert it.run(lambda: None, it.die)
    assert it.server.loads == ["later"]
    assert "model 'later', which was served before, is loaded again" in it.lines


def test_a_server_silent_for_long_counts_as_ended_and_may_come_back(play):
    it = play()
    it.server.ready = False
    hopeless = []

    def note():
        it.pass_time(20)
        hopeless.append(bool(it.state.hopeless_reason))

    def answer():
        it.server.ready = True
        note()

    assert it.run(note, note, note, answer, note)
    assert hopeless == [False, False, True, True, False]


def test_a_loaded_model_that_is_not_ready_is_reported(play):
    """Newer versions of Triton ask the model itself whether it is ready."""
    it = play()
    it.server.unready = ["m"]
    assert it.run(it.pass_time)
    assert it.seen == [("not ready: model 'm'", "")]
    it = play()
    it.server.unready, it.server.served = ["m"], []
    assert it.run(it.pass_time)
    assert it.seen == [("", "")], "it is being loaded or unloaded"


def test_it_drains_while_it_serves_on(play):
    it = play(drain_seconds=3)
    it.server.poll = lambda: it.pass_time(1)
    it.supervisor.ask_to_stop()
    assert it.supervisor.run()
    assert it.now == 3
    assert it.lines == ["draining: serving continues for 3 s"]


def test_a_second_request_cuts_the_drain_short(play):
    it = play(drain_seconds=3600)
    it.supervisor.ask_to_stop()
    it.supervisor.ask_to_stop()
    assert it.supervisor.run()
    assert it.now == 0


def test_a_server_that_dies_meanwhile_ends_the_drain(play):
    it = play(drain_seconds=3600)
    it.die()
    it.supervisor.ask_to_stop()
    assert it.supervisor.run()


def test_signals_in_any_moment_end_it():
    """A signal handler that takes a lock deadlocks if it interrupts the thread that holds the lock.

    Here, this would happen within a few signals.
    """
    script = (
        "import os, signal, time\nfrom poplar_triton.serving import supervisor\nstop = "
        "supervisor.StopRequest()\ndef count(*_): stop.count += 1\nsignal.signal(signal.SIGALRM, "
        "count)\nsignal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)\nassert stop.wait(60, "
        "3000)\nsignal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_SECONDS)


class Traffic:
    """Traffic whose requests come for some looks only."""

    looks = 0

    def __init__(self, ports, metrics_url, clock):
        assert (ports, metrics_url) == ((1, 2), "http://none")

    def is_busy(self):
        Traffic.looks -= 1
        return Traffic.looks >= 0


@pytest.mark.parametrize(
    ("looks", "max_seconds", "is_told", "more_looks"),
    [(3, 9, True, -1), (0, 9, False, -1), (1000, 0.05, True, 1), (5, 0, False, 5)],
)
def test_a_drain_goes_on_while_requests_come(
    play, monkeypatch, looks, max_seconds, is_told, more_looks
):
    """It ends when no requests come or its time limit passes; without the option there is none."""
    monkeypatch.setattr(supervisor, "TrafficWatch", Traffic)
    Traffic.looks = looks
    it = play(max_drain_seconds=max_seconds)
    it.supervisor._clock = time.monotonic
    assert it.run(lambda: None)
    assert any("requests may still arrive;" in line for line in it.lines) == is_told
    assert Traffic.looks == more_looks or 1 <= more_looks <= Traffic.looks


def test_a_canary_goes_to_what_lives_and_a_stub_that_hangs_is_killed(play, killed, monkeypatch):
    asked = []

    class Canary:
        def __init__(self, endpoint, state, tell, seconds, clock):
            assert seconds == 7

        def check(self, living):
            asked.append(list(living))
            return [Stall(HERE.pid, "it hangs", HERE)] if HERE in asked[-1] else []

    monkeypatch.setattr(supervisor, "Canary", Canary)
    monkeypatch.setattr(supervisor, "HttpEndpoint", PlayedServer)
    it = play(canary_seconds=7, on_dead_stub=OnDeadStub.RELOAD)
    assert it.run(lambda: None, lambda: None)
    assert killed == [HERE.pid]
    assert (asked[0], asked[-1]) == ([HERE], []), "a model with a dead instance is not asked"
    line = (
        "stalled: m_0_1 of model 'm' version 1 (process 8) makes no progress: it hangs; killing it"
    )
    assert line in it.lines


def test_a_server_that_is_paused_is_not_asked(play, monkeypatch):
    """Questions to it would not be answered, and delay the looks that find a stall."""
    asked = []
    for is_paused in (True, False):
        monkeypatch.setattr(PlayedWatch, "is_paused", is_paused)
        it = play()
        it.server.is_ready = lambda _: not asked.append(PlayedWatch.is_paused)
        it.server.read_config = lambda *_: asked.append(PlayedWatch.is_paused)
        assert it.run(it.lose, *[it.pass_time] * 3)
        assert it.lines == []
    assert set(asked) == {False}
