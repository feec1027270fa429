"""Tests of when the healer reloads a model and when it stops trying."""

from __future__ import annotations

import socket
import threading

import pytest
from poplar_triton.errors import ServerError
from poplar_triton.serving import healer
from poplar_triton.serving.healer import Healer
from poplar_triton.serving.server_state import ServerState
from triton_poplar.parameters import RELOAD_PARAMETER, parse_parameters
from waiting import PATIENCE_SECONDS


class Server:
    """Server that loads or fails as it is told, and records its requests."""

    def __init__(self):
        self.loads = []
        self.fails: bool | str = False
        self.takes = lambda: None
        self.gate = threading.Event()
        self.gate.set()

    def read_config(self, model):
        return {"name": model, "served": True}

    def load(self, model, config=None, seconds=0):
        self.seconds = seconds
        self.loads.append((model, config))
        self.gate.wait(PATIENCE_SECONDS)
        self.takes()
        if self.fails:
            raise ServerError("no file" if self.fails is True else self.fails)


class Ward:
    """Healer whose clock stands still until a test moves it."""

    def __init__(self):
        self.server, self.state, self.lines, self.now = Server(), ServerState(), [], 0.0
        self.healer = Healer(self.server, self.state, self.lines.append, lambda: self.now, 90)

    def pass_time(self, seconds):
        self.now += seconds

    def reload(self, *models, after=0.0):
        """Move the clock and run the healer, with no load in flight."""
        self.now += after
        self.healer.reload(models)
        if self.server.gate.is_set():
            wait_for_reloads()

    @property
    def loads(self):
        return [model for model, _ in self.server.loads]


def wait_for_reloads():
    for thread in threading.enumerate():
        if thread.name.startswith("reload of"):
            thread.join(PATIENCE_SECONDS)


@pytest.fixture
def ward():
    ward = Ward()
    yield ward
    ward.server.gate.set()
    wait_for_reloads()


def test_a_dead_model_is_loaded_at_once_with_what_it_is_served_with(ward):
    ward.reload("m")
    ((model, config),) = ward.server.loads
    mark = config.pop("parameters")
    assert (model, config) == ("m", {"name": "m", "served": True})
    assert list(mark) == [RELOAD_PARAMETER]
    assert parse_parameters({"parameters": mark}) == parse_parameters({}), "our backend lets it be"
    assert ward.lines == ["model 'm': reloaded in 0.0 s"]
    assert (
        b'poplar_supervisor_reloads_total{model="m",outcome="success"} 1.0'
        in ward.state.write_metrics()
    )


def test_no_two_reloads_are_the_same_and_the_models_own_parameters_stay(ward):
    """Triton does nothing if the configuration equals that of the load before."""
    ward.server.read_config = lambda model: {"parameters": {"mine": {"string_value": "x"}}}
    ward.reload("m")
    ward.reload("m", after=60)
    first, second = (config["parameters"] for _, config in ward.server.loads)
    assert first.pop("mine") == second.pop("mine") == {"string_value": "x"}
    assert first != second


def test_the_next_try_is_twice_as_late_each_time_up_to_a_minute(ward):
    ward.server.fails = True
    ward.reload("m")
    waits = []
    for _ in range(9):
        wait, count = 0, len(ward.loads)
        while len(ward.loads) == count:
            wait += 1
            ward.reload("m", after=1.0)
        waits.append(wait)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert ward.lines == ["model 'm': reload failed: no file"] * 10


def test_after_many_failed_tries_it_is_hopeless_and_still_tried(ward):
    ward.reload("m", "n")
    for _ in range(healer.MAX_RELOADS - 1):
        ward.reload("m", after=60)
    assert ward.state.hopeless_reason == ""
    ward.reload("m", after=60)
    assert ward.state.hopeless_reason == "8 reloads did not recover 'm'"
    ward.reload("m", after=60)
    assert len([model for model in ward.loads if model == "m"]) == healer.MAX_RELOADS + 2
    ward.reload(after=1)
    assert ward.state.hopeless_reason == ""


def test_a_model_that_dies_again_soon_waits_and_one_that_lived_long_does_not(ward):
    ward.reload("m")
    ward.reload()
    ward.reload("m", after=0.5)
    assert len(ward.loads) == 1, "it is too soon"
    ward.reload("m", after=1)
    assert len(ward.loads) == 2
    ward.reload(after=2 + healer.CALM_SECONDS)
    ward.reload("m")
    ward.reload("m", after=healer.FIRST_WAIT_SECONDS)
    assert len(ward.loads) == 4, "its waits began anew"


