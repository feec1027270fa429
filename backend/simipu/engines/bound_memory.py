"""Runs of a session of ONNX Runtime on inputs and into outputs in the caller's memory.

A small run takes half the time of one whose arrays are passed and returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_not
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

from popef._tools.arrays import Array
from simipu.errors import RunError

_TYPES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of types, where they differ from numpy's."""
_CPU = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()  # noqa: SLF001


class BoundMemory:
    """Memory of one session, for one thread at a time."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._types = {result.name: result.type for result in session.get_outputs()}
        self._seen: dict[str, np.dtype[Any]] = {}
        """The type by output, once an array of it was checked."""
        # Without the checks of ONNX Runtime's Python classes, which take longer than a small run.
        self._binding = session.io_binding()._iobinding  # noqa: SLF001
        self._run = session._sess.run_with_iobinding  # noqa: SLF001
        self._out: Sequence[Array] = ()

    def has_types(self, names: Sequence[str], dtypes: Sequence[np.dtype[Any]]) -> bool:
        """Return whether the outputs called `names` have these types."""
        types = [f"tensor({_TYPES.get(dtype.name, dtype.name)})" for dtype in dtypes]
        return [self._types[name] for name in names] == types

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Array],
        out: Sequence[Array],
        options: onnxruntime.RunOptions,
    ) -> list[Array]:
        """Compute the outputs called `names` into `out`, which is the result. Raises RunError for
        memory that ONNX Runtime would not write to as told: it checks only the shape."""
        if len(out) != len(self._out) or any(map(is_not, out, self._out)):
            self._bind_outputs(names, out)
        binding = self._binding
        for name, value in feeds.items():
            binding.bind_input(name, value)
        self._run(binding, options)
        return [*out]

    def _bind_outputs(self, names: Sequence[str], out: Sequence[Array]) -> None:
        self._out = ()
        for name, array in zip(names, out, strict=True):
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise RunError(
                    f"output {name!r}: expected memory that is contiguous and can be written to"
                )
            dtype = array.dtype
            if dtype is not self._seen.get(name):
                if not self.has_types([name], [dtype]):
                    raise RunError(
                        f"output {name!r}: expected memory of ONNX Runtime's {self._types[name]}, "
                        f"found {dtype}"
                    )
                self._seen[name] = dtype
            self._binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array, _CPU))
        self._out = out
