"""Instances and the backend's model.py under overload: what they reject, skip, split and count."""

import importlib.util
import json
import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from triton_poplar.admission import MAX_PART_SECONDS
from triton_poplar.errors import RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request
from waiting import wait_until

MODEL_FILE = Path(__file__).resolve().parents[2] / "backend" / "poplar" / "model.py"
BATCH = 4
"""Compiled batch of the model."""


class Client:
    """Client of one request, who leaves before its run or when it is over."""

    def __init__(self, gone=False, goes=False):
        self.gone, self.goes = gone, goes

    def is_cancelled(self):
        return self.gone


@pytest.fixture
def instance(linear, compile_popef, tmp_path, monkeypatch):
    made = []

    def make(**parameters):
        compile_popef(linear, name="linear/1/executable.popef")
        config = {
            "name": "linear",
            "max_batch_size": 100,
            "parameters": {name: {"string_value": value} for name, value in parameters.items()},
        }
        state = ModelState(config, tmp_path / "linear" / "1")
        instance = ModelInstanceState(
            state, "linear_0", None, lambda request: request.reply.is_cancelled()
        )
        made.append(instance)
        monkeypatch.setattr("triton_poplar.backlog.MIN_RUN_SECONDS", 0)
        monkeypatch.setattr("triton_poplar.backlog.SAMPLES_PER_SECOND", 1e9)
        return instance

    yield make
    for each in made:
        each.close()


def execute(instance, clients):
    """Answer a call with one request per client; clients leave when the run is computed."""
    run = instance.session.run

    def leave(*arguments):
        outputs = run(*arguments)
        for client in clients:
            client.gone |= client.goes
        return outputs

    instance.session.run = leave
    inputs = {"x": np.ones((1, 4), np.float32)}
    requests = [Request(instance.model_state, inputs, (), client) for client in clients]
    instance.execute(requests)
    instance.session.run = run
    return requests


def waste_a_run(instance):
    execute(instance, [Client(goes=True) for _ in range(BATCH)])


def test_after_a_wasted_run_what_waits_is_refused_until_a_call_is_not_full(instance, caplog):
    instance = instance()
    waste_a_run(instance)
    for _ in range(2):
        for request in execute(instance, [Client() for _ in range(2 * BATCH)]):
            with pytest.raises(RequestError, match="'linear' is overloaded") as refused:
                request.outputs()
            assert refused.value.code == "UNAVAILABLE"
    for count in (BATCH - 1, 2 * BATCH):
        for request in execute(instance, [Client() for _ in range(count)]):
            np.testing.assert_array_equal(request.outputs()["z"], np.full((1, 4), 2))
    assert instance.statistics.errors == {"drained": 4 * BATCH}
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "linear_0: overload: rejected 16 waiting requests because responses came "
        "after the clients' deadlines; reduce the load, add servers, or see drain_backlog"
    ]


def test_with_drain_backlog_off_nothing_is_refused(instance):
    instance = instance(drain_backlog="0")
    waste_a_run(instance)
    for request in execute(instance, [Client() for _ in range(2 * BATCH)]):
        request.outputs()
    assert not instance.statistics.errors


def test_cancelled_requests_of_a_full_call_are_not_computed_and_the_others_are(instance):
    instance = instance()
    clients = [Client(gone=number % 2 == 0) for number in range(2 * BATCH)]
    for request in execute(instance, clients):
        if request.reply.gone:
            with pytest.raises(RequestError, match="cancelled"):
                request.outputs()
        else:
            request.outputs()
    assert instance.statistics.rows == BATCH
    assert instance.statistics.errors == {"cancelled": BATCH}
    waste_a_run(instance)  # a call that every client cancelled starts nothing
    execute(instance, [Client()])
    execute(instance, [Client(gone=True) for _ in range(2 * BATCH)])
    assert instance.statistics.errors["drained"] == 0


def test_long_calls_are_split_into_parts_of_about_a_tenth_of_a_second(instance):
    instance = instance()
    requests = [
        Request(instance.model_state, {"x": np.ones((rows, 4), np.float32)}, (), Client())
        for rows in (1, 3, 9, 1, 1, 1, 1, 2)
    ]
    assert instance.split(requests) == [requests]
    instance.statistics.batches, instance.statistics.compute_ns = (
        10,
        int(10 * MAX_PART_SECONDS * 1e9),
    )
    assert instance.split(requests) == [requests[:2], requests[2:3], requests[3:7], requests[7:]]
    instance.statistics.compute_ns //= 1000
    assert instance.split(requests) == [requests]


class Sender:
    def __init__(self):
        self.sent = []

    def send(self, response, flags):
        self.sent.append((time.monotonic(), response))

    def is_cancelled(self):
        return False


