"""The enumerations of the format, their names in text and the numpy dtypes of element types.

The ordinals are those of FORMAT.md.
"""

from __future__ import annotations

import importlib
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

from .errors import UnsupportedError

Member = TypeVar("Member", bound="Enumerant")

MAX_ENUMERANT = (1 << 16) - 1


class Enumerant(IntEnum):
    """Enumeration of 16 bits. An ordinal of a newer SDK becomes a member called
    UNKNOWN_<ordinal>."""

    @classmethod
    def _missing_(cls: type[Member], value: object) -> Member | None:
        if not isinstance(value, int) or not 0 <= value <= MAX_ENUMERANT:
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = f"UNKNOWN_{value}", value
        return cls._value2member_map_.setdefault(value, member)  # type: ignore[return-value]

    def __call__(self: Member) -> Member:
        """Return the member itself, so that `info.dataType()` is `info.dataType`."""
        return self

    @property
    def known(self) -> bool:
        """True if this package knows the meaning of the ordinal."""
        return self.name in type(self).__members__


class BlobType(Enumerant):
    """Type of the content of a blob."""

    POPLAR_EXECUTABLE = 0
    METADATA = 1
    DATA_TENSOR = 2
    DATA_FEED = 3
    OPAQUE = 4


class DataType(Enumerant):
    """Element type of a tensor; F8 leaves the 8-bit float format open, F8143 and F8152 name it."""

    BOOL = 0
    F8 = 1
    F16 = 2
    F32 = 3
    F64 = 4
    S8 = 5
    U8 = 6
    S16 = 7
    U16 = 8
    S32 = 9
    U32 = 10
    S64 = 11
    U64 = 12
    F8143 = 13
    F8152 = 14


class TensorType(Enumerant):
    """Direction of an anchor seen from the program."""

    UNKNOWN = 0
    INPUT = 1
    OUTPUT = 2


ITEM_BYTES = dict(zip(DataType, (1, 1, 2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1), strict=True))
"""Bytes of an element, by type."""
_NUMPY_NAMES = {
    DataType[name]: numpy_name
    for name, numpy_name in (
        pair.split(":")
        for pair in (
            "BOOL:bool F16:float16 F32:float32 F64:float64 S8:int8 U8:uint8 S16:int16 U16:uint16 "
            "S32:int32 U32:uint32 S64:int64 U64:uint64 F8143:float8_e4m3fnuz F8152:float8_e5m2fnuz"
        ).split()
    )
}
"""Names of the numpy dtypes. The IPU's 8-bit floats have no negative zero and no infinities;
ml_dtypes calls that "fnuz"."""
_POPEF_TYPES = {name: data_type for data_type, name in _NUMPY_NAMES.items()}


def enumerant(value: Enumerant) -> str:
    """Return the schema's spelling of an enumerator, such as poplarExecutable for
    POPLAR_EXECUTABLE.

    An unknown enumerator is spelled as its ordinal.
    """
    if not value.known:
        return str(int(value))
    first, *rest = value.name.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


def popefTypeToNumpyDType(dataType: DataType) -> np.dtype[Any]:
    """Return the little-endian numpy dtype of a PopEF type.

    Args:
        dataType: the element type.

    Returns:
        The dtype; those of F8143 and F8152 come from ml_dtypes.

    Raises:
        UnsupportedError: for F8, which names no format, for types of a newer SDK, and for F8143 and
            F8152 without ml_dtypes.

    Example:
        >>> import popef
        >>> popef.popefTypeToNumpyDType(popef.DataType.F16).name
        'float16'
    """
    if dataType not in _NUMPY_NAMES:
        raise UnsupportedError(
            f"{dataType.name}: expected a type with a format, got one without; read it as uint8"
        )
    name = _NUMPY_NAMES[dataType]
    if not name.startswith("float8"):
        return np.dtype(name).newbyteorder("<")
    try:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ImportError as error:
        raise UnsupportedError(
            f"{dataType.name}: expected the package ml_dtypes, got none; `pip install ml_dtypes` "
            "or read it as uint8"
        ) from error


def numpyDTypeToPopefType(dtype: Any) -> DataType:
    """Return the PopEF type of a numpy dtype.

    Args:
        dtype: anything that `numpy.dtype` accepts.

    Returns:
        The element type.

    Raises:
        UnsupportedError: if there is none.

    Example:
        >>> import popef
        >>> popef.numpyDTypeToPopefType("int32").name
        'S32'
    """
    numpy_type = np.dtype(dtype)
    if numpy_type.name not in _POPEF_TYPES or numpy_type != numpy_type.newbyteorder("<"):
        supported = ", ".join(sorted(_POPEF_TYPES))
        raise UnsupportedError(
            f"dtype {numpy_type!r}: expected a little-endian one of {supported}; convert with "
            "astype first"
        )
    return _POPEF_TYPES[numpy_type.name]


def storage_dtype(dataType: DataType) -> np.dtype[Any]:
    """Return the numpy dtype in which readers return data.

    It is that of `popefTypeToNumpyDType`, but uint8 for 8-bit floats that numpy cannot name.

    Args:
        dataType: the element type.

    Returns:
        The dtype.

    Raises:
        UnsupportedError: for a type of a newer SDK.
    """
    try:
        return popefTypeToNumpyDType(dataType)
    except UnsupportedError:
        if not dataType.known:
            raise
        return np.dtype(np.uint8)
