"""Models that scripts give as bytes or as the name of a file, and weights in files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxgraph
from google.protobuf.message import DecodeError, EncodeError
from onnx import external_data_helper, numpy_helper

from popart.errors import popart_exception
from popef._tools.file_kinds import ONNX, explain, explain_bytes

_SHOWN = 64
"""Maximum number of characters of a wrong model in an error."""


def read_model(model: Any) -> onnx.ModelProto:
    """Return the model of a file, if there is one of that name, else of the bytes.

    Args:
        model: A path, or the bytes of a serialized ModelProto. Weights in other files are left
            there.

    Returns:
        The model.

    Raises:
        popart_exception: If it is neither.
        TypeError: If it is neither bytes nor a path.
    """
    if not isinstance(model, (bytes, str, os.PathLike)):
        raise TypeError(f"expected bytes or a path, found {type(model).__name__}")
    try:
        model_proto = _read(model)
        if model_proto is not None:
            onnxgraph.check_texts(model_proto.graph)
            onnxgraph.spell_domains(model_proto)
            return model_proto
    except DecodeError:
        pass
    except onnxgraph.GraphError as error:
        raise popart_exception(f"The model is not valid: {error}") from error
    raise popart_exception(
        f"Failed to load a ModelProto from the string {_show(model)}. It is neither the name of a "
        f"file with an ONNX model nor the bytes of one{_explain(model)}."
    )


def _explain(model: bytes | str | os.PathLike[str]) -> str:
    """Return what the file is instead, or "" if that is unknown."""
    if _is_file(model):
        return explain(os.fsdecode(model), ONNX)
    return explain_bytes(model, ONNX) if isinstance(model, bytes) else ""


def _read(model: bytes | str | os.PathLike[str]) -> onnx.ModelProto | None:
    if _is_file(model):
        return onnx.load(os.fsdecode(model), load_external_data=False)
    return _parse(model) if isinstance(model, bytes) else None


def serialize_model(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a model; raises popart_exception if they are 2 GiB or more."""
    try:
        return model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise popart_exception(
            f"The model cannot be serialized ({error}): a ModelProto has less than 2 GiB. Write "
            "weights to a file with saveInitializersExternally"
        ) from error


def check_model(model: onnx.ModelProto) -> None:
    """Raise popart_exception if ONNX's checker rejects a model; weights in files are not read."""
    outside = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    try:
        onnx.checker.check_model(onnxgraph.without_weights(model, outside))
    except onnx.checker.ValidationError as error:
        raise popart_exception(f"The model is not valid: {error}") from error


def save_initializers_externally(
    model: onnx.ModelProto, names: Sequence[str], filename: str | os.PathLike[str]
) -> None:
    """Write initializers to a file, one after another, and let the model refer to it.

    Args:
        model: The model, which is changed.
        names: Names of initializers.
        filename: The file, which is replaced if it exists. The model holds this name as it is.

    Raises:
        popart_exception: If the folder does not exist, or a name is no initializer with data.
    """
    path = Path(filename)
    if not path.parent.is_dir():
        raise popart_exception(
            f"Saving tensor data to file {filename}, but its parent directory does not exist"
        )
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    moved = [_check(tensors, name) for name in names]
    try:
        with path.open("wb") as file:
            for tensor in moved:
                data, offset = _read_bytes(tensor), file.tell()
                file.write(data)
                name, dtype, shape = tensor.name, tensor.data_type, list(tensor.dims)
                tensor.Clear()
                tensor.name, tensor.data_type = name, dtype
                tensor.dims.extend(shape)
                tensor.raw_data = b""
                external_data_helper.set_external_data(
                    tensor, str(filename), offset=offset, length=len(data)
                )
    except OSError as error:
        raise popart_exception(f"Failed to open file {filename}: {error.strerror}") from error


def _check(tensors: dict[str, onnx.TensorProto], name: str) -> onnx.TensorProto:
    """Return an initializer whose data can be saved."""
    if name not in tensors:
        raise popart_exception(f"Tensor '{name}' is not an initializer")
    tensor = tensors[name]
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise popart_exception(f"Tensor '{name}' already has an external data_location")
    if 0 in tensor.dims:
        raise popart_exception(f"Tensor '{name}' has no data to save externally")
    return tensor


def _read_bytes(tensor: onnx.TensorProto) -> bytes:
    return tensor.raw_data or numpy_helper.to_array(tensor).tobytes()


def _is_file(model: bytes | str | os.PathLike[str]) -> bool:
    try:
        return os.path.isfile(model)
    except (OSError, ValueError):  # too long for a name, or with zero bytes
        return False


def _parse(model: bytes) -> onnx.ModelProto:
    """Return a model that has a graph; bytes of many other kinds can be read as an empty one."""
    loaded = onnx.load_from_string(model)
    if not loaded.HasField("graph"):
        raise DecodeError(f"no graph in {len(model)} bytes")
    return loaded


def _show(model: bytes | str | os.PathLike[str]) -> str:
    text = model.decode(errors="replace") if isinstance(model, bytes) else os.fspath(model)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
