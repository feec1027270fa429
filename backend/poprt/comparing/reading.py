"""Reads the user's samples and cuts them into batches. The files may be untrusted: an .npz file, a
folder of .npy files, or a pickled dict.

Only arrays of numbers are returned. Memory is allocated only for bytes that the file really has. A
pickle calls neither numpy nor anything else: its calls are recorded and executed here.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxgraph import find_inputs
from simipu import CompileError, Stream

from popef._tools.arrays import Array
from popef._tools.file_kinds import HEAD_BYTES, recognize_substitute
from popef._tools.text import escape, find_name_fault
from poprt.comparing.inputs import iter_given, iter_made_up
from poprt.comparing.sides import Feeds
from poprt.frontend.frontends import make_streams

_NUMBERS = "biuf"
"""NumPy's kinds of booleans, integers and floats."""
_NPZ_BYTES, _NPZ_RATIO = 64 << 20, 32
"""Maximum number of bytes that an .npz file may unpack to, and maximum ratio to its own size. Masks
compress well, but zip bombs compress better."""
_MAX_AXES = 32
"""Maximum number of axes, which every version of NumPy supports."""
_DAMAGE = (
    pickle.PickleError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Exceptions that are raised when damaged files are read."""


def read_calibration_data(path: str | Path) -> dict[str, Array]:
    """Return arrays of numbers by input name.

    They come from an .npz file, from a folder of .npy files, or from a pickled dict as the real
    tool accepts. Raises CompileError, in one line, for anything else, and OSError for a file that
    cannot be read.
    """
    path = Path(path)
    try:
        data = dict(_iter_folder(path) if path.is_dir() else _iter_file(path))
        if not data:
            raise ValueError("none")
        for name in data:
            if fault := find_name_fault(name):
                raise ValueError(f"{name[:100]!r}: {fault}")
    except _DAMAGE as error:
        text = (
            f"{path}: expected arrays by input name, in an .npz file, a folder of .npy files or a "
            "pickled dict; found "
        )
        raise CompileError(escape(text + _say(error))) from error
    return data


def _iter_folder(folder: Path) -> Iterator[tuple[str, Array]]:
    for file in sorted(folder.glob("*.npy")):
        with _naming(file.name):
            content = file.read_bytes()
            _reject_substitute(content)
            array = _decode_npy(content)
        yield file.stem, array


def _iter_file(path: Path) -> Iterator[tuple[str, Array]]:
    if path.exists() and not path.is_file():
        raise ValueError("something that is not a regular file")
    content = path.read_bytes()
    _reject_substitute(content)
    return _iter_npz(content) if content[:2] == b"PK" else _iter_pickle(content)


def _reject_substitute(content: bytes) -> None:
    """Raise ValueError for what a tool has left in the place of a file."""
    if substitute := recognize_substitute(content[:HEAD_BYTES]):
        raise ValueError(str(substitute))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{name}: {_say(error)}") from error


def _say(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _iter_npz(content: bytes) -> Iterator[tuple[str, Array]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        total, most = (
            sum(entry.file_size for entry in entries),
            max(_NPZ_BYTES, _NPZ_RATIO * len(content)),
        )
        if total > most:
            raise ValueError(
                f"{total} bytes of arrays in a file of {len(content)}, which may have {most}"
            )
        if len({entry.filename for entry in entries}) < len(entries):
            raise ValueError("two arrays with the same name")
        for entry in entries:
            name = entry.filename
            if not name.endswith(".npy") or entry.compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise ValueError(f"{name!r}, which numpy.savez does not write")
            with _naming(name):
                array = _decode_npy(archive.read(entry))
            yield name[: -len(".npy")], array


def _decode_npy(content: bytes) -> Array:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(
            f"version {version} of .npy; versions {', '.join(map(str, readers))} can hold numbers"
        )
    shape, is_fortran, dtype = readers[version](file)  # type: ignore[no-untyped-call]
    return _make_array(memoryview(content)[file.tell() :], dtype, shape, is_fortran=is_fortran)


def _make_array(
    raw: memoryview | bytes | bytearray, dtype: Any, shape: object, *, is_fortran: object
) -> Array:
    """Return a view of exactly these bytes."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in _NUMBERS:
        raise ValueError(f"type {dtype!r}, where only numbers can be used")
    if (
        not isinstance(shape, tuple)
        or len(shape) > _MAX_AXES
        or not all(type(size) is int and size >= 0 for size in shape)
    ):
        raise ValueError(f"a shape that is not a tuple of at most {_MAX_AXES} sizes")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(
            f"{len(raw)} bytes, where {dtype} of shape {list(shape)} has "
            f"{math.prod(shape) * dtype.itemsize}"
        )
    array: Array = np.frombuffer(raw, dtype)
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)


