"""Check of this machine's prerequisites for the embedded server, with a remedy for each that is
missing."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from popef._tools.child import run_python
from poplar_triton.errors import ServerError
from poplar_triton.limits import examine_limits, require_limits
from poplar_triton.serving.installation import (
    backend_file,
    find_stub,
    find_triton,
    make_environment,
)
from poplar_triton.serving.server_resources import SHARED_MEMORY

PACKAGES = ("numpy", "protobuf", "onnx", "onnxruntime", "tritonclient", "prometheus-client")
MINIMUM_GLIBC = (2, 35)
"""Minimum version of glibc. The wheel is built for manylinux_2_35: Ubuntu 22.04, Debian 12 and
newer."""
_ROOMS = Path(__file__).resolve().parents[1]
SDK_PACKAGES = ("popart", "poptorch", "popdist", "pva")
"""Packages that a real SDK has, too."""
TENSORFLOW = "tensorflow.python.ipu"
"""TensorFlow for the IPU, which a real SDK's TensorFlow contains."""
NUMPY_2 = "a tritonserver up to 24.10 of your own needs numpy<2 for other Python models"
"""Note about numpy 2 for servers that `poplar-triton serve` does not start."""
LDD_SECONDS = 5
"""Maximum time for ldd, a shell script: a shell tries for a minute to start a process at the limit
of processes."""
MIN_SHARED_MIB = 64
"""Minimum size of shared memory, which is docker's default for a container. Each instance of a
model takes 1 MiB and grows."""


IMPORT_SECONDS = 60
"""Maximum time for the import of a package: torch takes a few seconds."""
_IMPORT = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[2])
try:
    importlib.import_module(sys.argv[1])
except BaseException as error:
    sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))
"""
"""Imports a package on a path for imports, and ends with the reason if that fails."""


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """Result of one check. `remedy` is empty unless a server lacks something; `optional` says what
    is missing but not required."""

    subject: str
    found: str
    remedy: str = ""
    optional: str = ""

    @property
    def advice(self) -> str:
        """Return what to do, or "ok" if there is nothing to do."""
        return self.remedy or self.optional or "ok"


def examine() -> list[MachineFinding]:
    """Check everything that the embedded server needs, without starting it."""
    checks: tuple[Callable[[], MachineFinding], ...] = (
        _examine_system,
        _examine_server,
        _examine_libpython,
        _examine_shared_memory,
        _examine_backend,
    )
    return [
        *(check() for check in checks),
        *(MachineFinding(*check) for check in examine_limits()),
        *(_examine_package(name) for name in PACKAGES),
    ]


def examine_kernels() -> MachineFinding:
    """Report what computes half precision. A server does not need it: without it the same numbers
    take longer."""
    # Imported late: the supervisor calls `require` and must not load ONNX Runtime.
    from simipu.errors import LoadError
    from simipu.kernels import find_kernels

    try:
        kernels = find_kernels()
    except LoadError as error:
        return MachineFinding("kernels", "not checked", str(error))
    reason = f": {kernels.reason}" if kernels.reason else ""
    slow = "" if kernels.are_there else "optional: without kernels the same numbers take longer"
    return MachineFinding("kernels", f"{kernels.instructions}{reason}", optional=slow)


def examine_package(name: str) -> MachineFinding:
    """Report which file `import popart` runs, of which distribution, what collides with it, and why
    the import fails, if it does. A real SDK has these packages, too: its `enable` script puts them
    on PYTHONPATH, and pip installs its wheels. A server needs none of them."""
    files = _find_files(name)
    if not files:
        return MachineFinding(name, "not installed", optional="optional")
    owners = _find_distributions(name)
    imported, *others = files
    description = f"{imported} ({_name_owner(imported, owners)})"
    if others:
        description = f"{description}; it shadows {', '.join(map(str, others))}"
    if len(owners) <= 1:
        return MachineFinding(name, description, optional=_find_import_error(name))
    names = " ".join(sorted(owner.name for owner in owners))
    remedy = "two distributions have overwritten each other's files: pip uninstall"
    return MachineFinding(
        name, description, f"{remedy} {names}, then install the one that you need"
    )


def examine_tensorflow() -> MachineFinding:
    """Report which TensorFlow for the IPU is imported: this project's, which lies beside a stock
    TensorFlow, or a real SDK's, which is a TensorFlow of its own."""
    tensorflow = PathFinder.find_spec("tensorflow", sys.path)
    owners = _find_distributions("tensorflow_ipu")
    if tensorflow is None or not tensorflow.origin:
        missing = "optional: requires TensorFlow: pip install 'tensorflow-cpu>=2.21'"
        found = "installed without TensorFlow" if owners else "not installed"
        return MachineFinding(TENSORFLOW, found, optional=missing if owners else "optional")
    inside = Path(tensorflow.origin).resolve().parent / "python" / "ipu" / "__init__.py"
    if inside.is_file() and "tensorflow_ipu" not in inside.read_text(encoding="utf-8"):
        return _report_graphcores(inside, owners)
    # Python's own finders would search the path for a package "ipu".
    finders = [finder for finder in sys.meta_path if "__editable__" in repr(finder)]
    specs = [finder.find_spec(TENSORFLOW, None) for finder in finders]
    editable = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
    files = [inside] if inside.is_file() else editable
    if not files:
        return MachineFinding(TENSORFLOW, "not installed", optional="optional")
    owner = f"{owners[0].name} {owners[0].version}" if owners else "of no distribution"
    return MachineFinding(
        TENSORFLOW, f"{files[0]} ({owner})", optional=_find_import_error(TENSORFLOW)
    )


