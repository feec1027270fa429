"""A reader of the supervisor's log that hangs stops nothing, and learns what it has missed."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from fleet.models import Model
from fleet.repositories import LocalRepository, fill
from fleet.servers import Server
from server_processes import STOP_SECONDS
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.timed

PIPE_BYTES = 4096
MODEL = Model("several")
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 512], "data": [0.0] * 512}]}
).encode()


class HungServer(Server):
    """A supervised server whose stdout and stderr are a small pipe that nobody reads until
    `read_log`."""

    def start(self) -> None:
        self.pipe, theirs = os.pipe()
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._start(theirs)
        os.close(theirs)
        self._supervisors.append(self.pid)
        self.text = b""

    def read_log(self) -> None:
        """Read the log from now on."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while data := os.read(self.pipe, 1 << 16):
            self.text += data


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a server with a verbose log that nobody reads."""
    folder = tmp_path / "models"
    fill(LocalRepository(folder), [MODEL])

    @contextmanager
    def begin(*options):
        triton = ["--log-verbose=1", "--exit-timeout-secs=3"]
        with HungServer("hung", folder, tmp_path, options, triton) as server:
            server.wait_until_ready()
            yield server

    return begin


def ask(server: Server) -> int:
    return server.ask(server.http_port, "POST", "/v2/models/several/infer", BODY)[0]


def test_a_log_that_is_not_read_stops_no_request_heal_or_shutdown(start):
    with start("--on-dead-stub", "reload") as server:
        assert {ask(server) for _ in range(500)} == {http.client.OK}
        server.kill_stub("several", signal.SIGKILL)
        wait_until(lambda: not server.is_ready(), "/ready tells the dead instance")
        wait_until(server.is_ready, "the model is healed")
        assert {ask(server) for _ in range(500)} == {http.client.OK}
        assert server.stop(STOP_SECONDS) == 0


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_reader_learns_how_many_lines_it_has_missed(start, log_format):
    with start("--log-format", log_format) as server:
        while b" lines of the log are missing" not in server.text:
            for _ in range(2000):
                assert ask(server) == http.client.OK
            server.read_log() if not server.text else None
        assert server.stop(STOP_SECONDS) == 0
        wait_until(lambda: b"\nstopping\n" in server.text, "the last lines are read")
        lines = server.text.decode().splitlines()
        if log_format == "json":
            lines = [json.loads(line)["message"] for line in lines if line.startswith("{")]
        (first, *_) = (line for line in lines if "lines of the log are missing" in line)
        assert int(re.search(r"(\d+) lines of the log", first)[1]) > 0


@pytest.mark.parametrize("options", [[], ["--", "--no-such-option"]])
def test_a_failed_start_ends_even_if_its_error_is_not_read(tmp_path, options):
    fill(LocalRepository(tmp_path / "models"), [MODEL])
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    command = [sys.executable, "-m", "poplar_triton.cli", "serve", str(tmp_path / "models"), *ports]
    command += options or ["--", "--cache-config", "none,x=1"]
    read = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert read.returncode == 1
    assert read.stderr.splitlines()[-1].startswith("poplar-triton: error: tritonserver ")
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x")
    except BlockingIOError:
        os.set_blocking(writer, True)
    with subprocess.Popen(command, stdout=writer, stderr=writer) as process:
        try:
            assert process.wait(PATIENCE_SECONDS) == 1
        finally:
            process.kill()
            os.close(reader)
            os.close(writer)
