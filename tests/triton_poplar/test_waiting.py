"""Requests that wait in the backend.

In asynchronous mode a backlog is drained as in synchronous mode.
In both modes each request waits no longer than its timeout, or than the queue policy's.
"""

import threading

import numpy as np
import pytest
from triton_poplar.admission import MAX_PART_SECONDS
from triton_poplar.backlog import PROBE_SIZE, Sample
from triton_poplar.errors import RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState, QueuePolicy
from triton_poplar.request import Request
from waiting import PATIENCE_SECONDS

BATCH = 4
"""Compiled batch of the model."""
DAY_US = 24 * 60 * 60 * 10**6
OVERRIDE = {"default_timeout_microseconds": DAY_US, "allow_timeout_override": True}


class Stays:
    def is_cancelled(self):
        return False


class Leaves:
    """Client that leaves while its request is computed; it is present at the first look."""

    def __init__(self):
        self.asked = 0

    def is_cancelled(self):
        self.asked += 1
        return self.asked > 1


class Gone:
    def is_cancelled(self):
        return True


def has_gone(request):
    return request.reply.is_cancelled()


@pytest.fixture
def start(linear, compile_popef, tmp_path, monkeypatch):
    compile_popef(linear, name="linear/1/executable.popef")
    monkeypatch.setattr("triton_poplar.backlog.MIN_RUN_SECONDS", 0)
    monkeypatch.setattr("triton_poplar.backlog.SAMPLES_PER_SECOND", 1e9)
    made = []

    def start(respond, policy=OVERRIDE, **parameters):
        config = {
            "name": "linear",
            "max_batch_size": 100,
            "dynamic_batching": {"default_queue_policy": policy},
            "parameters": {name: {"string_value": value} for name, value in parameters.items()},
        }
        state = ModelState(config, tmp_path / "linear" / "1")
        instance = ModelInstanceState(state, "linear_0", respond, has_gone)
        made.append(instance)
        return instance

    yield start
    for each in made:
        each.close()


@pytest.fixture
def submit(start):
    """Submit a call in asynchronous mode and return its requests when all are answered."""
    answered = threading.Semaphore(0)
    instance = start(lambda request: answered.release(), timeout_ns="1")

    def submit(clients, **options):
        requests = make_requests(instance, clients, **options)
        instance.submit(requests)
        for _ in requests:
            assert answered.acquire(timeout=PATIENCE_SECONDS)
        return requests

    submit.instance = instance
    return submit


def make_requests(instance, clients, **options):
    inputs = {"x": np.ones((1, 4), np.float32)}
    return [Request(instance.model_state, inputs, (), client, **options) for client in clients]


def outcomes(requests):
    """Return the requests' kinds of errors, and check that the others have their answer."""
    for request in requests:
        if request.error is None:
            np.testing.assert_array_equal(request.outputs()["z"], np.full((1, 4), 2))
    return {request.error_kind for request in requests}


def test_in_asynchronous_mode_a_backlog_is_refused_until_a_call_is_not_full(submit):
    assert outcomes(submit([Leaves() for _ in range(BATCH)])) == {""}
    for _ in range(2):
        refused = submit([Stays() for _ in range(2 * BATCH)])
        assert outcomes(refused) == {"drained"}
        assert refused[0].error.code == "UNAVAILABLE"
    assert outcomes(submit([Stays()] * (BATCH - 1))) == {""}
    assert outcomes(submit([Stays()] * (2 * BATCH))) == {""}
    assert submit.instance.statistics.errors == {"drained": 4 * BATCH}


def test_in_asynchronous_mode_clients_that_wait_start_no_drain(submit):
    for _ in range(5):
        assert outcomes(submit([Stays()] * (3 * BATCH))) == {""}


def test_in_asynchronous_mode_cancelled_requests_of_a_full_call_are_not_computed(submit):
    requests = submit([Gone(), Stays()] * BATCH)
    assert outcomes(requests[::2]) == {"cancelled"}
    assert outcomes(requests[1::2]) == {""}
    assert submit.instance.statistics.rows == BATCH


def test_in_asynchronous_mode_long_calls_are_judged_part_by_part(submit):
    submit([Stays()])
    statistics = submit.instance.statistics
    statistics.batches, statistics.compute_ns = 1000, int(1000 * MAX_PART_SECONDS * 1e9)
    requests = submit([Leaves() for _ in range(BATCH)] + [Stays() for _ in range(30 * BATCH)])
    assert outcomes(requests[:BATCH]) == {""}
    assert outcomes(requests[4 * BATCH :]) == {"drained"}


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_request_that_has_waited_longer_than_its_timeout_is_refused(start, submit, mode):
    if mode == "asynchronous":
        hasty, patient = submit([Stays()], timeout_us=1), submit([Stays()], timeout_us=60_000_000)
    else:
        instance = start(None)
        hasty = make_requests(instance, [Stays()], timeout_us=1)
        patient = make_requests(instance, [Stays()], timeout_us=0)
        instance.execute([*hasty, *patient])
    assert (outcomes(hasty), outcomes(patient)) == ({"expired"}, {""})
    with pytest.raises(
        RequestError, match="'linear': the request waited longer than its timeout of 1e-06 s"
    ):
        hasty[0].outputs()
    assert hasty[0].error.code == "UNAVAILABLE"


def test_a_long_call_that_ends_a_drain_is_computed_in_parts(start):
    """If the call were one part, its first request would wait for its last."""
    instance = start(None)
    instance.execute(make_requests(instance, [Leaves() for _ in range(BATCH)]))
    statistics = instance.statistics
    statistics.batches, statistics.compute_ns = 1000, int(1000 * MAX_PART_SECONDS * 1e9)
    instance._admission._backlog._drain_until = 0
    parts = instance.split(make_requests(instance, [Stays()] * (3 * BATCH)))
    assert [len(part) for part in parts] == [BATCH] * 3


@pytest.mark.parametrize(
    ("policy", "asked_us", "expected_us"),
    [
        ({"default_queue_policy": OVERRIDE}, 0, DAY_US),
        ({"default_queue_policy": OVERRIDE}, 500, 500),
        ({"default_queue_policy": {**OVERRIDE, "default_timeout_microseconds": "700"}}, 900, 700),
        ({"default_queue_policy": {"default_timeout_microseconds": 700}}, 500, 700),
        ({"default_queue_policy": {"allow_timeout_override": True}}, 500, 500),
        ({"default_queue_policy": {"max_queue_size": 9}}, 500, DAY_US),
        ({"default_queue_policy": {**OVERRIDE, "timeout_action": "DELAY"}}, 500, DAY_US),
        ({"default_queue_policy": OVERRIDE, "priority_queue_policy": {"1": {}}}, 500, DAY_US),
        ({}, 500, 500),
        ({}, 0, DAY_US),
    ],
)
def test_a_timeout_counts_as_the_queue_policy_says_and_without_one(policy, asked_us, expected_us):
    found = QueuePolicy.of({"dynamic_batching": policy})
    assert found.find_timeout_ns(asked_us) == 1000 * expected_us


@pytest.mark.parametrize(("is_gone", "asked"), [(False, PROBE_SIZE), (True, 16)])
def test_of_clients_that_wait_few_are_looked_for_and_of_others_all(is_gone, asked):
    requests = [object() for _ in range(16)]
    sample, looked = Sample(requests), []

    def look(request):
        looked.append(request)
        return is_gone

    for request in [object(), *requests]:
        assert not sample.is_complete
        sample.record_answer(request, look)
    assert sample.is_complete
    assert looked == requests[:asked]
    assert all(sample.is_gone(request) == is_gone for request in requests)
