"""Requests of zeros by a model's configuration: the smallest inputs, and the curl command."""

from __future__ import annotations

import json
import shutil
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from waiting import PATIENCE_SECONDS

from popef._tools.zero_requests import (
    LENGTH_HEADER,
    MAX_BYTES,
    ZeroInput,
    make_curl,
    make_inputs,
)


def describe(name, data_type, *dims, **more):
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def test_free_sizes_are_one_and_optional_inputs_are_left_out():
    inputs = [
        describe("x", "TYPE_FP16", -1, 3),
        describe("texts", "TYPE_STRING", "2"),
        describe("mask", "TYPE_BOOL", 4, optional=True),
        describe("scalar", "TYPE_INT64"),
    ]
    made = make_inputs({"max_batch_size": 8, "input": inputs})
    assert made == [
        ZeroInput("x", "FP16", (1, 1, 3)),
        ZeroInput("texts", "BYTES", (1, 2)),
        ZeroInput("scalar", "INT64", (1,)),
    ]
    assert [each.num_bytes for each in made] == [6, 8, 8]
    assert make_inputs({"input": inputs[:1]}) == [ZeroInput("x", "FP16", (1, 3))]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"sequence_batching": {}}, "it is a sequence model"),
        ({"model_transaction_policy": {"decoupled": True}}, "it is decoupled"),
        ({"input": [describe("x", "TYPE_NEW", 1)]}, "its input 'x' has the unsupported type NEW"),
        (
            {"input": [describe("x", "TYPE_UINT8", 1 << 40)]},
            f"its inputs have {1 << 40} bytes, more than the limit of {MAX_BYTES} of a request of zeros",
        ),
    ],
)
def test_what_must_not_be_asked_is_not_with_the_reason(config, reason):
    with pytest.raises(ValueError, match=reason):
        make_inputs(config)


@pytest.fixture
def ask():
    """Return a function that runs a `curl` command and returns what a server received: path, length
    of the JSON, body."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, self.headers[LENGTH_HEADER], body))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()

        def run(model, config, folder):
            command = make_curl(f"127.0.0.1:{server.server_port}", model, config)
            assert "\n" not in command
            subprocess.run(["sh", "-c", command], check=True, timeout=PATIENCE_SECONDS, cwd=folder)
            return received.pop()

        yield run
        server.shutdown()
        thread.join()


HOSTILE = "a'b\"c $(touch evil) `touch evil` %s \\n \x1b[2J \n !1"


def test_few_values_are_spelled_out_in_json(ask, tmp_path):
    inputs = [
        describe(HOSTILE, "TYPE_FP32", 3),
        describe("text", "TYPE_STRING", 1),
        describe("flag", "TYPE_BOOL", 1),
    ]
    path, length, body = ask(f"m/{HOSTILE}", {"max_batch_size": 4, "input": inputs}, tmp_path)
    assert path.startswith("/v2/models/m%2Fa%27b%22c%20%24%28touch%20evil%29")
    assert length is None
    assert json.loads(body) == {
        "inputs": [
            {"name": HOSTILE, "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]},
            {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [""]},
            {"name": "flag", "datatype": "BOOL", "shape": [1, 1], "data": [False]},
        ]
    }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensor", "num_bytes"),
    [(describe(HOSTILE, "TYPE_FP32", 1000), 4000), (describe(HOSTILE, "TYPE_FP16", 2), 4)],
)
def test_many_values_and_halves_are_sent_in_binary(ask, tmp_path, tensor, num_bytes):
    output = describe("y", "TYPE_FP16", 1)
    _, length, body = ask("m", {"input": [tensor], "output": [output]}, tmp_path)
    head = json.loads(body[: int(length)])
    assert head["inputs"][0]["name"] == HOSTILE
    assert head["inputs"][0]["parameters"] == {"binary_data_size": num_bytes}
    assert head["parameters"] == {"binary_data_output": True}
    assert body[int(length) :] == bytes(num_bytes)
    assert [file.name for file in tmp_path.iterdir()] == ["answer.bin"]
