"""Element types and shapes as PopART names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from popart.enums import DataType
from popart.errors import format_shape, popart_exception


@dataclass(frozen=True, slots=True)
class _TypeFacts:
    lower_name: str
    num_bytes: int
    onnx_type: int
    dtype: npt.DTypeLike | None = None


_PROTO = onnx.TensorProto
_FACTS = {
    DataType.UINT8: _TypeFacts("uint8", 1, _PROTO.UINT8, np.uint8),
    DataType.INT8: _TypeFacts("int8", 1, _PROTO.INT8, np.int8),
    DataType.UINT16: _TypeFacts("uint16", 2, _PROTO.UINT16, np.uint16),
    DataType.INT16: _TypeFacts("int16", 2, _PROTO.INT16, np.int16),
    DataType.INT32: _TypeFacts("int32", 4, _PROTO.INT32, np.int32),
    DataType.INT64: _TypeFacts("int64", 8, _PROTO.INT64, np.int64),
    DataType.UINT32: _TypeFacts("uint32", 4, _PROTO.UINT32, np.uint32),
    DataType.UINT64: _TypeFacts("uint64", 8, _PROTO.UINT64, np.uint64),
    DataType.BOOL: _TypeFacts("bool", 1, _PROTO.BOOL, np.bool_),
    DataType.FLOAT: _TypeFacts("float32", 4, _PROTO.FLOAT, np.float32),
    DataType.FLOAT16: _TypeFacts("float16", 2, _PROTO.FLOAT16, np.float16),
    DataType.BFLOAT16: _TypeFacts("bfloat16", 2, _PROTO.BFLOAT16),
    DataType.FLOAT8_143: _TypeFacts("float8_143", 1, _PROTO.FLOAT8E4M3FNUZ),
    DataType.FLOAT8_152: _TypeFacts("float8_152", 1, _PROTO.FLOAT8E5M2FNUZ),
    DataType.DOUBLE: _TypeFacts("float64", 8, _PROTO.DOUBLE, np.float64),
    DataType.COMPLEX64: _TypeFacts("complex64", 8, _PROTO.COMPLEX64, np.complex64),
    DataType.COMPLEX128: _TypeFacts("complex128", 16, _PROTO.COMPLEX128, np.complex128),
    DataType.STRING: _TypeFacts("string", -1, _PROTO.STRING),
    DataType.UNDEFINED: _TypeFacts("undefined", -1, _PROTO.UNDEFINED),
}
"""Facts about each type. Types without a dtype have none in NumPy; sizes of -1 are unknown."""
_FROM_ONNX = {facts.onnx_type: data_type for data_type, facts in _FACTS.items()}
_FROM_NUMPY = {np.dtype(facts.dtype): t for t, facts in _FACTS.items() if facts.dtype is not None}
_NUMPY_NAMES = {
    data_type
    for data_type in DataType
    if _FACTS[data_type].dtype is not None and not data_type.name.startswith("COMPLEX")
}
"""Types that `TensorInfo` takes as NumPy's."""


def find_type(name: str) -> DataType:
    """Return the type of a name such as "FLOAT16"."""
    if name in DataType.__members__:
        return DataType[name]
    names = ", ".join(sorted(DataType.__members__))
    raise popart_exception(f"no ONNX type {name}, they're [{names}].")


def from_onnx_type(onnx_type: int) -> DataType:
    """Return the type that a number of `onnx.TensorProto.DataType` stands for."""
    if onnx_type in _FROM_ONNX:
        return _FROM_ONNX[onnx_type]
    raise popart_exception(f"Unsupported ONNX data type {onnx_type}: PopART has no such type.")


def to_onnx_type(data_type: DataType) -> int:
    """Return the number of a type in `onnx.TensorProto.DataType`."""
    return _FACTS[data_type].onnx_type


def from_numpy_type(dtype: npt.DTypeLike) -> DataType:
    """Return the type of the elements of a NumPy array."""
    name = _FROM_NUMPY.get(np.dtype(dtype))
    if name is None:
        raise popart_exception(f"No numpy type {np.dtype(dtype)} registered in map to DataType")
    return name


def to_numpy_type(data_type: DataType) -> np.dtype[Any]:
    """Return NumPy's dtype of a type."""
    dtype = _FACTS[data_type].dtype
    if dtype is None:
        raise popart_exception(f"NumPy has no dtype for the type {data_type.name}.")
    return np.dtype(dtype)


