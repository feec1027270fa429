"""Tests of whether clients still send requests, with simulated connections and counters."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from poplar_triton.serving.traffic import QUIET_SECONDS, TrafficWatch

PAGE = """# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="m {{1}} 9",version="1"}} {success}
nv_inference_request_failure{{model="m",reason="BACKEND",version="1"}} {failure}
nv_inference_pending_request_count{{model="m",version="1"}} {waiting}
"""


class Played:
    def __init__(self, folder):
        self.proc, self.now, self.page = folder, 0.0, ""
        (folder / "net").mkdir()
        self.connect(1, "01")

    def connect(self, port, state):
        line = f"   0: 0100007F:{port:04X} 0100007F:0002 {state} 0:0 0:0 0 0 0 77 1"
        (self.proc / "net" / "tcp").write_text(f"header\n{line}\n")

    def say(self, success=0, failure=0, waiting=0):
        self.page = PAGE.format(success=success, failure=failure, waiting=waiting)


@pytest.fixture
def played(tmp_path):
    return Played(tmp_path)


@pytest.fixture
def traffic(played):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(played.page.encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        yield TrafficWatch([1, 2], url, lambda: played.now, played.proc)
        server.shutdown()


def test_requests_that_come_are_traffic_until_none_has_come_for_a_while(played, traffic):
    played.say(success=5)
    assert traffic.is_busy()
    for success, failure in ((6, 0), (6, 1), (7, 1)):
        played.now += QUIET_SECONDS
        played.say(success, failure)
        assert traffic.is_busy()
    played.now += QUIET_SECONDS
    assert not traffic.is_busy()


def test_requests_that_wait_are_traffic(played, traffic):
    for _ in range(3):
        played.now += QUIET_SECONDS
        played.say(success=5, waiting=1)
        assert traffic.is_busy()


@pytest.mark.parametrize(("port", "state"), [(3, "01"), (1, "0A"), (1, "06")])
def test_without_a_connection_there_is_no_traffic(played, traffic, port, state):
    played.say(success=5)
    played.connect(port, state)
    assert not traffic.is_busy()


def test_without_a_page_of_metrics_a_connection_is_traffic(played):
    traffic = TrafficWatch([1], "http://127.0.0.1:1/metrics", lambda: played.now, played.proc)
    played.now += 100
    assert traffic.is_busy()