def _iter_pickle(content: bytes) -> Iterator[tuple[str, Array]]:
    _check_opcodes(content)
    unpickled = _NotingUnpickler(io.BytesIO(content), encoding="latin1").load()
    if type(unpickled) is not dict:
        raise ValueError(f"a pickled {type(unpickled).__name__}")
    budget = _Budget(len(content))
    for name, value in unpickled.items():
        if type(name) is not str:
            raise ValueError(f"a name that is a {type(name).__name__}")
        with _naming(repr(name[:100])):
            array = _to_array(value, budget)
        yield name, array


_OPCODES = frozenset(
    "PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG "
    "LONG1 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 "
    "BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 "
    "TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS GET BINGET LONG_BINGET "
    "PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD".split()
)
"""Opcodes that dicts of arrays and plain values consist of, in all protocols."""
_MEMO = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))


def _check_opcodes(content: bytes) -> None:
    """Check the opcodes before anything is executed.

    pickle itself allocates what a length or an index in its memo requests. `genops` finds every
    length for which the file has too few bytes.
    """
    for number, (opcode, argument, place) in enumerate(pickletools.genops(content)):
        if opcode.name not in _OPCODES:
            raise ValueError(f"opcode {opcode.name} at byte {place}")
        size = argument if isinstance(argument, int) else 0
        if opcode.name in _MEMO and not 0 <= size <= number:
            raise ValueError(f"place {size} in the memo at byte {place}")
        if opcode.name == "FRAME" and size > len(content):
            raise ValueError(f"a frame of {size} bytes at byte {place}")


class _Noted:
    """Function that a pickle may call; it has no state that a pickle could set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("state for an object without state")


class _NotedType:
    """Replacement of numpy.dtype.

    A real one, or a real array, would take any state from the pickle.
    """

    __slots__ = ("_order", "_text")

    def __init__(self, text: object, *_: object) -> None:
        if not isinstance(text, str) or not re.fullmatch(rf"[{_NUMBERS}][0-9]{{1,2}}|bool", text):
            shown_type = text[:100] if isinstance(text, str) else type(text).__name__
            raise pickle.UnpicklingError(f"type {shown_type!r}, where only numbers can be used")
        self._text, self._order = text, "="

    def __setstate__(self, state: Any) -> None:
        _, order, *structure = state
        if order not in tuple("<>|=") or any(part is not None for part in structure[:3]):
            raise pickle.UnpicklingError("a type that is not a number type")
        self._order = order

    def make(self) -> np.dtype[Any]:
        return np.dtype(self._text).newbyteorder(self._order)  # type: ignore[arg-type]


class _NotedArray:
    """Replacement of a numpy.ndarray or of a NumPy scalar, which may get its state later."""

    __slots__ = ("array",)

    def __init__(self, *state: Any) -> None:
        self.array = self._make(*state) if state else None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.array = self._make(raw, dtype, shape, is_fortran)

    @staticmethod
    def _make(raw: Any, dtype: Any, shape: object, is_fortran: object) -> Array:
        if not isinstance(dtype, _NotedType) or not isinstance(raw, (bytes, bytearray, str)):
            raise pickle.UnpicklingError(
                f"an array of {type(raw).__name__}, where bytes and a type were expected"
            )
        # Byte strings of Python 2 were read as latin-1.
        return _make_array(
            raw.encode("latin1") if isinstance(raw, str) else raw,
            dtype.make(),
            shape,
            is_fortran=is_fortran,
        )


def _note_buffer(raw: Any, dtype: Any, shape: Any, order: object, axes: Any = None) -> _NotedArray:
    noted = _NotedArray(raw, dtype, shape, order == "F")
    if axes is not None and noted.array is not None:  # numpy 2.3 and later: transposed C order
        noted.array = noted.array.transpose(axes)
    return noted


_CALLS = {
    ("numpy", "ndarray"): _Noted(lambda *_: _NotedArray()),
    ("numpy", "dtype"): _Noted(_NotedType),
    ("numpy.core.multiarray", "_reconstruct"): _Noted(lambda *_: _NotedArray()),
    ("numpy.core.multiarray", "scalar"): _Noted(
        lambda dtype, raw: _NotedArray(raw, dtype, (), False)
    ),
    ("numpy.core.numeric", "_frombuffer"): _Noted(_note_buffer),
    ("_codecs", "encode"): _Noted(
        lambda text, _: str.encode(text, "latin1")
    ),  # bytes, in protocols before 3
    ("__builtin__", "bytes"): _Noted(lambda: b""),
}


class _NotingUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        noted = _CALLS.get((module.replace("numpy._core", "numpy.core"), name))
        if noted is None:
            raise pickle.UnpicklingError(f"{module}.{name}, which is not an array")
        return noted


class _Budget:
    """Limit of the bytes of lists: the size of the file, however often it refers to one of them."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise ValueError("lists of more numbers than the file has bytes")


