"""Whether ONNX Runtime's products of unsigned and signed 8-bit numbers are exact on this machine.

Without VNNI its kernels for x86-64 multiply with vpmaddubsw, which adds two products of uint8 and
int8 in 16 bits and saturates there: 255 * 127 + 255 * 127 is 32,767. With VNNI, on aarch64 and in
the plain kernels the sums have 32 bits, and so they have everywhere if both operands are unsigned
or both are signed. `operators.signed_operands` replaces the others where they saturate.

The answer comes from a product, not from the processor's flags: the library chooses its kernels
by more than them.
"""

from __future__ import annotations

from functools import cache

import numpy as np

MODEL = (
    b'\x08\x05:>\n\x18\n\x01a\n\x01b\x12\x01y"\rMatMulInteger\x12\x01p'
    b"Z\t\n\x01a\x12\x04\n\x02\x08\x02Z\t\n\x01b\x12\x04\n\x02\x08\x03"
    b"b\t\n\x01y\x12\x04\n\x02\x08\x06B\x04\n\x00\x10\n"
)
"""ONNX model of MatMulInteger (opset 10) of a, uint8, and b, int8. A process that loads prepared
graphs does not import onnx, which would encode it."""
_TERMS = 64
"""Number of products in the sum: more than a kernel adds at once."""


@cache
def products_saturate() -> bool:
    """Return whether a product of uint8 and int8 saturates, found out once per process."""
    # Imported here: the operator table, which asks this, is also read where nothing is computed.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread: a process that forks keeps the session, but not its threads.
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.enable_cpu_mem_arena = False
    session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    left = np.full((1, _TERMS), np.iinfo(np.uint8).max, np.uint8)
    right = np.full((_TERMS, 1), np.iinfo(np.int8).max, np.int8)
    total = session.run(None, {"a": left, "b": right})[0]
    return int(total[0, 0]) != int((left.astype(np.int64) @ right.astype(np.int64))[0, 0])
