"""The Triton to start: where its program and its backends are, and what its stubs need to run.
The backend can also be installed into an existing Triton.

The backend directory consists of links in a temporary folder, unless the server's own has the
poplar backend. The stub and utilities beside model.py take priority over those of the generic
python backend.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from triton_poplar import working_folder

from poplar_triton.errors import ServerError
from poplar_triton.serving.options import make_variables_absolute

LIBRARY, UTILITIES = "libtriton_python.so", "triton_python_backend_utils.py"
STUB = "triton_python_backend_stub"
PROGRAM = Path("bin", "tritonserver")
_PYTHON_MODELS = Path(working_folder.__file__).with_name("python_models.py")
"""Module that only stubs import: it needs numpy."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Program and the folder of its Triton, which holds `backends` and `caches`. The folder is None
    if a user's program has none; then `--backend-directory` must say where the backends are."""

    program: Path
    root: Path | None

    @property
    def has_poplar(self) -> bool:
        """Whether `poplar-triton install` has put the backend there."""
        return self.root is not None and (self.root / "backends" / "poplar" / "model.py").is_file()

    def make_options(self, folder: Path) -> list[str]:
        """Return the tritonserver options for the folders of backends and caches. Missing folders
        are made in `folder`."""
        if self.root is None:
            return []
        backends = self.root / "backends" if self.has_poplar else link_backends(folder, self.root)
        caches = self.root / "caches"
        return [
            f"--backend-directory={backends}",
            *([f"--cache-directory={caches}"] if caches.is_dir() else []),
        ]


def find_installation(program: Path | None) -> Installation:
    """Return the installation of the wheel for None, else that of `program`. Raises ServerError
    that says what is missing.

    A program without backends beside it (a script that calls tritonserver) gets those of the wheel,
    if that is installed.
    """
    if program is None:
        root = find_triton()
        return Installation(root / PROGRAM, root)
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise ServerError(f"--server {program}: expected a program to run, found none")
    program = program.absolute()
    for path in (program, program.resolve()):
        root = path.parent.parent
        if (root / "backends" / "python" / LIBRARY).is_file():
            return Installation(program, root)
    return Installation(program, _find_wheel())


def _find_wheel() -> Path | None:
    try:
        return find_triton()
    except ServerError:
        return None


def find_triton() -> Path:
    """Return the `tritonserver` folder of the installed wheel. Raises ServerError that says how to
    get it."""
    spec = util.find_spec("pytriton")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location, "tritonserver")
        if (folder / PROGRAM).is_file():
            return folder
    raise ServerError("no embedded Triton server: `pip install --no-deps nvidia-pytriton==0.7.0`")


def find_stub(triton: Path) -> Path:
    """Return the stub for this interpreter's version in the wheel, or else the one beside the
    python backend. Raises ServerError that lists the versions there are."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / STUB
    if stub.is_file():
        return stub
    only = triton / "backends" / "python" / STUB
    if only.is_file():
        return only
    versions = sorted(folder.name for folder in stub.parent.parent.glob("3.*"))
    raise ServerError(
        f"the Triton server in {triton} has no stub for Python {version}; it has "
        f"{', '.join(versions) or 'none'}"
    )


def backend_file() -> Path:
    """Return the backend's model.py, beside the rooms both installed and in a source tree. Raises
    ServerError if it is missing."""
    file = Path(__file__).resolve().parents[2] / "poplar" / "model.py"
    if not file.is_file():
        raise ServerError(f"the backend's model.py is missing at {file}; reinstall this project")
    return file


def make_environment(interpreter_folder: Path, triton: Path | None) -> dict[str, str]:
    """Return the server's environment.

    The stub takes the first python3 on PATH and that interpreter's libpython. The copied library of
    the python backend no longer finds the wheel's libraries by itself.
    """
    environment = make_variables_absolute(os.environ)
    with suppress(FileNotFoundError):  # it was removed
        environment[working_folder.VARIABLE] = os.getcwd()
    environment["PATH"] = f"{interpreter_folder}{os.pathsep}{environment.get('PATH', '')}"
    paths = [sysconfig.get_config_var("LIBDIR"), environment.get("LD_LIBRARY_PATH", "")]
    if triton is not None and (libraries := triton.parent.parent / "nvidia_pytriton.libs").is_dir():
        paths.append(str(libraries))
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def link_interpreter(folder: Path) -> Path:
    """Return a folder whose python3 is this interpreter: the interpreter's own folder if it has
    one, else `folder` with a link."""
    own = Path(sys.executable).parent
    if (own / "python3").exists() and os.path.samefile(own / "python3", sys.executable):
        return own
    (folder / "python3").symlink_to(sys.executable)
    return folder


def link_backends(folder: Path, triton: Path) -> Path:
    """Link `poplar` and the generic `python`, both with the stub of this interpreter, beside the
    other backends of `triton`."""
    backends = folder / "backends"
    own = triton / "backends"
    stub = find_stub(triton)
    for name in ("python", "poplar"):
        (backends / name).mkdir(parents=True)
        (backends / name / STUB).symlink_to(stub)
    (backends / "poplar" / UTILITIES).symlink_to(own / "python" / UTILITIES)
    (backends / "python" / UTILITIES).write_text(_write_utilities(own / "python" / UTILITIES))
    (backends / "poplar" / "model.py").symlink_to(backend_file())
    # Triton refuses a link here: "backend library name escapes backend directory".
    shutil.copyfile(own / "python" / LIBRARY, backends / "python" / LIBRARY)
    for other in own.iterdir():
        if other.is_dir() and other.name not in ("python", "poplar"):
            (backends / other.name).symlink_to(other)
    return backends


def _write_utilities(original: Path) -> str:
    """Return the text of the utilities that Python models import: Triton's, and then what this
    project does for such models. They may run in an environment without this project."""
    return f'''"""Triton's utilities for Python models, completed by poplar-triton serve."""
import importlib.util as _util


def _load(file):
    spec = _util.spec_from_file_location("poplar_triton_models", file)
    module = _util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


exec(compile(open({str(original)!r}, "rb").read(), {str(original)!r}, "exec"))
_load({working_folder.__file__!r}).return_to_users_folder()
import c_python_backend_utils as _native

_load({str(_PYTHON_MODELS)!r}).prepare(_native)
'''


def install(backends: Path) -> Path:
    """Copy model.py to `backends`/poplar, replacing an earlier one, and return the file.

    The server's own Python runs it, so this project must be installed there. Raises ServerError
    unless `backends` holds the generic python backend that Python-based backends run on.
    """
    if not (backends / "python" / LIBRARY).is_file():
        raise ServerError(
            f"{backends}: expected the backend directory of a Triton server with the Python "
            f"backend, found no python/{LIBRARY} in it; `find / -name {LIBRARY}` shows where one "
            "is: give the folder of its folder"
        )
    file = backends / "poplar" / "model.py"
    file.parent.mkdir(exist_ok=True)
    shutil.copyfile(backend_file(), file)
    return file
