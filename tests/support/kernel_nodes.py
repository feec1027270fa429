"""Models of one node of the kernels' domain."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper
from simipu.kernels import LIBRARY

Array = npt.NDArray[Any]

USED = os.environ.get("SIMIPU_TESTED_LIBRARY", str(LIBRARY))
"""Path of the tested library; `make fuzz` makes another build with sanitizers."""
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8}
NONE, ADD, MULTIPLY, TABLE, F143_STEP = 0, 1, 4, 9, 10
KEPT, ROUNDED = 0, 1

SUMS = {"block": 16, "nan_on_overflow": 0, "raises": 0, "threads": 2}
PRODUCT: dict[str, Any] = {
    **SUMS,
    **dict.fromkeys(
        ["trans_left", "trans_right", "left_format", "right_format", "left_scale", "right_scale"], 0
    ),
}
CONV: dict[str, Any] = {
    **SUMS,
    **dict.fromkeys(["filters_format", "filters_scale", "slic_taps"], 0),
    **dict.fromkeys(["blocked_source", "blocked_result"], 0),
    **dict.fromkeys(["group", "packed_rows"], 1),
    "strides": [1, 1],
    "dilations": [1, 1],
    "pads": [0, 0, 0, 0],
}
CHAIN: dict[str, Any] = {"nan_on_overflow": 0, "raises": 0}
DEFAULTS: dict[str, dict[str, Any]] = {"Product": PRODUCT, "Conv": CONV, "Chain": CHAIN}


def make_model(
    op_type: str,
    feeds: Sequence[Array | None],
    steps: Sequence[Sequence[Any]] = (),
    numbers: Sequence[float] | None = None,
    **attributes: Any,
) -> bytes:
    """Return a model of one node. An attribute or input that is None is left out."""
    given = {
        name: value
        for name, value in {**DEFAULTS[op_type], **attributes}.items()
        if value is not None
    }
    if steps:
        given |= {"steps": [each for step in steps for each in step[:3]]}
        given |= {"numbers": numbers or [step[3] if len(step) > 3 else 0.0 for step in steps]}
    names = ["" if value is None else f"x{i}" for i, value in enumerate(feeds)]
    inputs = [
        helper.make_tensor_value_info(name, TYPES[value.dtype.name], [None] * value.ndim)
        for name, value in zip(names, feeds, strict=True)
        if value is not None
    ]
    node = helper.make_node(op_type, names, ["y"], name="it", domain="simipu", **given)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "one", inputs, [result])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("simipu", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def make_session(*args: Any, threads: int = 1, **attributes: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(USED)
    return onnxruntime.InferenceSession(
        make_model(*args, **attributes),
        options,
        providers=["CPUExecutionProvider"],
        enable_fallback=0,
    )


def run(op_type: str, feeds: Sequence[Array | None], *args: Any, **attributes: Any) -> Array:
    session = make_session(op_type, feeds, *args, **attributes)
    named = {f"x{i}": value for i, value in enumerate(feeds) if value is not None}
    return np.asarray(session.run(None, named)[0])


def halves(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float16)


def wide(*shape: int, seed: int = 0) -> Array:
    return halves(*shape, seed=seed).astype(np.float32)
