"""Requests to a server over HTTP: what is sent, and what becomes of each answer."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from poplar_triton.errors import ServerError
from poplar_triton.serving import endpoint as endpoints
from poplar_triton.serving.endpoint import (
    LOAD_SECONDS,
    GrpcEndpoint,
    HttpEndpoint,
    NoAnswerError,
    ServedVersion,
    make_endpoint,
)

from popef._tools.zero_requests import ZeroInput


class Handler(BaseHTTPRequestHandler):
    """Request handler that answers as it is told and records its requests."""

    def do_GET(self):
        length = int(self.headers.get("Content-Length", 0))
        self.server.asked.append((self.path, dict(self.headers), self.rfile.read(length)))
        status, body = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.answer = [], (200, b"")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def endpoint(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    options = ["--allow-grpc=false", "--http-restricted-api=health,model-repository:admin=secret"]
    return make_endpoint(options, server.server_port, 1)


def test_a_model_is_asked_by_name_and_version(server, endpoint):
    assert endpoint.is_model_ready("a/b", "1", 5)
    server.answer = (400, b"")
    assert not endpoint.is_model_ready("m", "", 5)
    assert [path for path, _, _ in server.asked] == [
        "/v2/models/a%2Fb/versions/1/ready",
        "/v2/models/m/ready",
    ]


def test_every_question_carries_the_keys_and_asks_no_proxy(server, endpoint):
    assert endpoint.is_ready(5)
    assert endpoint.is_live()
    assert [path for path, _, _ in server.asked] == ["/v2/health/ready", "/v2/health/live"]
    assert all(headers["Admin"] == "secret" for _, headers, _ in server.asked)


@pytest.mark.parametrize(
    ("status", "answers"), [(200, True), (400, False), (403, True), (503, False)]
)
def test_a_server_that_does_not_let_us_ask_counts_as_ready(server, endpoint, status, answers):
    server.answer = (status, b"")
    assert endpoint.is_ready(5) is answers
    assert endpoint.is_live() is answers


def test_an_unreachable_server_is_of_unknown_state():
    endpoint = HttpEndpoint("http://127.0.0.1:1", {})
    assert endpoint.is_live() is None
    assert endpoint.is_ready(1) is False
    with pytest.raises(ServerError, match="refused"):
        endpoint.list_models()


def test_a_model_is_loaded_under_any_name_and_with_a_configuration_anew(server, endpoint):
    endpoint.load("a/b ?#", {"name": "a"})
    endpoint.load("m")
    (path, _, body), (_, _, plain) = server.asked
    assert path == "/v2/repository/models/a%2Fb%20%3F%23/load"
    assert json.loads(json.loads(body)["parameters"]["config"]) == {"name": "a"}
    assert json.loads(plain) == {"parameters": {}}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((400, b'{"error":"failed to load"}'), "HTTP Error 400: Bad Request: failed to load"),
        ((500, b"\xff"), "HTTP Error 500: Internal Server Error: \ufffd"),
        ((200, b"{"), "Expecting property name"),
    ],
)
def test_a_malformed_answer_is_an_error_with_the_servers_reason(server, endpoint, answer, reason):
    server.answer = answer
    with pytest.raises(ServerError) as caught:
        endpoint.load("m")
    assert str(caught.value).startswith(reason)


def test_a_load_goes_over_grpc_and_over_http_where_that_does_not_come_through(server):
    """Over HTTP the server would answer no other request on that thread."""
    endpoint = make_endpoint([], server.server_port, 1)
    endpoint.load("m")
    assert [path for path, _, _ in server.asked] == ["/v2/repository/models/m/load"]
    asked = []
    endpoint._loader.load = lambda *given: asked.append(given)
    endpoint.load("m", {"name": "m"})
    assert asked == [("m", {"name": "m"}, LOAD_SECONDS)]
    assert len(server.asked) == 1

    def fail(*_):
        raise ServerError("the file is damaged")

    endpoint._loader.load = fail
    with pytest.raises(ServerError, match="the file is damaged"):
        endpoint.load("m")
    assert len(server.asked) == 1, "it is not loaded twice"


@pytest.mark.parametrize(
    ("failure", "loads_over_http", "reason"),
    [
        (BlockingIOError(11, "Resource temporarily unavailable"), 1, ""),
        (subprocess.TimeoutExpired("python", 19), 0, "not loaded within 9 s"),
    ],
)
def test_a_load_needs_no_process_and_ends(server, monkeypatch, failure, loads_over_http, reason):
    """No child process can be started at the limit of processes."""

    def run(*_, timeout, **__):
        assert timeout == 9 + endpoints._CHILD_SECONDS
        raise failure

    monkeypatch.setattr(endpoints.subprocess, "run", run)
    endpoint = make_endpoint([], server.server_port, 1)
    if reason:
        with pytest.raises(ServerError, match=reason):
            endpoint.load("m", seconds=9)
    else:
        endpoint.load("m", seconds=9)
    assert len(server.asked) == loads_over_http


def test_the_index_is_read_whatever_it_lacks(server, endpoint):
    server.answer = (200, b'[{"name":"m","version":"1","state":"READY"},{"name":"n","reason":"x"}]')
    assert endpoint.list_models() == [
        ServedVersion("m", "1", "READY", ""),
        ServedVersion("n", "", "", "x"),
    ]
    server.answer = (200, b"{}")
    with pytest.raises(ServerError, match="expected the list of models"):
        endpoint.list_models()


@pytest.mark.parametrize("status", [404, 503])
def test_a_version_that_is_not_served_has_no_configuration(server, endpoint, status):
    server.answer = (200, b'{"name":"m"}')
    assert endpoint.read_config("a/b", "1") == endpoint.read_config("m") == {"name": "m"}
    assert [path for path, _, _ in server.asked] == [
        "/v2/models/a%2Fb/versions/1/config",
        "/v2/models/m/config",
    ]
    server.answer = (
        status,
        b'{"error":"Request for unknown model: \'m\' version 1 is not at ready state"}',
    )
    assert endpoint.read_config("m", "1") is None
    server.answer = (status, b'{"error":"something else"}')
    with pytest.raises(ServerError, match="something else"):
        endpoint.read_config("m", "1")


def test_the_address_is_the_one_that_the_server_listens_on(server):
    for address, expected in (
        ("10.1.2.3", "http://10.1.2.3:7"),
        ("0.0.0.0", "http://127.0.0.1:7"),
        ("::1", "http://[::1]:7"),
    ):
        assert make_endpoint([f"--http-address={address}"], 7, 8)._url == expected


def test_without_http_it_is_asked_over_grpc(tmp_path):
    options = [
        "--allow-http=false",
        "--grpc-use-ssl=1",
        f"--grpc-server-cert={tmp_path / 'none.pem'}",
    ]
    endpoint = make_endpoint(options, 7, 1)
    assert isinstance(endpoint, GrpcEndpoint)
    assert endpoint.is_live() is None
    assert endpoint.is_ready(1) is False
    with pytest.raises(ServerError, match=r"none\.pem"):
        endpoint.load("m")


ZEROS = [ZeroInput("x", "FP16", (1, 3)), ZeroInput("texts", "BYTES", (2,))]


def test_a_canary_has_its_zeros_in_binary(server, endpoint):
    endpoint.infer_zeros("a/b", "1", ZEROS, 5)
    ((path, headers, body),) = server.asked
    assert path == "/v2/models/a%2Fb/versions/1/infer"
    length = int(
        next(headers[name] for name in headers if name.lower() == "inference-header-content-length")
    )
    assert body[length:] == bytes(6 + 8)
    assert json.loads(body[:length])["inputs"] == [
        {"name": "x", "datatype": "FP16", "shape": [1, 3], "parameters": {"binary_data_size": 6}},
        {"name": "texts", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 8}},
    ]


@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_canary_that_is_refused_has_an_answer(server, endpoint, status):
    server.answer = (status, b'{"error":"no"}')
    endpoint.infer_zeros("m", "1", ZEROS, 5)


def test_a_canary_that_fails_or_waits_has_none(server, endpoint):
    server.answer = (500, b'{"error":"Stub process is not healthy"}')
    with pytest.raises(NoAnswerError, match="Stub process is not healthy") as caught:
        endpoint.infer_zeros("m", "1", ZEROS, 5)
    assert not caught.value.is_late
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = make_endpoint(["--allow-grpc=false"], silent.getsockname()[1], 1)
        with pytest.raises(NoAnswerError, match="nothing within 0") as caught:
            endpoint.infer_zeros("m", "1", ZEROS, 0.1)
    assert caught.value.is_late
