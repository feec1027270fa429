"""Guards: replacements of nodes that ONNX Runtime computes wrongly, or that end its process.

A guard of the table decides whether a node needs replacing, and returns the body that replaces it.
Operators that ONNX Runtime lacks are not here: they have a `body`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import Chain, attribute

from simipu.operators.entry import Body, GraphContext

_AXES_AS_INPUT = 13
"""First opset in which Squeeze and Unsqueeze take their axes as an input."""
_BROADCASTING = 7
"""First opset whose Div broadcasts as numpy does, and which ONNX Runtime computes."""
_VECTOR = 1
_RECURRENT, _FIRST_STATE = 2, 5
"""Index of the input of a recurrent network that is its first hidden state; that of an LSTM's cells
is the next."""
_FRAME_LENGTH = 3
"""Index of the input of an STFT that is the number of samples of a frame."""
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
    ranks = [around.ranks.get(name, 0) for name in node.input]
    return _multiply_as_matrices if _VECTOR in ranks and max(ranks) > _VECTOR else None


def _multiply_as_matrices(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    left, right = node.input
    if around.ranks[left] == _VECTOR:
        row = _move_axis(chain, "Unsqueeze", left, 0, around.opset)
        result, axis = chain.add("MatMul", row, right), around.ranks[right] - 2
    else:
        column = _move_axis(chain, "Unsqueeze", right, 1, around.opset)
        result, axis = chain.add("MatMul", left, column), around.ranks[left] - 1
    _move_axis(chain, "Squeeze", result, axis, around.opset, node.output[0])


def _move_axis(
    chain: Chain, op_type: str, source: str, axis: int, opset: int, result: str = ""
) -> str:
    """Add a Squeeze or Unsqueeze of one axis, and return the name of its result."""
    if opset < _AXES_AS_INPUT:
        return chain.add_as(result or chain.new_name(), op_type, source, axes=[axis])
    axes = chain.shape([axis])
    return chain.add_as(result or chain.new_name(), op_type, source, axes)


def transpose(node: onnx.NodeProto, _around: GraphContext) -> Body | None:
    """Compute a Transpose that moves no axis as an Identity.

    Some versions of ONNX Runtime treat every Transpose before a Gemm as one that swaps axes (issue
    32228).
    """
    order = attribute(node, "perm", ())
    return pass_on if order and list(order) == sorted(order) else None


def pass_on(chain: Chain, node: onnx.NodeProto, _around: GraphContext) -> None:
    """Add an Identity: the body of an operator that returns its input."""
    chain.add_as(node.output[0], "Identity", node.input[0])


def regions(node: onnx.NodeProto, _around: GraphContext) -> Body | None:
    """Clip regions that extend more than one image's size beyond the image, if their size
    determines the number of samples. ONNX Runtime ends the process if it has no memory for the
    samples."""
    return None if attribute(node, "sampling_ratio", 0) else _cut_regions


def _cut_regions(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    image, regions = node.input[:2]
    kind = helper.tensor_dtype_to_np_dtype(around.types.get(regions) or TensorProto.FLOAT)
    # A region is (x1, y1, x2, y2), of an image of shape (batch, channels, height, width).
    sizes = chain.add("Gather", chain.add("Shape", image), chain.shape([3, 2, 3, 2]))
    sizes = chain.add("Cast", sizes, to=helper.np_dtype_to_tensor_dtype(kind))
    sizes = chain.add("Div", sizes, chain.constant(attribute(node, "spatial_scale", 1.0), kind))
    cut = chain.add("Max", regions, chain.add("Neg", sizes))
    cut = chain.add("Min", cut, chain.add("Add", sizes, sizes))
    _copy_with(chain, node, 1, cut)


def recurrence(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute the results of an LSTM or a GRU over an empty input as empty tensors, or as its
    initial states: ONNX Runtime ends the process."""
    known = around.shapes.get(node.input[0], (None,))
    is_static = None not in known and _find_hidden(node, around) is not None
    return _recur_over_nothing if is_static and 0 in known else None


def _find_hidden(node: onnx.NodeProto, around: GraphContext) -> int | None:
    """Return the size of a state."""
    held = around.shapes.get(node.input[_RECURRENT], (None,))[-1]
    return int(attribute(node, "hidden_size", 0)) or held


