"""Front end for ONNX models: opens files, checks them, and describes their streams.

Large weights are not loaded: they stay in the file or in files of external data next to it. The
returned model has initializers that say where their data are (`weights.outline`). Files are
untrusted input: no path may leave the model's folder, and no weight may extend beyond its file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto
from onnxgraph import (
    LARGE_BYTES,
    OUTLINED_TYPES,
    STANDARD_DOMAINS,
    GraphError,
    bring_in,
    check_texts,
    count_bytes,
    find_data,
    find_folders,
    find_inputs,
    inline,
    is_outlined,
    iter_nodes,
    iter_tensors,
    outline,
    spell_domains,
    without_weights,
)
from simipu import CompileError, Direction, Stream
from simipu.chip.placement import strip_placement

from popef._tools.file_kinds import ONNX, describe_found, name_models
from popef._tools.paths import did_you_mean_path
from popef._tools.text import did_you_mean, name_some


class OnnxFrontend:
    """Loads an ONNX model from a file, or from a folder that holds exactly one."""

    def __init__(self, path: str | Path, **_options: Any) -> None:
        self.path = Path(path)

    def get_onnx_name(self, dir_or_name: str | Path | None = None) -> Path:
        """Return the ONNX file of a path.

        Args:
            dir_or_name: a file or a folder; None means this front end's path.

        Returns:
            The file.

        Raises:
            CompileError: if there is no ONNX file, or more than one.
            OSError: for a folder that cannot be read.
        """
        path = Path(dir_or_name or self.path)
        if not path.is_dir():
            if not path.is_file():
                what = "something that is no file" if path.exists() else "no such file"
                hint = did_you_mean_path(str(path))
                raise CompileError(f"input model {path}: {what}{hint}")
            return path
        # glob would find nothing in a folder that cannot be read
        files = sorted(entry for entry in path.iterdir() if entry.suffix == ".onnx")
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            further = "" if files else name_some(name_models(path, ".onnx"))
            raise CompileError(
                f"folder {path} must hold exactly one ONNX file, found {names}; name the file"
                f"{': ' if further else ''}{further}"
            )
        return files[0]

    def load_model(self) -> onnx.ModelProto:
        """Load the model and check it against the ONNX standard.

        Returns:
            The model.

        Raises:
            CompileError: if it is not valid.
        """
        model = self.open_model()
        for tensor in model.graph.initializer:
            inline(tensor)
        return model

    def open_model(self) -> onnx.ModelProto:
        """Load the model like `load_model`, but leave large weights where they are (ours).

        Returns:
            The model, only for `Converter` and `Compiler` in this process.

        Raises:
            CompileError: if it is not valid.
        """
        file = self.get_onnx_name()
        try:
            model = open_model(file)
            check_standard(model, {t.name for t in model.graph.initializer if is_outlined(t)})
        except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
            raise CompileError(describe_invalid(file, error)) from error
        return model


def describe_invalid(file: Path, error: object) -> str:
    """Return the error about a file that is no valid ONNX model: what it is instead, or else the
    error of its parser."""
    other = describe_found(file, ONNX, "")
    if other:
        return f"{file}: expected an ONNX model, found {other}"
    return f"{file} is not a valid ONNX model: {' '.join(str(error).split())}"


def check_standard(model: onnx.ModelProto, heavy: set[str]) -> None:
    """Check that the standard allows the model; skip the weights `heavy`.

    Two extensions of the standard pass: Casts with a scale in models converted to 8 bits, and
    places of nodes in models for several IPUs. So do inputs and outputs without a shape or a type,
    which the checker rejects without their names: those of outputs are inferred, const_input_shape
    asks for the shapes of inputs, and admit for their types.

    Raises:
        onnx.checker.ValidationError: with the reason.
    """
    try:
        check_texts(model.graph)
    except GraphError as error:
        raise onnx.checker.ValidationError(str(error)) from error
    for node in iter_nodes(model.graph):
        if node.domain in STANDARD_DOMAINS and not onnx.defs.has(node.op_type):
            op_types = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
            raise onnx.checker.ValidationError(
                f"operator {node.op_type} is not in the ONNX standard"
                f"{did_you_mean(node.op_type, op_types)}"
            )
    # The checker serialises and parses the model, which fails above 2 GiB.
    light = without_weights(model, heavy)
    strip_placement(light.graph)
    for node in iter_nodes(light.graph):
        if node.op_type == "Cast":
            for scale in [entry for entry in node.attribute if entry.name == "scale"]:
                node.attribute.remove(scale)
    spell_domains(light)
    _declare_missing(light.graph)
    # The checker rejects functions of other opsets than the model's. They are inlined, converted
    # and checked by inline_custom_operators.
    functions = [function for function in light.functions if function.domain in STANDARD_DOMAINS]
    del light.functions[:]
    light.functions.extend(functions)
    onnx.checker.check_model(light)


def _declare_missing(graph: onnx.GraphProto) -> None:
    """Declare some type and some shape for inputs and outputs without them."""
    for value in (*graph.input, *graph.output):
        if value.type.WhichOneof("value") in (None, "tensor_type"):
            tensor = value.type.tensor_type
            tensor.elem_type = tensor.elem_type or TensorProto.FLOAT
            tensor.shape.SetInParent()


Model = onnx.ModelProto | bytes | str | Path
"""A model, its bytes, or its file."""


def read_model(model: Model) -> onnx.ModelProto:
    """Return the model itself, or load it from the bytes or the file.

    Large weights stay where they are, so the result is for this process only.

    Args:
        model: the model, its bytes, or its file.

    Returns:
        The model.

    Raises:
        CompileError: if there is no model.
    """
    if isinstance(model, (str, Path)):
        return OnnxFrontend(model).open_model()
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, bytes):
        raise CompileError(
            "model: expected onnx.ModelProto, its bytes or its file name, found "
            f"{type(model).__name__}"
        )
    try:
        return onnx.load_model_from_string(model)
    except DecodeError as error:
        what = describe_found(model, ONNX, error)
        text = f"{len(model)} bytes: expected a serialised ONNX model, found {what}"
        raise CompileError(text) from error


# Field numbers of onnx.proto, and the wire types of protobuf.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MORE = 0x80
"""Bit in a byte of a protobuf number that says that another byte follows."""
_MAX_TENSOR_FIELDS, _MAX_MODEL_FIELDS, _MAX_GRAPH_FIELDS = 1_000, 100_000, 5_000_000
"""Maximum number of fields of a weight with raw data (dimensions, names, descriptions), of a model
(metadata, functions) and of a graph (nodes, tensors). The limits are far above all known models,
and can be searched in seconds."""


def open_model(file: Path) -> onnx.ModelProto:
    """Return the model in `file`, with large weights outlined.

    Args:
        file: the ONNX file.

    Returns:
        The model.

    Raises:
        CompileError: for external data that are missing, incomplete, or outside the model's folder.
        DecodeError: for a file that is not a model.
        OSError: for a file that cannot be read.
    """
    model = _read(file)
    try:
        spell_domains(model)
        for tensor, is_weight in iter_tensors(model.graph):
            is_placed = is_weight and is_outlined(tensor)
            if tensor.data_location == TensorProto.EXTERNAL and not is_placed:
                _place(tensor, find_folders(file))
                if not is_weight:
                    inline(tensor)
    except GraphError as error:
        raise CompileError(f"{file}: {error}") from error
    return model


def _read(file: Path) -> onnx.ModelProto:
    """Return the model with large weights of its main graph outlined.

    External data are not changed.

    Raises:
        CompileError: for a weight whose size does not match its shape.
        DecodeError: for an empty file.
    """
    with file.open("rb") as opened:
        if not file.stat().st_size:
            raise DecodeError("the file is empty")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pieces = _Pieces(mapped)
            weights = pieces.cut_weights()
            model = onnx.ModelProto.FromString(pieces.join())
            for index, (start, size) in weights.items():
                tensor = model.graph.initializer[index]
                if tensor.data_type not in OUTLINED_TYPES:
                    tensor.raw_data = mapped[start : start + size]
                    continue
                if size != count_bytes(tensor):
                    raise CompileError(
                        f"weight {tensor.name!r} of {file}: expected {count_bytes(tensor)} bytes "
                        f"for shape {list(tensor.dims)}, found {size}; the file is damaged"
                    )
                outline(tensor, file.resolve(), start)
    return model


@dataclass(slots=True)
class _Field:
    """One field of a protobuf message: where it begins, and where its value begins and ends."""

    number: int
    wire: int
    start: int
    value: int
    end: int


class _Pieces:
    """The bytes of a serialised model, without the raw data of large weights."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content

    def cut_weights(self) -> dict[int, tuple[int, int]]:
        """Return start and size of the raw data of large initializers, by the initializer's index.

        `join` leaves these data out.
        """
        content = self._content
        self._model = list(_limit(_iter_fields(content, 0, len(content)), _MAX_MODEL_FIELDS))
        places = {}
        self._cuts: dict[int, _Field] = {}
        index = 0
        for graph in self._model:
            if (graph.number, graph.wire) != (_GRAPH, _BYTES):
                continue
            for field in _limit(_iter_fields(content, graph.value, graph.end), _MAX_GRAPH_FIELDS):
                if (field.number, field.wire) != (_INITIALIZER, _BYTES):
                    continue
                raw = self._find_raw(field) if field.end - field.value >= LARGE_BYTES else None
                if raw is not None:
                    self._cuts[field.start] = raw
                    places[index] = (raw.value, raw.end - raw.value)
                index += 1
        return places

    def _find_raw(self, tensor: _Field) -> _Field | None:
        raw_fields = _iter_fields(self._content, tensor.value, tensor.end)
        fields = list(islice(raw_fields, _MAX_TENSOR_FIELDS + 1))
        raws = [field for field in fields if (field.number, field.wire) == (_RAW_DATA, _BYTES)]
        if len(fields) > _MAX_TENSOR_FIELDS:
            return None  # its values are separate fields, perhaps millions: they are not examined
        return raws[0] if len(raws) == 1 and raws[0].end - raws[0].value >= LARGE_BYTES else None

    def join(self) -> bytes:
        """Return the serialised model without the raw data of large weights."""
        return b"".join(self._iter_model())

    def _iter_model(self) -> Iterator[bytes]:
        for field in self._model:
            if (field.number, field.wire) != (_GRAPH, _BYTES) or not self._cuts:
                yield self._content[field.start : field.end]
                continue
            yield _encode_field(_GRAPH, b"".join(self._iter_graph(field)))

    def _iter_graph(self, graph: _Field) -> Iterator[bytes]:
        for field in _iter_fields(self._content, graph.value, graph.end):
            raw = self._cuts.get(field.start)
            if raw is None:
                yield self._content[field.start : field.end]
                continue
            tensor = self._content[field.value : raw.start] + self._content[raw.end : field.end]
            yield _encode_field(_INITIALIZER, tensor)


