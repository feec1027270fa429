"""What `poplar-triton tune` compares, and how it measures, without a server."""

import json
import threading
from contextlib import nullcontext
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
from poplar_triton.tune.load import Load, measure
from poplar_triton.tune.obstacles import find_obstacle
from poprt.triton import new_config
from sample_models import linear_model

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
def test_configurations_that_cannot_be_compared_are_rejected(text, told):
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


def test_a_repository_is_an_error_that_lists_its_models(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command.doctor, "require", lambda: None)
    for name in ("first", "second"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
    (tmp_path / "models" / "notes").mkdir()
    assert main(["tune", str(tmp_path / "models")]) == 1
    assert "a repository; name one of its models: first, second" in capsys.readouterr().err
    assert main(["tune", str(tmp_path / "models" / "notes")]) == 1
    assert "expected a model folder, found none" in capsys.readouterr().err


WORD = "half and fp8 are rounded as on the chip"
LONG = f"failed to load 'm': {'a reason that is told at length, ' * 20}and its end"


class Played:
    """Server on which the engines of `broken` load nothing; each load is kept."""

    http_url = ""

    def __init__(self, broken=(), rates=None, p99_ms=1.0):
        self.endpoint, self.loads = self, []
        self.broken, self.rates, self.p99_ms = broken, rates or {}, p99_ms

    def load(self, _name, config, _seconds):
        accelerators = config.get("optimization", {}).get("execution_accelerators", {})
        chosen = accelerators.get("cpu_execution_accelerator", [{"name": ONNXRUNTIME}])
        self.loads.append(chosen[0]["name"])
        if self.loads[-1] in self.broken:
            raise ServerError(LONG)

    def read_config(self, _name):
        return {}

    def measure(self, *_):
        rate = self.rates.get(self.loads[-1], 100.0)
        return Load((rate, rate, rate), self.p99_ms)


@pytest.fixture
def tune(tmp_path, monkeypatch, capsys):
    """Run the command on a played server; return its output and the engines of all loads."""

    def run(played, *options, text=CONFIG_OF_ONE, model=None):
        monkeypatch.setattr(command.doctor, "require", lambda: None)
        monkeypatch.setattr(command, "find_engines", lambda: [ONNXRUNTIME, OPENVINO])
        monkeypatch.setattr(command, "measure", played.measure)
        monkeypatch.setattr(command, "make_inputs", lambda _config: [])
        monkeypatch.setattr(command, "_serve", lambda *_: nullcontext(played))
        folder = tmp_path / "m"
        (folder / "1").mkdir(parents=True)
        if model:
            model.rename(folder / "1" / "executable.popef")
        (folder / "config.pbtxt").write_text(text)
        assert main(["tune", str(folder), *options]) == 0
        return capsys.readouterr().out

    return run


CONFIG_OF_ONE = 'name: "m" backend: "poplar" max_batch_size: 8'


def test_an_engine_that_cannot_compute_a_model_is_not_tried(tune, compile_popef):
    played = Played(broken=[OPENVINO])
    out = tune(played, model=compile_popef(linear_model(), precision="fp16"))
    assert set(played.loads) == {ONNXRUNTIME}
    assert "openvino is left out: " in out
    assert WORD in " ".join(out.split())


def test_an_engine_that_fails_is_tried_once_and_its_reason_is_below_the_table(tune):
    played = Played(broken=[OPENVINO])
    out = tune(played)
    assert played.loads.count(OPENVINO) == 1
    table, _, below = out.rpartition("└")
    assert "failed, see below" in table
    assert "at length" not in table
    assert LONG in below
    assert out.count("and its end") == 1


def test_json_has_the_whole_reasons(tune):
    document = json.loads(tune(Played(broken=[OPENVINO]), "--json"))
    assert document["left_out"] == {OPENVINO: LONG}
    assert [each["reason"] for each in document["measured"] if "reason" in each] == [LONG]


def test_a_configuration_that_is_not_the_fastest_is_not_called_so(tune):
    assert "the current configuration is as fast as any" in tune(Played())


def test_a_limit_that_no_configuration_meets_is_reported(tune):
    out = tune(Played(rates={OPENVINO: 500.0}, p99_ms=30.0), "--latency-limit-ms", "20")
    assert "no configuration is within --latency-limit-ms 20: the lowest" in out
    assert "30.0 ms" in out
    assert "as fast as any" not in out


def test_models_in_float_have_no_obstacle_and_others_that_are_computed_in_it(
    tmp_path, compile_popef
):
    for precision, text, expected in (
        ("fp32", "", ""),
        ("fp16", "", WORD),
        ("fp16", 'parameters { key: "sim_numerics" value { string_value: "fast" } }', ""),
    ):
        folder = tmp_path / f"{precision}{len(text)}" / "1"
        folder.mkdir(parents=True)
        compile_popef(linear_model(), precision=precision).rename(folder / "executable.popef")
        accelerated = parse(f"{CONFIG_OF_ONE} {text} {CONFIG[CONFIG.index('optimization') :]}")
        told = find_obstacle(folder.parent, accelerated)
        assert (expected in told) if expected else told == ""
    assert find_obstacle(tmp_path, accelerated) == "", "a load says what is missing"
