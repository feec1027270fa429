"""numpy 2 for Python models on a stub of Triton that is older than it.

Up to 24.10 Triton's stub is built with a pybind11 of numpy 1. It reads the size of an element from
a place where numpy 2 has the flags of the type, which are 0 for numbers. So strides and sizes are
0: `as_numpy` repeats the first element, and `Tensor(name, array)` sends nothing. This module gives
such a stub what it needs, once, before a model is imported:

- The table of numpy functions that pybind11 reads, with two of them replaced: arrays without
  strides get those of their shape, and the bytes of a tensor of strings an element of size 1.
- Tensors of numbers that are made of arrays go through DLPack (dlpack.py).

A stub that reads numpy 2 rightly stays as it is. Models may run in environments without this
project: this file is executed in Triton's utilities, and needs numpy and dlpack.py beside it only.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_FROM_ANY, _NEW_FROM_DESCR = 69, 94
"""Places of PyArray_FromAny and PyArray_NewFromDescr in numpy's table (numpy_api_order)."""
_TABLE_SIZE = 300
"""Entries that are copied: more than pybind11 reads (282), fewer than numpy has."""
_TYPES = frozenset(
    np.dtype(name)
    for name in (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
    )
)
"""Types of numbers of Triton. Any other array is for the stub to reject."""
_FLAGS_OFFSET = 32
"""Place of a type's flags in numpy 2, and of the size of an element in numpy 1."""

_pointer, _size, _object = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.py_object
_NewFromDescr = ctypes.PYFUNCTYPE(
    _object,
    _pointer,
    _pointer,
    ctypes.c_int,
    _pointer,
    ctypes.POINTER(_size),
    _pointer,
    ctypes.c_int,
    _pointer,
)
_FromAny = ctypes.PYFUNCTYPE(
    _object, _object, _pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int, _pointer
)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = _object
_new_capsule.argtypes = [_pointer, ctypes.c_char_p, _pointer]
_read_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_read_capsule.restype = _pointer
_read_capsule.argtypes = [_object, ctypes.c_char_p]


class NumpyTable:
    """numpy's table of functions for a pybind11 of numpy 1, and whether one has needed it."""

    def __init__(self, capsule: object) -> None:
        entries = ctypes.cast(_read_capsule(capsule, None), ctypes.POINTER(_pointer))
        self._table = (_pointer * _TABLE_SIZE)(*entries[:_TABLE_SIZE])
        new_array = _NewFromDescr(self._table[_NEW_FROM_DESCR] or 0)
        convert = _FromAny(self._table[_FROM_ANY] or 0)
        self.is_needed = False

        def make_array(
            kind: int, descr: int, ndim: int, dims: int, strides: Any, *rest: Any
        ) -> object:
            if ndim and strides and not strides[ndim - 1]:
                self.is_needed = True
                strides = None
            return new_array(kind, descr, ndim, dims, strides, *rest)

        def make_from_any(value: object, *rest: Any) -> object:
            if isinstance(value, bytes) and value:
                return _wrap_bytes(value)
            return convert(value, *rest)

        self._functions = (_NewFromDescr(make_array), _FromAny(make_from_any))
        for place, function in zip((_NEW_FROM_DESCR, _FROM_ANY), self._functions, strict=True):
            self._table[place] = ctypes.cast(function, _pointer)
        self.capsule = _new_capsule(ctypes.addressof(self._table), None, None)


def prepare(utilities: Any) -> None:
    """Let the stub of this process work with numpy 2. `utilities` is its module
    `c_python_backend_utils`.

    Raises ImportError if it would read arrays wrongly all the same: no model may serve then.
    """
    if np.__version__.startswith("1."):
        return
    import numpy.core.multiarray as functions  # where such a pybind11 looks; nothing else does

    to_capsule = _load_dlpack()
    original: Any = vars(functions)["_ARRAY_API"]
    table = NumpyTable(original)
    _kept.append(table)  # pybind11 keeps the addresses of its functions
    vars(functions)["_ARRAY_API"] = table.capsule
    try:
        sample = np.arange(3, dtype=np.float32)
        # The first array that the stub makes lets pybind11 read the table, once.
        answer = utilities.Tensor.from_dlpack("sample", to_capsule(sample)).as_numpy()
    finally:
        vars(functions)["_ARRAY_API"] = original
    if not np.array_equal(answer, sample):
        raise ImportError(
            f"numpy {np.__version__}: Triton's Python stub reads its arrays wrongly; install "
            "numpy<2 for Python models"
        )
    if table.is_needed:
        _replace_constructor(utilities.Tensor, to_capsule)


_kept: list[NumpyTable] = []


def _replace_constructor(tensor: Any, to_capsule: Callable[[Any], Any]) -> None:
    """Let `Tensor(name, array)` take arrays of numbers through DLPack."""
    make_plain, initialize = tensor.__new__, tensor.__init__

    def is_plain(kind: Any, array: object) -> bool:
        is_number = isinstance(array, np.ndarray) and array.dtype in _TYPES
        return kind is not tensor or not is_number

    def make(kind: Any, name: object = None, array: Any = None, *rest: object) -> Any:
        if is_plain(kind, array) or rest:
            return make_plain(kind)
        return tensor.from_dlpack(name, to_capsule(array))

    def start(self: Any, name: object = None, array: object = None, *rest: object) -> None:
        if is_plain(type(self), array) or rest:
            initialize(self, *(value for value in (name, array, *rest) if value is not None))

    tensor.__new__, tensor.__init__ = make, start


def _wrap_bytes(value: bytes) -> Any:
    """Return bytes as an array of which numpy 1 reads that an element has size 1.

    The flag means to numpy 2 that elements are references, which it drops with the memory of an
    array. This one does not own its memory, has a type of its own, and only the stub gets it.
    """
    kind = np.dtype(np.uint8, metadata={"for": "Triton's stub"})
    array = np.frombuffer(value, kind)
    ctypes.c_uint64.from_address(id(array.dtype) + _FLAGS_OFFSET).value = 1
    return array


def _load_dlpack() -> Callable[[Any], Any]:
    file = Path(__file__).with_name("dlpack.py")
    spec = importlib.util.spec_from_file_location("triton_poplar_dlpack", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[Any], Any] = module.to_capsule
    return function