def wait_for_loads(ward, count):
    for _ in range(1000):
        if len(ward.loads) == count:
            break
        threading.Event().wait(0.01)


def test_a_slow_load_keeps_no_other_model_waiting_and_is_not_doubled(ward):
    ward.server.gate.clear()
    ward.reload("slow")
    wait_for_loads(ward, 1)  # which begin in threads of their own
    ward.reload("slow", "quick", after=100)
    wait_for_loads(ward, 2)
    assert ward.loads == ["slow", "quick"]


def test_a_slow_load_is_reported_once_and_limited(ward):
    ward.server.gate.clear()
    ward.reload("slow")
    wait_for_loads(ward, 1)
    for _ in range(4):
        ward.reload("slow", after=16)
    assert ward.lines == ["model 'slow': reload running for 32 s"]
    assert ward.server.seconds == 90


def test_a_server_is_used_up_after_so_many_reloads_of_all_its_models(ward):
    for _ in range(healer.MAX_SERVER_RELOADS // 2):
        assert not ward.healer.find_exhaustion()
        ward.reload("m", "n", after=200)
        ward.reload(after=200)
    assert ward.healer.find_exhaustion() == "the resources that 16 reloads left"
    assert ward.healer.take_reloaded() == {"m", "n"}
    ward.server.gate.clear()
    ward.reload("m", after=200)
    assert not ward.healer.find_exhaustion(), "one is under way"
    ward.server.gate.set()
    wait_for_reloads()
    assert ward.healer.find_exhaustion() == "the resources that 17 reloads left"
    assert ward.healer.take_reloaded() == {"m"}
    ward.healer.forget()
    assert not ward.healer.find_exhaustion()
    assert not ward.healer.take_reloaded()


def test_reloads_that_fail_leave_nothing_that_a_new_start_would_free(ward):
    ward.server.fails = True
    for _ in range(2 * healer.MAX_SERVER_RELOADS):
        ward.reload("m", after=61)
    assert not ward.healer.find_exhaustion()


def test_a_reload_that_hangs_is_a_reason_to_start_the_server_again(ward):
    ward.server.fails = True
    ward.server.takes = lambda: ward.pass_time(90)
    ward.reload("m")
    assert ward.healer.find_exhaustion() == "a reload of 'm' that did not end within 90 s"
    ward.healer.forget()
    assert not ward.healer.find_exhaustion()


def test_a_failed_thread_start_is_reported_and_retried(ward, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(healer.threading.Thread, "start", start)
    ward.reload("m")
    assert ward.lines == [
        "model 'm': no reload: can't start new thread; the thread limit is reached",
    ]
    monkeypatch.undo()
    ward.reload("m", after=1)
    assert ward.loads == ["m"]


@pytest.fixture
def store(ward):
    """Return the address of a store that is unreachable until a test listens on it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    ward.healer = Healer(
        ward.server,
        ward.state,
        ward.lines.append,
        lambda: ward.now,
        store=("127.0.0.1", address[1]),
    )
    return address


def test_an_unreachable_store_is_retried_every_second_without_end(ward, store):
    for _ in range(100):
        ward.reload("m", after=1)
    assert ward.loads == []
    assert ward.state.hopeless_reason == ""
    assert len(ward.lines) == 4, "one in thirty seconds"
    assert ward.lines[0].startswith(
        f"model 'm': reload failed: the store at 127.0.0.1:{store[1]} does "
    )
    with socket.create_server(store):
        ward.reload("m", after=1)
    assert ward.loads == ["m"]


def test_a_store_that_loses_its_files_meanwhile_is_one_that_is_away(ward, store):
    ward.server.fails = "failed to load 'm', failed to poll from model repository"
    with socket.create_server(store):
        for _ in range(20):
            ward.reload("m", after=1)
    assert len(ward.loads) == 20


def test_another_server_has_no_past(ward):
    for _ in range(healer.MAX_RELOADS + 1):
        ward.reload("m", after=60)
    assert ward.state.hopeless_reason
    ward.healer.forget()
    assert ward.state.hopeless_reason == ""
    count = len(ward.loads)
    ward.reload("m")
    assert len(ward.loads) == count + 1
