"""A `poplar-triton tfserving` in a separate process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ports import choose_ports

START_SECONDS = 300
"""Time limit for loading the models, on a machine with other work."""
STOP_SECONDS = 60
_READY = "Ctrl-C stops the server."


class TfServing:
    """Server on free ports of 127.0.0.1 with the given `arguments`: a context manager, ready on
    entry, stopped on exit.

    With `rest` False it serves gRPC alone. `log` gets its output.
    """

    def __init__(self, *arguments: str | Path, log: Path, rest: bool = True) -> None:
        self.log = log
        self.grpc_port, self._health_port, rest_port = choose_ports(3)
        self.rest_port = rest_port if rest else 0
        self._arguments: Sequence[str] = [
            *(sys.executable, "-u", "-m", "poplar_triton.cli", "tfserving", *map(str, arguments)),
            *("--port", str(self.grpc_port), "--rest_api_port", str(self.rest_port)),
            *("--health-port", str(self._health_port)),
        ]

    @property
    def grpc_url(self) -> str:
        """host:port of its gRPC."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def rest_url(self) -> str:
        """URL of its models over REST."""
        return f"http://127.0.0.1:{self.rest_port}/v1/models"

    @property
    def metrics_url(self) -> str:
        """The Prometheus page."""
        return f"http://127.0.0.1:{self._health_port}/metrics"

    @property
    def pid(self) -> int:
        """The process that has started those that serve."""
        return self._process.pid

    def __enter__(self) -> TfServing:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._arguments, stdout=subprocess.PIPE, stderr=log)
        # Reading ends when the process does: one that takes too long is ended.
        timer = threading.Timer(START_SECONDS, self._process.kill)
        timer.start()
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, b"")
        is_ready = any(line.decode().strip() == _READY for line in lines)
        timer.cancel()
        if not is_ready:
            self._process.wait()
            raise RuntimeError(f"tfserving did not start: {self.log.read_text()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
