"""Passes that compute large products in parts, one after the other, in less memory and more time.

PopART does the same to its own graph: slices of the operands, a product of each, and a node that
combines the results. The passes write these nodes into the graph, so that the cost estimate is that
of the nodes that run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper
from onnxgraph import GraphEditor, Shape, Tape, Value
from simipu import CompileError
from simipu.numerics import QUARTERS

from poprt.rewrite.base import Stage, register
from poprt.rewrite.rules import GraphRule

INPUT_CHANNELS, OUTPUT_CHANNELS, REDUCING_DIM, NONE = (
    "input_channels",
    "output_channels",
    "reducing_dim",
    "none",
)
_MODES = (INPUT_CHANNELS, OUTPUT_CHANNELS, REDUCING_DIM, NONE)
_CUTS: Mapping[str, tuple[tuple[tuple[int, int], ...], str]] = {
    OUTPUT_CHANNELS: (((1, -1),), "columns in its right operand"),
    INPUT_CHANNELS: (((0, -2),), "rows in its left operand"),
    REDUCING_DIM: (((0, -1), (1, -2)), "elements to sum over"),
}
"""Operands that each mode cuts, with the axis, and the cut dimension in words."""
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_MAX_PARTS = 4096
"""Maximum number of parts of one product; more nodes are assumed to be a mistake."""
_MIN_RANK = 2


@dataclass(frozen=True, slots=True)
class _Order:
    """Options for one product. The real tool's KEEP_PRECISION, for partial sums in float, has no
    effect: here sums of parts are always made in float, and rounded once."""

    factor: int
    mode: str = OUTPUT_CHANNELS

    @classmethod
    def parse(cls, option: str, name: str, given: Any) -> _Order:
        """Return the options of FACTOR[/MODE[/KEEP]], as a string, a sequence or a number. Raise
        CompileError for invalid ones."""
        parts = given.split("/") if isinstance(given, str) else given
        parts = list(parts) if isinstance(parts, Sequence) else [parts]
        texts = [str(part).strip() for part in parts]
        factor = (
            int(texts[0])
            if texts and texts[0].isdecimal() and len(texts[0]) < len(str(2**31))
            else 0
        )
        mode = texts[1].lower() if len(texts) > 1 and texts[1] else OUTPUT_CHANNELS
        keeps = _TRUTHS.get(texts[2].lower()) if len(texts) > 2 else False  # noqa: PLR2004
        if not 1 <= factor <= _MAX_PARTS or mode not in _MODES or keeps is None or len(texts) > 3:  # noqa: PLR2004
            raise CompileError(
                f"{option} of {name!r}: expected FACTOR[/MODE[/KEEP]], a factor of 1 to "
                f"{_MAX_PARTS}, a mode of {', '.join(_MODES)}, and True or False; found {given!r}"
            )
        return cls(factor, mode)

    @property
    def does_nothing(self) -> bool:
        """Flag that the product stays whole."""
        return self.factor == 1 or self.mode == NONE


class _Serialising(GraphRule):
    """Base class of passes that split products named by the user."""

    op_types = frozenset(("MatMul",))

    def __init__(self, option: str, given: Mapping[str, Any] | None) -> None:
        self._option = option
        self._orders = {
            name: _Order.parse(option, name, order) for name, order in (given or {}).items()
        }
        self._done: set[str] = set()

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Split the products. Warn of names that no such node has."""
        self._done = set()
        model = super().run(model) if self._orders else model
        for name in self._orders.keys() - self._done:
            self.logger.warning("%s: the model has no such node as %s", self._option, name)
        return model

    def _find_order(self, name: str) -> _Order | None:
        order = self._orders.get(name)
        if order is not None:
            self._done.add(name)
        return None if order is None or order.does_nothing else order

    def _measure(self, node: onnx.NodeProto, size: int, order: _Order, what: str) -> int:
        """Return the length of a part of a dimension. Raise CompileError if the parts are not
        equal."""
        if size % order.factor:
            raise CompileError(
                f"{self._option}: node {node.name!r} has {size} {what}, which {order.factor} parts "
                "cannot share evenly; give a factor that divides it"
            )
        return size // order.factor


