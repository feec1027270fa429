"""Guards: replacements of nodes that ONNX Runtime computes wrongly, or that end its process.

A guard of the table decides whether a node needs replacing, and returns the body that replaces it.
Operators that ONNX Runtime lacks are not here: they have a `body`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import Results, Site, Tape, Value, attribute, expansions, is_unconditional
from onnxgraph.opsets import CONSTANT_OF_SHAPE_EXISTS, OPERANDS_BROADCAST

from simipu.operators.entry import Body, GraphContext
from simipu.operators.ranges import narrow_input

_VECTOR = 1
_RECURRENT, _FIRST_STATE = 2, 5
"""Index of the input of a recurrent network that is its first hidden state; that of an LSTM's cells
is the next."""
_WIDER: Mapping[int, int] = {
    TensorProto.INT8: TensorProto.INT32,
    TensorProto.INT16: TensorProto.INT32,
    TensorProto.INT32: TensorProto.INT32,
    TensorProto.INT64: TensorProto.INT64,
    TensorProto.UINT8: TensorProto.INT32,
    TensorProto.UINT16: TensorProto.INT32,
    TensorProto.UINT32: TensorProto.INT64,
    TensorProto.UINT64: TensorProto.UINT64,
}
"""Integer types, each with the type in which its divisions are computed: only these can ONNX
Runtime add in all opsets."""
_UNSIGNED = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)


def vector_product(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute a product of a vector and a matrix as one of two matrices.

    ONNX Runtime fuses a Transpose into such a MatMul, which is wrong for vectors, and moves a
    Transpose from far away there (docs/upstream.md has the report). A product of two vectors has
    nothing to transpose.
    """
    ranks = [around.rank(name) or 0 for name in node.input]
    return expansions.vector_product if _VECTOR in ranks and max(ranks) > _VECTOR else None


def transpose(node: onnx.NodeProto, _around: GraphContext) -> Body | None:
    """Compute a Transpose that moves no axis as an Identity.

    Some versions of ONNX Runtime treat every Transpose before a Gemm as one that swaps axes (issue
    32228).
    """
    order = attribute(node, "perm", ())
    return pass_on if order and list(order) == sorted(order) else None


def pass_on(op: Tape, site: Site[GraphContext]) -> Results:
    """Add an Identity: the body of an operator that returns its input."""
    return op.Identity(site.x)


def regions(node: onnx.NodeProto, _around: GraphContext) -> Body | None:
    """Clip regions that extend more than one image's size beyond the image, if their size
    determines the number of samples. ONNX Runtime ends the process if it has no memory for the
    samples."""
    return None if attribute(node, "sampling_ratio", 0) else _cut_regions


def _cut_regions(op: Tape, site: Site[GraphContext]) -> Results:
    image, regions = site.input(0), site.input(1)
    # A region is (x1, y1, x2, y2), of an image of shape (batch, channels, height, width).
    sizes = op.Gather(op.Shape(image), op.ints([3, 2, 3, 2]))
    sizes = op.Cast(sizes, to=regions.element_type or TensorProto.FLOAT)
    sizes = sizes / site.get("spatial_scale", 1.0)
    cut = op.Min(op.Max(regions, -sizes), sizes + sizes)
    return op.copy(site.node, [image, cut, *site.node.input[2:]])


