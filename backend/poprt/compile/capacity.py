"""Check of a model's weights against the chip's memory, before anything is converted or planned."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto
from onnxgraph import find_inputs, iter_bodies, used_names
from simipu import OutOfMemoryError
from simipu.numerics.quarter import QUARTERS
from simipu.target import Target

from poprt.rewrite.origins import OF_SHAPES

_BYTES = {
    TensorProto.FLOAT: 4,
    TensorProto.FLOAT16: 2,
    TensorProto.DOUBLE: 8,
    **dict.fromkeys(QUARTERS, 1),
}
_BYTES_BY_PRECISION = {"fp32": 8, "fp16": 2, "fp8": 1, "fp8_weight": 1}
"""Maximum number of bytes of an element of a weight after conversion, by precision."""


def check_weights(
    graph: onnx.GraphProto,
    target: Target,
    precision: str = "fp32",
    *,
    allow_out_of_memory: bool = False,
) -> None:
    """Raise OutOfMemoryError if the weights that the chip must hold are larger than all of its
    memory.

    Only weights that meet data unknown at compile time are counted: folding may shrink everything
    else.
    """
    sizes = {
        tensor.name: _count_bytes(tensor, precision)
        for tensor in graph.initializer
        if tensor.data_type in _BYTES
    }
    held = sorted(_find_held(graph) & sizes.keys(), key=lambda name: -sizes[name])
    needed, there = (
        sum(sizes[name] for name in held),
        target.num_ipus * target.tiles_per_ipu * target.bytes_per_tile,
    )
    if needed <= there or allow_out_of_memory:
        return
    raise OutOfMemoryError(
        f"Out of memory on tile 0: {-(-needed // target.num_tiles)} bytes of weights alone: they "
        f"take {needed} bytes in {precision}, {target.num_ipus} IPU(s) of {target.name} have "
        f"{there} (largest weight: {held[0]!r}, {sizes[held[0]]} bytes); use a smaller precision, "
        "more IPUs (num_ipus) or allow_out_of_memory"
    )


def _find_held(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a node reads together with a tensor that depends on the inputs."""
    dynamic = {value.name for value in find_inputs(graph)}
    held = set()
    for node in graph.node:
        inner = set().union(*(used_names(body) for body in iter_bodies(node)))
        taken = inner.union(node.input)
        if node.op_type not in OF_SHAPES and dynamic & taken:
            dynamic.update(node.output)
            held |= taken
    return held


def _count_bytes(tensor: TensorProto, precision: str) -> int:
    return math.prod(tensor.dims) * min(_BYTES[tensor.data_type], _BYTES_BY_PRECISION[precision])
