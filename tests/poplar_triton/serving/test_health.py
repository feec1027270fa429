"""The health port: what it reports of a state, and what strangers may do to it."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from contextlib import closing

import pytest
from poplar_triton.errors import ServerError
from poplar_triton.serving import health
from poplar_triton.serving.health import HealthServer
from poplar_triton.serving.resource_use import ResourceUse
from poplar_triton.serving.server_state import ServerPhase, ServerState, describe_dead
from poplar_triton.serving.stubs import Stall, Stub
from waiting import PATIENCE_SECONDS

from popef._tools.version import __version__


@pytest.fixture
def state():
    return ServerState()


@pytest.fixture
def address(state):
    """Yield the host and the port of a health port for `state`."""
    with HealthServer("127.0.0.1", 0, state) as server:
        host, port = server.url.removeprefix("http://").split(":")
        yield host, int(port)


def ask(address, path, method="GET"):
    with closing(http.client.HTTPConnection(*address, timeout=PATIENCE_SECONDS)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def stub(number=0, model="m"):
    return Stub(100 + number, 1, model, "1", f"{model}_0_{number}")


def serve(state, *, living=(), dead=()):
    state.enter(ServerPhase.SERVING)
    state.answers = True
    state.note_stubs(living, dead)


def test_ready_needs_a_server_that_says_so_and_living_instances(state, address):
    assert ask(address, "/ready") == (503, "tritonserver is starting\n")
    state.enter(ServerPhase.SERVING)
    assert ask(address, "/ready") == (503, "tritonserver does not report that it is ready\n")
    serve(state, living=[stub()])
    assert ask(address, "/ready?x=1") == (200, "ready\n")
    serve(state, living=[stub()], dead=[stub(1)])
    assert ask(address, "/ready") == (503, "dead: m_0_1 of model 'm' version 1\n")
    serve(state)
    for phase in (ServerPhase.RESTARTING, ServerPhase.DRAINING, ServerPhase.ENDED):
        state.enter(phase)
        assert ask(address, "/ready") == (503, f"{phase.value}\n")


def test_a_server_that_was_started_again_has_to_say_anew_that_it_is_ready(state):
    serve(state)
    state.enter(ServerPhase.RESTARTING)
    state.enter(ServerPhase.SERVING)
    assert state.unready_reason == "tritonserver does not report that it is ready"


def test_live_ends_where_nothing_can_help(state, address):
    assert ask(address, "/live") == (200, "live\n")
    serve(state, dead=[stub()])
    assert ask(address, "/live") == (200, "live\n")
    state.is_silent = True
    assert ask(address, "/live")[0] == 503
    state.is_silent = False
    state.hopeless = "no use"
    assert ask(address, "/live") == (503, "no use\n")
    state.hopeless = ""
    assert ask(address, "/live")[0] == 200
    state.enter(ServerPhase.ENDED)
    assert ask(address, "/live")[0] == 503


def test_other_paths_and_methods_are_refused(address):
    assert ask(address, "/ready", "HEAD") == (503, "")
    status, text = ask(address, "/")
    assert (status, text) == (404, "expected one of /ready, /live, /metrics\n")
    assert ask(address, "/ready", "POST")[0] == 501
    assert ask(address, "/" + "x" * 70000)[0] == 414


def read_series(state):
    lines = state.write_metrics().decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


def test_events_are_counted_as_metrics(state, address):
    serve(state, living=[stub(0), stub(1)], dead=[stub(2)])
    serve(state, living=[stub(0)], dead=[stub(2), stub(1)])
    serve(state, living=[stub(0), stub(1, "n")])
    state.note_reload("m", "success", 2.5)
    state.start_seconds = 6.5
    state.resource_use = ResourceUse(98, 3, 4096)
    state.note_leak(threads=71, segments=2)
    state.note_leak(stubs=1)
    state.note_reload("m", "failure")
    state.note_reload("m", "failure")
    for found in (
        [Stall(7, "it is stopped")],
        [Stall(7, "it is stopped"), Stall(8, "", stub(0))],
        [],
    ):
        state.note_stalls(found)
    state.enter(ServerPhase.RESTARTING)
    for _ in range(2):
        state.enter(ServerPhase.DRAINING)
    status, text = ask(address, "/metrics")
    assert status == 200
    assert text == state.write_metrics().decode()
    assert read_series(state) == {
        "poplar_supervisor_ready": 0,
        "poplar_supervisor_draining": 1,
        'poplar_supervisor_living_stubs{model="m"}': 1,
        'poplar_supervisor_living_stubs{model="n"}': 1,
        'poplar_supervisor_dead_stubs{model="m"}': 0,
        'poplar_supervisor_dead_stubs{model="n"}': 0,
        'poplar_supervisor_stub_deaths_total{model="m"}': 2,
        'poplar_supervisor_stub_deaths_total{model="n"}': 0,
        'poplar_supervisor_reloads_total{model="m",outcome="success"}': 1,
        'poplar_supervisor_reloads_total{model="m",outcome="failure"}': 2,
        'poplar_supervisor_stalls_total{program="tritonserver"}': 1,
        'poplar_supervisor_stalls_total{program="stub"}': 1,
        f'poplar_supervisor_build_info{{version="{__version__}"}}': 1,
        "poplar_supervisor_start_seconds": 6.5,
        'poplar_supervisor_reload_seconds_total{model="m"}': 2.5,
        "poplar_supervisor_server_threads": 98,
        "poplar_supervisor_server_segments": 3,
        "poplar_supervisor_server_memory_bytes": 4096,
        'poplar_supervisor_heal_leaks_total{what="threads"}': 71,
        'poplar_supervisor_heal_leaks_total{what="segments"}': 2,
        'poplar_supervisor_heal_leaks_total{what="stubs"}': 1,
        "poplar_supervisor_restarts_total": 1,
        "poplar_supervisor_drains_total": 1,
    }


def test_at_the_limit_of_threads_it_answers_still(state, address, monkeypatch):
    serve(state)

    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert ask(address, "/ready") == ask(address, "/ready") == (200, "ready\n")


def test_names_cannot_forge_a_series_or_a_line(state, address):
    evil = 'm"} 1\npoplar_supervisor_ready 1\x1b[2J'
    serve(state, dead=[stub(0, evil)])
    lines = ask(address, "/metrics")[1].splitlines()
    assert [line for line in lines if re.match("poplar_supervisor_ready ", line)] == [
        "poplar_supervisor_ready 0.0"
    ]
    text = ask(address, "/ready")[1]
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_of_many_dead_instances_some_are_named():
    text = describe_dead([stub(number) for number in range(7)])
    assert text.startswith("dead: m_0_0 of model 'm' version 1, m_0_1 of")
    assert text.endswith("m_0_4 of model 'm' version 1 and 2 more")


def test_silent_clients_cannot_keep_a_probe_out(state, address, monkeypatch):
    monkeypatch.setattr(health, "_MAX_CONNECTIONS", 8)
    before = threading.active_count()
    silent = [socket.create_connection(address) for _ in range(40)]
    assert ask(address, "/live") == (200, "live\n")
    assert threading.active_count() <= before + 16
    silent[0].settimeout(10)
    assert silent[0].recv(1) == b"", "the oldest was closed"
    for connection in silent:
        connection.close()


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(state, address):
    with pytest.raises(
        ServerError, match=rf"health port {address[1]} of 127.0.0.1: .*--health-port"
    ):
        HealthServer("127.0.0.1", address[1], state)
    with pytest.raises(ServerError, match=r"health port 0 of no\.such\.host\.invalid"):
        HealthServer("no.such.host.invalid", 0, state)