def recurrence(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute the results of a recurrent network of no steps or no rows as its initial states or
    empty tensors, and one without input features with a feature that is 0: ONNX Runtime ends the
    process, or leaves out the states and the recurrence."""
    steps, rows, features = around.shapes.get(node.input[0], (None,) * 3)
    if 0 in (steps, rows):
        # Before opset 9 no operator makes a tensor of a size that is computed.
        has_fill = around.opset >= CONSTANT_OF_SHAPE_EXISTS
        can_fill = None not in (steps, rows) or (steps == 0 and has_fill)
        return _recur_over_nothing if can_fill and _find_hidden(node, around) else None
    return _recur_without_features if features == 0 else None


def _find_hidden(node: onnx.NodeProto, around: GraphContext) -> int | None:
    """Return the size of a state."""
    hidden = around.shapes.get(node.input[_RECURRENT], (None,))[-1]
    return int(attribute(node, "hidden_size", 0)) or hidden


def _recur_without_features(op: Tape, site: Site[GraphContext]) -> Results:
    """Write the network with one feature that is 0 for all steps and has weights of 0."""
    source, weights, *others = site.node.input
    pads = [0, 0, 0, 0, 0, 1]
    padded = [op.Pad(op.read(name, TensorProto.FLOAT), pads=pads) for name in (source, weights)]
    return op.copy(site.node, [*padded, *others])


def _recur_over_nothing(op: Tape, site: Site[GraphContext]) -> Results:
    node = site.node
    # The shapes of results that are still to be rounded are not known; the input's is.
    steps, rows = site.facts.shapes[node.input[0]][:2]
    ways = 2 if site.get("direction") == "bidirectional" else 1
    hidden = _find_hidden(node, site.facts)
    dtype = helper.tensor_dtype_to_np_dtype(site.x.element_type or TensorProto.FLOAT)

    def fill(*sizes: int | None) -> Value:
        if None not in sizes:
            return op.constant(np.zeros([size or 0 for size in sizes]), dtype)
        # One size at most is not known, that of the rows: weights are constants.
        count = op.Gather(op.Shape(site.x), op.ints([1]))
        parts = [count if size is None else op.ints([size]) for size in sizes]
        zero = numpy_helper.from_array(np.zeros(1, dtype))
        return op.ConstantOfShape(op.Concat(*parts, axis=0), value=zero)

    results: list[Value | None] = []
    # The last states are the outputs from 1 on, the first ones the inputs from 5 on.
    for place in range(len(node.output)):
        state = site.optional(place + _FIRST_STATE - 1) if place else None
        if not site.has_output(place) or state is not None:
            results.append(state)
        elif place:
            results.append(fill(ways, rows, hidden))
        else:
            results.append(fill(steps, ways, rows, hidden))
    return results


def cast(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Cast to float before a Transpose that moves the first axis, not after it.

    ONNX Runtime ends the process as it fuses such a Transpose and a Cast into a MatMul of operands
    of two ranks (docs/upstream.md has the report).
    """
    transpose = _find_maker(node, around)
    if attribute(node, "to") not in (TensorProto.FLOAT, TensorProto.DOUBLE) or transpose is None:
        return None
    order = attribute(transpose, "perm", ())
    return _cast_first if transpose.op_type == "Transpose" and (not order or order[0]) else None


def _find_maker(node: onnx.NodeProto, around: GraphContext) -> onnx.NodeProto | None:
    """Return the node that makes the first input of a node, skipping Identities."""
    maker = around.makers.get(node.input[0])
    while maker is not None and maker.op_type == "Identity":
        maker = around.makers.get(maker.input[0])
    return maker


def _cast_first(op: Tape, site: Site[GraphContext]) -> Results:
    transpose = _find_maker(site.node, site.facts)
    assert transpose is not None
    wide = op.Cast(transpose.input[0], to=site.get("to"))
    return op.Transpose(wide, perm=attribute(transpose, "perm"))


def trips(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Check the trip count of a Loop that nothing else ends: it would run until its time limit."""
    body = attribute(node, "body")
    return _CHECK_TRIPS(node, around) if is_unconditional(body, around.constants) else None


_CHECK_TRIPS = narrow_input(0, "trip count", None)


def division(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute x / 0 as 0, and the least integer / -1 as itself: the processor traps on both.

    The chip's integers wrap. The standard leaves x / 0 undefined, and its reference returns 0.
    """
    return _divide if _can_trap(node, around) else None


def remainder(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute the remainder of a division by 0 or -1 as 0: the processor traps on both."""
    return _find_remainder if _can_trap(node, around) else None


def _can_trap(node: onnx.NodeProto, around: GraphContext) -> bool:
    """Return whether the divisor of a node is an integer that may be 0 or -1."""
    kind = _find_kind(node, around)
    if kind not in _WIDER or around.opset < OPERANDS_BROADCAST:
        return False
    constant = around.constants.get(node.input[1])
    if constant is None:
        return True
    return not {0, -1}.isdisjoint(numpy_helper.to_array(constant).reshape(-1).tolist())


def _find_kind(node: onnx.NodeProto, around: GraphContext) -> int:
    """Return the element type of a division, which both operands and the result have."""
    kinds = (around.types.get(name, TensorProto.UNDEFINED) for name in (*node.input, *node.output))
    return next(filter(None, kinds), TensorProto.UNDEFINED)


def _divide(op: Tape, site: Site[GraphContext]) -> Results:
    """Add x / divisor; if the divisor is 0 or -1, x / 1 * divisor, which wraps."""
    kind = _find_kind(site.node, site.facts)
    value, divisor, excess = _replace_divisor(op, site.node, kind)
    return _narrow(op, op.Mul(op.Div(value, divisor), op.like(1, _WIDER[kind]) - excess), kind)


def _find_remainder(op: Tape, site: Site[GraphContext]) -> Results:
    """Add x mod divisor; if the divisor is 0 or -1, x mod 1, which is 0."""
    kind = _find_kind(site.node, site.facts)
    value, divisor, _ = _replace_divisor(op, site.node, kind)
    return _narrow(op, op.Mod(value, divisor, fmod=site.get("fmod", 0)), kind)


def _replace_divisor(op: Tape, node: onnx.NodeProto, kind: int) -> tuple[Value, Value, Value]:
    """Return the operands of a division, with the divisor 1 where it is 0 or -1, and what was added
    to it there:

    divisor  -2  -1   0   1   2
    excess    0   2   1   0   0
    sum      -2   1   1   1   2
    """
    wide = _WIDER[kind]
    value, divisor = (
        op.read(name, kind) if kind == wide else op.Cast(name, to=wide) for name in node.input
    )
    excess = op.Cast(op.Not(op.Cast(divisor, to=TensorProto.BOOL)), to=wide)
    if kind not in _UNSIGNED:
        once = op.Cast(op.Equal(divisor, -1), to=wide)
        excess = excess + (once + once)
    return value, divisor + excess, excess


def _narrow(op: Tape, value: Value, kind: int) -> Value:
    """Return the result of a division in its own type."""
    return value if kind == _WIDER[kind] else op.Cast(value, to=kind)