def _iter_fields(content: mmap.mmap, start: int, end: int) -> Iterator[_Field]:
    """Yield the fields of the message from `start` to before `end`.

    Raises:
        DecodeError: if the fields do not fill the message.
    """
    while start < end:
        key, value = _read_varint(content, start, end)
        wire = key & 7
        if wire == _BYTES:
            size, value = _read_varint(content, value, end)
            stop = value + size
        elif wire == _VARINT:
            _, stop = _read_varint(content, value, end)
        elif wire in (_FIXED32, _FIXED64):
            stop = value + (4 if wire == _FIXED32 else 8)
        else:
            raise DecodeError(f"byte {start}: expected a field, found wire type {wire}")
        if stop > end:
            raise DecodeError(
                f"byte {start}: expected a field that ends by byte {end}, found one to byte {stop}"
            )
        yield _Field(key >> 3, wire, start, value, stop)
        start = stop


def _limit(fields: Iterator[_Field], most: int) -> Iterator[_Field]:
    for number, field in enumerate(fields):
        if number >= most:
            raise DecodeError(f"byte {field.start}: expected at most {most} fields in one message")
        yield field


def _read_varint(content: mmap.mmap, start: int, end: int) -> tuple[int, int]:
    """Return the number at `start`, and the position after it."""
    number = 0
    for i, byte in enumerate(content[start : min(start + 10, end)]):
        number |= (byte & 0x7F) << 7 * i
        if byte < _MORE:
            return number, start + i + 1
    raise DecodeError(f"byte {start}: expected a number of at most 10 bytes")


