"""The commands and programs of the documents run as a reader runs them, in the order of the page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import Block, read_blocks
from poplar_triton.serving.server import TritonServer
from waiting import PATIENCE_SECONDS

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


@pytest.mark.parametrize(("page", "made"), [("tutorial", "report.html"), ("popart", "y.npy")])
def test_a_tutorial_runs_from_its_first_command_to_its_last(page, made, tmp_path):
    server = None
    ports: dict[str, int] = {}
    try:
        for block in read_blocks(ROOT / "docs" / f"{page}.md"):
            if block.reason is not None:
                continue
            if block.code.startswith("poplar-triton serve"):
                server, ports = serve(block.code, tmp_path)
            else:
                block.run(tmp_path, ENVIRONMENT, ports)
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            assert server.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / made).exists()


def serve(command: str, folder: Path) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """Start the page's server on free ports, and return it with its ports when it is ready."""
    words = [*command.split(), *"--http-port 0 --grpc-port 0 --metrics-port 0".split()]
    server = subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    ports = {}
    for line in server.stdout:
        if line.startswith("HTTP "):
            ports["8000"] = int(line.rpartition(":")[2])
        if line.startswith("Ctrl-C"):
            return server, ports
    raise AssertionError(f"{command}: ended with status {server.wait()} before it was ready")
