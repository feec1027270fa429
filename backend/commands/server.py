"""Starts the tritonserver that the PyPI wheel nvidia-pytriton carries, on our backend, and stops it without a
trace.

The server hangs silently when the stub process of a Python backend cannot start, so everything that the stub
needs is checked first (`commands.doctor`). Layout and environment: the backend directory is made of
links in a temporary folder; stub and utilities beside model.py take priority over those of the generic python
backend.
"""

from __future__ import annotations

import http
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from types import TracebackType

from commands.errors import ServerError
from commands.server_output import ServerOutput

HOST = "127.0.0.1"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  where the segments of Triton's Python backends lie, whatever we think of it
LIBRARY, UTILITIES = "libtriton_python.so", "triton_python_backend_utils.py"
MODEL_FILE = "config.pbtxt"
START_SECONDS = 300
END_SECONDS = 5
"""For a server that has said that it cannot serve, which may hang in its exit."""
STOP_SECONDS = 45
"""More than Triton's own --exit-timeout-secs of 30."""
STOP_UNREADY_SECONDS = 10
"""A server that is told to stop while it loads models may never notice."""


def find_triton() -> Path:
    """The `tritonserver` folder of the installed wheel; ServerError says how to get it."""
    spec = util.find_spec("pytriton")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location, "tritonserver")
        if (folder / "bin" / "tritonserver").is_file():
            return folder
    raise ServerError(
        "no embedded Triton server: install the extra [server], or on Python 3.13 and later "
        "`pip install --no-deps nvidia-pytriton==0.7.0`"
    )


def find_stub(triton: Path) -> Path:
    """The stub of this interpreter's version; ServerError lists the versions there are."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        known = sorted(folder.name for folder in stub.parent.parent.glob("3.*"))
        raise ServerError(
            f"the embedded Triton server has no stub for Python {version}; it has {', '.join(known)}"
        )
    return stub


def backend_file() -> Path:
    """The backend's model.py, beside the rooms both installed and in a source tree; ServerError if it is
    gone."""
    file = Path(__file__).resolve().parents[1] / "poplar" / "model.py"
    if not file.is_file():
        raise ServerError(f"the backend's model.py is not at {file}; install this project again")
    return file


def make_environment(interpreter_folder: Path, triton: Path) -> dict[str, str]:
    """The server's environment: the stub takes the first python3 on PATH and that interpreter's libpython;
    the copied library of the python backend no longer finds the wheel's libraries by itself."""
    environment = dict(os.environ)
    environment["PATH"] = f"{interpreter_folder}{os.pathsep}{environment.get('PATH', '')}"
    library = sysconfig.get_config_var("LIBDIR")
    wheel_libraries = triton.parent.parent / "nvidia_pytriton.libs"
    paths = [library, environment.get("LD_LIBRARY_PATH", ""), str(wheel_libraries)]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def link_interpreter(folder: Path) -> Path:
    """A folder whose python3 is this interpreter: its own where it has one, else `folder` with a link."""
    own = Path(sys.executable).parent
    if (own / "python3").exists() and os.path.samefile(own / "python3", sys.executable):
        return own
    (folder / "python3").symlink_to(sys.executable)
    return folder


