"""`poplar-triton tfserving --triton` in front of a real tritonserver."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
from certificates import make_certificate
from life_cycle_models import (
    BATCHING,
    DELAY,
    ONE_BY_ONE,
    QUEUE,
    exchange,
    make_rows,
    scale_model,
    write_model,
)
from onnx import TensorProto, helper
from poplar_triton.serving.server import TritonServer
from poplar_triton.tfserving.models import VersionState
from poprt import Compiler, Converter
from poprt.triton.model_folder import publish_version
from sample_models import TYPES, gather_model, make_model, types_model
from server_processes import TfServing, choose_ports
from tfserving_clients import Client, refused
from triton_clients import infer, read_metric
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.server
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=3")
ALL = "version_policy { all {} }"


def half_plus_two() -> onnx.ModelProto:
    """Return TensorFlow Serving's own example: one number for each row."""
    return make_model(
        [
            helper.make_node("Div", ["x", "two"], ["half"]),
            helper.make_node("Add", ["half", "two"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["n"])},
        {"y": (TensorProto.FLOAT, ["n"])},
        {"two": np.float32(2)},
    )


def publish(folder: Path, factor: float) -> None:
    publish_version(Compiler.compile(Converter(batch_size=4).convert(scale_model(factor))), folder)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """Return a repository; version n of `versions` multiplies by n + 1."""
    repository = tmp_path_factory.mktemp("forwarding") / "repository"
    for factor in (2, 3):
        publish(repository / "versions", factor)
    exchange(repository / "versions" / "config.pbtxt", "instance_group", f"{ALL}\ninstance_group")
    write_model(repository / "gather", gather_model())
    write_model(repository / "types", types_model())
    write_model(repository / "halves", half_plus_two())
    write_model(repository / "busy", scale_model(2), DELAY, ONE_BY_ONE, (BATCHING, QUEUE))
    write_model(repository / "broken", scale_model(2))
    (repository / "broken" / "1" / "executable.popef").write_bytes(b"no PopEF")
    return repository


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory) -> Iterator[TritonServer]:
    log = tmp_path_factory.mktemp("log") / "triton"
    with TritonServer(repository, options=EXPLICIT, log=log) as running:
        yield running


@pytest.fixture(scope="module")
def front(server, tmp_path_factory) -> Iterator[TfServing]:
    log = tmp_path_factory.mktemp("log") / "tfserving"
    with TfServing("--triton", server.grpc_url, log=log, rest=False) as running:
        yield running


@pytest.fixture
def client(front) -> Iterator[Client]:
    with Client(front.grpc_url) as client:
        yield client


@pytest.fixture
def triton(server) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        yield client


def answers_by(client: Client, factor: float, model: str = "versions", **choice) -> bool:
    try:
        answer = client.predict(model, {"x": make_rows(1)}, **choice)
    except grpc.RpcError:
        return False
    return bool(np.array_equal(answer["y"], make_rows(factor)))


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_number_for_each_row_is_a_vector(client, shape):
    answer = client.predict("halves", {"x": np.float32([1, 2, 5]).reshape(shape)})
    assert answer["y"].tolist() == [2.5, 3.0, 4.5]


def test_values_of_all_types_are_those_of_triton(client, triton):
    bits = np.random.default_rng(0).integers(0, 256, 48, np.uint8)
    rows = {
        name: bits[: 6 * np.dtype(name).itemsize].view(name).reshape(3, 2)
        for name in TYPES
        if name != "bool"
    }
    rows["bool"] = (bits[:6] % 2).astype(bool).reshape(3, 2)
    expected = infer(triton, "types", rows)
    found = client.predict("types", rows)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
    wanted = client.predict("types", rows, ["int8_back", "bool_back"])
    assert wanted.keys() == {"int8_back", "bool_back"}


def test_the_newest_version_and_any_other_answer(client):
    assert answers_by(client, 3)
    assert client.version == 2
    assert answers_by(client, 2, version=1)
    assert client.version == 1


