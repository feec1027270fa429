"""Models of a Poplar repository, as far as their files say what they are. Nothing is run, and no
pickle is opened."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from model_runtime import ModelRuntimeError, model_target
from poprt.triton import read_config
from simipu import CompileError, ForeignExecutableError, SimIpuError, SimulatedExecutable
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState, complete_config

import popef
from poplar_triton.serving.repository import MODEL_FILE, is_model_folder

BACKEND = "poplar"
INPUT, OUTPUT = "input", "output"
OURS = "this toolkit"
POPART = "PopART or PopRT"
_MAX_SCANNED = 1 << 20
"""Bytes of a framework's own data in which its version is searched."""
_VERSION = re.compile(rb"(?<![\w.])\d{1,2}\.\d{1,2}\.\d{1,2}(?:\+\d+)?(?![\w.])")
_HASH = re.compile(rb"(?<![0-9a-f])(?=[0-9a-f]*[a-f])[0-9a-f]{10}(?![0-9a-f])")
_FRAMEWORKS = {"poptorch": "PopTorch", "tensorflow": "TensorFlow"}
"""Frameworks by the names of the opaque blobs that they write."""
_ANCHORS = {
    "TensorFlow": re.compile(r"(infeed|outfeed)_\d+\.\d+|XLA_(Args|Retvals)\b"),
    "PopTorch": re.compile(r"input(/\d+)?$"),
}
"""Names of anchors by which a framework is known that has left no blob."""


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """An input, output or weight: its name, the other name that clients use, its type, and its
    whole shape, with None for a size that is not known. `dtype` and `shape` are None if they are
    not known at all."""

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | None, ...] | None
    alias: str = ""

    def describe(self) -> str:
        """Return name, type and shape for messages."""
        dims = "unknown" if self.shape is None else _describe_dims(self.shape)
        kind = "unknown" if self.dtype is None else str(self.dtype)
        mapped = f" (for clients {self.alias})" if self.alias not in ("", self.name) else ""
        return f"{self.name}{mapped}: {kind} {dims}"


