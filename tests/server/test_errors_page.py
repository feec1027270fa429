"""Triton's messages on docs/errors.md are those of a real server."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from error_entries import Entry, read_entries
from poplar_triton.serving.log import _WITHOUT_GPU
from poplar_triton.serving.server import ServerError, TritonServer

MODEL = "/v2/models/linear/infer"
ROW = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}
WITNESSES = {
    "Request timeout expired": "test_life_cycle.py",
    "Exceeds maximum queue size": "test_life_cycle.py",
    "failed to poll from model repository": "test_overrides.py",
    "is not healthy": "test_faults.py",
}
"""Messages that other tests get from a real server."""
REQUESTS = [
    ("/v2/models/nobody/infer", {"inputs": [ROW]}),
    ("/v2/models/wrong_dims/infer", {"inputs": [ROW]}),
    ("/v2/repository/models/linear/load", {}),
    (MODEL, {"inputs": []}),
    (MODEL, {"inputs": [{**ROW, "name": "q"}]}),
    (MODEL, {"inputs": [ROW], "outputs": [{"name": "q"}]}),
    (MODEL, {"inputs": [{**ROW, "shape": [4]}]}),
    (MODEL, {"inputs": [{**ROW, "datatype": "INT32"}]}),
    (MODEL, {"inputs": [{**ROW, "datatype": "FLOAT"}]}),
    ("/v2/models/slow/infer", {"inputs": [{**ROW, "shape": [5, 4], "data": [0] * 20}]}),
    (MODEL, {"inputs": [{**ROW, "shape": [0, 4], "data": []}]}),
    (MODEL, {"inputs": [{**ROW, "data": [0]}]}),
    (MODEL, {"inputs": [{**ROW, "data": ["0", "0", "0", "0"]}]}),
    (MODEL, b'{"inputs": ['),
    ("/v2/models/large/infer", {"inputs": [{**ROW, "datatype": "FP16"}]}),
]
"""Path and body of wrong requests."""
HALF_OUTPUTS = [{}, {"classification": 1}]
"""Parameters of an output in half that a client asks for as JSON."""
CONFIGURATIONS = {
    "nothing": None,
    "elsewhere": 'backend: "elsewhere"\n',
    "bare": "backend: poplar\n",
    "unversioned": 'backend: "poplar"\n',
    "gpu": 'backend: "poplar"\ninstance_group { kind: KIND_GPU }\n',
}
"""Wrong config.pbtxt files by model."""


@pytest.fixture(scope="module")
def messages(server, tmp_path_factory) -> str:
    """Return what a server said about all of these requests and configurations."""
    address = f"http://127.0.0.1:{server.http_url.rpartition(':')[2]}"
    answers = [ask(address + path, body) for path, body in REQUESTS]
    answers += [ask_for_half(address, parameters) for parameters in HALF_OUTPUTS]
    return "\n".join([*answers, log_of_wrong_models(tmp_path_factory.mktemp("wrong"))])


def ask(address: str, body: dict | bytes, headers: dict[str, str] | None = None) -> str:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(address, data, headers or {}))
    return json.load(caught.value)["error"]


def ask_for_half(address: str, parameters: dict) -> str:
    tensor = {**ROW, "shape": [1, 2], "datatype": "FP16", "parameters": {"binary_data_size": 4}}
    del tensor["data"]
    outputs = [{"name": "y", "parameters": {"binary_data": False, **parameters}}]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return ask(f"{address}/v2/models/large/infer", head + bytes(4), headers)


def log_of_wrong_models(folder: Path) -> str:
    for name, text in CONFIGURATIONS.items():
        (folder / "repository" / name).mkdir(parents=True)
        if name != "unversioned":
            (folder / "repository" / name / "1").mkdir()
        if text is not None:
            (folder / "repository" / name / "config.pbtxt").write_text(text)
    log = folder / "log"
    try:
        with TritonServer(folder / "repository", log=log):
            pass
    except ServerError:
        pass
    return log.read_text()


@pytest.mark.parametrize(
    "entry",
    [entry for entry in read_entries() if entry.raiser == "Triton"],
    ids=lambda entry: entry.message,
)
def test_the_page_quotes_what_triton_says(entry: Entry, messages):
    for text, file in WITNESSES.items():
        if text in entry.message:
            assert text in (Path(__file__).parent / file).read_text()
            return
    is_said = re.search(entry.pattern(), messages)
    assert is_said or any(entry.message in line for line in _WITHOUT_GPU)
