"""Starts a tritonserver on this backend, and stops it without leaving anything behind.

The server hangs silently if the stub process of a Python backend cannot start. So everything that
the stub needs is checked first (`poplar_triton.doctor`).
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from triton_poplar.parameters import environment_variable
from triton_poplar.server_start import CUT_SHORT, START_SECONDS

from popef._tools.child import LOST_WHILE_LOADING, die_with
from popef._tools.memory import offer_to_oom_killer
from popef._tools.stalls import find_zombies
from popef._tools.text import name_some
from poplar_triton.errors import LostServerError, ServerError
from poplar_triton.serving.endpoint import (
    ASK_SECONDS,
    HOST,
    UNAVAILABLE,
    Endpoint,
    ServedVersion,
    make_endpoint,
)
from poplar_triton.serving.installation import (
    Installation,
    find_installation,
    link_interpreter,
    make_environment,
)
from poplar_triton.serving.log import ServerOutput
from poplar_triton.serving.options import (
    find_exit_seconds,
    find_option,
    is_on,
    make_absolute,
    make_http_headers,
)
from poplar_triton.serving.repository import (
    check_backends,
    check_paths,
    check_repository,
    is_remote,
)
from poplar_triton.serving.server_resources import ServerResources
from poplar_triton.serving.traffic import describe_listener

END_SECONDS = 5
"""Time for a server to exit after it has said that it cannot serve; it may hang in its exit."""
STOP_MARGIN_SECONDS = 15
"""Additional time beyond Triton's own --exit-timeout-secs, unless one of its processes has died."""
STOP_UNREADY_SECONDS = 10
"""Time for a server to stop while it loads models; it may never notice the request to stop."""
POLL_SECONDS = 0.1
"""Interval between two checks whether a starting server is ready."""
_DEAD_STUB = "Stub process"
"""Words of Triton in the reason of a model whose stub died while it loaded."""
VICTIM_POINTS = 250
"""Points added to the oom_score_adj of tritonserver and its processes, and once more to that of
stubs. When memory runs out, the kernel first ends a stub, which is healed, then tritonserver, and
last the supervisor."""


def hold_port(port: int, what: str) -> socket.socket:
    """Return a socket bound to `port`, or to any free port for 0. Raises ServerError if the port is
    busy; `what` is the purpose of the port in the message, and in the name of its option.

    Until the socket is closed, the kernel gives its port to nobody who asks for any free one. A
    server can listen on it all the same, since servers bind with SO_REUSEADDR.
    """
    socket_ = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        socket_.bind((HOST, port))
    except OverflowError as error:
        socket_.close()
        raise ServerError(f"{what} port: expected 0 to 65535, found {port}") from error
    except OSError as error:
        socket_.close()
        listener = describe_listener(port)
        advice = f"{listener} already listens on it: end it, or " if listener else ""
        option = f"--{what.lower()}-port N"
        raise ServerError(
            f"{what} port {port} is not free ({error.strerror}); {advice}choose another one with "
            f"{option}, or three in a row with make serve PORT=N"
        ) from error
    return socket_


def _make_preparation() -> Callable[[], None]:
    """Return a function that the child process runs before it becomes tritonserver.

    The child process dies with this process if it is started in the main thread. Otherwise the
    death of another thread would end it as well.
    """
    parent = os.getpid()
    is_main = threading.current_thread() is threading.main_thread()

    def prepare() -> None:
        if is_main and not die_with(parent):
            os._exit(1)
        offer_to_oom_killer(points=VICTIM_POINTS)

    return prepare


class Interrupt:
    """Request to stop before a supervisor handles it: SIGTERM and Ctrl-C raise KeyboardInterrupt.

    Python ignores exceptions raised in the callback of a weak reference, so the request is stored.
    """

    def __init__(self) -> None:
        self.is_asked = False

    def catch_signals(self) -> None:
        """Handle SIGINT and SIGTERM from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was requested and lost."""
        if self.is_asked:
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> bool:
        """Sleep, and return False: nothing asks to give up."""
        self.check()
        time.sleep(seconds)
        return False

    def _take(self, *_: object) -> None:
        if not self.is_asked:  # a second one would interrupt the clean-up after the first
            self.is_asked = True
            raise KeyboardInterrupt


