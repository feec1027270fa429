"""Tests of runs whose clients have all gone: such a run ends at the second look, and no other."""

import queue
import threading

import numpy as np
import pytest
from simipu import Engine
from simipu.errors import UNWANTED, RunUnwantedError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request
from waiting import PATIENCE_SECONDS

ROWS = np.ones((1, 4), np.float32)


@pytest.fixture(params=[True, False], ids=["synchronous", "queued"])
def instance(request, linear, compile_popef, tmp_path):
    compile_popef(linear, name="linear/1/executable.popef")
    tensors = {
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
    }
    state = ModelState({"max_batch_size": 2, **tensors}, tmp_path / "linear" / "1")
    answers = queue.SimpleQueue()
    instance = ModelInstanceState(state, "linear_0", None if request.param else answers.put)
    instance.answers = answers
    yield instance
    instance.close()


@pytest.fixture
def began(monkeypatch):
    """Have runs last until they are ended. Return the event that one has begun."""
    began, ended = threading.Event(), threading.Event()

    def compute(self, *arguments):
        began.set()
        assert ended.wait(PATIENCE_SECONDS)
        raise RunUnwantedError(UNWANTED)

    monkeypatch.setattr(Engine, "compute", compute)
    monkeypatch.setattr(Engine, "end_run", lambda _, is_unwanted: is_unwanted() and ended.set())
    began.ended = ended
    return began


def test_a_run_ends_at_the_second_look_without_clients(instance, began):
    requests = [Request(instance.model_state, {"x": ROWS}, ()) for _ in range(2)]
    synchronous = instance._respond is None
    call = instance.execute if synchronous else instance.submit
    thread = threading.Thread(target=call, args=(requests,))
    thread.start()
    assert began.wait(PATIENCE_SECONDS)
    for gone, expected in (([], False), (requests[:1], False), (requests, True)):
        instance.end_unwanted_run(gone.__contains__)
        assert began.ended.is_set() == expected
    thread.join(PATIENCE_SECONDS)
    if not synchronous:
        for _ in requests:
            instance.answers.get(timeout=PATIENCE_SECONDS)
    assert [request.error_kind for request in requests] == ["cancelled"] * 2
