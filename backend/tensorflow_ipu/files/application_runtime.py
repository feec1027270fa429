"""Operators of the embedded runtime, which run an executable's PopEF file in a child process.

The operators themselves are those of `poplar_serving`. Values of variables that are not in the file
are added here: they are joined with it into a temporary file when the engine starts.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import popef
from popef._tools.arrays import Array
from tensorflow_ipu.files.executable_message import ExecutableFileError, decode_message
from tensorflow_ipu.files.popef_files import write_tensor

_log = logging.getLogger("tensorflow_ipu")
DEFAULT_TIMEOUT_US = 5000


@cache
def load_operators() -> Any:
    """Return the module of the operators; compile them if that was never done here.

    Raises:
        LibraryError: If the library cannot be loaded.
        BuildError: If there is no compiler, or it fails.
    """
    from poplar_serving import build, load_library
    from poplar_serving.library import LIBRARY_VARIABLE, find_library

    if not os.environ.get(LIBRARY_VARIABLE) and not find_library().is_file():
        _log.warning("Compiling the operators of the embedded runtime, once for this TensorFlow")
        build()
    return load_library()


def application_runtime(
    inputs: Sequence[Any],
    filename: Any,
    engine_name: str,
    timeout_us: int = DEFAULT_TIMEOUT_US,
    name: str | None = None,
) -> Any:
    """Return an operation that starts an engine.

    Args:
        inputs: Values of the arguments and variables that the file does not hold, in the order of
            the parameters of the computation. The engine has those of its start.
        filename: Path of the file, as text or a string tensor.
        engine_name: Name of the engine. Operations with the same name, file and inputs share one.
        timeout_us: How long a pipelined model waits for the next batch, in microseconds.
        name: Name of the operation.

    Returns:
        The anchor, an int32 tensor that `application_call` takes.
    """
    file = tf.convert_to_tensor(filename, dtype=tf.string)
    if len(inputs):
        join = _JoinedFile(engine_name)
        file = tf.numpy_function(join, [file, *map(tf.convert_to_tensor, inputs)], tf.string)
        file = tf.ensure_shape(file, [])
    return load_operators().application_runtime(
        inputs=[], filename=file, engine_name=engine_name, timeout_us=timeout_us, name=name
    )


def application_call(
    infeeds: Sequence[Any],
    anchor: Any,
    outfeed_types: Sequence[Any],
    engine_name: str,
    name: str | None = None,
) -> list[Any]:
    """Return the results of one batch.

    Args:
        infeeds: A tensor for each tensor of the infeeds.
        anchor: What `application_runtime` returned.
        outfeed_types: Type of each tensor of the outfeeds.
        engine_name: Name of the engine.
        name: Name of the operation.

    Returns:
        A tensor for each tensor of the outfeeds.
    """
    results = load_operators().application_call(
        infeeds=list(infeeds),
        anchor=anchor,
        outfeed_types=list(outfeed_types),
        engine_name=engine_name,
        name=name,
    )
    return list(results)


class _JoinedFile:
    """Function that joins a file with values, once for each operation."""

    def __init__(self, engine_name: str) -> None:
        self._engine_name = engine_name
        self._path: bytes | None = None
        self._lock = threading.Lock()

    def __call__(self, filename: Any, *values: Any) -> bytes:
        with self._lock:
            if self._path is None:
                path = os.fsdecode(filename.item() if hasattr(filename, "item") else filename)
                self._path = os.fsencode(join_values(path, self._engine_name, values))
            return self._path


def join_values(path: str, engine_name: str, values: Sequence[Array]) -> Path:
    """Return a file that holds an executable and values for its arguments.

    Args:
        path: Path of the executable's file.
        engine_name: Name of the engine.
        values: Values of the arguments, in the order of the parameters of the computation.

    Returns:
        The path of a temporary file; the same one for the same file, engine and values.

    Raises:
        ExecutableFileError: If the file is none of TensorFlow for the IPU.
        ValueError: If the number of values is not that of the arguments.
    """
    state = os.stat(path)
    digest = hashlib.sha256(repr((path, engine_name, state.st_mtime_ns, state.st_size)).encode())
    for value in values:
        array = np.ascontiguousarray(value)
        digest.update(repr((array.dtype.str, array.shape)).encode() + array.tobytes())
    joined = _make_folder() / f"{digest.hexdigest()}.popef"
    if joined.exists():
        return joined
    names = _find_anchor_names(path)
    if len(names) != len(values):
        raise ValueError(
            f"Embedded application runtime expects {len(names)} inputs, but {len(values)} were "
            "provided."
        )
    with tempfile.NamedTemporaryFile(dir=joined.parent, delete=False) as part:
        with open(path, "rb") as executable:
            shutil.copyfileobj(executable, part)
        with popef.Writer(part) as writer:
            for name, value in zip(names, values, strict=True):
                if name:
                    write_tensor(writer, name, value)
    os.replace(part.name, joined)
    return joined


def _find_anchor_names(path: str) -> list[str]:
    """Return the names of the arguments' anchors, in the order of the parameters.

    An argument that no operator reads has no anchor, and the name "".
    """
    try:
        with popef.Reader() as reader:
            reader.parseFile(path)
            blobs, metadata = reader.opaqueBlobs(), reader.metadata()
            message = decode_message(bytes(blobs[0].data()) if blobs else None, path)
            anchors = {a.handle(): a.name() for m in metadata for a in m.anchors()}
    except popef.PopefError as error:
        raise ExecutableFileError(f"{path}: {error}") from error
    inputs = sorted(
        message.embedded_runtime_config.signature.inputs, key=lambda entry: entry.argument
    )
    return [str(anchors.get(entry.handle, "")) for entry in inputs]


@cache
def _make_folder() -> Path:
    """Return the folder of joined files, which is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="embedded_runtime_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
