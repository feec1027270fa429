"""PopEF element types and numpy dtypes, in both directions."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .enums import DataType
from .errors import UnsupportedError

_NUMPY_NAMES: dict[DataType, str] = {
    DataType.BOOL: "bool",
    DataType.F16: "float16",
    DataType.F32: "float32",
    DataType.F64: "float64",
    DataType.S8: "int8",
    DataType.U8: "uint8",
    DataType.S16: "int16",
    DataType.U16: "uint16",
    DataType.S32: "int32",
    DataType.U32: "uint32",
    DataType.S64: "int64",
    DataType.U64: "uint64",
}

# The IPU's 8-bit floats have no negative zero and no infinities; ml_dtypes calls that "fnuz".
_ML_DTYPES_NAMES: dict[DataType, str] = {
    DataType.F8143: "float8_e4m3fnuz",
    DataType.F8152: "float8_e5m2fnuz",
}

_POPEF_TYPES: dict[str, DataType] = {
    name: data_type
    for names in (_NUMPY_NAMES, _ML_DTYPES_NAMES)
    for data_type, name in names.items()
}


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
    if dataType in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[dataType]).newbyteorder("<")
    if dataType not in _ML_DTYPES_NAMES:
        raise UnsupportedError(
            f"{dataType.name}: expected a type with a format, got one without; read it as uint8"
        )
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise UnsupportedError(
            f"{dataType.name}: expected the package ml_dtypes, got none; `pip install ml_dtypes` "
            "or read it as uint8"
        ) from error
    return np.dtype(getattr(ml_dtypes, _ML_DTYPES_NAMES[dataType]))


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
    found = np.dtype(dtype)
    if found.name not in _POPEF_TYPES or found != found.newbyteorder("<"):
        known = ", ".join(sorted(_POPEF_TYPES))
        raise UnsupportedError(
            f"dtype {found!r}: expected a little-endian one of {known}; convert with astype first"
        )
    return _POPEF_TYPES[found.name]


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
