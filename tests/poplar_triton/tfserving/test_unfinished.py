"""Clients that begin REST requests and do not finish them: the server ends these requests.

It answers all others.
"""

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from poplar_triton.tfserving.unfinished import Unfinished
from poplar_triton.tfserving.worker import ConnectionLimit, is_loopback
from rest_servers import (
    LIMITS,
    PREDICT,
    ROW,
    SECONDS,
    make_models,
    open_connection,
    read_status,
    serve,
    wait_for,
    write_request,
)
from waiting import PATIENCE_SECONDS

ROWS = {"instances": [1.0]}


@contextmanager
def stuck(server, number):
    """Yield connections that sent the beginning of a request each, the oldest first."""
    connections = []
    try:
        for _ in range(number):
            connections.append(open_connection(server))
            connections[-1].sendall(write_request(ROW[:5], len(ROW)))
            time.sleep(0.01)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def test_bodies_that_do_not_come_leave_whole_requests_their_places():
    with serve(make_models(), LIMITS) as server, stuck(server, 3 * LIMITS.calls):
        assert server.post(PREDICT, ROWS).status == 200


def test_of_bodies_that_do_not_come_the_oldest_is_refused():
    limits = replace(LIMITS, bodies=replace(LIMITS.bodies, seconds=SECONDS))
    with (
        serve(make_models(), limits) as server,
        stuck(server, limits.bodies.unfinished) as connections,
    ):
        assert server.post(PREDICT, ROWS).status == 200
        assert read_status(connections[0]) == 408
        connections[-1].sendall(ROW[5:])
        assert read_status(connections[-1]) == 200


def test_bodies_that_come_too_slowly_are_refused():
    limits = replace(LIMITS, bodies=replace(LIMITS.bodies, seconds=SECONDS, pace_seconds=0.1))
    with serve(make_models(), limits) as server, open_connection(server) as connection:
        begun = time.monotonic()
        connection.sendall(write_request(ROW[:5], 9000))
        assert read_status(connection) == 408
        assert time.monotonic() < begun + PATIENCE_SECONDS


@pytest.mark.slow
def test_bodies_that_come_fast_enough_may_take_their_time():
    limits = replace(LIMITS, bodies=replace(LIMITS.bodies, seconds=SECONDS, pace_seconds=0.5))
    with serve(make_models(), limits) as server, open_connection(server) as connection:
        connection.sendall(write_request(ROW, len(ROW) + 12 * 500))
        for _ in range(12):
            time.sleep(0.05)
            connection.sendall(b" " * 500)
        assert read_status(connection) == 200


def test_of_the_address_with_the_most_requests_the_oldest_is_given_up():
    requests = Unfinished(3)
    assert [requests.add(*each) for each in [("a", 1), ("b", 2), ("b", 3)]] == [None] * 3
    assert requests.add("c", 4) == 2
    requests.remove("b", 2)  # it is not in there any more
    assert sorted(requests) == [1, 3, 4]
    requests.remove("b", 3)
    assert (len(requests), requests.add("a", 5), requests.add("c", 6)) == (2, None, 1)


def test_connections_beyond_the_limit_are_closed_until_others_end():
    with serve(make_models(), connections=ConnectionLimit(2, 0)) as server:
        with open_connection(server), open_connection(server), open_connection(server) as third:
            assert third.recv(1) == b""
        assert wait_for(lambda: server.num_connections == 0)
        assert server.post(PREDICT, ROWS).status == 200


@pytest.mark.parametrize(
    ("address", "is_limited"),
    [("192.0.2.1", True), ("2001:db8::1", True), ("127.0.0.1", False), ("", True)],
)
def test_an_address_has_a_limit_of_connections_unless_it_is_this_machines(address, is_limited):
    limit = ConnectionLimit(10, 2)
    assert [limit.enter(address) for _ in range(3)] == [True, True, not is_limited]
    assert limit.enter("192.0.2.9")
    limit.leave(address)
    assert limit.enter(address)
    assert ConnectionLimit(10, 0).enter(address)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_addresses_of_this_machine(address, expected):
    assert is_loopback(address) is expected
