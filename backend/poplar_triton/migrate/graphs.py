"""Source models in the folders of a user: ONNX files, SavedModels and PyTorch files, as far as they
say what they compute. No pickle is opened, and no weights are read."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper
from onnxgraph import find_inputs
from poprt.frontend import read_model
from simipu import CompileError

from poplar_triton.migrate.repository import TensorDescription
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.models import BY_NUMBER, DEFAULT_SIGNATURE

MAX_ENTRIES = 100_000
"""Maximum number of files and folders that are looked at."""
_MAX_SAVED_MODEL_BYTES = 512 << 20
"""Maximum size of a SavedModel's graph, which is read into memory; its weights are in other
files."""
_MAX_STORAGES = 100_000
"""Maximum number of entries of a PyTorch archive that are read."""
_FLOAT_BYTES = 4


class SourceKind(Enum):
    """Kind of a source model; the value is what it is called."""

    ONNX = "ONNX"
    SAVED_MODEL = "SavedModel"
    PYTORCH = "PyTorch"


_SUFFIXES = {
    ".onnx": SourceKind.ONNX,
    ".pt": SourceKind.PYTORCH,
    ".pth": SourceKind.PYTORCH,
    ".pt2": SourceKind.PYTORCH,
    ".poptorch": SourceKind.PYTORCH,
}
_SAVED_MODEL = "saved_model.pb"


@dataclass(frozen=True, slots=True)
class SourceModel:
    """Source model. `weights` counts its weights by shape; those of a PyTorch file, whose shapes
    are in a pickle, by their number of floats. None: not known. `fault` says why the file cannot be
    read."""

    path: Path
    kind: SourceKind
    inputs: tuple[TensorDescription, ...] = ()
    outputs: tuple[TensorDescription, ...] = ()
    weights: Counter[tuple[int, ...]] | None = None
    fault: str = ""

    @property
    def has_signature(self) -> bool:
        """Whether inputs and outputs are known."""
        return bool(self.inputs or self.outputs)

    def describe(self) -> str:
        """Return the path and what it is."""
        return f"{self.path} ({self.kind.value})"


class Graphs:
    """All source models in some folders, read once; `faults` are those that could not be read."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)

    @cached_property
    def _all(self) -> list[SourceModel]:
        return [_read(path, kind) for path, kind in _find_files(self._folders)]

    def __iter__(self) -> Iterator[SourceModel]:
        return (graph for graph in self._all if not graph.fault)

    @property
    def faults(self) -> list[SourceModel]:
        """The files that cannot be read."""
        return [graph for graph in self._all if graph.fault]


def _find_files(folders: Iterable[Path]) -> Iterator[tuple[Path, SourceKind]]:
    """Yield the source models below the folders, each real file once: links can lead in circles."""
    seen, entries_left = set[str](), MAX_ENTRIES
    stack = [str(folder) for folder in reversed(list(folders))]
    while stack and entries_left > 0:
        path = stack.pop()
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        entries_left -= 1
        if not os.path.isdir(real):
            kind = _SUFFIXES.get(os.path.splitext(path)[1].lower())
            if kind is not None and os.path.isfile(real):
                yield Path(path), kind
            continue
        if os.path.isfile(os.path.join(path, _SAVED_MODEL)):
            yield Path(path), SourceKind.SAVED_MODEL
        try:
            names = sorted(os.listdir(path), reverse=True)
        except OSError:
            continue
        stack += [os.path.join(path, name) for name in names if not name.startswith(".")]


def _read(path: Path, kind: SourceKind) -> SourceModel:
    try:
        return _READERS[kind](path)
    except (CompileError, DecodeError, OSError, ValueError, zipfile.BadZipFile) as error:
        return SourceModel(path, kind, fault=str(error))


def _read_onnx(path: Path) -> SourceModel:
    model = read_model(path)
    weights = Counter(tuple(tensor.dims) for tensor in model.graph.initializer)
    inputs, outputs = (
        tuple(_describe(value) for value in values)
        for values in (find_inputs(model.graph), model.graph.output)
    )
    return SourceModel(path, SourceKind.ONNX, inputs, outputs, weights)


def _describe(value: onnx.ValueInfoProto) -> TensorDescription:
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return TensorDescription(value.name, dtype, None)
    dims = (dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return TensorDescription(value.name, dtype, tuple(dims))


def _read_saved_model(path: Path) -> SourceModel:
    file = path / _SAVED_MODEL
    if (size := file.stat().st_size) > _MAX_SAVED_MODEL_BYTES:
        raise ValueError(f"{file}: expected at most {_MAX_SAVED_MODEL_BYTES} bytes, found {size}")
    saved = messages.SavedModel.FromString(file.read_bytes())
    for graph in saved.meta_graphs:
        signatures = graph.signature_def
        if not signatures:
            continue
        has_default = DEFAULT_SIGNATURE in signatures
        signature = signatures[DEFAULT_SIGNATURE if has_default else min(signatures)]
        inputs, outputs = (
            tuple(_describe_info(name, infos[name]) for name in sorted(infos))
            for infos in (signature.inputs, signature.outputs)
        )
        return SourceModel(path, SourceKind.SAVED_MODEL, inputs, outputs)
    return SourceModel(path, SourceKind.SAVED_MODEL)


def _describe_info(name: str, info: messages.TensorInfo) -> TensorDescription:
    kind = BY_NUMBER.get(info.dtype)
    dtype = None if kind is None else np.dtype(kind.dtype)
    dims = tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)
    return TensorDescription(name, dtype, None if info.tensor_shape.unknown_rank else dims)


def _read_pytorch(path: Path) -> SourceModel:
    """Read the table of contents of a PyTorch file: its storages' sizes."""
    if not zipfile.is_zipfile(path):
        return SourceModel(path, SourceKind.PYTORCH)  # an old pickle, which is not opened
    weights = Counter[tuple[int, ...]]()
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist()[:_MAX_STORAGES]:
            *_, folder, name = ("", *entry.filename.split("/"))
            if folder in ("data", "weights") and name.rpartition("_")[2].isdecimal():
                weights[(entry.file_size // _FLOAT_BYTES,)] += 1
    return SourceModel(path, SourceKind.PYTORCH, weights=weights)


_READERS = {
    SourceKind.ONNX: _read_onnx,
    SourceKind.SAVED_MODEL: _read_saved_model,
    SourceKind.PYTORCH: _read_pytorch,
}