def test_models_that_triton_lacks_are_not_found(client):
    for model, choice, text in (
        ("none", {}, "Servable not found for request: Latest(none)"),
        ("broken", {}, "Servable not found for request: Latest(broken)"),
        ("versions", {"version": 7}, "Servable not found for request: Specific(versions, 7)"),
        ("versions", {"version": -1}, "Servable not found for request: Specific(versions, -1)"),
    ):
        with refused("NOT_FOUND", text):
            client.predict(model, {"x": make_rows(1)}, **choice)
    with refused("NOT_FOUND", "Could not find any versions of model none"):
        client.read_status("none")
    with refused("INVALID_ARGUMENT", "Unrecognized servable version label: stable"):
        client.predict("versions", {"x": make_rows(1)}, version_label="stable")


def test_versions_stand_as_triton_says(client):
    served = [(2, VersionState.AVAILABLE, ""), (1, VersionState.AVAILABLE, "")]
    assert client.read_status("versions") == served
    assert client.read_status("versions", version=1) == served[1:]
    ((version, state, message),) = client.read_status("broken")
    assert (version, state) == (1, VersionState.END)
    assert "executable.popef" in message


def test_an_error_of_a_request_is_passed_on(client, triton):
    ids = {"ids": np.array([[1, 99]], np.int32)}
    with pytest.raises(InferenceServerException) as raised:
        infer(triton, "gather", ids)
    code = raised.value.status().removeprefix("StatusCode.")
    with refused(code, raised.value.message()):
        client.predict("gather", ids)
    assert client.predict("gather", {"ids": np.array([[1, 9]], np.int32)})["rows"].shape == (
        1,
        2,
        3,
    )


def test_a_configuration_file_chooses_and_labels(server, tmp_path):
    file = tmp_path / "models.config"
    policy = "model_version_policy { specific { versions: 1 } }"
    label = "version_labels { key: 'stable' value: 1 }"
    model = f"name: 'versions' base_path: '/x' model_platform: 'tensorflow' {policy} {label}"
    file.write_text(f"model_config_list {{ config {{ {model} }} }}")
    options = ("--triton", server.grpc_url, "--model_config_file", file)
    with (
        TfServing(*options, log=tmp_path / "log", rest=False) as front,
        Client(front.grpc_url) as client,
    ):
        assert answers_by(client, 2)
        assert answers_by(client, 2, version_label="stable")
        assert client.read_status("versions") == [(1, VersionState.AVAILABLE, "")]
        for model, choice in (("versions", {"version": 2}), ("gather", {})):
            with refused("NOT_FOUND", "Servable not found for request: "):
                client.predict(model, {"x": make_rows(1)}, **choice)


def test_versions_come_and_go_under_way(server, client, triton):
    folder = server.model_repository / "versions"
    text = (folder / "config.pbtxt").read_text()
    try:
        publish(folder, 5)
        triton.load_model("versions")
        wait_until(lambda: answers_by(client, 5), "the newest version answers")
        assert client.version == 3
        shutil.rmtree(folder / "3")
        triton.load_model("versions")
        wait_until(lambda: answers_by(client, 3), "the one before answers again")
        triton.unload_model("versions")
        wait_until(lambda: not answers_by(client, 3), "it is gone")
        with refused("NOT_FOUND", "Servable not found for request: Latest(versions)"):
            client.predict("versions", {"x": make_rows(1)})
    finally:
        (folder / "config.pbtxt").write_text(text)
        shutil.rmtree(folder / "3", ignore_errors=True)
        triton.load_model("versions")
    wait_until(lambda: answers_by(client, 3), "it is back")


def count_cancelled(server: TritonServer) -> float:
    return read_metric(
        server.metrics_url, "nv_inference_request_failure", model="busy", reason="CANCELED"
    )


def count_waiting(server: TritonServer) -> float:
    return read_metric(server.metrics_url, "nv_inference_pending_request_count", model="busy")


