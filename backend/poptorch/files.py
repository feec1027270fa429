"""Files of compiled models: PopEF files in PopART's layout, which the Triton backend serves.

The blob `poptorch` holds, as a pickle, what another process needs to call the model like the
module. Unpickling runs code of the file: only `load` and `loadExecutable` do it.
"""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Final

import onnx
import popart
from popart.export import Exported, save_executable
from poprt.compile import Executable
from simipu import CompileError

from popef._tools.version import __version__
from poptorch._logging import logger
from poptorch._poptorch_data import PoptorchData
from poptorch.errors import Error
from poptorch.program import LoadedModel

BLOB: Final = "poptorch"
_PROTOCOL: Final = 4
_FILE_NAME: Final = "model.poptorch"
_PROTO_VARIABLE: Final = "POPTORCH_EXPORT_PROTO_FILE"


def export_proto(model: onnx.ModelProto) -> None:
    """Write a captured model as ONNX to the file that POPTORCH_EXPORT_PROTO_FILE names, if any.

    Args:
        model: The model.

    Raises:
        Error: If the file cannot be written.
    """
    name = os.environ.get(_PROTO_VARIABLE)
    if not name:
        return
    try:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(model.SerializeToString())
    except OSError as error:
        raise Error(f"{_PROTO_VARIABLE}: {name} cannot be written: {error}") from error


def save(loaded: LoadedModel, data: PoptorchData, path: str | os.PathLike[str]) -> None:
    """Write a compiled model.

    Args:
        loaded: The model.
        data: What the blob holds.
        path: Path of the file, or of a folder that gets `model.poptorch`.

    Raises:
        Error: If the device's executables cannot be saved, the model cannot be pickled, or the
            file cannot be written.
    """
    if not loaded.device.canCompileOffline:
        raise Error(
            f"executables for a device of type {loaded.device.type} cannot be saved; compile for "
            "an IPU, or use Options.useOfflineIpuTarget()"
        )
    file = Path(path)
    if file.is_dir():
        logger.warning("%s is a directory, saving model to %s", file, file / _FILE_NAME)
        file /= _FILE_NAME
    executable = loaded.compilation.confirm()
    executable.appendOpaqueBlobs({BLOB: _encode(data)})
    exported = Exported(
        executable,
        popart.SessionOptions(),
        loaded.device,
        loaded.steps.batching.iterations,
        loaded.steps.batching.replicas,
        loaded.program.weights,
    )
    try:
        save_executable(exported, file, with_facts=False, with_weights=True)
    except popart.popart_exception as error:
        raise Error(str(error)) from error


def _encode(data: PoptorchData) -> bytes:
    stream = io.BytesIO()
    try:
        pickle.Pickler(stream, _PROTOCOL).dump(data)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Error(
            f"the model cannot be pickled: {error}. Use export_model=False, or define its classes "
            "and functions in a module"
        ) from error
    return stream.getvalue()


def read_executable(path: str | os.PathLike[str]) -> Executable:
    """Read the executable of a file.

    Args:
        path: Path of a file that `save` wrote.

    Returns:
        The executable, its blobs included.

    Raises:
        Error: If the file cannot be read, or holds no executable that runs here.
    """
    try:
        return Executable(Path(path))
    except CompileError as error:
        raise Error(f"Invalid file {os.fspath(path)}: {error}") from error


def read_data(executable: Executable, path: str | os.PathLike[str]) -> PoptorchData:
    """Unpickle the blob of a file, which runs code that the file names.

    Args:
        executable: The file's executable.
        path: Path of the file.

    Returns:
        What the blob holds.

    Raises:
        Error: If there is no such blob, it cannot be unpickled, or it is of another version.
    """
    name = os.fspath(path)
    blob = executable.opaque_blobs.get(BLOB)
    if blob is None:
        raise Error(f"Invalid file {name}: it was not written by PopTorch: it has no blob {BLOB!r}")
    try:
        data = pickle.loads(blob)  # noqa: S301 # documented: load only files that you trust
    except Exception as error:
        raise Error(f"Invalid file {name}: the model cannot be unpickled: {error}") from error
    if not isinstance(data, PoptorchData):
        raise Error(f"Invalid file {name}: expected PoptorchData, found {type(data).__name__}")
    if data.version != __version__:
        raise Error(
            f"Invalid file {name}: PopTorch version mismatch: File {name} was exported with "
            f"version: {data.version}. Current version: {__version__}"
        )
    return data
