"""Requests of many threads that share runs of one instance of a real model."""

import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig
from poplar_triton.tfserving.batcher import RequestBatcher
from poplar_triton.tfserving.models import Code, ServingError
from sample_models import gather_model
from serving_calls import PlayedCall
from triton_poplar.errors import RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState, complete_config
from waiting import PATIENCE_SECONDS, wait_until

ROWS_PER_RUN = 4


class Watched:
    """Instance whose runs wait while it `holds`; `runs` has the rows of each run's requests."""

    def __init__(self, instance):
        self._instance = instance
        self._gate = threading.Semaphore(0)
        self.holds = False
        self.error = None
        self.runs = []
        self.closed = 0

    def __getattr__(self, name):
        return getattr(self._instance, name)

    def execute(self, requests):
        self.runs.append([request.batch_size for request in requests])
        if self.holds:
            assert self._gate.acquire(timeout=PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        self._instance.execute(requests)

    def let_go(self, runs=1000):
        for _ in range(runs):
            self._gate.release()

    def close(self):
        self.closed += 1
        self._instance.close()


@pytest.fixture
def open_instance(compile_popef, tmp_path):
    """Yield a function that opens an instance of a model; all are closed at the end."""
    opened = []

    def build(model, name="m"):
        compile_popef(model, name=f"{name}/1/executable.popef", batch=ROWS_PER_RUN)
        folder = tmp_path / name / "1"
        config = {"name": name, **complete_config({"name": name}, folder)}
        opened.append(Watched(ModelInstanceState(ModelState(config, folder), name)))
        return opened[-1]

    yield build
    for instance in opened:
        instance.let_go()
        if not instance.closed:
            instance.close()


@pytest.fixture
def instance(open_instance, linear):
    return open_instance(linear)


@pytest.fixture
def batcher(instance):
    return RequestBatcher(instance, joins=True)


@pytest.fixture
def send():
    """Yield a function that sends a request from a thread and returns its future once it waits."""
    with ThreadPoolExecutor(16) as pool:

        def begin(batcher, inputs, call=None, outputs=("z",)):
            call = call or PlayedCall()
            future = pool.submit(batcher.compute, inputs, outputs, call)
            wait_until(lambda: call.num_waits or future.done(), "a call that waits")
            return future

        yield begin


def rows(value, count=1):
    return {"x": np.full((count, 4), value, np.float32)}


def check(future, inputs):
    np.testing.assert_array_equal(future.result(PATIENCE_SECONDS)["z"], 2 * inputs["x"])


def hold(instance, send, batcher):
    """Send a request that stays in flight until the instance releases it."""
    instance.holds = True
    first = send(batcher, rows(1))
    wait_until(lambda: instance.runs, "a run")
    return first


def test_answers_are_those_of_the_model_runtime(batcher, instance, tmp_path):
    path = tmp_path / "m" / "1" / "executable.popef"
    with ModelRunner(path, ModelRunnerConfig(batching_dim=0)) as runner:
        for count in (1, 3, 4, 9):
            inputs = {
                "x": np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
            }
            expected = runner.execute(inputs)
            found = batcher.compute(inputs, (), PlayedCall())
            assert found.keys() == {"y", "z"}
            for name, array in found.items():
                np.testing.assert_array_equal(array, expected[name])
    assert batcher.compute(rows(3), ["z"], PlayedCall()).keys() == {"z"}


def test_requests_during_a_run_share_the_next_batch_in_order(batcher, instance, send):
    first = hold(instance, send, batcher)
    asked = [
        (send(batcher, rows(value, count)), rows(value, count))
        for value, count in ((2, 1), (3, 2), (4, 1))
    ]
    asked += [(send(batcher, rows(5, 9)), rows(5, 9)), (send(batcher, rows(6)), rows(6))]
    instance.let_go()
    check(first, rows(1))
    for future, inputs in asked:
        check(future, inputs)
    assert instance.runs == [[1], [1, 2, 1], [9], [1]]


def test_without_dynamic_batching_each_request_has_its_own_run_in_order(instance, send):
    batcher = RequestBatcher(instance, joins=False)
    first = hold(instance, send, batcher)
    asked = [(send(batcher, rows(value, value)), rows(value, value)) for value in (3, 1, 2)]
    instance.let_go()
    check(first, rows(1))
    for future, inputs in asked:
        check(future, inputs)
    assert instance.runs == [[1], [3], [1], [2]]


def test_a_bad_request_does_not_fail_its_neighbours(open_instance, send):
    instance = open_instance(gather_model(), "gather")
    batcher = RequestBatcher(instance, joins=True)
    instance.holds = True
    ids = {name: np.array([[number, 1]], np.int32) for name, number in (("good", 9), ("bad", 99))}
    first = send(batcher, {"ids": ids["good"]}, outputs=())
    wait_until(lambda: instance.runs, "a run")
    shape = send(batcher, {"ids": np.zeros((1, 3), np.int32)}, outputs=())
    value = send(batcher, {"ids": ids["bad"]}, outputs=())
    good = send(batcher, {"ids": ids["good"]}, outputs=())
    instance.let_go()
    for future in (first, good):
        assert future.result(PATIENCE_SECONDS)["rows"].tolist() == [[[27, 28, 29], [3, 4, 5]]]
    assert len(instance.runs) == 2  # the three are joined
    with pytest.raises(ServingError, match="input 'ids': expected int32 of shape") as refused:
        shape.result(PATIENCE_SECONDS)
    assert refused.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(
        ServingError, match="model 'gather' could not compute the request"
    ) as failed:
        value.result(PATIENCE_SECONDS)
    assert failed.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    "code",
    [Code.INVALID_ARGUMENT, Code.UNAVAILABLE, Code.INTERNAL, Code.CANCELLED],
    ids=lambda code: code.name,
)
def test_the_backends_codes_are_grpcs(batcher, instance, monkeypatch, code):
    name = "INVALID_ARG" if code is Code.INVALID_ARGUMENT else code.name
    monkeypatch.setattr(
        instance,
        "execute",
        lambda requests: requests[0].fail(RequestError("so it is", name), "run"),
    )
    with pytest.raises(ServingError, match="so it is") as raised:
        batcher.compute(rows(1), (), PlayedCall())
    assert raised.value.code is code


