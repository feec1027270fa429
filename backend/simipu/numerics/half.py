"""Converts floats to halves by ONNX Runtime's Cast, which uses the processor's own conversion.
Numpy's takes up to a hundred times longer for results below 2**-14, of which weights have many."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper

from popef._tools.arrays import Array
from simipu.numerics.rounding import HALF_MAX

HALVES = 1 << 16
"""Number of codes of a half."""
_REST = 0x7FFF
"""Bits of a half without its sign."""
_INFINITY, _NEGATIVE_INFINITY = 0x7C00, 0xFC00
"""Codes of the infinities: those of NaN are larger, of all other halves of that sign smaller."""
IR_VERSION = 9
"""IR version that every supported ONNX Runtime reads."""


def narrow_to_half(values: Array) -> npt.NDArray[np.float16]:
    """Return the nearest halves, ties to even; finite values beyond their range become the largest
    half."""
    if values.dtype != np.float32:
        return _narrow_plainly(values)
    flat = np.ascontiguousarray(values).reshape(-1)
    halves: npt.NDArray[np.float16] = _make_cast().run(None, {"x": flat})[0]
    codes = halves.view(np.uint16)
    # Two reads of the codes: to write them without their signs takes five times as long.
    if (
        codes.max(initial=0) >= _NEGATIVE_INFINITY
        or codes.view(np.int16).max(initial=0) >= _INFINITY
    ):
        beyond = codes & _REST >= _INFINITY
        halves[beyond] = _narrow_plainly(flat[beyond])
    return halves.reshape(values.shape)


def _narrow_plainly(values: Array) -> npt.NDArray[np.float16]:
    """Convert any values with numpy's cast; infinities and NaN stay."""
    bounded = np.where(np.isinf(values), values, np.clip(values, -HALF_MAX, HALF_MAX))
    return bounded.astype(np.float16)


@cache
def _make_cast() -> onnxruntime.InferenceSession:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)],
        "narrow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["n"])],
    )
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    # One thread: a process that forks keeps the session, but not its threads.
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.enable_cpu_mem_arena = False
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
