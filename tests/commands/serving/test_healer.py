"""When a model is loaded anew, and when it is given up."""

from __future__ import annotations

import threading

import pytest
from commands.errors import ServerError
from commands.serving import healer
from commands.serving.condition import Condition
from commands.serving.healer import Healer
from triton_poplar.parameters import RELOAD_PARAMETER, parse_parameters


class Server:
    """Loads, or does not, and remembers what it was asked for."""

    def __init__(self):
        self.loads = []
        self.fails = False
        self.gate = threading.Event()
        self.gate.set()

    def read_config(self, model):
        return {"name": model, "served": True}

    def load(self, model, config=None):
        self.loads.append((model, config))
        self.gate.wait(10)
        if self.fails:
            raise ServerError("no file")


class Ward:
    """A healer whose clock stands still until it is moved."""

    def __init__(self):
        self.server, self.condition, self.lines, self.now = Server(), Condition(), [], 0.0
        self.healer = Healer(self.server, self.condition, self.lines.append, lambda: self.now)

    def attend(self, *models, after=0.0):
        """Some time later, with nothing under way."""
        self.now += after
        self.healer.attend(models)
        if self.server.gate.is_set():
            wait_for_reloads()

    @property
    def loads(self):
        return [model for model, _ in self.server.loads]


def wait_for_reloads():
    for thread in threading.enumerate():
        if thread.name.startswith("reload of"):
            thread.join(10)


@pytest.fixture
def ward():
    ward = Ward()
    yield ward
    ward.server.gate.set()
    wait_for_reloads()


def test_a_dead_model_is_loaded_at_once_with_what_it_is_served_with(ward):
    ward.attend("m")
    ((model, config),) = ward.server.loads
    mark = config.pop("parameters")
    assert (model, config) == ("m", {"name": "m", "served": True})
    assert list(mark) == [RELOAD_PARAMETER]
    assert parse_parameters({"parameters": mark}) == parse_parameters({}), "our backend lets it be"
    assert ward.lines == ["model 'm': reloaded in 0.0 s"]
    assert (
        b'poplar_supervisor_reloads_total{model="m",outcome="success"} 1.0' in ward.condition.write_metrics()
    )


def test_no_two_reloads_are_the_same_and_the_models_own_parameters_stay(ward):
    """Triton does nothing where the configuration is that of the load before."""
    ward.server.read_config = lambda model: {"parameters": {"mine": {"string_value": "x"}}}
    ward.attend("m")
    ward.attend("m", after=60)
    first, second = (config["parameters"] for _, config in ward.server.loads)
    assert first.pop("mine") == second.pop("mine") == {"string_value": "x"}
    assert first != second


def test_the_next_try_is_twice_as_late_each_time_up_to_a_minute(ward):
    ward.server.fails = True
    ward.attend("m")
    waits = []
    for _ in range(9):
        wait, count = 0, len(ward.loads)
        while len(ward.loads) == count:
            wait += 1
            ward.attend("m", after=1.0)
        waits.append(wait)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert ward.lines == ["model 'm': reload failed: no file"] * 10


def test_after_many_tries_in_vain_it_is_given_up_and_still_tried(ward):
    ward.attend("m", "n")
    for _ in range(healer.MOST_RELOADS - 1):
        ward.attend("m", after=60)
    assert ward.condition.hopeless_reason == ""
    ward.attend("m", after=60)
    assert ward.condition.hopeless_reason == "8 reloads did not bring back 'm'"
    ward.attend("m", after=60)
    assert len([model for model in ward.loads if model == "m"]) == healer.MOST_RELOADS + 2
    ward.attend(after=1)
    assert ward.condition.hopeless_reason == ""


def test_a_model_that_dies_again_soon_waits_and_one_that_lived_long_does_not(ward):
    ward.attend("m")
    ward.attend()
    ward.attend("m", after=0.5)
    assert len(ward.loads) == 1, "it is too soon"
    ward.attend("m", after=1)
    assert len(ward.loads) == 2
    ward.attend(after=2 + healer.CALM_SECONDS)
    ward.attend("m")
    ward.attend("m", after=healer.FIRST_WAIT_SECONDS)
    assert len(ward.loads) == 4, "its waits began anew"


def wait_for_loads(ward, count):
    for _ in range(1000):
        if len(ward.loads) == count:
            break
        threading.Event().wait(0.01)


def test_a_slow_load_keeps_no_other_model_waiting_and_is_not_doubled(ward):
    ward.server.gate.clear()
    ward.attend("slow")
    wait_for_loads(ward, 1)  # which begin in threads of their own
    ward.attend("slow", "quick", after=100)
    wait_for_loads(ward, 2)
    assert ward.loads == ["slow", "quick"]


def test_another_server_has_no_past(ward):
    for _ in range(healer.MOST_RELOADS + 1):
        ward.attend("m", after=60)
    assert ward.condition.hopeless_reason
    ward.healer.forget()
    assert ward.condition.hopeless_reason == ""
    count = len(ward.loads)
    ward.attend("m")
    assert len(ward.loads) == count + 1
