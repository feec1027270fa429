"""Versions that are published while a real tritonserver serves the model, loads it or polls."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import tritonclient.http as httpclient
from life_cycle_models import scale_model
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, Converter
from poprt.triton.model_folder import publish_version
from triton_clients import phases, traffic, wait_for_all
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")
POLLING = ("--model-control-mode=poll", "--repository-poll-secs=1")


def publish(folder: Path, factor: float) -> list[str]:
    """Publish a version that multiplies by the factor."""
    return publish_version(
        Compiler.compile(Converter(batch_size=4).convert(scale_model(factor))), folder
    )


def serve(folder: Path, options: tuple[str, ...]) -> TritonServer:
    return TritonServer(folder / "repository", options=options, log=folder / "log")


@pytest.mark.parametrize("options", [EXPLICIT, POLLING], ids=["explicit", "polling"])
def test_every_request_is_answered_while_versions_come_and_go(tmp_path, options):
    """Old and new version answer at the same time for a moment, so that their answers mix."""
    folder = tmp_path / "repository" / "m"
    publish(folder, 2)
    with (
        serve(tmp_path, options) as server,
        httpclient.InferenceServerClient(server.http_url) as http,
    ):

        def load(expected: float) -> None:
            if options == EXPLICIT:
                http.load_model("m")
            wait_for_all(clients, expected)

        with traffic(server.grpc_url, "m") as clients:
            wait_for_all(clients, 2.0)
            publish(folder, 3)
            load(3.0)
            given = (folder / "config.pbtxt").read_text()
            (folder / "config.pbtxt").write_text(
                f"{given}version_policy {{ specific {{ versions: [1] }} }}"
            )
            load(2.0)
            (folder / "config.pbtxt").write_text(given)
            load(3.0)
            shutil.rmtree(folder / "2")
            load(2.0)
        assert {outcome for client in clients for outcome in phases(client)} == {2.0, 3.0}


def test_a_server_that_loads_all_the_time_never_sees_a_version_half(tmp_path):
    folder = tmp_path / "repository" / "m"
    publish(folder, 1)
    stop = threading.Event()

    def publish_more() -> None:
        for factor in range(2, 14):
            publish(folder, factor)
        stop.set()

    with (
        serve(tmp_path, EXPLICIT) as server,
        httpclient.InferenceServerClient(server.http_url) as http,
    ):
        publishing = threading.Thread(target=publish_more)
        publishing.start()
        while not stop.is_set():
            http.load_model("m")  # raises where a version does not load
        publishing.join(PATIENCE_SECONDS)
        http.load_model("m")
        wait_until(lambda: http.is_model_ready("m", "13"), "the newest version is served")
    assert "failed to load" not in (tmp_path / "log").read_text()
