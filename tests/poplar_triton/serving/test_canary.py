"""Tests of when idle models get a test request, and of what follows if they do not answer."""

from __future__ import annotations

import pytest
from played_proc import PlayedProc
from poplar_triton.serving.canary import LIMIT_SECONDS, RETRY_SECONDS, Canary
from poplar_triton.serving.endpoint import NoAnswerError
from poplar_triton.serving.server_state import ServerPhase, ServerState
from poplar_triton.serving.stubs import Stub
from waiting import PATIENCE_SECONDS

STUB, SIBLING = Stub(7, 1, "m", "1", "m_0_0"), Stub(8, 1, "m", "1", "m_0_1")


class Model:
    """Endpoint that serves one model, and a canary."""

    def __init__(self, folder):
        self.config = {"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]}
        self.fault = None
        self.asked, self.lines, self.now = [], [], 0.0
        self.proc, self.state = PlayedProc(folder), ServerState()
        self.state.enter(ServerPhase.SERVING)
        self.state.answers = True
        for pid in (7, 8):
            self.proc.say(pid, "S")
        self.canary = Canary(self, self.state, self.lines.append, 60, lambda: self.now, folder)
        self.meanwhile = lambda: None

    def read_config(self, model, version):
        return self.config

    def infer_zeros(self, model, version, inputs, seconds):
        assert [each.shape for each in inputs] == [(1,)]
        self.asked.append((model, version, seconds))
        self.meanwhile()
        if self.fault:
            raise self.fault

    def poll(self, *living, after=0.0):
        self.now += after
        self.canary.check(living or [STUB, SIBLING])
        # Not by threading.enumerate, which forgets a thread before it has ended.
        for case in self.canary._cases.values():
            if case.thread is not None:
                case.thread.join(PATIENCE_SECONDS)
        return self.canary.check(living or [STUB, SIBLING])


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path)


def test_a_model_is_asked_each_so_many_seconds_and_not_at_once(model):
    assert model.poll() == []
    assert model.asked == []
    for _ in range(2):
        assert model.poll(after=60) == []
    assert model.poll(after=59) == []
    assert model.asked == [("m", "1", LIMIT_SECONDS)] * 2
    assert (
        b'poplar_supervisor_canaries_total{model="m",outcome="success"} 2.0'
        in model.state.write_metrics()
    )


def test_one_that_does_not_answer_is_not_ready_until_it_does(model):
    model.poll()
    model.fault = NoAnswerError("it failed", is_late=False)
    for _ in range(3):
        assert model.poll(after=60) == []
    assert model.state.unready_reason == "no response to a canary: model 'm' (it failed)"
    model.fault = None
    model.poll(after=RETRY_SECONDS)
    assert model.state.unready_reason == ""
    assert model.lines == [
        "model 'm' version 1 does not answer a canary: it failed",
        "model 'm' version 1 answers canaries again",
    ]


def test_a_stub_that_computes_nothing_while_a_canary_waits_hangs(model):
    model.poll()
    model.fault = NoAnswerError("nothing", is_late=True)

    def compute():
        model.now += 1000
        model.proc.say(7, "S", cpu=11)
        model.proc.say(8, "S", cpu=1, faults=1)

    model.meanwhile = compute
    (stall,) = model.poll(after=60)
    assert stall.stub == SIBLING
    assert str(stall).endswith("no progress: it used no CPU time for 30 s while a canary waited")
    assert model.canary.check([STUB]) == [], "it was killed"


def test_a_model_without_canaries_is_reported_once(model):
    model.config = {"sequence_batching": {}}
    for _ in range(3):
        model.poll(after=60)
    assert model.asked == []
    assert model.lines == ["model 'm' version 1 gets no canary: it is a sequence model"]


def test_one_that_is_served_no_more_is_forgotten(model):
    model.poll()
    model.fault = NoAnswerError("it failed", is_late=False)
    model.poll(after=60)
    model.config = None
    model.canary.check([])
    assert model.state.unready_reason == ""


def test_an_answer_after_an_instance_was_lost_is_not_reported(model):
    model.poll()
    model.fault = NoAnswerError("Stub process is not healthy", is_late=False)
    model.meanwhile = lambda: model.canary.check([])
    model.poll(after=60)
    assert model.state.unready_reason == ""
    assert model.lines == []
