"""Waits for more rows end when nothing is gained by them: all requests that may come are there, or
runs are shorter than the wait. Answers are the same, and no request is lost."""

import itertools
import queue
import threading

import numpy as np
import pytest
from triton_poplar import instance_state
from triton_poplar.in_flight import NUM_PEAKS, PROBE_CALLS, InFlight
from triton_poplar.instance_state import DEFAULT_TIMEOUT_NS, NUM_LAST_RUNS, ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request
from waiting import PATIENCE_SECONDS, wait_until

BATCH = 32
"""Compiled batch; all clients together have fewer rows."""
SHORT_NS, ENDLESS_NS = 10_000_000, 2 * int(PATIENCE_SECONDS * 1e9)
CLIENTS = pytest.mark.parametrize("clients", [1, 4, 16])


class Clients:
    """Clients that each send the next request when they have the answer to the last one."""

    def __init__(self, folder, **parameters):
        config = {
            "name": "linear",
            "max_batch_size": 1000,
            "parameters": {
                name: {"string_value": str(value)} for name, value in parameters.items()
            },
        }
        self.answered = threading.Semaphore(0)
        self.answers, self.runs, self.num_timeouts = [], [], 0
        self.timeout_ns = SHORT_NS
        self.instance = instance = ModelInstanceState(
            ModelState(config, folder), "linear_0", self._take_answer
        )
        observe, time_out = instance.session.observer, instance.queues._time_out

        def note_run(start_ns, end_ns, rows, lateness_ns, cost):
            self.runs.append(rows)
            observe(start_ns, end_ns, rows, lateness_ns, cost)

        def note_timeout(at_ns):
            self.num_timeouts += 1
            time_out(at_ns)

        instance.session.observer = note_run
        instance.queues._time_out = note_timeout
        instance._find_timeout_ns = lambda: self.timeout_ns

    def wait_for(self, timeout_ns):
        """Have batches wait so long from now on."""
        self.timeout_ns = self.instance.queues.timeout_ns = timeout_ns

    def _take_answer(self, request):
        self.answers.append(request)
        self.answered.release()

    def send(self, values):
        """Send a request for each value, one a call, and return the answers in order."""
        requests = [
            Request(self.instance.model_state, {"x": np.full((1, 4), value, np.float32)}, (), value)
            for value in values
        ]
        before = len(self.answers)
        num_submitted = sum(map(self._call, requests))
        for _ in range(num_submitted):
            assert self.answered.acquire(timeout=PATIENCE_SECONDS), "a request has no answer"
        submitted = self.answers[before:]
        assert len({id(request) for request in submitted}) == len(submitted) == num_submitted
        for request in requests:
            np.testing.assert_array_equal(
                request.outputs()["z"], np.full((1, 4), 2 * request.reply, np.float32)
            )
        wait_until(lambda: self.instance._request_flow.is_idle, "the instance is idle")

    def _call(self, request):
        """Make a call as model.py does; return whether its request was handed over."""
        if self.instance.is_worth_waiting([request]):
            self.instance.submit([request])
            return True
        self.instance.execute([request])
        return False

    def learn(self, count):
        """Send until the instance knows that there are so many clients."""
        self.wait_for(SHORT_NS)
        for value in range(NUM_PEAKS + 1):
            self.send([value] * count)
        # From now on a wait that is not ended would not end before the test.
        self.wait_for(ENDLESS_NS)
        self.send(range(count))


@pytest.fixture
def make_clients(linear, compile_popef, tmp_path):
    compile_popef(linear, batch=BATCH, name="linear/1/executable.popef")
    made = []

    def make(**parameters):
        made.append(Clients(tmp_path / "linear" / "1", **parameters))
        wait_until(lambda: made[-1].instance._request_flow.is_idle, "the instance is idle")
        return made[-1]

    yield make
    for clients in made:
        clients.instance.close()


@CLIENTS
@pytest.mark.parametrize("parameters", [{"timeout_ns": SHORT_NS}, {}])
def test_a_batch_with_a_request_of_each_client_does_not_wait(make_clients, clients, parameters):
    all_clients = make_clients(**parameters)
    all_clients.learn(clients)
    assert all_clients.num_timeouts > 0
    all_clients.num_timeouts, all_clients.runs[:] = 0, []
    for value in range(5):
        all_clients.send([value + number for number in range(clients)])
    assert all_clients.num_timeouts == 0
    assert all_clients.runs == [clients] * 5


def test_requests_of_more_clients_are_joined_again(make_clients):
    clients = make_clients(timeout_ns=SHORT_NS)
    clients.learn(1)
    # Calls are computed at once, so the instance sees other clients only when it waits for them.
    clients.wait_for(SHORT_NS)
    for value in range(2 * PROBE_CALLS):
        clients.send([value] * 4)
    clients.wait_for(ENDLESS_NS)
    clients.runs.clear()
    clients.send(range(4))
    assert clients.runs == [4]


def test_clients_that_leave_are_waited_for_a_few_times(make_clients):
    clients = make_clients(timeout_ns=SHORT_NS)
    clients.learn(4)
    before = clients.num_timeouts
    clients.wait_for(SHORT_NS)
    for value in range(NUM_PEAKS + 1):
        clients.send([value])
    assert 0 < clients.num_timeouts - before <= NUM_PEAKS + 1
    clients.wait_for(ENDLESS_NS)
    clients.send([3])


