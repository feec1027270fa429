"""Library of the operators: compiled against the installed TensorFlow, and found again by a digest
of its sources."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from simipu.kernels.build import CompilerError, find_compiler, run

from poplar_serving.errors import BuildError, LibraryError

SOURCES = Path(__file__).parent / "operators"
UNITS = ("frames.cc", "child.cc", "engine.cc", "application_runtime.cc")
"""Source files that are compiled; only the last one uses TensorFlow."""
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread")
LIBRARY_VARIABLE = "POPLAR_SERVING_LIBRARY"
"""Environment variable with the library to load, if it is not the one of this Python."""
_COMMAND = "python -m poplar_serving build"


def find_cxx() -> list[str]:
    """Return the command in CXX, or the system's C++ compiler. Raises CompilerError if there is
    none."""
    return find_compiler("C++", "CXX", ("c++", "g++", "clang++"))


def import_tensorflow() -> Any:
    """Return the tensorflow module. Raises LibraryError with the command that installs it."""
    try:
        import tensorflow
    except ImportError as error:
        raise LibraryError(
            f"the package tensorflow cannot be imported ({error}): pip install "
            "'poplar-triton[tensorflow]'"
        ) from error
    return tensorflow


def find_library() -> Path:
    """Return the path at which the library is, or is to be built.

    The path is POPLAR_SERVING_LIBRARY, or a place in this Python's environment for these sources
    and this TensorFlow.
    """
    path = os.environ.get(LIBRARY_VARIABLE)
    if path:
        return Path(path)
    return Path(sys.prefix) / "lib" / "poplar_serving" / f"application_runtime-{_digest()}.so"


def build(
    output: str | PathLike[str] | None = None,
    python: str | None = None,
    extra: tuple[str, ...] = (),
) -> Path:
    """Compile the operators against the installed TensorFlow.

    Args:
        output: the file to write; the default is where `load` looks.
        python: the interpreter that runs its engines unless POPLAR_SERVING_PYTHON names another;
            the default is this one.
        extra: additional options of the compiler.

    Returns:
        The path of the library.

    Raises:
        BuildError: if there is no compiler, or it fails.
    """
    try:
        tensorflow = import_tensorflow()
        place = Path(output) if output is not None else find_library()
        flags = [_as_system(flag) for flag in tensorflow.sysconfig.get_compile_flags()]
        interpreter = f'-DPOPLAR_SERVING_PYTHON="{python or sys.executable}"'
        place.parent.mkdir(parents=True, exist_ok=True)
        # Rename the complete file: a server may have the old one mapped.
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            library = Path(folder) / place.name
            sources = [str(SOURCES / unit) for unit in UNITS]
            linked = tensorflow.sysconfig.get_link_flags()
            options = [*FLAGS, *flags, *extra, interpreter, "-shared"]
            run([*find_cxx(), *options, *sources, *linked, "-o", str(library)])
            library.replace(place)
    except CompilerError as error:
        raise BuildError(f"the operators cannot be compiled: {error}") from error
    except LibraryError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(
            f"{error.filename}: {error.strerror}; choose another file with --output and set the "
            f"environment variable {LIBRARY_VARIABLE} to it"
        ) from error
    return place


@cache
def load_library() -> Any:
    """Load the operators into TensorFlow.

    Returns:
        The module of their Python functions.

    Raises:
        LibraryError: if they are not built, or built for another TensorFlow.
    """
    tensorflow = import_tensorflow()
    library = find_library()
    if not library.is_file():
        raise LibraryError(
            f"the operators ApplicationRuntime and ApplicationCall: expected {library}, which does "
            f"not exist: build them for TensorFlow {tensorflow.__version__} with `{_COMMAND}`"
        )
    try:
        return tensorflow.load_op_library(str(library))
    except tensorflow.errors.OpError as error:
        raise LibraryError(
            f"{library}: TensorFlow {tensorflow.__version__} cannot load it: {error.message}; "
            f"build it again with `{_COMMAND}`"
        ) from error


def load(export_dir: str | PathLike[str], tags: Any = None, options: Any = None) -> Any:
    """Load a SavedModel that `export` has made, after loading the operators that it needs.

    Args:
        export_dir: the folder of the SavedModel.
        tags: as `tf.saved_model.load` takes them.
        options: as `tf.saved_model.load` takes them.

    Returns:
        What `tf.saved_model.load` returns.

    Raises:
        LibraryError: if the operators are not built.
    """
    load_library()
    return import_tensorflow().saved_model.load(os.fspath(export_dir), tags, options)


def _digest() -> str:
    """Return a digest of the sources and of the TensorFlow that they are compiled against."""
    made_of = hashlib.sha256(import_tensorflow().__version__.encode())
    for source in sorted(SOURCES.iterdir()):
        made_of.update(source.read_bytes())
    return f"{import_tensorflow().__version__}-{made_of.hexdigest()[:12]}"


def _as_system(flag: str) -> str:
    """Return a compiler flag that treats TensorFlow's headers as system headers, so that they cause
    no warnings."""
    return f"-isystem{flag[2:]}" if flag.startswith("-I") else flag
