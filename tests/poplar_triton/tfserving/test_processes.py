"""Processes of a server that start, fail, die or do not end, all simulated except for the ports."""

import socket
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
from played_proc import PlayedProc
from played_processes import FIRST_PID, PlayedStarts, be_deaf, be_silent, end, say, serve
from poplar_triton.errors import ServerError
from poplar_triton.tfserving import processes as module
from poplar_triton.tfserving.processes import (
    LOOK_SECONDS,
    MAX_LOST_STARTS,
    MAX_RESTARTS,
    RESTART_WINDOW_SECONDS,
    Processes,
)
from poplar_triton.tfserving.settings import ServerSettings

from popef._tools.stalls import DISK_STALL_SECONDS, STALL_SECONDS, StallDetector


@pytest.fixture
def lines():
    return []


@pytest.fixture
def proc(tmp_path):
    return PlayedProc(tmp_path)


@pytest.fixture
def play(monkeypatch, lines, proc):
    """Return a function that makes a server's processes, simulated after plans.

    They have no ports unless the caller gives some; `now` is the time.
    """
    clock = SimpleNamespace(now=1000.0)

    def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    monkeypatch.setattr(
        module, "StallDetector", lambda: StallDetector(proc.folder, lambda: clock.now)
    )

    def make(*plans, start_seconds=5, **settings):
        starts = PlayedStarts(*plans)
        monkeypatch.setattr(module, "start_python", starts.start_python)
        settings = {"grpc_port": 0, "rest_port": 0, "start_seconds": start_seconds, **settings}
        made = Processes(ServerSettings((), **settings), lines.append)
        return SimpleNamespace(server=made, begun=starts.begun, clock=clock)

    return make


def test_all_serve_on_entry_and_none_is_left_on_exit(play, lines):
    played = play(serve, processes=3)
    assert played.server.unready_reason == "starting"
    with played.server as server:
        assert server.look()
        assert (server.unready_reason, server.hopeless_reason) == ("", "")
    assert [process.status for process in played.begun] == [0, 0, 0]
    assert not any(process.killed for process in played.begun)
    assert (played.server.unready_reason, lines) == ("draining", [])


def test_unserved_models_are_reported_once_for_all_processes(play, lines):
    with play(
        say("model 'a' is broken"), say("model 'a' is broken", "b too"), processes=2
    ).server as server:
        assert server.unready_reason == ""
    assert sorted(lines) == ["b too", "model 'a' is broken"]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (say(error="port 1 is another's", status=0), "^port 1 is another's$"),
        (end(3), r"ended during its start, status 3; see its output"),
        (be_silent, r"the models were not loaded within 5 s; raise --start-seconds"),
    ],
    ids=["error", "end", "silence"],
)
def test_where_one_cannot_serve_none_is_left(play, plan, words):
    played = play(serve, plan, serve, processes=3)
    with pytest.raises(ServerError, match=words), played.server:
        pass
    assert None not in [process.status for process in played.begun]
    assert played.server.unready_reason != ""


@pytest.mark.parametrize("status", [-9, -11])
def test_a_process_killed_while_it_loads_is_restarted_a_few_times(play, lines, status):
    played = play(serve, end(status), end(status), serve, processes=2)
    with played.server as server:
        assert (server.unready_reason, len(played.begun)) == ("", 4)
    assert lines == [f"process 1 ended by itself, status {status}"] * 2
    played = play(end(status))
    words = f"^a server process ended during its start, status {status}; see its output$"
    with pytest.raises(ServerError, match=words), played.server:
        pass
    assert len(played.begun) == MAX_LOST_STARTS + 1


def test_a_process_stopped_while_it_loads_is_killed_and_restarted(play, lines, proc):
    proc.say(FIRST_PID, "T")
    reasons = []

    def play_the_next(process, channel):
        reasons.append(played.server.unready_reason)
        serve(process, channel)

    played = play(be_silent, play_the_next)
    with played.server as server:
        assert server.unready_reason == ""
    assert lines == ["process 0 makes no progress: it is stopped; killing it"]
    assert reasons == [lines[0].removesuffix("; killing it")]
    assert played.begun[0].killed


def test_an_interruption_while_they_start_leaves_none(play, monkeypatch):
    played = play(serve, be_silent, processes=2)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt), played.server:
        pass
    assert None not in [process.status for process in played.begun]


def test_a_dead_process_is_restarted_and_reported(play, lines):
    played = play(serve, processes=2)
    with played.server as server:
        played.begun[1].end(-9)
        assert server.look()
        assert lines == ["process 1 ended by itself, status -9"]
        assert len(played.begun) == 3
        assert server.look()
        assert len(played.begun) == 3
        assert server.unready_reason == ""
    assert None not in [process.status for process in played.begun]


def look_for(played, seconds):
    for _ in range(int(seconds / LOOK_SECONDS)):
        assert played.server.look()
        played.clock.now += LOOK_SECONDS


def test_a_stopped_process_is_killed_and_restarted(play, lines, proc):
    played = play(serve, processes=2)
    with played.server as server:
        proc.say(FIRST_PID, "S")
        proc.say(FIRST_PID + 1, "T")
        look_for(played, STALL_SECONDS)
        assert lines == []
        look_for(played, 5 * LOOK_SECONDS)
        assert [process.killed for process in played.begun] == [False, True, False]
        assert lines == ["process 1 makes no progress: it is stopped; killing it"]
        assert server.unready_reason == ""


