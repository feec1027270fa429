"""Starts the tritonserver that the PyPI wheel nvidia-pytriton carries, on our backend, and stops it without a trace.

The server hangs silently when the stub process of a Python backend cannot start, so everything that the stub needs is
checked first (`triton_poplar.doctor`). Layout and environment: the backend directory is made of links in a temporary folder;
stub and utilities beside model.py take priority over those of the generic python backend.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from types import TracebackType

from triton_poplar.errors import ServerError

HOST = "127.0.0.1"
LIBRARY, UTILITIES = "libtriton_python.so", "triton_python_backend_utils.py"
START_SECONDS = 300
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
        raise ServerError(f"the embedded Triton server has no stub for Python {version}; it has {', '.join(known)}")
    return stub


def backend_file() -> Path:
    """The backend's model.py: inside the installed package, or beside it in a source tree. ServerError if it is gone."""
    package = Path(__file__).resolve().parent
    candidates = (package / "backend" / "model.py", package.parent / "poplar" / "model.py")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ServerError(f"the backend's model.py is not at {candidates[0]}; install this project again")


def make_environment(interpreter_folder: Path, triton: Path) -> dict[str, str]:
    """The server's environment: the stub takes the first python3 on PATH and that interpreter's libpython; the copied
    library of the python backend no longer finds the wheel's libraries by itself."""
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
        except OSError as error:
            raise ServerError(f"{what} port {port} is not free ({error.strerror}); choose another one") from error
        return int(probe.getsockname()[1])


class TritonServer:
    """A real tritonserver on a model repository, as a context manager: ready on entry, gone on exit.

    Ready means that every model is loaded or has failed to load; the others are served.

    `model_repository` is a folder of model folders; ports of 0 mean any free one; `options` go to tritonserver as they are;
    `log` is a file for its output (None: inherited). Listens on 127.0.0.1 unless `options` say otherwise.
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
        self._was_ready = False

    def __enter__(self) -> TritonServer:
        if not self.model_repository.is_dir():
            raise ServerError(f"model repository {self.model_repository}: no such folder")
        self._folder = tempfile.TemporaryDirectory(prefix="poplar-triton-")
        try:
            self._start(Path(self._folder.name))
            self._wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.exit_status = self._stop()
        for segment in Path("/dev/shm").glob(f"{self._prefix}*"):
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
            return bool(answer.status == 200)
        return False

    def failed_models(self) -> dict[str, str]:
        """The models that did not load, and Triton's reason for each."""
        request = urllib.request.Request(f"http://{self.http_url}/v2/repository/index", b"{}")
        with urllib.request.urlopen(request, timeout=5) as answer:
            index = json.load(answer)
        return {model["name"]: model.get("reason", "") for model in index if model.get("state") == "UNAVAILABLE"}

    def _start(self, folder: Path) -> None:
        triton = find_triton()
        self._prefix = f"poplar_{os.getpid()}_{folder.name[-8:]}_"
        names = ("HTTP", "gRPC", "metrics")
        self.ports = [choose_port(port, name) for port, name in zip(self._wanted, names, strict=True)]
        interpreter = folder / "bin"
        interpreter.mkdir()
        command = [
            str(triton / "bin" / "tritonserver"),
            f"--model-repository={self.model_repository.resolve()}",
            f"--backend-directory={self._link_backends(folder, triton)}",
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
        output = self._log.open("wb") if self._log is not None else None
        # A session of its own: Ctrl-C reaches us alone, and we stop the server in order.
        self._process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT if output else None, start_new_session=True
        )
        if output is not None:
            output.close()

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
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            status = self.poll()
            if status is not None:
                raise ServerError(f"tritonserver stopped with status {status} before it was ready{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"tritonserver was not ready after {START_SECONDS} s{self._log_tail()}")
            time.sleep(0.1)
        self._was_ready = True

    def _log_tail(self) -> str:
        if self._log is None or not self._log.exists():
            return "; see its output above"
        lines = self._log.read_text(errors="replace").splitlines()[-20:]
        return f"; the end of {self._log}:\n" + "\n".join(lines)

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
        return process.wait()
