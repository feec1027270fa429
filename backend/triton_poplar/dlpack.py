"""numpy arrays as DLPack capsules that Triton's stub accepts, and its tensors for numpy.

The capsules are made by hand for two reasons. The stub's own numpy binding reads arrays of numpy 2
wrongly. A capsule that numpy made crashes the stub, which renames it before numpy's destructor
checks the name. A capsule from here has no destructor; the consumer calls the deleter in it, which
releases the array.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # Python models load this file in environments without this project
    from popef._tools.arrays import Array

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLDataTypeCode by numpy kind (dlpack.h)."""


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_alive: dict[int, tuple[_ManagedTensor, Any, Any]] = {}


def _forget(address: int) -> None:
    _alive.pop(address, None)


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_CPU = 1
"""kDLCPU, DLPack's number of the CPU."""
CPU_DEVICE = (_CPU, 0)
"""Type and number of the device of all tensors."""


def to_capsule(array: Array) -> Any:
    """Return a `dltensor` capsule over the memory of `array`, which is copied first if it is not
    contiguous.

    The array lives until the consumer deletes the tensor.
    """
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    managed = _ManagedTensor()
    tensor = managed.tensor
    tensor.data = array.ctypes.data
    tensor.device = _DLDevice(_CPU, 0)
    tensor.ndim = array.ndim
    tensor.dtype = _DLDataType(_CODES[array.dtype.kind], array.dtype.itemsize * 8, 1)
    tensor.shape = shape
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _alive[address] = (managed, shape, array)
    return _new_capsule(address, b"dltensor", None)


class CapsuleOnce:
    """Exporter of the memory of a tensor of the stub, for one `numpy.from_dlpack`: numpy 2 first
    asks with arguments that the stub's tensors reject, which takes four times as long."""

    __slots__ = ("_capsule",)

    def __init__(self, tensor: Any) -> None:
        self._capsule = tensor.__dlpack__()

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU_DEVICE
