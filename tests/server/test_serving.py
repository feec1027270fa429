"""The behaviour that clients of a real tritonserver see."""

import concurrent.futures
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from simipu.kernels import find_kernels
from triton_clients import read_metric, read_metrics
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from waiting import wait_until


def infer(client, model, inputs, outputs=None, module=httpclient, **options):
    """Send arrays by name and return the answer's arrays by name."""
    tensors = []
    for name, array in inputs.items():
        tensor = module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    wanted = [module.InferRequestedOutput(name) for name in outputs] if outputs else None
    answer = client.infer(model, tensors, outputs=wanted, **options)
    response = answer.get_response()
    names = (
        [o["name"] for o in response["outputs"]]
        if module is httpclient
        else [o.name for o in response.outputs]
    )
    return {name: answer.as_numpy(name) for name in names}


@pytest.fixture(params=["http", "grpc"])
def ask(request, http, grpc):
    """Send an inference request over one of the two protocols."""
    client, module = (http, httpclient) if request.param == "http" else (grpc, grpcclient)
    return lambda *arguments, **options: infer(client, *arguments, module=module, **options)


@pytest.mark.parametrize(
    "model",
    ["linear", "several", "dropped", "lenient", "asynchronous", "backend_only", "accelerated"],
)
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 200])
def test_any_number_of_rows_is_answered(ask, model, rows):
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    answer = ask(model, {"x": x})
    np.testing.assert_array_equal(answer["z"], 2 * x)
    assert answer["y"].shape == (rows, 3)


def test_only_the_outputs_asked_for_come_back(ask):
    assert set(ask("linear", {"x": np.ones((2, 4), np.float32)}, ["z"])) == {"z"}


def test_every_type_comes_back_as_it_went(ask):
    inputs = {
        name: np.array([[0, 1], [1, 0], [1, 1]]).astype(name)
        for name in "bool int8 uint8 int16 uint16 int32 uint32 float32 float16".split()
    }
    answer = ask("types", inputs)
    for name, value in inputs.items():
        assert answer[f"{name}_back"].dtype == value.dtype
        np.testing.assert_array_equal(answer[f"{name}_back"], value)


def test_every_wide_type_comes_back_as_it_went(ask):
    """poprt converts the types to 32 bits, as the chip does; other files may hold them."""
    inputs = {
        "float64": np.array([[0.1, -1e300], [np.inf, 5e-324]]),
        "int64": np.array([[-(2**63), 2**63 - 1], [0, 1]]),
        "uint64": np.array([[2**64 - 1, 0], [1, 2**53 + 1]], np.uint64),
    }
    answer = ask("wide", inputs)
    for name, value in inputs.items():
        assert answer[f"{name}_back"].dtype == value.dtype
        np.testing.assert_array_equal(answer[f"{name}_back"], value)


def test_missing_fields_of_a_configuration_are_filled_in(http):
    config = http.get_model_config("backend_only")
    assert config["max_batch_size"] == 4000
    assert "dynamic_batching" in config
    assert [tensor["name"] for tensor in http.get_model_config("unnamed.poplar")["output"]] == [
        "friendly",
        "z",
    ]
    assert http.get_model_config("own_batch")["max_batch_size"] == 8
    whole = http.get_model_config("no_batch")
    assert (whole["max_batch_size"], "dynamic_batching" in whole) == (0, False)


def test_a_folder_without_a_config_answers(ask):
    assert set(ask("unnamed.poplar", {"x": ROW})) == {"friendly", "z"}


def test_a_model_without_a_batch_takes_whole_tensors(ask):
    answer = ask("state", {"state": np.ones((2, 3), np.float32)})
    assert answer["total"].tolist() == [6]
    np.testing.assert_array_equal(answer["next"], -np.ones((2, 3)))


def test_listing_1_3_of_the_guide_serves_its_model(ask):
    x = np.random.default_rng(0).standard_normal((300, 8, 8, 1)).astype(np.float16)
    answer = ask("my_fp16_model", {"input": x})
    assert answer["my_output"].shape == (300, 3)
    assert answer["my_output"].dtype == np.float16
    expected = answer["my_output"].astype(np.float32).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(answer["my_other_output"], expected, atol=2e-2)


@pytest.mark.parametrize(
    ("model", "numerics", "expected"),
    [("large", "exact", 65504 / 300), ("large_fast", "fast", 1000)],
)
def test_halves_saturate_as_on_the_chip_unless_asked_to_be_fast_which_the_metrics_say(
    server, ask, model, numerics, expected
):
    answer = ask(model, {"x": np.full((3, 2), 1000, np.float16)})["y"]
    assert answer.dtype == np.float16
    np.testing.assert_allclose(answer, expected, rtol=1e-3)
    labels = {"model": model, "numerics": numerics, "kernels": find_kernels().instructions}
    wait_until(
        lambda: read_metric(server.metrics_url, "poplar_rows_total", **labels) >= 3,
        "the metrics name the numerics and what computes them",
    )
    told = f"numerics {numerics}, kernels {find_kernels().instructions}"
    assert any(
        f" {model}_0" in line and told in line for line in server.log.read_text().splitlines()
    )


ROW = np.ones((1, 4), np.float32)