def _report_graphcores(file: Path, owners: list[importlib.metadata.Distribution]) -> MachineFinding:
    """Report a real SDK's TensorFlow, which ours must not be beside."""
    versions = [owner.version for owner in _find_distributions("tensorflow")]
    shown = next((version for version in versions if "+gc" in version), *versions[:1] or ["?"])
    found = f"{file} (Graphcore's tensorflow {shown})"
    if not owners:
        return MachineFinding(TENSORFLOW, found)
    return MachineFinding(
        TENSORFLOW,
        f"{found}; it shadows {owners[0].name} {owners[0].version}",
        f"pip uninstall {owners[0].name}, or install it in another environment",
    )


def _find_import_error(name: str) -> str:
    """Return why a package cannot be imported, or "". It is imported in a child process: torch
    alone takes 200 MiB."""
    path = json.dumps(sys.path)
    try:
        ended = run_python(
            _IMPORT, name, path, seconds=IMPORT_SECONDS, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return f"not checked: its import takes longer than {IMPORT_SECONDS} s"
    if not ended.returncode:
        return ""
    lines = ended.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"status {ended.returncode}"
    return f"optional: its import fails: {reason}"


def _find_files(name: str) -> list[Path]:
    """Return the files that can be imported as a package: first the one that Python imports, then
    those that it shadows, and this project's."""
    own = _ROOMS / name / "__init__.py"
    specs = [PathFinder.find_spec(name, [folder]) for folder in sys.path]
    # pip's editable installations have finders of their own, which come after the path.
    specs += [finder.find_spec(name, None) for finder in sys.meta_path]
    files = [Path(spec.origin).resolve() for spec in specs if spec is not None and spec.origin]
    return list(dict.fromkeys([*files, *([own] if own.is_file() else [])]))


def _find_distributions(name: str) -> list[importlib.metadata.Distribution]:
    """Return the installed distributions that have a package."""
    names = _map_packages(tuple(sys.path)).get(name, ())
    return [importlib.metadata.distribution(distribution) for distribution in dict.fromkeys(names)]


@cache
def _map_packages(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the names of distributions by package; this reads what every one has installed."""
    return importlib.metadata.packages_distributions()


def _name_owner(file: Path, owners: list[importlib.metadata.Distribution]) -> str:
    """Return the distribution, with its version, that has installed a file."""
    for owner in owners:
        origin = json.loads(owner.read_text("direct_url.json") or "{}").get("url", "")
        folders = (
            Path(str(owner.locate_file("."))).resolve(),
            Path(origin.removeprefix("file://")),
        )
        if file.parent.parent == folders[0] or folders[1] in file.parents:
            return f"{owner.name} {owner.version}"
    return "of no distribution"


def require() -> None:
    """Raise ServerError with every remedy, if anything is missing."""
    require_limits()  # first: the other checks start a process
    faults = [finding for finding in examine() if finding.remedy]
    if faults:
        raise ServerError(
            "; ".join(f"{fault.subject}: {fault.found}: {fault.remedy}" for fault in faults)
        )


def _examine_system() -> MachineFinding:
    library, version = platform.libc_ver()
    subject = "system"
    description = (
        f"{platform.system()} {platform.machine()}, {library or 'libc'} {version or 'unknown'}"
    )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return MachineFinding(
            subject, description, "the embedded Triton server requires Linux on x86_64"
        )
    if library == "glibc" and tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_GLIBC:
        remedy = "requires glibc 2.35 or newer: Ubuntu 22.04, Debian 12 or later"
        return MachineFinding(subject, description, f"the embedded Triton server {remedy}")
    return MachineFinding(subject, description)


def _examine_server() -> MachineFinding:
    try:
        triton = find_triton()
        find_stub(triton)
    except ServerError as error:
        return MachineFinding("tritonserver", "missing", str(error))
    return MachineFinding("tritonserver", str(triton / "bin" / "tritonserver"))


def _examine_libpython() -> MachineFinding:
    """Check for libpython, which the stub links (its 3.13 build brings its own). Without it the
    server would hang at the first load."""
    subject = "libpython"
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    name = f"lib{python}.so.1.0"
    remedy = (
        f"on Debian or Ubuntu `apt-get install lib{python}`; a Python built by hand or by pyenv "
        "must be configured with --enable-shared"
    )
    try:
        triton = find_triton()
        stub = find_stub(triton)
    except ServerError:
        return MachineFinding(subject, "not checked: no server")
    environment = make_environment(Path(sys.executable).parent, triton)
    try:
        linked = subprocess.run(
            ["ldd", str(stub)],  # noqa: S607  the system's own
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LDD_SECONDS,
        ).stdout
    except subprocess.TimeoutExpired:
        return MachineFinding(subject, f"not checked: ldd took longer than {LDD_SECONDS} s")
    except FileNotFoundError:
        library_path = ctypes.util.find_library(python)
        return MachineFinding(
            subject, library_path or f"{name} not found", "" if library_path else remedy
        )
    missing = [line.split()[0] for line in linked.splitlines() if "not found" in line]
    if missing:
        return MachineFinding(subject, f"{', '.join(missing)} not found", remedy)
    return MachineFinding(subject, "all libraries of the stub were found")


def _examine_shared_memory() -> MachineFinding:
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        remedy = "Triton's Python backends require it: mount a tmpfs there"
        return MachineFinding(str(SHARED_MEMORY), str(error), remedy)
    free = status.f_bavail * status.f_frsize // 2**20
    remedy = f"enlarge it to at least {MIN_SHARED_MIB} MiB (docker: --shm-size=1g)"
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        remedy = "Triton's Python backends require write access: mount a tmpfs of mode 1777 there"
        return MachineFinding(str(SHARED_MEMORY), "not writable", remedy)
    is_enough = free >= MIN_SHARED_MIB
    return MachineFinding(str(SHARED_MEMORY), f"{free} MiB free", "" if is_enough else remedy)


def _examine_backend() -> MachineFinding:
    try:
        return MachineFinding("backend", str(backend_file()))
    except ServerError as error:
        return MachineFinding("backend", "missing", str(error))


def _examine_package(name: str) -> MachineFinding:
    try:
        version = importlib.metadata.version(name)
        old = name != "numpy" or version.startswith("1.")
        return MachineFinding(name, version if old else f"{version} ({NUMPY_2})")
    except importlib.metadata.PackageNotFoundError:
        return MachineFinding(name, "missing", f"pip install {name}")
