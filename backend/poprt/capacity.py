"""Whether a model's weights alone exceed the chip's memory: known before anything is converted or planned."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto
from onnxgraph import find_inputs, iter_bodies, used_names
from simipu import OutOfMemoryError
from simipu.numerics.quarter import QUARTERS
from simipu.target import Target

from poprt.origins import OF_SHAPES

_BYTES = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.DOUBLE: 8, **dict.fromkeys(QUARTERS, 1)}
_BYTES_BY_PRECISION = {"fp32": 8, "fp16": 2, "fp8": 1, "fp8_weight": 1}
"""The most that an element of a weight takes once it is converted."""


def check_weights(
    graph: onnx.GraphProto, target: Target, precision: str = "fp32", *, allow_out_of_memory: bool = False
) -> None:
    """Raise OutOfMemoryError where the weights that the chip has to hold are larger than all of its memory.

    Counted is what meets data that are not known at compile time: of everything else the folding may leave
    less.
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
        f"Out of memory on tile 0: {-(-needed // target.num_tiles)} bytes of weights alone: they take "
        f"{needed} bytes in {precision}, {target.num_ipus} IPU(s) of "
        f"{target.name} have {there} (largest weight: {held[0]!r}, {sizes[held[0]]} bytes); use a smaller "
        "precision, more IPUs (num_ipus) or allow_out_of_memory"
    )


def _find_held(graph: onnx.GraphProto) -> set[str]:
    """Names that meet, in a node, what depends on the inputs."""
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