def occupy(server: TritonServer, client: Client) -> list:
    """Send two requests to a model that takes one at a time.

    One of them runs, and the other is in Triton's queue.
    """
    wait_until(lambda: count_waiting(server) == 0, "the requests of other tests leave")
    futures = [client.send("busy", {"x": make_rows(1)}) for _ in range(2)]
    wait_until(lambda: count_waiting(server) == 1, "one waits")
    return futures


def test_who_gives_up_leaves_tritons_queue(server, client):
    before = count_cancelled(server)
    kept = occupy(server, client)
    given_up = client.send("busy", {"x": make_rows(1)})
    wait_until(lambda: count_waiting(server) == 2, "it waits, too")
    given_up.cancel()
    wait_until(
        lambda: count_cancelled(server) == before + 1, "Triton drops the one that was given up"
    )
    for future in kept:
        assert future.result(PATIENCE_SECONDS).outputs.keys() == {"y"}


def test_a_deadline_ends_in_tritons_queue(server, client):
    before = count_cancelled(server)
    kept = occupy(server, client)
    with refused("DEADLINE_EXCEEDED", ""):
        client.predict("busy", {"x": make_rows(1)}, seconds=0.2)
    wait_until(
        lambda: count_cancelled(server) == before + 1, "Triton drops the one whose time is over"
    )
    for future in kept:
        assert future.result(PATIENCE_SECONDS).outputs.keys() == {"y"}


@pytest.mark.slow
def test_a_triton_that_is_away_is_unavailable_until_it_is_back(repository, tmp_path):
    (port,) = choose_ports(1)
    with (
        TfServing("--triton", f"127.0.0.1:{port}", log=tmp_path / "log", rest=False) as front,
        Client(front.grpc_url) as client,
    ):
        for number in range(2):
            with refused("UNAVAILABLE", f"Triton at 127.0.0.1:{port}: "):
                client.predict("versions", {"x": make_rows(1)})
            with refused("UNAVAILABLE", f"Triton at 127.0.0.1:{port}: "):
                client.read_status("versions")
            log = tmp_path / f"triton{number}"
            with TritonServer(repository, grpc_port=port, options=EXPLICIT, log=log):
                wait_until(lambda: answers_by(client, 3), "it answers without being told")
            time.sleep(1.1)  # the cached metadata of the model is too old by now


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.mark.slow
def test_both_ways_over_tls(repository, certificate, tmp_path):
    key, chain = certificate
    mutual = [
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={chain}",
        f"--grpc-server-key={key}",
        f"--grpc-root-cert={chain}",
    ]
    ours = tmp_path / "ssl.config"
    quoted = {name: repr(file.read_text()) for name, file in (("key", key), ("cert", chain))}
    ours.write_text(
        f"server_key: {quoted['key']}\nserver_cert: {quoted['cert']}\ncustom_ca: {quoted['cert']}\n"
        "client_verify: true\n"
    )
    triton_tls = ("--triton_ssl", "--triton_root_certificates", chain)
    client_tls = ("--triton_private_key", key, "--triton_certificate_chain", chain)
    known = grpc.ssl_channel_credentials(chain.read_bytes(), key.read_bytes(), chain.read_bytes())
    with TritonServer(repository, options=[*EXPLICIT, *mutual], log=tmp_path / "triton") as server:
        options = ("--triton", server.grpc_url, *triton_tls)
        with TfServing(
            *options, *client_tls, "--ssl_config_file", ours, log=tmp_path / "log", rest=False
        ) as front:
            with Client(front.grpc_url, known) as client:
                assert answers_by(client, 3)
            for stranger in (None, grpc.ssl_channel_credentials(chain.read_bytes())):
                with Client(front.grpc_url, stranger) as client, refused("UNAVAILABLE", ""):
                    client.predict("versions", {"x": make_rows(1)})
        for wrong in (options, ("--triton", server.grpc_url)):
            with (
                TfServing(*wrong, log=tmp_path / "log", rest=False) as front,
                Client(front.grpc_url) as client,
                refused("UNAVAILABLE", f"Triton at {server.grpc_url}: "),
            ):
                client.predict("versions", {"x": make_rows(1)})
