"""Tests of models that a start has lost, or had no time for, with a played server."""

import threading

import pytest
from played_supervisor import Play, wait_for, wait_for_reload
from poplar_triton.errors import ServerError
from poplar_triton.serving.supervisor import OnDeadStub
from triton_poplar.server_start import CUT_SHORT
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def play():
    return Play


LOST = "model 'm': its process was lost while loading 3 times"


def test_a_model_that_was_lost_while_loading_is_named_until_it_is_served(play):
    it = play()
    it.server.served, it.server.living = [], []
    it.server.lost_models = {"m": LOST}

    def load():
        it.pass_time()
        it.server.served = ["m"]

    reasons = []
    looks = [lambda: reasons.append(it.state.unready_reason), load, it.pass_time]
    assert it.run(lambda: None, *looks, lambda: None)
    assert reasons == [f"not loaded: 'm' ({LOST})"]
    assert it.lines == [f"model 'm' is not loaded: {LOST}", "model 'm' is loaded"]
    assert it.server.loads == []
    assert it.seen == [("", "")]


def test_a_lost_model_is_loaded_where_that_was_asked_for_and_never_ends_the_server(play):
    it = play(on_dead_stub=OnDeadStub.RELOAD)
    it.server.served, it.server.living = [], []
    it.server.lost_models = {"m": LOST}
    looks = [lambda: it.pass_time(61), wait_for_reload] * 10
    assert it.run(lambda: None, *looks, lambda: None)
    assert len(it.server.loads) >= 10
    ((reason, hopeless),) = it.seen
    assert reason.startswith("not loaded: 'm'")
    assert hopeless == ""


def test_with_exit_a_lost_model_costs_the_restarts_that_are_left(play):
    it = play(on_dead_stub=OnDeadStub.EXIT, restarts=1)
    it.server.served, it.server.living = [], []
    it.server.lost_models = {"m": LOST}
    assert it.run(*[lambda: None] * 5)
    assert it.server.starts == 1
    assert "stopping tritonserver for its models that are not loaded" in it.lines
    ((reason, _),) = it.seen
    assert reason.startswith("not loaded: 'm'")


LATE = f"model 'm' was not tried: {CUT_SHORT}: load it again later"


def wait_for_late_load():
    wait_for("load of m")


@pytest.mark.parametrize("policy", list(OnDeadStub))
def test_a_model_that_the_start_had_no_time_for_is_loaded_after_it(play, policy):
    it = play(on_dead_stub=policy, restarts=1)
    it.server.takes_models = True
    it.server.lost_models = {"m": LATE}
    reasons = []
    looks = [lambda: reasons.append(it.state.unready_reason), wait_for_late_load, it.pass_time]
    assert it.run(lambda: None, *looks, it.pass_time)
    assert reasons == [f"not loaded: 'm' ({LATE})"]
    assert it.server.loads == ["m"]
    assert it.lines == [f"model 'm' is not loaded: {LATE}", "model 'm' is loaded"]
    assert it.seen == [("", "")]
    assert it.server.starts == 0


def test_a_late_model_that_exceeds_its_own_limit_is_rejected_for_good(play):
    it = play(on_dead_stub=OnDeadStub.RELOAD)
    it.server.takes_models = True
    it.server.lost_models = {"m": LATE}

    def load(model, config=None, seconds=0):
        it.server.loads.append(model)
        it.server.lost_models = {}  # Triton's reason is another one now
        raise ServerError("model 'm': it was not ready within 90 s")

    it.server.load = load
    assert it.run(lambda: None, *[wait_for_late_load, it.pass_time] * 9)
    assert it.server.loads == ["m"]
    assert it.lines[-1] == "model 'm' is not served: model 'm': it was not ready within 90 s"
    assert it.seen == [("", "")]


def test_a_late_model_whose_process_is_killed_is_lost(play):
    it = play()
    it.server.takes_models = True
    it.server.lost_models = {"m": LATE}

    def load(model, config=None, seconds=0):
        it.server.lost_models = {model: LOST}
        raise ServerError(LOST)

    it.server.load, it.server.served = load, []
    assert it.run(lambda: None, *[wait_for_late_load, it.pass_time] * 9)
    assert it.seen == [(f"not loaded: 'm' ({LOST})", "")]


def test_a_late_load_that_the_server_still_counts_to_its_start_is_repeated(play):
    it = play()
    it.server.takes_models = True
    it.server.lost_models = {"m": LATE}

    def load(model, config=None, seconds=0):
        it.server.loads.append(model)
        raise ServerError(LATE)

    it.server.load = load
    looks = [wait_for_late_load, lambda: it.pass_time(10)] * 9
    assert it.run(lambda: None, *looks)
    assert it.server.loads == ["m"] * 3
    assert it.seen == [("", "")]


def test_models_that_were_not_tried_are_loaded_first_and_count_until_then(play):
    it = play()
    it.server.takes_models = True
    cut = f"model 'a': it was not ready within 7 s; {CUT_SHORT}"
    it.server.lost_models = {"a": cut, "m": LATE}
    gate = threading.Event()

    def load(model, config=None, seconds=0):
        it.server.loads.append(model)
        assert gate.wait(PATIENCE_SECONDS)

    it.server.load = load
    reasons = []

    def note():
        reasons.append(it.state.unready_reason)

    def end():
        it.pass_time(301)

    looks = [it.pass_time, note, end, it.pass_time, note]
    assert it.run(lambda: None, *looks)
    gate.set()
    assert it.server.loads == ["m"]
    assert reasons == [
        f"not loaded: 'a' ({cut}), 'm' ({LATE})",
        f"not loaded: 'm' ({LATE})",
    ]


def test_where_models_may_not_be_loaded_those_of_the_start_are_only_named(play):
    it = play()
    it.server.lost_models = {"m": LATE}
    assert it.run(lambda: None, it.pass_time)
    assert it.server.loads == []
    assert it.lines == [f"model 'm' is not loaded: {LATE}"]
    assert it.seen == [("", "")]
