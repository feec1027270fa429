"""Requests of zeros by a model's configuration: the smallest inputs, and the curl command."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from waiting import PATIENCE_SECONDS

from popef._tools.zero_requests import (
    LENGTH_HEADER,
    MAX_BYTES,
    Answer,
    ZeroInput,
    find_answer,
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
def test_make_inputs_rejects_models_that_need_special_inputs(config, reason):
    with pytest.raises(ValueError, match=reason):
        make_inputs(config)


@pytest.fixture
def ask():
    """Return a function that runs a `curl` command against a server with a given response, and
    returns what the server received: path, length of the JSON, body, and what was printed."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    received, responses = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, self.headers[LENGTH_HEADER], body))
            self.send_response(200)
            self.send_header("Content-Length", str(len(responses[-1])))
            self.end_headers()
            self.wfile.write(responses[-1])

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()

        def run(model, config, folder, response=b"{}"):
            responses.append(response)
            command = make_curl(f"127.0.0.1:{server.server_port}", model, config)
            assert "\n" not in command
            done = subprocess.run(
                ["sh", "-c", command],
                timeout=PATIENCE_SECONDS,
                cwd=folder,
                capture_output=True,
                text=True,
            )
            return *received.pop(), done.stdout or done.stderr

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
    path, length, body, _ = ask(f"m/{HOSTILE}", {"max_batch_size": 4, "input": inputs}, tmp_path)
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
    response = encode_halves([("y", [1.5])])
    config = {"input": [tensor], "output": [output]}
    _, length, body, printed = ask("m", config, tmp_path, response)
    head = json.loads(body[: int(length)])
    assert head["inputs"][0]["name"] == HOSTILE
    assert head["inputs"][0]["parameters"] == {"binary_data_size": num_bytes}
    assert head["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert body[int(length) :] == bytes(num_bytes)
    assert printed == "y FP16 [1, 1] 1.5\n"
    assert list(tmp_path.iterdir()) == []


def encode_halves(outputs, *more):
    """Return a response of Triton: outputs in JSON, then halves in binary."""
    heads = [
        {
            "name": name,
            "datatype": "FP16",
            "shape": [1, len(values)],
            "parameters": {"binary_data_size": 2 * len(values)},
        }
        for name, values in outputs
    ]
    head = json.dumps({"model_name": "m", "outputs": [*heads, *more]}).encode()
    return head + b"".join(struct.pack(f"<{len(values)}e", *values) for _, values in outputs)


SMALL = describe("x", "TYPE_FP32", 2)


def test_halves_of_several_outputs_are_decoded_beside_others(ask, tmp_path):
    outputs = [describe(name, "TYPE_FP16", -1) for name in "ab"] + [describe("n", "TYPE_INT64", 1)]
    number = {"name": "n", "datatype": "INT64", "shape": [1], "data": [7]}
    response = encode_halves([("a", [0.5, *range(20)]), ("b", [-2])], number)
    *_, body, printed = ask("m", {"input": [SMALL], "output": outputs}, tmp_path, response)
    parameters = [each.get("parameters") for each in json.loads(body)["outputs"]]
    assert parameters == [{"binary_data": True}, {"binary_data": True}, None]
    assert printed.splitlines() == [
        "a FP16 [1, 21] 0.5 0.0 1.0 2.0 3.0 4.0 5.0 6.0 ...",
        "b FP16 [1, 1] -2.0",
        "n INT64 [1] 7",
    ]


def test_an_error_is_printed_where_halves_were_expected(ask, tmp_path):
    config = {"input": [SMALL], "output": [describe("y", "TYPE_FP16", 1)]}
    *_, printed = ask("m", config, tmp_path, b'{"error":"no such model"}')
    assert printed == "no such model\n"


def test_a_model_with_labels_is_asked_for_the_best_one(ask, tmp_path):
    """Triton returns no labels of halves."""
    labelled = describe("scores", "TYPE_FP32", 4, label_filename="labels.txt")
    other = describe("y", "TYPE_FP16", 9, label_filename="labels.txt")
    config = {"input": [SMALL], "output": [other, labelled]}
    assert find_answer(config) is Answer.LABELS
    *_, body, printed = ask("m", config, tmp_path, b'{"outputs":[{"data":["0.5:2:cat"]}]}')
    assert json.loads(body)["outputs"] == [{"name": "scores", "parameters": {"classification": 1}}]
    assert printed == '{"outputs":[{"data":["0.5:2:cat"]}]}'
    assert find_answer({"output": [other]}) is Answer.HALVES


def test_long_answers_are_cut_and_short_ones_are_not(ask, tmp_path):
    response = b'{"outputs":[' + b"1," * 2000 + b"1]}"
    for dims, answer, size in (
        ([1000], Answer.VALUES, len(response)),
        ([1001], Answer.FIRST_VALUES, 400),
        ([-1], Answer.FIRST_VALUES, 400),
    ):
        config = {"input": [SMALL], "output": [describe("y", "TYPE_FP32", *dims)]}
        assert find_answer(config) is answer
        *_, printed = ask("m", config, tmp_path, response)
        assert printed == response.decode()[:size]


def test_answers_that_python_cannot_decode_go_to_a_file(ask, tmp_path):
    config = {"input": [SMALL], "output": [describe("y", "TYPE_BF16", 1)]}
    assert find_answer(config) is Answer.FILE
    ask("m", config, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["answer.bin"]
