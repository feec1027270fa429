"""Starts a tritonserver on our backend, and stops it without a trace.

The server hangs silently when the stub process of a Python backend cannot start, so everything that the stub
needs is checked first (`commands.doctor`).
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from simipu.parents import die_with

from commands.errors import ServerError
from commands.serving.endpoint import ASK_SECONDS, HOST, Endpoint, make_endpoint
from commands.serving.installation import find_installation, link_interpreter, make_environment
from commands.serving.leftovers import Belongings
from commands.serving.listeners import describe_listener
from commands.serving.options import find_exit_seconds, find_option
from commands.serving.output import ServerOutput

MODEL_FILE = "config.pbtxt"
STORES = ("s3://", "gs://", "as://")
"""Repositories that Triton itself copies models out of."""
START_SECONDS = 300
END_SECONDS = 5
"""For a server that has said that it cannot serve, which may hang in its exit."""
STOP_MARGIN_SECONDS = 15
"""Beyond Triton's own --exit-timeout-secs."""
STOP_UNREADY_SECONDS = 10
"""A server that is told to stop while it loads models may never notice."""
POLL_SECONDS = 0.1
VICTIM_POINTS, MAX_OOM_SCORE = 250, 1000
"""Added to the oom_score_adj of tritonserver and its processes, and once more to that of stubs: when memory
runs out the kernel ends a stub, which is healed, rather than tritonserver, and that rather than who heals."""


def choose_port(port: int, what: str) -> int:
    """`port` if it is free, or any free one for 0; ServerError names what wanted a busy one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OverflowError as error:
            raise ServerError(f"{what} port: expected 0 to 65535, found {port}") from error
        except OSError as error:
            listener = describe_listener(port)
            advice = f"{listener} listens there: end it, or " if listener else ""
            raise ServerError(
                f"{what} port {port} is not free ({error.strerror}); {advice}choose another one"
            ) from error
        return int(probe.getsockname()[1])


def is_remote(repository: Path | str) -> bool:
    """Whether Triton copies the models of a repository out of a store."""
    return str(repository).startswith(STORES)


def find_repository(text: str) -> Path | str:
    """The repository that a word of the command line names: a store's address stays as it is."""
    return text if is_remote(text) else Path(text)


def check_repository(repository: Path, *, may_be_empty: bool = False) -> None:
    """Raises ServerError unless `repository` is a folder that has model folders."""
    if not repository.is_dir():
        raise ServerError(f"model repository {repository}: no such folder")
    folders = [entry for entry in repository.iterdir() if entry.is_dir()]
    if (repository / MODEL_FILE).is_file() or any(folder.name.isdecimal() for folder in folders):
        raise ServerError(
            f"{repository} looks like a model folder; serve its parent, {repository.resolve().parent}"
        )
    if not may_be_empty and not any(is_model_folder(folder) for folder in folders):
        raise ServerError(
            f"no models in {repository}: expected folders with a {MODEL_FILE} or a version folder such as "
            "1, found none; `poprt --triton_model_dir` writes one"
        )


def is_model_folder(folder: Path) -> bool:
    """Whether a folder of a repository is one of a model."""
    return (folder / MODEL_FILE).is_file() or any(
        entry.name.isdecimal() and entry.is_dir() for entry in folder.iterdir()
    )


def offer_to_oom_killer(pid: int | str, points: int = VICTIM_POINTS) -> None:
    """Have the kernel end a process earlier when memory runs out."""
    with suppress(OSError, ValueError):  # it has ended, or that may not be
        file = f"/proc/{pid}/oom_score_adj"
        with open(file, "rb", buffering=0) as old:
            score = min(int(old.read()) + points, MAX_OOM_SCORE)
        with open(file, "wb", buffering=0) as new:
            new.write(str(score).encode())