def test_cancelled_requests_are_not_computed(batcher, instance, send):
    first = hold(instance, send, batcher)
    calls = [PlayedCall() for _ in range(4)]
    asked = [send(batcher, rows(value), call) for value, call in enumerate(calls, 2)]
    for call in (calls[0], calls[2]):
        call.give_up()
    instance.let_go()
    check(first, rows(1))
    for future in (asked[0], asked[2]):
        with pytest.raises(
            ServingError, match="request was cancelled before it was computed"
        ) as given_up:
            future.result(PATIENCE_SECONDS)
        assert given_up.value.code is Code.CANCELLED
    check(asked[1], rows(3))
    check(asked[3], rows(5))
    assert instance.runs == [[1], [1, 1]]


def test_a_batch_of_cancelled_requests_is_not_run(batcher, instance):
    call = PlayedCall()
    call.give_up()
    for _ in range(3):
        with pytest.raises(ServingError, match="cancelled before it was computed"):
            batcher.compute(rows(1), (), call)
    assert instance.runs == []
    assert batcher.compute(rows(1), (), PlayedCall()).keys() == {"y", "z"}


def test_a_defect_of_a_run_is_the_error_of_those_in_it_and_of_no_other(batcher, instance, send):
    first = hold(instance, send, batcher)
    instance.error = MemoryError("no room")
    asked = [send(batcher, rows(2)), send(batcher, rows(3, 3)), send(batcher, rows(4))]
    instance.let_go(2)
    for future in (first, *asked[:2]):
        assert future.exception(PATIENCE_SECONDS) is instance.error
    wait_until(lambda: len(instance.runs) == 3, "the third run")
    instance.error = None
    instance.let_go()
    check(asked[2], rows(4))


def test_closing_waits_for_all_and_refuses_what_comes_later(batcher, instance, send):
    first = hold(instance, send, batcher)
    asked = [(send(batcher, rows(value, 3)), rows(value, 3)) for value in (2, 3, 4)]
    closing = threading.Thread(target=batcher.close)
    closing.start()

    def is_refused():
        call = PlayedCall()
        call.give_up()  # a request that is not rejected yet is not computed
        with pytest.raises(ServingError) as raised:
            batcher.compute(rows(1), (), call)
        return raised.value.code is Code.UNAVAILABLE

    late = send(batcher, rows(9))
    instance.let_go(1)
    check(first, rows(1))
    assert not instance.closed
    instance.let_go()
    for future, inputs in asked:
        check(future, inputs)
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    assert instance.closed == 1
    assert is_refused()
    error = late.exception(PATIENCE_SECONDS)
    assert error is None or error.code is Code.UNAVAILABLE


def test_a_model_that_is_idle_is_closed_at_once(batcher, instance):
    batcher.compute(rows(1), (), PlayedCall())
    batcher.close()
    assert instance.closed == 1
    with pytest.raises(ServingError, match="the model was unloaded; try again") as refused:
        batcher.compute(rows(1), (), PlayedCall())
    assert refused.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize(("limit", "waits"), [(0, 3), (1e9, 1)])
def test_a_thread_is_said_to_wait_unless_the_last_run_was_quick(batcher, monkeypatch, limit, waits):
    monkeypatch.setattr("poplar_triton.tfserving.batcher.QUICK_SECONDS", limit)
    call = PlayedCall()
    for _ in range(3):
        batcher.compute(rows(1), (), call)
    assert call.num_waits == waits


@pytest.mark.parametrize("joins", [True, False])
def test_a_thousand_requests_in_any_order_all_get_their_own_answer(instance, joins):
    """A cancelled request gets either its own answer or the error that it was cancelled."""
    batcher = RequestBatcher(instance, joins=joins)
    numbers = queue.SimpleQueue()
    for number in range(1, 1001):
        numbers.put(number)
    answered, given_up = [], []

    def ask(order):
        while True:
            try:
                number = numbers.get_nowait()
            except queue.Empty:
                return
            inputs, call = rows(number, order.randint(1, 6)), PlayedCall()
            quits = order.random() < 0.1
            if quits:
                threading.Thread(target=call.give_up).start()
            try:
                found = batcher.compute(inputs, ["z"], call)
            except ServingError as error:
                given_up.append(quits and error.code is Code.CANCELLED)
            else:
                np.testing.assert_array_equal(found["z"], 2 * inputs["x"])
                answered.append(number)

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(partial(ask, random.Random(seed))) for seed in range(16)]:
            future.result(PATIENCE_SECONDS)
    assert len(set(answered)) + len(given_up) == 1000
    assert all(given_up)
    batcher.close()