def _slice(
    made: Tape,
    view: GraphEditor,
    node: onnx.NodeProto,
    operand: int,
    start: int,
    end: int,
    axis: int,
) -> str:
    """Add a slice of a product's operand and return its name. If both operands are widened from 8
    bits, the slice is taken before that, so that the product of the parts has 8-bit operands,
    too."""
    casts = [view.maker(name, "Cast") for name in node.input]
    cast = casts[operand]
    if cast is None or any(
        cast is None or view.type(cast.input[0]) not in QUARTERS for cast in casts
    ):
        return _slice_axis(made, node.input[operand], start, end, axis)
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in cast.attribute}
    return made.add("Cast", _slice_axis(made, cast.input[0], start, end, axis), **attributes)


def _slice_axis(made: Tape, source: str, start: int, end: int, axis: int) -> Value:
    return made.Slice(source, starts=[start], ends=[end], axes=[axis])


@register("serialize_matmul", stage=Stage.CHIP, option="serialize_matmul", takes="serialize_matmul")
class SerializeMatMul(_Serialising):
    """Compute products in parts, one after the other.

    serialize_matmul: FACTOR[/MODE[/KEEP]] by the name of the product. Modes: output_channels (the
    default) cuts the columns of the right operand, input_channels the rows of the left one,
    reducing_dim what is summed over; none leaves the product whole.
    """

    def __init__(self, serialize_matmul: Mapping[str, Any] | None = None) -> None:
        super().__init__("serialize_matmul", serialize_matmul)

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Split the product. Raise CompileError for a factor that does not divide the dimension."""
        order = self._find_order(node.name)
        shapes = [view.shape(name) for name in node.input]
        if order is None or any(shape is None or len(shape) < _MIN_RANK for shape in shapes):
            return
        left, right = (shape or () for shape in shapes)
        op = view.start(node, "serial")
        parts = self._cut(node, order, (left, right), op, view)
        result = node.output[0]
        if order.mode == REDUCING_DIM:
            op.add_as(result, "Sum", *parts)
        else:
            along = max(len(left), len(right)) - (1 if order.mode == OUTPUT_CHANNELS else 2)
            op.add_as(result, "Concat", *parts, axis=along)
        view.rewrite(node, op.nodes, [node])

    def _cut(
        self,
        node: onnx.NodeProto,
        order: _Order,
        shapes: tuple[Shape, Shape],
        made: Tape,
        view: GraphEditor,
    ) -> list[Value]:
        """Return the products of the parts."""
        cuts, what = _CUTS[order.mode]
        step = self._measure(node, shapes[cuts[0][0]][cuts[0][1]], order, what)
        parts = []
        for start in range(0, step * order.factor, step):
            operands = list(node.input)
            for place, axis in cuts:
                along = len(shapes[place]) + axis
                operands[place] = _slice(made, view, node, place, start, start + step, along)
            parts.append(made.add("MatMul", *operands))
        return parts


@register(
    "serialize_matmul_add",
    stage=Stage.CHIP,
    option="serialize_matmul_add",
    takes="serialize_matmul_add",
)
class SerializeMatMulAdd(_Serialising):
    """Compute products and the biases added to them in parts, along the last dimension of weight
    and bias.

    serialize_matmul_add: the number of parts by the names of product and sum, MATMUL/ADD. Names may
    have slashes of their own.
    """

    def __init__(self, serialize_matmul_add: Mapping[str, Any] | None = None) -> None:
        super().__init__("serialize_matmul_add", serialize_matmul_add)

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Split the product and the sum. Raise CompileError for a factor that does not divide the
        dimension."""
        add = view.reader(node.output[0], "Add")
        order = self._find_order(f"{node.name}/{add.name}") if add is not None else None
        right = view.shape(node.input[1])
        if add is None or order is None or right is None or len(right) < _MIN_RANK:
            return
        bias = next((name for name in add.input if name != node.output[0]), "")
        shape = view.shape(node.output[0])
        if shape is None or view.shape(bias) != right[-1:] or view.shape(add.output[0]) != shape:
            return
        step = self._measure(node, right[-1], order, "columns in its right operand")
        op = view.start(add, "serial")
        parts = []
        for start in range(0, right[-1], step):
            weight = _slice(op, view, node, 1, start, start + step, len(right) - 1)
            product = op.add("MatMul", node.input[0], weight)
            parts.append(op.add("Add", product, _slice_axis(op, bias, start, start + step, 0)))
        op.add_as(add.output[0], "Concat", *parts, axis=len(shape) - 1)
        view.rewrite(add, op.nodes, [add])
