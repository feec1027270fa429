"""The commands and programs of the documents run as a reader runs them, in the order of the page."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from page_blocks import Block, read_blocks
from poplar_triton.serving.server import TritonServer
from server_processes import CommandServer, choose_ports

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/index.md", "docs/ask.md", "docs/gallery.md"]
"""Pages about the example models, in the project's folder."""
BLOCKS = [block for page in PAGES for block in read_blocks(ROOT / page)]
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """Serve the example models on free ports, and return those instead of 8000 to 8002."""
    log = tmp_path_factory.mktemp("pages") / "tritonserver.log"
    with TritonServer(ROOT / "model_repository", log=log) as server:
        yield {
            "8000": int(server.http_url.rpartition(":")[2]),
            "8001": int(server.grpc_url.rpartition(":")[2]),
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with what a reader has in the project's, which no block may write into."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("Makefile", "model_repository", "examples", ".cache"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.reason is None], ids=lambda block: block.name
)
def test_commands_of_a_page_run(block: Block, folder, ports):
    if block.code.startswith("make "):
        pytest.skip("other tests run the Makefile's commands")
    block.run(folder, ENVIRONMENT, ports)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "made"), [("tutorial", "report.html"), ("popart", "y.npy")])
def test_a_tutorial_runs_from_its_first_command_to_its_last(page, made, tmp_path, tmp_path_factory):
    http_port, grpc_port, metrics_port = choose_ports(3)
    options = f"--http-port {http_port} --grpc-port {grpc_port} --metrics-port {metrics_port}"
    log = tmp_path_factory.mktemp("log") / "log"
    with ExitStack() as servers:
        for block in read_blocks(ROOT / "docs" / f"{page}.md"):
            if block.reason is not None:
                continue
            if block.code.startswith("poplar-triton serve"):
                words = [*block.code.split()[1:], *options.split()]
                server = CommandServer(*words, log=log, working_folder=tmp_path)
                servers.enter_context(server)
            else:
                block.run(tmp_path, ENVIRONMENT, {"8000": http_port})
        assert server.stop(number=signal.SIGINT) == 0
    assert (tmp_path / made).exists()