def choose_port(port: int, what: str) -> int:
    """`port` if it is free, or any free one for 0; ServerError names what wanted a busy one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OverflowError as error:
            raise ServerError(f"{what} port: expected 0 to 65535, found {port}") from error
        except OSError as error:
            raise ServerError(
                f"{what} port {port} is not free ({error.strerror}); choose another one"
            ) from error
        return int(probe.getsockname()[1])


def check_repository(repository: Path, *, may_be_empty: bool = False) -> None:
    """Raises ServerError unless `repository` is a folder that has model folders."""
    if not repository.is_dir():
        raise ServerError(f"model repository {repository}: no such folder")
    folders = [entry for entry in repository.iterdir() if entry.is_dir()]
    if (repository / MODEL_FILE).is_file() or any(folder.name.isdecimal() for folder in folders):
        raise ServerError(
            f"{repository} looks like a model folder; serve its parent, {repository.resolve().parent}"
        )
    if not may_be_empty and not any(_is_model_folder(folder) for folder in folders):
        raise ServerError(
            f"no models in {repository}: expected folders with a {MODEL_FILE} or a version folder such as "
            "1, found none; `poprt --triton_model_dir` writes one"
        )


def _is_model_folder(folder: Path) -> bool:
    return (folder / MODEL_FILE).is_file() or any(
        entry.name.isdecimal() and entry.is_dir() for entry in folder.iterdir()
    )


class TritonServer:
    """A real tritonserver on a model repository, as a context manager: ready on entry, gone on exit.

    Ready means that every model is loaded or has failed to load; the others are served.

    `model_repository` is a folder of model folders; ports of 0 mean any free one; `options` go to
    tritonserver as they are; `log` is a file for its output (None: stderr). Listens on 127.0.0.1 unless
    `options` say otherwise.
    """

    def __init__(
        self,
        model_repository: Path,
        *,
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        options: Sequence[str] = (),
        log: Path | None = None,
    ) -> None:
        self.model_repository = model_repository
        self._wanted = (http_port, grpc_port, metrics_port)
        self._options = list(options)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._output: ServerOutput | None = None
        self._was_ready = False

    def __enter__(self) -> TritonServer:
        # In these modes models may come later.
        later = self._find_option("--model-control-mode") in ("explicit", "poll")
        check_repository(self.model_repository, may_be_empty=later)
        self._folder = tempfile.TemporaryDirectory(prefix="poplar-triton-")
        try:
            self._start(Path(self._folder.name))
            self._wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.exit_status = self._stop()
        for segment in SHARED_MEMORY.glob(f"{self._prefix}*"):
            segment.unlink(missing_ok=True)
        self._folder.cleanup()

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
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The server's exit status, None while it runs."""
        return self._process.poll() if self._process is not None else None

    def is_ready(self) -> bool:
        """Whether the server answers, which it does once it has tried to load every model."""
        url = f"http://{self.http_url}/v2/health/ready"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == http.HTTPStatus.OK)
        return False

    def failed_models(self) -> dict[str, str]:
        """The models that did not load, and Triton's reason for each. ServerError where the server does not
        tell."""
        request = urllib.request.Request(f"http://{self.http_url}/v2/repository/index", b"{}")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310  of our own server
                index = json.load(answer)
        except (OSError, ValueError) as error:
            raise ServerError(f"tritonserver does not say which models it serves ({error})") from error
        return {
            model["name"]: model.get("reason", "") for model in index if model.get("state") == "UNAVAILABLE"
        }

    def _find_option(self, name: str) -> str | None:
        """The last value that `options` have for a name, in both spellings."""
        for place in reversed(range(len(self._options))):
            option, separator, value = self._options[place].partition("=")
            if option == name:
                return value if separator else next(iter(self._options[place + 1 :]), "")
        return None

    def _start(self, folder: Path) -> None:
        self._prefix = f"poplar_{os.getpid()}_{folder.name[-8:]}_"
        triton = find_triton()
        names = ("HTTP", "gRPC", "metrics")
        self.ports = [choose_port(port, name) for port, name in zip(self._wanted, names, strict=True)]
        interpreter = folder / "bin"
        interpreter.mkdir()
        command = [
            str(triton / "bin" / "tritonserver"),
            f"--model-repository={self.model_repository.resolve()}",
            f"--backend-directory={self._link_backends(folder, triton)}",
            f"--cache-directory={triton / 'caches'}",
            f"--http-port={self.ports[0]}",
            f"--grpc-port={self.ports[1]}",
            f"--metrics-port={self.ports[2]}",
            f"--http-address={HOST}",
            f"--grpc-address={HOST}",
            f"--metrics-address={HOST}",
            f"--backend-config=python,shm-region-prefix-name={self._prefix}",
            # A model that does not load must not take the others with it; `failed_models` says which.
            "--exit-on-error=false",
            "--strict-readiness=false",
            *self._options,
        ]
        environment = make_environment(link_interpreter(interpreter), triton)
        # A session of its own: Ctrl-C reaches us alone, and we stop the server in order.
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self._process.stdout is not None
        self._output = ServerOutput(self._process.stdout, self._log)

    def _link_backends(self, folder: Path, triton: Path) -> Path:
        """`poplar` and the generic `python`, both with the stub of this interpreter."""
        backends = folder / "backends"
        wheel = triton / "backends" / "python"
        stub = find_stub(triton)
        for name in ("python", "poplar"):
            (backends / name).mkdir(parents=True)
            (backends / name / stub.name).symlink_to(stub)
            (backends / name / UTILITIES).symlink_to(wheel / UTILITIES)
        (backends / "poplar" / "model.py").symlink_to(backend_file())
        # Triton refuses a link here: "backend library name escapes backend directory".
        shutil.copyfile(wheel / LIBRARY, backends / "python" / LIBRARY)
        return backends

    def _wait_until_ready(self) -> None:
        """tritonserver listens once it has tried to load every model. One whose start has failed listens as
        well, but is not live; one that does not let us ask is up."""
        assert self._output is not None
        deadline = time.monotonic() + START_SECONDS
        end = math.inf
        while (live := self._ask_health()) is None:
            status = self.poll()
            if status is not None:
                raise self._failure(f"stopped with status {status} before it was ready")
            if self._output.is_ending:
                end = min(end, time.monotonic() + END_SECONDS)
            if time.monotonic() > end:
                raise self._failure("cannot serve, and hangs as it ends")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready after {START_SECONDS} s")
            time.sleep(0.1)
        if not live:
            raise self._failure("is up, but its start has failed")
        self._was_ready = True

    def _ask_health(self) -> bool | None:
        """Whether the server is live; None while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://{self.http_url}/v2/health/live", timeout=5):
                return True
        except urllib.error.HTTPError as error:
            with error:
                return error.code == http.HTTPStatus.FORBIDDEN  # --http-restricted-api=health:...
        except OSError:
            return self._is_grpc_alone_up() or None

    def _is_grpc_alone_up(self) -> bool:
        if (self._find_option("--allow-http") or "true").lower() not in ("false", "0"):
            return False
        with suppress(OSError), socket.create_connection((HOST, self.ports[1]), timeout=5):
            return True
        return False

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
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS if self._was_ready else STOP_UNREADY_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        if self._output is not None:
            self._output.join(5)
        return status