def _to_array(value: object, budget: _Budget) -> Array:
    array: Array = np.asarray(_resolve(value, budget, _MAX_AXES))
    if array.dtype.kind not in _NUMBERS:
        raise ValueError(f"type {array.dtype}, where only numbers can be used")
    return array


def _resolve(value: object, budget: _Budget, depth: int) -> object:
    if isinstance(value, _NotedArray):
        if value.array is None:
            raise ValueError("an array without data")
        return value.array
    if isinstance(value, (list, tuple)) and depth:
        resolved = []
        for item in value:
            resolved.append(_resolve(item, budget, depth - 1))
            budget.take(max(1, getattr(resolved[-1], "nbytes", 1)))
        return resolved
    if isinstance(value, (bool, int, float)):
        return value
    raise ValueError(f"a {type(value).__name__}, where numbers were expected")


Data = Mapping[str, Any] | str | Path
"""Samples by input name, along the first axis, or their path: see `read_calibration_data`."""


def read_samples(data: Data) -> dict[str, Array]:
    """Return the samples as arrays of finite numbers.

    Raises CompileError for anything else, and OSError for a file that cannot be read.
    """
    if isinstance(data, (str, Path)):
        samples = read_calibration_data(data)
    elif isinstance(data, Mapping):
        samples = {str(name): np.asarray(values) for name, values in data.items()}
    else:
        raise CompileError(
            "data_preprocess: expected a file, or arrays by input name, samples along the first "
            f"axis; found {type(data).__name__}"
        )
    for name, values in samples.items():
        if values.dtype.kind not in _NUMBERS:
            raise CompileError(
                f"data_preprocess, input {name!r}: expected numbers, found {values.dtype}"
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise CompileError(
                f"data_preprocess, input {name!r}: expected finite numbers, found NaN or infinity; "
                "leave such samples out"
            )
    return samples


def iter_batches(model: onnx.ModelProto, samples: Mapping[str, Array]) -> Iterator[Feeds]:
    """Yield the samples in batches of the model's size; the last is filled up from the beginning.

    Raises CompileError for samples that do not fit the inputs.
    """
    streams = find_input_streams(model)
    sizes = {stream.shape[0] if stream.shape else 0 for stream in streams}
    yield from (
        iter_given(streams, samples, sizes.pop() if len(sizes) == 1 else 0) if streams else [{}]
    )


def find_input_streams(model: onnx.ModelProto) -> tuple[Stream, ...]:
    """Return the streams of the inputs.

    Raises CompileError for an input whose shape is not static.
    """
    inputs = find_inputs(model.graph)
    for value in inputs:
        tensor = value.type.tensor_type
        if not tensor.HasField("shape") or any(dim.dim_value < 1 for dim in tensor.shape.dim):
            raise CompileError(
                f"input {value.name!r}: expected a static shape, found variable dimensions; set "
                "input_shape or batch_size"
            )
    return make_streams(model.graph)[: len(inputs)]


def make_up(model: onnx.ModelProto) -> Feeds:
    """Return one batch of made-up inputs of a static model. Raises CompileError as
    `find_input_streams` does."""
    return next(iter_made_up(model, find_input_streams(model), 0))
