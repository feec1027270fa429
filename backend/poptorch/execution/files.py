"""Files of compiled models: PopEF files in PopART's layout, which the Triton backend serves.

    blob poptorch          a pickle: what another process needs to call the model like the module
    blob poptorch.archive  torch.export's archive of the module, if the file holds the module
    tensors                the module's weights, by name

Unpickling runs code of the file: only `load` and `loadExecutable` do it. `inspect_file` reads the
rest.
"""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
import popart
import torch
from popart import __version__
from popart.session.export import Exported, save_executable
from poprt.compile import Executable
from simipu import CompileError, ForeignExecutableError

import popef
from poptorch._logging import logger
from poptorch._poptorch_data import PoptorchData
from poptorch.errors import Error, VersionError
from poptorch.execution import sdk_files
from poptorch.execution.program import LoadedModel

BLOB: Final = "poptorch"
ARCHIVE: Final = "poptorch.archive"
_PROTOCOL: Final = 4
_FILE_NAME: Final = "model.poptorch"
_PROTO_VARIABLE: Final = "POPTORCH_EXPORT_PROTO_FILE"


@dataclass(frozen=True, slots=True)
class PoptorchFile:
    """A file that PopTorch has written, its pickle closed."""

    name: str
    blob: bytes
    """The pickle."""
    executable: Executable | None
    """None for machine code of a real IPU, which does not run here."""


@dataclass(frozen=True, slots=True)
class FileContents:
    """What a file holds that can be read without unpickling.

    Attributes:
        weights: The module's weights by name. Those that the compiler has made constants of the
            program are missing.
        inputs: Shape of one batch of each input, by name.
        outputs: Shape of one batch of each output, by name.
        archive: The zip file that torch.export.save has made of the module: the graph as JSON and
            the weights as raw bytes. None if the file does not hold the module.
    """

    weights: dict[str, torch.Tensor]
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]
    archive: bytes | None


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
        logger.warning("save(): %s is a directory, saving model to %s", file, file / _FILE_NAME)
        file /= _FILE_NAME
    blobs = {BLOB: _encode(data)}
    if data.model is not None:
        blobs.update(_make_archive(loaded.captured.program))
    executable = loaded.compilation.confirm()
    executable.opaque_blobs = blobs
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
    finally:
        executable.opaque_blobs = {}


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


def _make_archive(program: Any) -> dict[str, bytes]:
    """Return torch.export's archive as a blob; not every program has one."""
    stream = io.BytesIO()
    try:
        torch.export.save(program, stream)
    except Exception as error:  # noqa: BLE001 # any operator's serializer; the pickle has it all
        logger.warning("the file gets no archive of torch.export: %s", error)
        return {}
    return {ARCHIVE: stream.getvalue()}


def inspect_file(filename: str | os.PathLike[str]) -> FileContents:
    """Read weights, shapes and archive of a file without unpickling anything.

    Use it for files that you do not trust. Note that `torch.export.load` may run code of an
    archive.

    Args:
        filename: Path of a file that compileAndExport or save has written, here or in a real SDK.

    Returns:
        The contents.

    Raises:
        Error: If the file cannot be read.

    Example:
        >>> import poptorch
        >>> import torch
        >>> model = poptorch.inferenceModel(torch.nn.Linear(4, 2))
        >>> model.compileAndExport("linear.popef", torch.ones(1, 4))
        >>> poptorch.inspect_file("linear.popef").inputs
        {'input': (1, 4)}
    """
    file = _read_popef(os.fspath(filename))
    inputs: dict[str, tuple[int, ...]] = {}
    outputs: dict[str, tuple[int, ...]] = {}
    sides = {popef.TensorType.INPUT: inputs, popef.TensorType.OUTPUT: outputs}
    weights = {
        str(tensor.info.name): torch.from_numpy(tensor.data().copy()) for tensor in file.tensors
    }
    for anchor in file.metadata.anchors():
        if anchor.name() not in weights and anchor.type() in sides:
            sides[anchor.type()][anchor.name()] = tuple(anchor.tensorInfo().shape())
    return FileContents(weights, inputs, outputs, _find_blob(file, ARCHIVE))


def _read_popef(name: str) -> popef.Model:
    try:
        reader = popef.Reader()
        reader.parseFile(name)
        return popef.ModelBuilder(reader).createModel()
    except (popef.PopefError, OSError) as error:
        raise Error(f"Invalid file {name}: {error}") from error


def _find_blob(model: popef.Model, name: str) -> bytes | None:
    blobs = (bytes(blob.data()) for blob in model.opaqueBlobs if blob.name == name)
    return next(blobs, None)


def read_file(path: str | os.PathLike[str]) -> PoptorchFile:
    """Read a file; its pickle stays closed.

    Args:
        path: Path of a file that `save`, here or in a real SDK, wrote.

    Returns:
        The file.

    Raises:
        Error: If the file cannot be read, or was not written by PopTorch.
    """
    name = os.fspath(path)
    executable = None
    try:
        executable = Executable(Path(path))
        blob = executable.opaque_blobs.pop(BLOB, None)
        executable.opaque_blobs.pop(ARCHIVE, None)
    except CompileError as error:
        if not isinstance(error.__cause__, ForeignExecutableError):
            raise Error(f"Invalid file {name}: {error}") from error
        blob = _find_blob(_read_popef(name), BLOB)
    if blob is None:
        raise Error(f"Invalid file {name}: it was not written by PopTorch: it has no blob {BLOB!r}")
    return PoptorchFile(name, blob, executable)


def unpickle(file: PoptorchFile) -> PoptorchData:
    """Unpickle the blob of a file, which runs code that the file names.

    Args:
        file: The file.

    Returns:
        What the blob holds.

    Raises:
        Error: If the blob cannot be unpickled, is of another version, or needs training.
    """
    name = file.name
    try:
        # Documented: load only files that you trust.
        read = sdk_files.unpickle if file.executable is None else _unpickle
        data = read(file.blob)
    except Error as error:
        raise Error(f"Invalid file {name}: {error.message}") from error
    except Exception as error:
        raise Error(f"Invalid file {name}: the model cannot be unpickled: {error}") from error
    if not isinstance(data, PoptorchData):
        raise Error(f"Invalid file {name}: expected PoptorchData, found {type(data).__name__}")
    if data.training:
        raise Error(
            f"Invalid file {name}: it holds a trainingModel; training is not supported by this "
            "implementation. Export an inferenceModel instead"
        )
    _check_version(file, data)
    return data


class _Unpickler(pickle.Unpickler):
    """Unpickler of files written before the options had a package."""

    _MOVED: Final = {
        "poptorch.options.parts": "poptorch.options.parts",
        "poptorch.options.settings": "poptorch.options.settings",
        "poptorch.options.strategies": "poptorch.options.strategies",
    }

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(self._MOVED.get(module, module), name)


def _unpickle(blob: bytes) -> Any:
    return _Unpickler(io.BytesIO(blob)).load()


def _check_version(file: PoptorchFile, data: PoptorchData) -> None:
    if file.executable is None:
        logger.warning(
            "%s was written by PopTorch %s of a real SDK. Its machine code does not run here: the "
            "module is compiled again, by version %s and PyTorch %s",
            file.name,
            data.version,
            __version__,
            torch.__version__,
        )
    elif data.version != __version__:
        raise VersionError(
            f"Invalid file {file.name}: PopTorch version mismatch: File {file.name} was exported "
            f"with version: {data.version}. Current version: {__version__}"
        )
