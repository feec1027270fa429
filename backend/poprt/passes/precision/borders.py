"""Types of a graph's inputs and outputs that differ from those inside: Casts at its borders."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto
from onnxgraph import find_inputs, fresh_name, iter_defined, make_cast, rename, replace_nodes
from simipu import CompileError

from poprt.rewrite.base import Pass, Stage, register

_BORDER_TYPES: dict[str, dict[int, int]] = {
    "fp32": {TensorProto.FLOAT16: TensorProto.FLOAT},
    "fp16": {TensorProto.FLOAT: TensorProto.FLOAT16},
}
"""Types that `io_precision` replaces, and their replacements."""


@register(
    "io_precision",
    stage=Stage.CHIP,
    option="io_precision",
    values=tuple(_BORDER_TYPES),
    takes={"io_precision": "io_precision"},
    is_ours=True,
)
class IoPrecision(Pass):
    """Give all inputs and outputs of floats one type, fp32 or fp16, with Casts between them and the
    graph, whose arithmetic does not change.

    With fp32 a model that computes in half can be asked by JSON, which has no half. Its inputs are
    rounded to half on the chip, and twice the bytes cross between host and chip.
    """

    def __init__(self, io_precision: str = "fp32") -> None:
        super().__init__()
        if io_precision not in _BORDER_TYPES:
            raise CompileError(
                f"io_precision: expected {' or '.join(_BORDER_TYPES)}, found {io_precision!r}"
            )
        self._types = _BORDER_TYPES[io_precision]

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert inputs and outputs of the other float type; integers and pictures in bytes stay
        as they are."""
        cast_borders(model.graph, self._types)
        return model


def cast_borders(graph: onnx.GraphProto, types: Mapping[int, int]) -> None:
    """Replace element types of inputs and outputs, with Casts from and to the types inside.

    A tensor keeps its name at the border. An output that is an input needs no Cast.
    """
    inputs = [value for value in find_inputs(graph) if _element(value) in types]
    outputs = [value for value in graph.output if _element(value) in types]
    if not (inputs or outputs):
        return
    before = {value.name: _element(value) for value in (*inputs, *outputs)}
    taken = set(iter_defined(graph))
    inner = {}
    for name, element in before.items():
        inner[name] = fresh_name(f"{name}/{TensorProto.DataType.Name(element).lower()}", taken)
        taken.add(inner[name])
    rename(graph, inner)
    # Rename outputs that were folded to constants, which no node computes.
    for tensor in graph.initializer:
        tensor.name = inner.get(tensor.name, tensor.name)
    for value in (*inputs, *outputs):
        value.type.tensor_type.elem_type = types[before[value.name]]
    given = {value.name for value in inputs}
    first = [make_cast(value.name, inner[value.name], before[value.name]) for value in inputs]
    last = [
        make_cast(inner[name], name, types[before[name]]) for name in before if name not in given
    ]
    replace_nodes(graph, [*first, *graph.node, *last])


def _element(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type