def _recur_over_nothing(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    kind = around.types.get(node.input[0]) or TensorProto.FLOAT
    # The shapes of results that are still to be rounded are not known; the input's is.
    first, second = (size or 0 for size in around.shapes[node.input[0]][:2])
    ways = 2 if attribute(node, "direction", b"") == b"bidirectional" else 1
    hidden = _find_hidden(node, around) or 0
    is_batch_first = attribute(node, "layout", 0)
    whole = [first, second, ways, hidden] if is_batch_first else [first, ways, second, hidden]
    last = [first, ways, hidden] if is_batch_first else [ways, second, hidden]
    zero = numpy_helper.from_array(np.zeros(1, helper.tensor_dtype_to_np_dtype(kind)))
    # The last states are the outputs from 1 on, the first ones the inputs from 5 on.
    for place, name in enumerate(node.output):
        start = place + _FIRST_STATE - 1
        state = node.input[start] if place and start < len(node.input) else ""
        if name and state:
            chain.add_as(name, "Identity", state)
        elif name:
            shape = chain.shape(last if place else whole)
            chain.add_as(name, "ConstantOfShape", shape, value=zero)


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


def _cast_first(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    transpose = _find_maker(node, around)
    assert transpose is not None
    _copy_with(chain, node, 0, transpose.input[0])
    chain.nodes[-1].output[0] = chain.new_name()
    _copy_with(chain, transpose, 0, chain.nodes[-1].output[0])
    chain.nodes[-1].output[0] = node.output[0]


def frames(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Use frames of at least one sample in an STFT: the processor traps on empty frames."""
    length = node.input[_FRAME_LENGTH] if len(node.input) > _FRAME_LENGTH else ""
    known = around.constants.get(length)
    is_safe = not length or (known is not None and (numpy_helper.to_array(known) > 0).all())
    return None if is_safe else _bound_frames


def _bound_frames(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    length = node.input[_FRAME_LENGTH]
    kind = helper.tensor_dtype_to_np_dtype(around.types.get(length) or TensorProto.INT64)
    _copy_with(chain, node, _FRAME_LENGTH, chain.add("Max", length, chain.constant(1, kind)))


def _copy_with(chain: Chain, node: onnx.NodeProto, place: int, source: str) -> None:
    """Add a copy of the node with another input."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[place], made.name = source, f"{chain.new_name()}/{node.op_type}"
    chain.nodes.append(made)


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
    if kind not in _WIDER or around.opset < _BROADCASTING:
        return False
    constant = around.constants.get(node.input[1])
    if constant is None:
        return True
    return not {0, -1}.isdisjoint(numpy_helper.to_array(constant).reshape(-1).tolist())


def _find_kind(node: onnx.NodeProto, around: GraphContext) -> int:
    """Return the element type of a division, which both operands and the result have."""
    kinds = (around.types.get(name, TensorProto.UNDEFINED) for name in (*node.input, *node.output))
    return next(filter(None, kinds), TensorProto.UNDEFINED)


def _divide(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    """Add x / divisor; if the divisor is 0 or -1, x / 1 * divisor, which wraps."""
    kind = _find_kind(node, around)
    value, divisor, excess = _replace_divisor(chain, node, kind)
    factor = chain.add("Sub", _constant(chain, 1, kind), excess)
    _finish(chain, kind, node, "Mul", chain.add("Div", value, divisor), factor)


def _find_remainder(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    """Add x mod divisor; if the divisor is 0 or -1, x mod 1, which is 0."""
    kind = _find_kind(node, around)
    value, divisor, _ = _replace_divisor(chain, node, kind)
    _finish(chain, kind, node, "Mod", value, divisor, fmod=attribute(node, "fmod", 0))


def _replace_divisor(chain: Chain, node: onnx.NodeProto, kind: int) -> tuple[str, str, str]:
    """Return the operands of a division, with the divisor 1 where it is 0 or -1, and what was added
    to it there:

    divisor  -2  -1   0   1   2
    excess    0   2   1   0   0
    sum      -2   1   1   1   2
    """
    wide = _WIDER[kind]
    value, divisor = (
        name if kind == wide else chain.add("Cast", name, to=wide) for name in node.input
    )
    is_zero = chain.add("Not", chain.add("Cast", divisor, to=TensorProto.BOOL))
    excess = chain.add("Cast", is_zero, to=wide)
    if kind not in _UNSIGNED:
        is_minus_one = chain.add("Equal", divisor, _constant(chain, -1, kind))
        once = chain.add("Cast", is_minus_one, to=wide)
        excess = chain.add("Add", excess, chain.add("Add", once, once))
    return value, chain.add("Add", divisor, excess), excess


def _constant(chain: Chain, value: int, kind: int) -> str:
    return chain.constant(value, helper.tensor_dtype_to_np_dtype(_WIDER[kind]))


def _finish(
    chain: Chain, kind: int, node: onnx.NodeProto, op_type: str, *inputs: str, **attributes: int
) -> None:
    """Add the operator that computes the result of a division, in the result's own type."""
    if kind == _WIDER[kind]:
        chain.add_as(node.output[0], op_type, *inputs, **attributes)
    else:
        wide = chain.add(op_type, *inputs, **attributes)
        chain.add_as(node.output[0], "Cast", wide, to=kind)
