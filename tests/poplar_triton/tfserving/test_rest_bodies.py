from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from poplar_triton.tfserving import rest
from rest_servers import (
    LIMITS,
    POST,
    PREDICT,
    ROW,
    SECONDS,
    RestServer,
    make_models,
    open_connection,
    read_status,
    read_until,
    serve,
    wait_for,
    write_request,
)


@pytest.fixture(scope="module")
def server() -> Iterator[RestServer]:
    with serve(make_models()) as running:
        yield running


def test_bodies_may_be_compressed(server):
    body = json.dumps({"instances": [1.0] * 9000}).encode()
    assert server.post_gzip(PREDICT, body).document == {"predictions": [2.5] * 9000}
    for name in ("GZIP", "x-gzip"):
        answer = server.ask("POST", PREDICT, gzip.compress(body), {"Content-Encoding": name})
        assert answer.status == 200


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(ROW, mtime=0)[:-3], "gzip", 400),
        (gzip.compress(b"", mtime=0)[:4], "gzip", 400),
        (b"", "gzip", 400),
        (ROW, "gzip", 400),
        (zlib.compress(ROW), "gzip", 400),
        (gzip.compress(ROW, mtime=0)[:-1] + b"?", "gzip", 400),
        (zlib.compress(ROW), "deflate", 415),
        (ROW, "br", 415),
    ],
)
def test_bodies_that_are_not_what_they_say_are_refused(server, body, encoding, status):
    answer = server.ask("POST", PREDICT, body, {"Content-Encoding": encoding})
    assert answer.status == status
    assert "gzip" in answer.error


def test_bodies_have_a_size():
    with serve(make_models(), LIMITS) as server:
        large = ROW.ljust(LIMITS.bodies.body_bytes + 1)
        assert server.ask("POST", PREDICT, large[:-1]).status == 200
        for answer in (
            server.ask("POST", PREDICT, large),
            server.post_gzip(PREDICT, large),
            server.post_gzip(PREDICT, bytes(50_000_000)),
            server.ask("POST", PREDICT, iter([large])),
        ):
            assert answer.status == 413
            assert str(LIMITS.bodies.body_bytes) in answer.error
        assert server.ask("POST", PREDICT, ROW).status == 200


def test_all_bodies_together_have_a_size():
    with serve(make_models(), LIMITS) as server, open_connection(server) as connection:
        connection.sendall(write_request(bytes(9000), length=9500))
        assert wait_for(lambda: server.ask("POST", PREDICT, bytes(9000)).status == 503)
        assert read_status(connection) == 408
        assert server.ask("POST", PREDICT, ROW.ljust(9000)).status == 200


def test_bodies_that_do_not_come_are_not_waited_for():
    with serve(make_models(), LIMITS) as server, open_connection(server) as connection:
        connection.sendall(write_request(b'{"inst', length=100))
        assert read_status(connection) == 408


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh",
        POST + b"Content-Length: -1\r\n\r\n{}",
        POST + b"Content-Length: 1e3\r\n\r\n{}",
        POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
        POST + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
        POST + b"X: y\r\n" * 500 + b"\r\n",
        b"GET /v1/models/" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/models/half HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /v1/models/half\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_malformed_http_is_a_bad_request(server, request_bytes):
    with open_connection(server) as connection:
        connection.sendall(request_bytes)
        assert read_status(connection) == 400
    assert server.get("/v1/models/half").status == 200


@pytest.mark.parametrize(
    "target", [b"*", b"example.org:80", b"http://example.org/v1/models/half", b"/%", b"/\xff"]
)
@pytest.mark.parametrize("method", [b"OPTIONS", b"CONNECT", b"GET", b"TRACE"])
def test_odd_targets_are_answered(server, method, target):
    with open_connection(server) as connection:
        connection.sendall(method + b" " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_status(connection) in (400, 404)
    assert server.get("/v1/models/half").status == 200


def test_requests_in_a_row_are_answered_in_their_order(server):
    with open_connection(server) as connection:
        connection.sendall(
            b"".join(write_request(b'{"instances": [%d.0]}' % row) for row in range(100))
        )
        text = read_until(connection, b"51.5\n")
    answers = [json.loads(part[part.index(b"{") :]) for part in text.split(b"HTTP/1.1 200 OK")[1:]]
    assert answers == [{"predictions": [row / 2 + 2]} for row in range(100)]


def test_a_body_may_be_announced(server):
    with open_connection(server) as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(ROW))
        assert read_status(connection) == 100
        connection.sendall(ROW)
        assert b"2.5" in read_until(connection, b"}")


def test_headers_that_do_not_end_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(rest, "_KEEP_ALIVE_SECONDS", 0.5)
    with serve(make_models()) as server, open_connection(server) as connection:
        connection.sendall(POST)
        assert connection.recv(1) == b""


def test_bodies_that_break_off_leave_nothing_behind():
    with serve(make_models(), LIMITS) as server:
        for _ in range(5):
            with open_connection(server) as connection:
                connection.sendall(
                    POST + b"Transfer-Encoding: chunked\r\n\r\n2000\r\n" + bytes(8000)
                )
        assert wait_for(lambda: server.ask("POST", PREDICT, ROW.ljust(9000)).status == 200)


@pytest.mark.slow
def test_a_client_that_does_not_read_is_dropped():
    rows = json.dumps({"instances": [0.1] * 1_000_000}).encode()
    with serve(
        make_models(),
        replace(LIMITS, bodies=replace(LIMITS.bodies, body_bytes=10**8, all_bytes=10**8)),
    ) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(SECONDS)
        connection.connect(("127.0.0.1", server.port))
        with connection:
            connection.sendall(write_request(rows))
            assert read_status(connection) == 200
            assert wait_for(lambda: server.num_connections == 0)
        assert server.get("/v1/models/half").status == 200