class Sent:
    """One request as Triton sends it."""

    def __init__(self):
        self.sender = Sender()

    def inputs(self):
        return [SimpleNamespace(name=lambda: "x", as_numpy=lambda: np.ones((1, 4), np.float32))]

    def requested_output_names(self):
        return ["z"]

    def timeout(self):
        return 0

    def get_response_sender(self):
        return self.sender

    def is_cancelled(self):
        return False


class PlayedError:
    INTERNAL = "INTERNAL"

    def __init__(self, text, code):
        self.text, self.code = text, code


class NoMetrics:
    COUNTER = GAUGE = 0

    def __init__(self, **_):
        raise RuntimeError("metrics are off")


@pytest.fixture(params=[{"synchronous_execution": "1"}])
def model(request, linear, compile_popef, tmp_path, monkeypatch):
    compile_popef(linear, name="linear/1/executable.popef")
    stub = SimpleNamespace(
        TritonModelException=RuntimeError,
        MetricFamily=NoMetrics,
        Logger=SimpleNamespace(log_warn=lambda _: None, log_info=lambda _: None),
        InferenceResponse=lambda tensors=None, error=None: error or tensors,
        TritonError=PlayedError,
        Tensor=lambda name, array: (name, array),
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    spec = importlib.util.spec_from_file_location("poplar_model", MODEL_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "NUMPY_IS_OLD", True)
    config = {
        "name": "linear",
        "max_batch_size": 100,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}],
        "output": [
            {"name": "y", "data_type": "TYPE_FP32", "dims": ["3"]},
            {"name": "z", "data_type": "TYPE_FP32", "dims": ["4"]},
        ],
        "parameters": {name: {"string_value": value} for name, value in request.param.items()},
    }
    model = module.TritonPythonModel()
    model.initialize(
        {
            "model_config": json.dumps(config),
            "model_repository": str(tmp_path / "linear"),
            "model_version": "1",
            "model_instance_name": "linear_0_0",
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
    )
    yield model
    model.finalize()


def test_the_parts_of_a_long_call_are_answered_one_after_the_other(model):
    statistics = model._instance.statistics
    statistics.batches, statistics.compute_ns = 1000, int(1000 * MAX_PART_SECONDS * 1e9)
    requests = [Sent() for _ in range(3 * BATCH)]
    assert model.execute(requests) is None
    times = [request.sender.sent[0][0] for request in requests]
    assert times == sorted(times)
    for request in requests:
        ((_, [(name, array)]),) = request.sender.sent
        assert name == "z"
        np.testing.assert_array_equal(array, np.full((1, 4), 2))
    assert model._instance.statistics.requests == 3 * BATCH


@pytest.mark.parametrize("model", [{"timeout_ns": "1000000"}], indirect=True)
def test_in_asynchronous_mode_a_whole_batch_is_answered_by_the_call_and_others_later(model):
    instance, incomplete = model._instance, [Sent() for _ in range(BATCH - 1)]

    def answer_whole_batch():
        wait_until(lambda: instance._request_flow.is_idle, "the instance is idle")
        requests = [Sent() for _ in range(BATCH)]
        for ((name, array),) in model.execute(requests):
            assert name == "z"
            np.testing.assert_array_equal(array, np.full((1, 4), 2))
        assert not any(each.sender.sent for each in requests)

    answer_whole_batch()
    assert model.execute(incomplete) is None
    answer_whole_batch()
    model.finalize()
    assert [len(each.sender.sent) for each in incomplete] == [1] * (BATCH - 1)
    assert instance.statistics.requests == 3 * BATCH - 1


def test_a_defect_in_a_part_is_an_answer_too(model, monkeypatch):
    statistics = model._instance.statistics
    statistics.batches, statistics.compute_ns = 1000, int(1000 * MAX_PART_SECONDS * 1e9)
    execute = model._instance.execute

    def fail_first(requests, is_part):
        monkeypatch.setattr(model._instance, "execute", execute)
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(model._instance, "execute", fail_first)
    requests = [Sent() for _ in range(2 * BATCH)]
    assert model.execute(requests) is None
    for request in requests[:BATCH]:
        ((_, error),) = request.sender.sent
        assert (error.code, "a defect" in error.text) == ("INTERNAL", True)
    for request in requests[BATCH:]:
        ((_, [(name, _)]),) = request.sender.sent
        assert name == "z"


def test_a_short_call_is_answered_by_its_list(model):
    requests = [Sent() for _ in range(3 * BATCH)]
    responses = model.execute(requests)
    assert [name for ((name, _),) in responses] == ["z"] * len(requests)
    assert not any(request.sender.sent for request in requests)
