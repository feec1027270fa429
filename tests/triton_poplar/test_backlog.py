"""The drain of a backlog, with simulated requests.

A queue stands in front of one instance, and computing moves the clock.
"""

from collections import Counter, deque

import pytest
from triton_poplar.backlog import MAX_DRAIN_SECONDS, MIN_EVIDENCE, PROBE_SIZE, Backlog

BATCH, RUN_SECONDS = 8, 0.1
CAPACITY = BATCH / RUN_SECONDS
CALL_SECONDS = 0.0005
ASK_SECONDS = 60e-6


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Played:
    """Request of a client that leaves `patience` seconds after it was sent."""

    def __init__(self, sent, patience=float("inf"), client="a"):
        self.sent = sent
        self.gone = sent + patience
        self.client = client


class Server:
    """Queue that hands over waiting requests, up to `most` at once.

    Its instance works as the backend does.
    """

    def __init__(self, backlog, clock, most=BATCH):
        self.backlog, self.clock, self.most = backlog, clock, most
        self.waiting = deque()
        self.outcomes = Counter()
        self.asked = 0

    def is_cancelled(self, request):
        self.asked += 1
        self.clock.now += ASK_SECONDS
        return self.clock.now >= request.gone

    def serve(self, arrivals, seconds):
        """Serve what arrives, by its time, until `seconds`."""
        arrivals = deque(sorted(arrivals, key=lambda request: request.sent))
        while self.clock.now < seconds:
            if not self.waiting and arrivals:
                self.clock.now = max(self.clock.now, arrivals[0].sent)
            while arrivals and arrivals[0].sent <= self.clock.now:
                self.waiting.append(arrivals.popleft())
            if not self.waiting:
                return
            self.clock.now += CALL_SECONDS
            self.call([self.waiting.popleft() for _ in range(min(self.most, len(self.waiting)))])

    def call(self, requests):
        is_full = len(requests) >= BATCH
        if not self.backlog.admit(requests, is_full, self.is_cancelled):
            self.answer(requests, "refused")
            self.backlog.record_refusals()
            return
        watched, gone = self.backlog.watch(requests, self.is_cancelled) if is_full else ((), ())
        self.answer(gone, "skipped")
        alive = [request for request in requests if request not in gone]
        self.clock.now += -(-len(alive) // BATCH) * RUN_SECONDS
        self.answer(alive, "answered")
        self.backlog.judge(watched, self.is_cancelled)

    def answer(self, requests, outcome):
        for request in requests:
            in_time = self.clock.now < request.gone
            self.outcomes[
                request.client, outcome if in_time or outcome != "answered" else "late"
            ] += 1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reported():
    return []


@pytest.fixture
def server(clock, reported):
    return Server(Backlog(reported.append, clock), clock)


def begin_drain(server, size):
    for _ in range(-(-MIN_EVIDENCE // size)):
        server.backlog.judge([Played(0, 0)] * size, server.is_cancelled)
    assert server.backlog.is_draining


def offer(per_second, seconds, **request):
    return [Played(number / per_second, **request) for number in range(int(per_second * seconds))]


@pytest.mark.parametrize(
    ("factor", "patience", "goal"),
    [
        (1.3, 2.0, 0.9),
        (3, 2.0, 0.9),
        (3, 10.0, 0.95),
        (10, 1.0, 0.7),
        (10, 2.0, 0.8),
        (10, 10.0, 0.9),
    ],
)
def test_goodput_under_overload_stays_near_capacity(server, factor, patience, goal):
    server.serve(offer(factor * CAPACITY, 60, patience=patience), 60)
    assert server.outcomes["a", "answered"] >= goal * 60 * CAPACITY


def test_without_a_drain_goodput_is_lost(server):
    """The rule prevents this loss, which the simulated queue shows as the real one does."""
    server.backlog.judge = lambda *_: None
    server.serve(offer(3 * CAPACITY, 60, patience=2.0), 60)
    assert server.outcomes["a", "answered"] <= 0.1 * 60 * CAPACITY


def test_clients_with_other_deadlines_share_a_queue(server):
    arrivals = []
    for number in range(4):
        arrivals += offer(3 * CAPACITY / 4, 60, patience=0.5 * 2**number, client=str(number))
    server.serve(arrivals, 60)
    answered = sum(count for (_, what), count in server.outcomes.items() if what == "answered")
    assert answered >= 0.6 * 60 * CAPACITY


def test_clients_without_deadlines_are_never_refused(server):
    server.serve(offer(10 * CAPACITY, 10), 60)
    assert set(server.outcomes) == {("a", "answered")}
    assert server.asked <= 60 / RUN_SECONDS * 2 * PROBE_SIZE


@pytest.mark.parametrize(("share", "refused"), [(0.5, 0), (0.9, 0), (0.97, 0.01)])
def test_a_client_that_gives_up_at_once_has_no_requests_of_others_refused(server, share, refused):
    """That client offers most of a load of three times the capacity."""
    load = 3 * CAPACITY
    arrivals = offer(share * load, 30, patience=0.02, client="hasty")
    arrivals += offer((1 - share) * load, 30, client="patient")
    server.serve(arrivals, 120)
    offered = int((1 - share) * load * 30)
    assert server.outcomes["patient", "refused"] <= refused * offered
    assert server.outcomes["patient", "answered"] >= (1 - refused) * offered


def test_a_client_with_less_than_half_of_the_runs_has_nothing_of_others_refused(server):
    """A client counts by its share of what is computed, not by how often it cancels."""
    arrivals = offer(0.4 * CAPACITY, 30, patience=0.15, client="hasty")
    arrivals += offer(0.8 * CAPACITY, 30, client="patient")
    server.serve(arrivals, 60)
    assert server.outcomes["patient", "refused"] == 0


def test_a_client_that_cancels_half_of_what_waits_has_nothing_of_others_refused(server):
    """Its requests wait among those of another client, and go in the middle of one run."""
    patience = 3.55 * RUN_SECONDS
    mixed = [(patience, "hasty"), (float("inf"), "patient")]
    server.serve([Played(0, *mixed[number % 2]) for number in range(30 * BATCH)], 60)
    assert server.outcomes["patient", "refused"] == 0
    assert server.outcomes["hasty", "late"] > 0


def test_one_cancelled_request_of_a_model_without_batches_has_nothing_of_others_refused(server):
    for lost in (1, 0, 1, 1, 0, 1, 1, 1, 0):
        server.backlog.watch([Played(0)], lambda _: False)
        server.backlog.judge([Played(0)], lambda _, lost=lost: lost)
        assert not server.backlog.is_draining


def test_drains_that_do_not_help_become_rare(server, clock):
    """All but one request of each run are always cancelled in the middle of the run."""
    refused_at = []
    while clock.now < 120:
        start = clock.now
        hasty = [Played(start, RUN_SECONDS / 2, "hasty") for _ in range(BATCH - 2)]
        gone = Played(start, 0.0, "gone")
        before = server.outcomes["patient", "refused"]
        server.call([gone, *hasty, Played(start, client="patient")])
        if server.outcomes["patient", "refused"] > before:
            refused_at.append(clock.now)
            clock.now += 2 * MAX_DRAIN_SECONDS  # then nothing waits
    assert 1 <= len(refused_at) <= 8


def test_a_call_that_is_not_full_ends_the_drain(server, clock, reported):
    begin_drain(server, BATCH)
    for _ in range(3):
        server.call([Played(clock.now)] * BATCH)
    assert server.outcomes["a", "refused"] == 3 * BATCH
    server.call([Played(clock.now)] * (BATCH - 1))
    server.call([Played(clock.now)] * BATCH)
    assert server.outcomes["a", "answered"] == 2 * BATCH - 1
    assert reported == [3 * BATCH]


def test_a_request_that_was_waited_for_ends_the_drain_of_a_model_without_batches(server, clock):
    begin_drain(server, 1)
    assert not server.backlog.admit([Played(0)], True, server.is_cancelled)
    server.backlog.record_refusals()
    clock.now += 0.0005
    assert not server.backlog.admit([Played(0)], True, server.is_cancelled)
    server.backlog.record_refusals()
    clock.now += 0.01
    assert server.backlog.admit([Played(0)], True, server.is_cancelled)


def test_requests_that_come_together_after_nothing_waited_end_the_drain(server, clock):
    begin_drain(server, BATCH)
    server.call([Played(0)] * BATCH)
    clock.now += 0.1
    server.call([Played(clock.now)] * BATCH)
    assert server.outcomes == {("a", "refused"): BATCH, ("a", "answered"): BATCH}


def test_a_call_that_came_while_refusals_were_sent_does_not_end_the_drain(server, clock):
    """Triton hands over the waiting requests after the last refusal."""
    begin_drain(server, BATCH)
    server.call([Played(0)] * 1000)
    clock.now += 0.4
    server.call([Played(clock.now)] * 300)
    assert server.outcomes == {("a", "refused"): 1300}


def test_a_long_call_that_takes_long_to_be_handed_over_does_not_end_the_drain(server, clock):
    """The call waits; only the number of its requests takes the time."""
    begin_drain(server, BATCH)
    clock.now += 0.1
    server.call([Played(clock.now)] * 1500)
    assert server.outcomes == {("a", "refused"): 1500}


@pytest.mark.parametrize("patience", [0.5, 2.0])
def test_clients_in_closed_loops_after_an_overload_are_not_refused(server, clock, patience):
    server.serve(offer(3 * CAPACITY, 20, patience=patience), 20)
    refused = server.backlog.is_draining
    clock.now += 2 * MAX_DRAIN_SECONDS  # clients come back
    answered = 0
    server.waiting.extend(Played(clock.now, client="patient") for _ in range(64))
    while answered < 640:
        server.call([server.waiting.popleft() for _ in range(min(BATCH, len(server.waiting)))])
        done = server.outcomes["patient", "answered"]
        server.waiting.extend(Played(clock.now, client="patient") for _ in range(done - answered))
        answered = done
    assert server.outcomes["patient", "refused"] == 0, refused


def test_a_drain_has_an_end_though_the_queue_has_none(server, clock):
    begin_drain(server, 1)
    while not server.backlog.admit([Played(0)] * BATCH, True, server.is_cancelled):
        server.backlog.record_refusals()
        clock.now += 0.001
    assert clock.now == pytest.approx(MAX_DRAIN_SECONDS, abs=0.01)


def test_requests_are_asked_for_rarely(server, clock):
    """There are 200 full calls within a tenth of a second."""
    for _ in range(200):
        server.backlog.watch([Played(0)] * 64, server.is_cancelled)
        clock.now += 0.0005 - ASK_SECONDS * server.asked / 1e9
    assert server.asked <= 4 * PROBE_SIZE