def _make_preparation() -> Callable[[], None]:
    """What the child does before it becomes tritonserver: it dies with this process, if it is started in its
    main thread (the death of another thread would end it as well)."""
    parent = os.getpid()
    is_main = threading.current_thread() is threading.main_thread()

    def prepare() -> None:
        if is_main and not die_with(parent):
            os._exit(1)
        offer_to_oom_killer("self")

    return prepare


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class TritonServer:
    """A real tritonserver on a model repository, as a context manager: ready on entry, gone on exit.

    Ready means that every model is loaded or has failed to load; the others are served.

    `model_repository` is a folder of model folders, or the address of a store (STORES); ports of 0 mean any
    free one; `options` go to tritonserver as they are; `log` is a file for its output (None: stderr);
    `program` is the tritonserver (None: that of the installed wheel); `start_seconds` is how long it may
    take to get ready (None: START_SECONDS). Listens on 127.0.0.1 unless `options` say otherwise.
    """

    endpoint: Endpoint
    """How it is asked; from entry on, as are `ports`: HTTP, gRPC and metrics."""
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
        program: Path | None = None,
        start_seconds: float | None = None,
    ) -> None:
        self.model_repository = model_repository
        self._wanted = {"HTTP": http_port, "gRPC": grpc_port, "metrics": metrics_port}
        self._options = list(options)
        self._log = log
        self._program = program
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._output: ServerOutput | None = None
        self._was_ready = False
        self.exit_status: int | None = None

    def __enter__(self) -> TritonServer:
        if not is_remote(self.model_repository):
            # In these modes models may come later.
            later = find_option(self._options, "--model-control-mode") in ("explicit", "poll")
            check_repository(Path(self.model_repository), may_be_empty=later)
        self._belongings = Belongings()
        try:
            self._prepare(self._belongings.folder)
            self._start()
            self._wait_until_ready(_sleep)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._belongings.give_up()

    @property
    def http_url(self) -> str:
        """host:port for tritonclient.http."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def grpc_url(self) -> str:
        """host:port for tritonclient.grpc."""
        return f"{HOST}:{self.ports[1]}"

    @property
    def metrics_url(self) -> str:
        """The Prometheus page."""
        return f"http://{HOST}:{self.ports[2]}/metrics"

    @property
    def takes_models(self) -> bool:
        """Whether who may reach it can load and unload models."""
        return find_option(self._options, "--model-control-mode") == "explicit"

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The server's exit status, None while it runs."""
        return self._process.poll() if self._process is not None else None

    def is_ready(self) -> bool:
        """Whether the server answers, which it does once it has tried to load every model."""
        return self.endpoint.is_ready(ASK_SECONDS)

    def failed_models(self) -> dict[str, str]:
        """The models that did not load, and Triton's reason for each. ServerError where the server does not
        tell."""
        try:
            models = self.endpoint.list_models()
        except ServerError as error:
            raise ServerError(f"tritonserver does not say which models it serves ({error})") from error
        return {model.name: model.reason for model in models if model.state == "UNAVAILABLE"}

    def stop(self) -> None:
        """Stop the server in order, or else kill it; of its processes and shared memory nothing stays.
        `exit_status` tells how it ended."""
        self.exit_status = self._stop()
        self._belongings.clear_memory()

    def kill(self) -> None:
        """End a server that makes no progress, with all its processes; `poll` tells when it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def start_again(self, pause: Callable[[float], bool]) -> bool:
        """Start a server that has ended once more, on the same ports; False if `pause`, which lets seconds
        pass, says to give up before it is ready. ServerError as on entry."""
        self.stop()  # what the one that ended has left
        self._was_ready = False
        self._start()
        return self._wait_until_ready(pause)

    def _prepare(self, folder: Path) -> None:
        http, grpc, metrics = (choose_port(port, name) for name, port in self._wanted.items())
        self.ports = http, grpc, metrics
        self.endpoint = make_endpoint(self._options, self.ports[0], self.ports[1])
        installation = find_installation(self._program)
        interpreter = folder / "bin"
        interpreter.mkdir()
        self._environment = make_environment(link_interpreter(interpreter), installation.root)
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
            f"--backend-config=python,shm-region-prefix-name={self._belongings.prefix}",
            # A model that does not load must not take the others with it; `failed_models` says which.
            "--exit-on-error=false",
            "--strict-readiness=false",
            *self._options,
        ]

    def _start(self) -> None:
        # A session of its own: Ctrl-C reaches us alone, and we stop the server in order.
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(self._belongings.lock,),
            preexec_fn=_make_preparation(),
        )
        assert self._process.stdout is not None
        self._output = ServerOutput(self._process.stdout, self._log)

    def _wait_until_ready(self, pause: Callable[[float], bool]) -> bool:
        """tritonserver listens once it has tried to load every model. One whose start has failed listens as
        well, but is not live; one that does not let us ask is up."""
        assert self._output is not None
        seconds = START_SECONDS if self._start_seconds is None else self._start_seconds
        deadline = time.monotonic() + seconds
        end = math.inf
        while (live := self.endpoint.is_live()) is None:
            status = self.poll()
            if status is not None:
                raise self._failure(f"stopped with status {status} before it was ready")
            if self._output.is_ending:
                end = min(end, time.monotonic() + END_SECONDS)
            if time.monotonic() > end:
                raise self._failure("cannot serve, and hangs as it ends")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready after {seconds:g} s")
            if pause(POLL_SECONDS):
                return False
        if not live:
            raise self._failure("is up, but its start has failed")
        self._was_ready = True
        return True

    def _failure(self, what: str) -> ServerError:
        """The error that says `what`, with Triton's reason."""
        assert self._output is not None
        if self.poll() is not None:
            self._stop()  # until it has all been read
        text = f"tritonserver {what}: {self._output.reason or 'it does not say why'}"
        self._stop()
        return ServerError(
            text if self._log is None else f"{text}; see {self._log}", self._output.unseen_lines
        )

    def _stop(self) -> int | None:
        """SIGINT, and after a while SIGKILL to the whole process group: no server, stub or child stays."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            seconds = find_exit_seconds(self._options) + STOP_MARGIN_SECONDS
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds if self._was_ready else STOP_UNREADY_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        self._reap(process.pid)
        if self._output is not None:
            self._output.join(5)
        return status

    def _reap(self, group: int) -> None:
        """Stubs that have lost their server become children of the first process of a container, which may
        be this one; they have been killed."""
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-group, 0)