def _encode_field(number: int, value: bytes) -> bytes:
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(value)) + value


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= _MORE:
        encoded.append(number & 0x7F | _MORE)
        number >>= 7
    return bytes([*encoded, number])


def _place(tensor: TensorProto, folders: Sequence[Path]) -> None:
    """Record in the tensor where its external data are, or read them if they are small."""
    try:
        if count_bytes(tensor) < LARGE_BYTES or tensor.data_type not in OUTLINED_TYPES:
            bring_in(tensor, *folders)
        else:
            outline(tensor, *find_data(tensor, *folders))
    except (GraphError, FileNotFoundError) as error:
        raise CompileError(str(error)) from error


def make_streams(graph: onnx.GraphProto) -> tuple[Stream, ...]:
    """Return the streams of a static graph's inputs and outputs, with PopART's handles."""
    inputs = [
        _stream(value, f"h2d_{value.name}", Direction.HOST_TO_DEVICE)
        for value in find_inputs(graph)
    ]
    outputs = [
        _stream(value, f"anchor_d2h_{value.name}", Direction.DEVICE_TO_HOST)
        for value in graph.output
    ]
    return (*inputs, *outputs)


def _stream(value: onnx.ValueInfoProto, handle: str, direction: Direction) -> Stream:
    tensor = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return Stream(
        handle, value.name, direction, dtype, tuple(dim.dim_value for dim in tensor.shape.dim)
    )