class TritonServer:
    """A real tritonserver on a model repository, as a context manager: ready on entry, gone on
    exit.

    Ready means that every model is loaded or has failed to load; models that are loaded are served.
    The server listens on 127.0.0.1 unless `options` say otherwise.

    Args:
        model_repository: A folder of model folders, or the address of a store (STORES).
        http_port, grpc_port, metrics_port: Ports to listen on; 0 means any free port.
        options: Passed to tritonserver unchanged.
        log: File for the server's output (None: stderr).
        copy: Function that writes a line of the output there (None: unchanged).
        program: The tritonserver (None: that of the installed wheel).
        start_seconds: Maximum time to get ready (None: START_SECONDS).
        begin: Function that calls `start` on entry, and may call it again (None: `start` once).
    """

    endpoint: Endpoint
    """Client of the server, available from entry on. So are `ports`: HTTP, gRPC and metrics."""
    ports: tuple[int, int, int]

    def __init__(
        self,
        model_repository: Path | str,
        *,
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        options: Sequence[str] = (),
        log: Path | None = None,
        copy: Callable[[str], None] | None = None,
        program: Path | None = None,
        start_seconds: float | None = None,
        begin: Callable[[TritonServer], object] | None = None,
    ) -> None:
        self.model_repository = model_repository
        self._wanted = {"HTTP": http_port, "gRPC": grpc_port, "metrics": metrics_port}
        self._options = list(options)
        self._log = log
        self._copy = copy
        self._begin = begin or (lambda server: server.start(Interrupt().pause))
        self._program = program
        self.start_seconds = START_SECONDS if start_seconds is None else start_seconds
        """Maximum time to get ready with all models."""
        self._held = ExitStack()
        """Sockets that keep the ports."""
        self._process: subprocess.Popen[bytes] | None = None
        self._output: ServerOutput | None = None
        self._was_ready = False
        self.ready_seconds = 0.0
        """Duration of the last start."""
        self.exit_status: int | None = None

    def __enter__(self) -> TritonServer:
        if not is_remote(self.model_repository):
            # In these modes models may be added later.
            later = find_option(self._options, "--model-control-mode") in ("explicit", "poll")
            check_repository(Path(self.model_repository), may_be_empty=later)
            check_paths(Path(self.model_repository))
        self._resources = ServerResources()
        try:
            self._prepare(self._resources.folder)
            self._begin(self)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._held.close()
        self._resources.release()

    @property
    def http_url(self) -> str:
        """Address host:port for tritonclient.http."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def grpc_url(self) -> str:
        """Address host:port for tritonclient.grpc."""
        return f"{HOST}:{self.ports[1]}"

    @property
    def metrics_url(self) -> str:
        """URL of the Prometheus page."""
        return f"http://{HOST}:{self.ports[2]}/metrics"

    @property
    def takes_models(self) -> bool:
        """Whether clients that reach the server can load and unload models."""
        return find_option(self._options, "--model-control-mode") == "explicit"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_seconds(self) -> float:
        """Time that Triton gives its models to unload when it stops."""
        return find_exit_seconds(self._options)

    def poll(self) -> int | None:
        """Return the server's exit status, or None while it runs."""
        return self._process.poll() if self._process is not None else None

    def is_ready(self) -> bool:
        """Return whether the server answers, which it does once it has tried to load every
        model."""
        return self.endpoint.is_ready(ASK_SECONDS)

    def list_models(self) -> list[ServedVersion]:
        """Return the repository index. Models whose folder Triton rejected have no state there, or
        no entry, and get its reason from the log. Raises ServerError if the server does not
        tell."""
        try:
            models = self.endpoint.list_models()
        except ServerError as error:
            raise ServerError(f"tritonserver does not report its models ({error})") from error
        reasons = self._output.rejected_models if self._output else {}
        rejected = {
            name: ServedVersion(name, "", UNAVAILABLE, reason) for name, reason in reasons.items()
        }
        listed = [model if model.state else rejected.get(model.name, model) for model in models]
        names = {model.name for model in models}
        return [*listed, *(version for name, version in rejected.items() if name not in names)]

    def failed_models(self) -> dict[str, str]:
        """Return the models that did not load, and Triton's reason for each. Raises ServerError as
        `list_models` does."""
        return {
            model.name: model.reason for model in self.list_models() if model.state == UNAVAILABLE
        }

    @property
    def loading_models(self) -> frozenset[str]:
        """Models whose load has begun and not ended yet, as far as the log says."""
        return self._output.loading_models if self._output else frozenset()

    @property
    def loaded_models(self) -> Mapping[str, float]:
        """Models that have loaded, with the time at which the last load of each succeeded (clock
        ticks since the machine was started), as far as the log says."""
        return self._output.loaded_models if self._output else {}

    def find_lost_models(self) -> dict[str, str]:
        """Return the models that did not load because a process of theirs was killed or stopped, or
        the start had no time for them, and the reason for each: a later load may succeed. Raises
        ServerError as `list_models` does."""
        return {
            name: reason.partition("\n")[0]
            for name, reason in self.failed_models().items()
            if any(words in reason for words in (LOST_WHILE_LOADING, _DEAD_STUB, CUT_SHORT))
        }

    @property
    def answers_anyone(self) -> bool:
        """Whether HTTP clients without a key get answers."""
        return is_on(self._options, "--allow-http") and not make_http_headers(self._options)

    def stop(self) -> None:
        """Stop the server in order, or else kill it. None of its processes and shared memory
        remains. `exit_status` tells how it ended."""
        self.exit_status = self._stop()
        self._resources.clear_memory()

    def restrict_memory(self) -> None:
        """Deny other users access to its shared memory. The next call also covers models that are
        loaded later."""
        self._resources.restrict_memory()

    def count_segments(self) -> int:
        """Return the number of segments of shared memory that the server has."""
        return self._resources.count_segments()

    def kill(self) -> None:
        """Kill a server that makes no progress, with all its processes; `poll` tells when it has
        ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def start(self, pause: Callable[[float], bool]) -> bool:
        """Start the server, also one that has ended before, on the same ports.

        Return False if `pause`, which waits some seconds, says to give up before it is ready; it
        may also raise ServerError. Raises ServerError if the server cannot serve, and
        LostServerError if another start may succeed.
        """
        self.stop()  # remove what the ended server has left
        self._was_ready = False
        self._start()
        return self._wait_until_ready(pause)

    def _list_backends(self, installation: Installation) -> set[str]:
        """Return the names of the backends that the server's Triton has."""
        backend_folder = find_option(self._options, "--backend-directory")
        folder = (
            Path(backend_folder) if backend_folder else (installation.root or Path()) / "backends"
        )
        return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()

    def _prepare(self, folder: Path) -> None:
        # Held until the server is gone, not only until it listens: another server that got a port
        # of this one while it starts, or starts again, would get the requests of its clients.
        sockets = [
            self._held.enter_context(hold_port(port, what)) for what, port in self._wanted.items()
        ]
        http, grpc, metrics = (int(socket_.getsockname()[1]) for socket_ in sockets)
        self.ports = http, grpc, metrics
        self.endpoint = make_endpoint(self._options, self.ports[0], self.ports[1])
        installation = find_installation(self._program)
        if not is_remote(self.model_repository):
            check_backends(Path(self.model_repository), self._list_backends(installation))
        interpreter = folder / "bin"
        interpreter.mkdir()
        self._environment = make_environment(link_interpreter(interpreter), installation.root)
        # The loads of its models share this time, so that none of them outlasts the start.
        seconds = max(1, math.floor(self.start_seconds))
        self._environment[environment_variable("sim_start_sec")] = str(seconds)
        remote = is_remote(self.model_repository)
        repository = self.model_repository if remote else Path(self.model_repository).resolve()
        self._command = [
            str(installation.program),
            f"--model-repository={repository}",
            *installation.make_options(folder),
            f"--http-port={self.ports[0]}",
            f"--grpc-port={self.ports[1]}",
            f"--metrics-port={self.ports[2]}",
            f"--http-address={HOST}",
            f"--grpc-address={HOST}",
            f"--metrics-address={HOST}",
            f"--backend-config=python,shm-region-prefix-name={self._resources.prefix}",
            # A model that does not load must not prevent the others; `failed_models` returns it.
            "--exit-on-error=false",
            "--strict-readiness=false",
            # Proxies check a connection with PING, for which gRPC would close it by default.
            "--grpc-http2-max-ping-strikes=0",
            *make_absolute(self._options),
        ]

    def _start(self) -> None:
        # A session of its own: Ctrl-C reaches only this process, which stops the server in order.
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._resources.empty_folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self._resources.lock,),
                umask=0o077,
                preexec_fn=_make_preparation(),
            )
            assert self._process.stdout is not None
            self._output = ServerOutput(self._process.stdout, self._log, self._copy)
        except (BlockingIOError, RuntimeError) as error:  # no process or thread can be started
            self._stop()
            raise ServerError(
                f"cannot start tritonserver ({error}): the limit of processes and threads is "
                "reached; raise it (pids.max of the control group, ulimit -u)"
            ) from error

    def _wait_until_ready(self, pause: Callable[[float], bool]) -> bool:
        """Wait until tritonserver listens, which it does once it has tried to load every model. A
        server whose start has failed listens as well, but is not live. A server that rejects the
        question counts as up."""
        assert self._output is not None
        seconds = self.start_seconds
        began = time.monotonic()
        deadline = began + seconds
        end = math.inf
        while (live := self.endpoint.is_live()) is None:
            status = self.poll()
            if status is not None:
                raise self._failure(f"stopped with status {status} before it was ready")
            if self._output.is_ending:
                end = min(end, time.monotonic() + END_SECONDS)
            if time.monotonic() > end:
                raise self._failure("cannot serve, and hangs while stopping")
            if time.monotonic() > deadline:
                loading = name_some(sorted(map(repr, self.loading_models)))
                which = f" (still loading: {loading})" if loading else ""
                raise self._failure(f"was not ready after {seconds:g} s{which}")
            if pause(POLL_SECONDS):
                return False
        if not live:
            raise self._failure("is running, but its start failed")
        self._was_ready = True
        self.ready_seconds = time.monotonic() - began
        self.restrict_memory()
        return True

    def _failure(self, what: str) -> ServerError:
        """Stop the server, and return the error that says `what`, with Triton's reason."""
        assert self._output is not None
        if self.poll() is not None:
            self._stop()  # waits until all output is read
        text = f"tritonserver {what}: {self._output.reason or 'no reason given'}"
        self._stop()
        kind = ServerError if self._output.is_ending else LostServerError
        return kind(
            text if self._log is None else f"{text}; see {self._log}", self._output.unseen_lines
        )

    def _stop(self) -> int | None:
        """Send SIGINT, and after a while SIGKILL to the whole process group, so that no server,
        stub or child process remains."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            seconds = self.exit_seconds if self._was_ready else STOP_UNREADY_SECONDS
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            # It may wait for a dead stub for ever.
            if self._was_ready and process.poll() is None and not find_zombies([process.pid]):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_MARGIN_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        self._reap(process.pid)
        if self._output is not None:
            self._output.join(5)
        return status

    def _reap(self, group: int) -> None:
        """Reap killed stubs. Stubs that have lost their server become children of the first process
        of a container, which may be this one."""
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-group, 0)