def test_a_request_that_fails_is_no_longer_in_flight(make_clients):
    clients = make_clients(timeout_ns=SHORT_NS)
    state = clients.instance.model_state
    for _ in range(NUM_PEAKS):
        refused = Request(state, {"q": np.ones((1, 4), np.float32)}, ())
        expired = Request(state, {"x": np.ones((1, 4), np.float32)}, (), timeout_us=1)
        clients.instance.submit([refused, expired])
        for _ in range(2):
            assert clients.answered.acquire(timeout=PATIENCE_SECONDS)
    assert clients.instance._in_flight._num_requests == 0
    assert clients.instance._in_flight._num_waiting == 0
    clients.learn(1)


@pytest.mark.parametrize("parameters", [{"timeout_ns": 0}, {"sim_timing": "paced"}])
def test_waits_without_a_limit_and_paced_ones_are_not_shortened(make_clients, parameters):
    clients = make_clients(**parameters)
    instance = clients.instance
    for _ in range(2 * NUM_PEAKS):
        instance._in_flight.end_run(1)
        instance.session.observer(0, 1, 1, 0, instance.session.run_cost)
    request = Request(instance.model_state, {"x": np.ones((1, 4), np.float32)}, ())
    assert instance.is_worth_waiting([request])
    assert instance.queues.timeout_ns == parameters.get("timeout_ns", DEFAULT_TIMEOUT_NS)


@pytest.mark.parametrize(
    ("timeout_ns", "run_ns", "expected"),
    [
        (500_000, 499_999, None),
        (500_000, 500_000, 500_000),
        (500_000, 10_000_000, 500_000),
        (10_000_000, 499_999, None),
        (10_000_000, 2_000_000, 2_000_000),
        (10_000_000, 20_000_000, 10_000_000),
        (1000, 999, None),
        (1000, 20_000, 1000),
    ],
)
def test_a_batch_waits_no_longer_than_a_run_takes(
    make_clients, monkeypatch, timeout_ns, run_ns, expected
):
    monkeypatch.setattr(instance_state, "InFlight", Unknown)
    clients = make_clients(timeout_ns=timeout_ns)
    instance = clients.instance
    del instance._find_timeout_ns
    for number in range(1, NUM_LAST_RUNS + 1):
        instance.session.observer(0, run_ns, 1, 0, instance.session.run_cost)
        assert instance.queues.timeout_ns == (
            expected if number == NUM_LAST_RUNS else timeout_ns
        ), number
    request = Request(instance.model_state, {"x": np.ones((1, 4), np.float32)}, ())
    assert instance.is_worth_waiting([request]) is (expected is not None)


class Unknown(InFlight):
    """Counts that never show how many clients there are."""

    def _are_all(self, _):
        return False


def test_one_of_many_calls_is_handed_over_to_look_for_others():
    in_flight = InFlight()
    for _ in range(NUM_PEAKS):
        assert not in_flight.may_compute(1)
        in_flight.end_run(1)
    computed = [in_flight.may_compute(1) for _ in range(3 * PROBE_CALLS)]
    assert [index for index, is_computed in enumerate(computed, 1) if not is_computed] == [
        PROBE_CALLS,
        2 * PROBE_CALLS,
        3 * PROBE_CALLS,
    ]
    in_flight.arrive()
    assert not in_flight.are_all_waiting  # it looks for others
    in_flight.arrive()
    assert in_flight.are_all_waiting


class Threads:
    """Clients in threads, and a thread that makes calls of all requests that wait, as Triton."""

    def __init__(self, instance, rounds):
        self.instance, self.rounds = instance, rounds
        instance._respond = self.respond
        self.calls, self.numbers, self.failures = queue.SimpleQueue(), itertools.count(), []

    def ask(self):
        try:
            for _ in range(self.rounds):
                value, done = next(self.numbers) % 1000, threading.Event()
                x = np.full((1, 4), value, np.float32)
                self.calls.put(
                    Request(self.instance.model_state, {"x": x}, (), reply=(value, done))
                )
                assert done.wait(PATIENCE_SECONDS), "a request has no answer"
        except AssertionError as error:
            self.failures.append(error)

    def respond(self, request):
        value, done = request.reply
        np.testing.assert_array_equal(request.outputs()["z"], np.full((1, 4), 2 * value))
        assert not done.is_set()
        done.set()

    def make_calls(self):
        """Make calls until None comes."""
        while (request := self.calls.get()) is not None:
            requests = [request, *(self.calls.get() for _ in range(self.calls.qsize() - 1))]
            if self.instance.is_worth_waiting(requests):
                self.instance.submit(requests)
                continue
            self.instance.execute(requests)
            for each in requests:
                self.respond(each)


@CLIENTS
def test_many_clients_in_threads_get_their_answers(make_clients, clients):
    instance, rounds = make_clients(timeout_ns=SHORT_NS).instance, 30
    threads = Threads(instance, rounds)
    asking = [threading.Thread(target=threads.ask) for _ in range(clients)]
    calling = threading.Thread(target=threads.make_calls)
    for thread in (calling, *asking):
        thread.start()
    for thread in asking:
        thread.join(PATIENCE_SECONDS)
    threads.calls.put(None)
    calling.join(PATIENCE_SECONDS)
    assert not threads.failures
    assert instance.statistics.requests == clients * rounds