def test_a_server_is_not_ready_while_one_stalls_that_cannot_be_killed(
    play, lines, proc, monkeypatch
):
    """A process that waits for a disk ends only when the disk answers."""
    played = play(serve, processes=2)
    with played.server as server:
        monkeypatch.setattr(played.begun[0], "kill", lambda: None)
        proc.say(FIRST_PID, "D")
        look_for(played, 2 * DISK_STALL_SECONDS)
        assert server.unready_reason == "process 0 makes no progress: it waits for a disk"
        assert lines == ["process 0 makes no progress: it waits for a disk; killing it"]
        played.begun[0].end(-9)
        proc.say(FIRST_PID, "Z")
        look_for(played, 2 * LOOK_SECONDS)
        assert (server.unready_reason, len(played.begun)) == ("", 3)


def test_a_server_of_one_is_not_ready_until_the_next_one_serves(play):
    played = play(serve, be_silent)
    with played.server as server:
        played.begun[0].end(1)
        for _ in range(3):
            assert server.look()
            assert server.unready_reason == "no process is serving"
        assert server.hopeless_reason == ""
        played.begun[1].follow(serve)
        assert server.look()
        assert server.unready_reason == ""


def test_one_that_cannot_serve_again_says_why(play, lines):
    played = play(serve, say(error="no certificates", status=0), serve)
    with played.server as server:
        played.begun[0].end(1)
        for _ in range(3):
            assert server.look()
        assert lines == [
            "process 0 ended by itself, status 1",
            "process 0: no certificates",
            "process 0 ended by itself, status 0",
        ]
        assert server.look()
        assert server.unready_reason == ""


def test_after_too_many_restarts_the_process_is_given_up(play, lines):
    played = play(serve, end(1))
    with played.server as server:
        played.begun[0].end(1)
        for _ in range(MAX_RESTARTS):
            assert server.look()
        assert server.hopeless_reason == ""
        assert not server.look()
        assert server.hopeless_reason == server.unready_reason == "ended"
    assert lines[-1] == f"{MAX_RESTARTS + 1} processes ended in 10 minutes; giving up"
    assert len(played.begun) == MAX_RESTARTS + 1


def test_ends_of_long_ago_do_not_count(play):
    played = play(serve)
    with played.server as server:
        for _ in range(5 * MAX_RESTARTS):
            played.begun[-1].end(1)
            assert server.look()
            assert server.look()
            played.clock.now += 1.01 * RESTART_WINDOW_SECONDS / MAX_RESTARTS


def test_one_that_does_not_end_is_killed(play, lines):
    played = play(be_deaf, serve, processes=2)
    with played.server:
        pass
    assert [process.killed for process in played.begun] == [True, False]
    assert lines == ["process 7 does not end; killing it"]


def test_one_that_still_loads_is_not_waited_for(play, lines):
    played = play(serve, be_silent)
    with played.server as server:
        played.begun[0].end(1)
        server.look()
    assert (played.begun[1].killed, lines) == (True, ["process 0 ended by itself, status 1"])


def test_stopping_twice_is_stopping_once(play):
    played = play(serve)
    with played.server as server:
        server.stop()
    assert server.unready_reason == "draining"


def listen(**options):
    holder = socket.socket()
    for option in options:
        holder.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
    holder.bind(("127.0.0.1", 0))
    holder.listen()
    return holder


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    ("field", "what", "option"),
    [("grpc_port", "gRPC", "--port"), ("rest_port", "REST", "--rest_api_port")],
)
def test_a_busy_port_is_rejected_before_a_process_starts(play, field, what, option, is_shared):
    """A port is rejected even if its holder would share it: requests would go to both."""
    with closing(listen(**{"SO_REUSEPORT": 1} if is_shared else {})) as holder:
        port = holder.getsockname()[1]
        played = play(serve, **{field: port})
        words = (
            rf"^{what} port {port} of 127\.0\.0\.1: cannot listen \(.*in use\); .* with {option}$"
        )
        with pytest.raises(ServerError, match=words), played.server:
            pass
    assert played.begun == []


@pytest.mark.parametrize("address", ["192.0.2.1", "no host", "::1%nosuch", "x" * 300, ""])
def test_an_address_that_is_not_this_machines_is_refused_or_all(play, address):
    with closing(listen()) as free:
        port = free.getsockname()[1]
    played = play(serve, address=address, grpc_port=port)
    with ExitStack() as stack:
        if address:
            stack.enter_context(pytest.raises(ServerError, match=f"gRPC port {port} of "))
        stack.enter_context(played.server)


def test_ports_are_held_until_the_processes_listen_and_no_longer(play):
    with closing(listen()) as free:
        port = free.getsockname()[1]
    refusals = []

    def listen_too(process, channel):
        with closing(socket.socket()) as another, pytest.raises(OSError, match="in use"):
            another.bind(("127.0.0.1", port))
        refusals.append(port)
        with closing(socket.socket()) as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            ours.bind(("127.0.0.1", port))
        serve(process, channel)

    with play(listen_too, rest_port=port).server, closing(socket.socket()) as another:
        another.bind(("127.0.0.1", port))
    assert refusals == [port]


def test_the_metrics_are_of_all_processes(play):
    with play(serve).server as server:
        assert b":tensorflow:serving:request_count" in server.write_metrics()