@pytest.mark.parametrize("model", ["linear", "asynchronous"])
def test_the_metrics_have_histograms_of_latency_and_waiting_for_prometheus(server, ask, model):
    ask(model, {"x": ROW})

    def read(name):
        return read_metric(server.metrics_url, name, model=model)

    def read_buckets(name):
        series = read_metrics(server.metrics_url)[f"{name}_bucket"]
        return {float(labels["le"]): value for labels, value in series if labels["model"] == model}

    wait_until(lambda: read("poplar_request_seconds_count"), "the request is counted")
    for name in ("poplar_request_seconds", "poplar_request_queue_seconds"):
        # One after the other is published.
        wait_until(
            lambda name=name: read_buckets(name)[np.inf] == read(f"{name}_count"),
            "the last bucket has all requests",
        )
        buckets = read_buckets(name)
        assert [buckets[bound] for bound in sorted(buckets)] == sorted(buckets.values())
        assert (max(buckets), len(buckets)) == (np.inf, 14)
        assert buckets[0.5] > 0
        assert 0 < read(f"{name}_sum") < 60
    assert read("poplar_load_seconds") > 0
    assert read_metric(server.metrics_url, "poplar_build_info") >= 2


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({}, None),
        ({"q": ROW}, None),
        ({"x": ROW, "q": ROW}, None),
        ({"x": ROW.astype(np.float64)}, None),
        ({"x": ROW[:, :3]}, None),
        ({"x": ROW[:0]}, None),
        ({"x": ROW}, ["q"]),
        ({"x": np.ones((4001, 4), np.float32)}, None),
    ],
)
def test_a_bad_request_gets_its_own_error_and_the_model_goes_on(ask, inputs, outputs):
    with pytest.raises(InferenceServerException):
        ask("linear", inputs, outputs)
    assert ask("linear", {"x": ROW})["z"].tolist() == [[2, 2, 2, 2]]


def test_neighbours_of_a_failing_request_get_their_answers(grpc):
    """They are sent together, so that the batcher joins them; index 99 is outside the table."""

    def one(index):
        ids = np.full((1, 2), 99 if index % 5 == 0 else index % 10, np.int32)
        try:
            return infer(grpc, "gather", {"ids": ids}, module=grpcclient)["rows"]
        except InferenceServerException as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(80)))
    for index, answer in enumerate(answers):
        if index % 5 == 0:
            assert "could not compute the request" in str(answer)
            assert answer.status() == "StatusCode.INTERNAL"
        else:
            first = 3 * (index % 10)
            assert answer[0, 0].tolist() == [first, first + 1, first + 2]


@pytest.mark.parametrize(
    ("model", "clients"),
    [("linear", 12), ("several", 12), *(("asynchronous", clients) for clients in (1, 4, 16))],
)
def test_many_clients_get_their_own_rows(grpc, model, clients):
    def one(index):
        x = np.full((1 + index % 7, 4), index, np.float32)
        return x, infer(grpc, model, {"x": x}, module=grpcclient)["z"]

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for x, z in pool.map(one, range(200)):
            np.testing.assert_array_equal(z, 2 * x)


@pytest.mark.parametrize("model", ["linear", "several"])
def test_a_lone_client_gets_the_answer_to_each_request(grpc, model):
    random = np.random.default_rng(0)
    for index in range(40):
        x = random.standard_normal((1 + index % 3, 4), dtype=np.float32)
        answer = infer(grpc, model, {"x": x}, module=grpcclient)
        np.testing.assert_array_equal(answer["z"], 2 * x)


def test_the_batcher_joins_requests(http, grpc):
    statistics = http.get_inference_statistics("linear")["model_stats"][0]
    assert statistics["inference_count"] > statistics["execution_count"]


def test_broken_models_say_why_and_the_others_serve(server, broken_models, http):
    log = server.log.read_text(errors="replace")
    index = {model["name"]: model for model in http.get_model_repository_index()}
    for name, message in broken_models.items():
        assert index[name]["state"] == "UNAVAILABLE", name
        assert message in index[name]["reason"], f"{name}: {index[name]['reason']}"
        assert message in log
        assert index[name]["reason"].isprintable(), index[name]["reason"]
        # Python 3.10 gives every exception a position, and Triton prints it.
        assert "At:" not in index[name]["reason"] or sys.version_info < (3, 11)
    assert all(index[name]["state"] == "READY" for name in index if name not in broken_models)
    assert set(server.failed_models()) == set(broken_models)
    with pytest.raises(InferenceServerException, match="no available versions"):
        infer(http, "garbage", {"x": ROW})


def test_an_idle_server_uses_no_processor_time(server):
    def ticks():
        fields = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(2)
    assert ticks() - before < 20


def test_instances_answer_without_the_import_of_asyncio(server, ask):
    """Triton's stub asks asyncio whether an answer is a coroutine, and needs nothing else of it."""
    models = ("linear", "asynchronous")
    for model in models:
        ask(model, {"x": ROW})
    instances = {f"{model}_0_0" for model in models}
    maps = [
        (folder / "maps").read_text()
        for folder in Path("/proc").glob("[0-9]*")
        if _read_parent(folder) == server.pid
        and instances.intersection((folder / "cmdline").read_text().split("\0"))
    ]
    assert len(maps) == len(instances)
    assert not any("_asyncio" in text for text in maps)


def _read_parent(folder):
    """Return the parent of a process, or 0 if the process is gone."""
    with suppress(OSError):
        return int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0