class TensorInfo:
    """Type and shape of a tensor.

    Example:
        >>> import numpy as np, popart
        >>> popart.TensorInfo("FLOAT16", [2, 3]).nbytes()
        12
        >>> popart.TensorInfo(np.zeros((2, 3), np.float32))
        TensorInfo('FLOAT', [2 3])
    """

    __slots__ = ("_shape", "_type")

    def __init__(self, *args: Any) -> None:
        """Make it of a type and a shape, or of an array.

        Args:
            *args: (type, shape) or (array,). The type is a name, a `DataType`, a NumPy dtype or a
                NumPy scalar type; the shape is a sequence of ints or a text such as "(2,3)".

        Raises:
            TypeError: If the arguments have another form.
        """
        match args:
            case []:
                self._type, self._shape = DataType.UNDEFINED, list[int]()
            case [np.ndarray() as array]:
                self._type, self._shape = _type_of(array.dtype), list(array.shape)
            case [kind, str() as text]:
                self._type, self._shape = _type_of(kind), _parse_shape(text)
            case [kind, shape] if _is_shape(shape):
                self._type, self._shape = _type_of(kind), [int(size) for size in shape]
            case _:
                raise TypeError(f"Can not create TensorInfo with args {args}")

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._shape)

    def metaShape(self) -> list[int]:
        """Return the shape before sharding over replicas: always empty, nothing is sharded."""
        return []

    def rank(self) -> int:
        """Return the number of axes."""
        return len(self._shape)

    def dim(self, i: int) -> int:
        """Return the size of an axis."""
        return self._shape[i]

    def nelms(self) -> int:
        """Return the number of elements."""
        return prod(self._shape)

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.nelms() * _FACTS[self._type].num_bytes

    def dataType(self) -> DataType:
        """Return the type."""
        return self._type

    def data_type(self) -> str:
        """Return the type's name, as "FLOAT"."""
        return self._type.name

    def data_type_lcase(self) -> str:
        """Return the type's name in NumPy's style, as "float32"."""
        return _FACTS[self._type].lower_name

    def set(self, dataType: DataType, shape: Sequence[int] | None = None) -> None:
        """Change the type, and the shape if one is given."""
        self._type = dataType
        if shape is not None:
            self._shape = [int(size) for size in shape]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorInfo):
            return NotImplemented
        return (self._type, self._shape) == (other._type, other._shape)

    __hash__ = None  # type: ignore[assignment] # it can be changed

    def __repr__(self) -> str:
        return f"TensorInfo('{self._type.name}', {format_shape(self._shape)})"


def is_fixed_point(data_type: DataType) -> bool:
    """Return whether values of a type are ints or booleans."""
    dtype = _FACTS[data_type].dtype
    return dtype is not None and np.dtype(dtype).kind in "iub"


def getTensorInfo(array: np.ndarray[Any, Any]) -> TensorInfo:
    """Return the type and shape of an array."""
    return TensorInfo(array)


def get_type_name(data_type: DataType) -> str:
    """Return a type's name in NumPy's style, as "float32"."""
    return _FACTS[data_type].lower_name


def _type_of(kind: Any) -> DataType:
    match kind:
        case str():
            return find_type(kind)
        case DataType():
            return kind
        case np.dtype() | type():
            name = _FROM_NUMPY.get(np.dtype(kind))
            if name in _NUMPY_NAMES:
                return name
    raise TypeError(
        f"Can not create TensorInfo with type {kind!r}: expected a name such as 'FLOAT', a "
        "popart.DataType or a numpy dtype"
    )


def _is_shape(shape: Any) -> bool:
    try:
        return all(isinstance(size, (int, np.integer)) for size in shape)
    except TypeError:
        return False


def _parse_shape(text: str) -> list[int]:
    """Return the shape of a text such as "(1,2,400,3)"."""
    if not (text.startswith("(") and text.endswith(")")):
        raise popart_exception("invalid string for shape")
    if " " in text:
        raise popart_exception("s contains a space : not valid shape string")
    sizes = [part for part in text[1:-1].split(",") if part]
    if not all(part.lstrip("-").isdecimal() for part in sizes):
        raise popart_exception(f"invalid string for shape: {text!r}, expected sizes as (2,3)")
    return [int(part) for part in sizes]
