"""What `poplar-triton tune` compares, and how it measures, without a server."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from google.protobuf import text_format
from poplar_triton.cli import main
from poplar_triton.errors import CommandError, ServerError
from poplar_triton.tune import command
from poplar_triton.tune.candidates import (
    ONNXRUNTIME,
    OPENVINO,
    Candidate,
    list_layouts,
    list_modes,
    read_candidate,
)
from poplar_triton.tune.load import measure
from poprt.triton import new_config

from popef._tools.zero_requests import ZeroInput

CONFIG = """
name: "m" backend: "poplar" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 7 }
parameters { key: "sim_threads" value { string_value: "2" } }
parameters { key: "sim_load_sec" value { string_value: "60" } }
parameters { key: "synchronous_execution" value { string_value: "1" } }
instance_group { kind: KIND_CPU host_policy: "h" count: 3 }
optimization { execution_accelerators {
  cpu_execution_accelerator { name: "openvino" parameters { key: "precision" value: "FP32" } } } }
"""


def parse(text):
    return text_format.Parse(text, new_config())


def test_the_settings_of_a_configuration_are_read_and_written_back_unchanged():
    config = parse(CONFIG)
    current = read_candidate(config)
    assert current == Candidate(OPENVINO, 2, 3, True, True)
    assert current.apply(config) == config


def test_other_settings_replace_only_their_own_fields():
    config = parse(CONFIG)
    other = Candidate(ONNXRUNTIME, 0, 1, False, False)
    made = other.apply(config)
    assert read_candidate(made) == other
    assert made.parameters["sim_load_sec"].string_value == "60"
    assert made.instance_group[0].host_policy == "h"
    assert not made.HasField("optimization")
    back = read_candidate(config).apply(made)
    assert read_candidate(back) == read_candidate(config)


def test_every_engine_gets_the_cores_as_threads_and_as_instances():
    current = read_candidate(parse('backend: "poplar"'))
    found = list_layouts(current, 4, [ONNXRUNTIME, OPENVINO])
    assert found[0] == current
    assert len(set(found)) == len(found)
    layouts = {(each.threads, each.instances) for each in found if each.engine == OPENVINO}
    assert layouts == {(4, 1), (2, 2), (1, 4), (1, 1)}


def test_a_model_without_a_batch_is_not_batched():
    best = Candidate(ONNXRUNTIME, 1, 1, False, True)
    assert [each.batches for each in list_modes(best, may_batch=False)] == [False]
    assert {each.batches for each in list_modes(best, may_batch=True)} == {False, True}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sequence_batching { }", "found sequence_batching"),
        ("instance_group { kind: KIND_GPU }", "KIND_GPU"),
    ],
)
def test_what_cannot_be_compared_is_rejected(text, told):
    with pytest.raises(CommandError, match=told):
        read_candidate(parse(f'name: "m" {text}'))


@pytest.mark.parametrize("status", [200, 500])
def test_clients_count_answers_and_stop_at_an_error(status):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"told")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        inputs = [ZeroInput("x", "FP32", (1, 4))]
        try:
            if status == 200:
                found = measure(address, "m", inputs, 2, 0.05, 0.01)
                assert found.per_second > 0
                assert found.p99_ms > 0
            else:
                with pytest.raises(ServerError, match="told"):
                    measure(address, "m", inputs, 2, 0.05, 0.01)
        finally:
            server.shutdown()


def test_a_repository_is_told_to_name_one_of_its_models(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command.doctor, "require", lambda: None)
    for name in ("first", "second"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
    (tmp_path / "models" / "notes").mkdir()
    assert main(["tune", str(tmp_path / "models")]) == 1
    assert "a repository; name one of its models: first, second" in capsys.readouterr().err
    assert main(["tune", str(tmp_path / "models" / "notes")]) == 1
    assert "expected a model folder, found none" in capsys.readouterr().err