def _describe_dims(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


@dataclass(slots=True)
class FoundModel:
    """One version of a model.

    `fault` says why it cannot be read, and `other` that another backend serves it. `is_real` tells
    that it holds machine code of a chip. `weights` counts shapes and types of its tensors' data;
    those of a model whose executable holds them itself are not known.
    """

    name: str
    folder: Path
    version: int
    config: dict[str, Any] = field(default_factory=dict)
    state: ModelState | None = None
    fault: str = ""
    other: str = ""
    framework: str = ""
    sdk: str = ""
    package_hash: str = ""
    target: str = ""
    is_real: bool = False
    inputs: tuple[TensorDescription, ...] = ()
    outputs: tuple[TensorDescription, ...] = ()
    weights: tuple[TensorDescription, ...] = ()

    @property
    def version_folder(self) -> Path:
        """Folder of the version."""
        return self.folder / str(self.version)

    @property
    def batch_size(self) -> int:
        """Rows of a batch; 0 for a model without one."""
        return 0 if self.state is None else self.state.batch_size

    def count_weights(self) -> Counter[tuple[int, ...]]:
        """Return how many weights there are of each shape."""
        return Counter(
            tuple(size or 0 for size in weight.shape) for weight in self.weights if weight.shape
        )


def find_models(repository: Path) -> Iterator[FoundModel]:
    """Yield every version of every model of a repository, or of one model folder, by name; what
    cannot be read has a fault."""
    if is_model_folder(repository):
        yield from _read_model(repository)
        return
    for name in sorted(os.listdir(repository)):
        folder = repository / name
        if not name.startswith(".") and folder.is_dir():
            yield from _read_model(folder)


def _find_versions(folder: Path) -> list[int]:
    return sorted(
        int(name)
        for name in os.listdir(folder)
        if name.isdecimal() and not name.startswith("0") and (folder / name).is_dir()
    )


def _read_model(folder: Path) -> Iterator[FoundModel]:
    name = folder.resolve().name
    try:
        versions = _find_versions(folder)
        config = _read_config(folder)
    except (OSError, CompileError) as error:
        yield FoundModel(name, folder, 0, fault=str(error))
        return
    name = config.get("name") or name
    if (backend := config.get("backend") or config.get("platform") or BACKEND) != BACKEND:
        yield FoundModel(name, folder, max(versions, default=0), config, other=str(backend))
        return
    if not versions:
        fault = "it has no version folder, such as 1; make one with executable.popef in it"
        yield FoundModel(name, folder, 0, config, fault=fault)
    for version in versions:
        model = FoundModel(name, folder, version, config)
        try:
            _fill(model)
        except _ERRORS as error:
            model.fault = str(error)
        yield model


_ERRORS = (ModelConfigError, ModelRuntimeError, SimIpuError, popef.PopefError, OSError)
"""Errors of a model that cannot be read or loaded."""


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / MODEL_FILE
    if not file.is_file():
        return {}
    config: dict[str, Any] = MessageToDict(read_config(file), preserving_proto_field_name=True)
    return config


def _fill(found_model: FoundModel) -> None:
    config = {"name": found_model.name, **found_model.config}
    state = open_state(config, found_model.version_folder)
    model = state.load_model()
    metadata = model.metadata
    found_model.state = state
    found_model.inputs = _list_tensors(state, model, popef.TensorType.INPUT)
    found_model.outputs = _list_tensors(state, model, popef.TensorType.OUTPUT)
    found_model.weights = tuple(_list_weights(model))
    found_model.target = _describe_target(metadata)
    found_model.is_real = _holds_machine_code(state, model)
    found_model.framework, found_model.sdk, found_model.package_hash = _find_maker(
        found_model, model
    )


def open_state(config: Mapping[str, Any], version_folder: Path) -> ModelState:
    """Return the checked state of a version, with a configuration as Triton completes it. Raises
    ModelConfigError."""
    complete = {**config, **complete_config(config, version_folder)}
    state = ModelState(complete, version_folder)
    state.validate()
    return state


def _list_tensors(
    state: ModelState, model: popef.Model, kind: popef.TensorType
) -> tuple[TensorDescription, ...]:
    return tuple(
        TensorDescription(
            anchor.name(),
            popef.popefTypeToNumpyDType(anchor.tensorInfo().dataType()),
            popef.replica_shape(model.metadata, anchor),
            state.names.get(anchor.name(), ""),
        )
        for anchor in popef.user_anchors(model.metadata, kind)
    )


def _list_weights(model: popef.Model) -> Iterator[TensorDescription]:
    frozen = model.frozen_inputs()
    for tensor in model.tensors:
        info = tensor.info.tensorInfo()
        name = str(tensor.info.name)
        if name not in frozen:
            yield TensorDescription(
                name, popef.popefTypeToNumpyDType(info.dataType()), tuple(info.shape())
            )


def _describe_target(metadata: popef.Metadata) -> str:
    try:
        target = model_target(metadata)
    except ModelRuntimeError:
        return f"IPU version {metadata.ipuVersion()}"
    replicas = max(1, metadata.replicationFactor())
    text = f"{target.name}, {target.num_ipus} IPU{'s' * (target.num_ipus > 1)}"
    return f"{text}, {replicas} replicas" if replicas > 1 else text


def _holds_machine_code(state: ModelState, model: popef.Model) -> bool:
    check = state.parameters.check_package_hash
    try:
        SimulatedExecutable.deserialize(model.executable.executable(), check_package_hash=check)
    except ForeignExecutableError:
        return True
    return False


def _find_maker(found_model: FoundModel, model: popef.Model) -> tuple[str, str, str]:
    """Return the framework, the SDK's version and the package hash, as far as the file says them;
    a pickle is searched as bytes."""
    if not found_model.is_real:
        return OURS, popef.__version__, ""
    for blob in model.opaqueBlobs:
        if (framework := _FRAMEWORKS.get(str(blob.name))) is not None:
            data = bytes(blob.data()[:_MAX_SCANNED])
            return framework, _search(_VERSION, data), _search(_HASH, data)
    for framework, names in _ANCHORS.items():
        if found_model.inputs and all(names.match(source.name) for source in found_model.inputs):
            return framework, "", ""
    return POPART, "", ""


def _search(pattern: re.Pattern[bytes], data: bytes) -> str:
    match = pattern.search(data)
    return match.group().decode() if match else ""
