"""Rules of operators on packed sequences, and of the losses and decoders of CTC."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.lowering.control import make_body, new_input, read_body, translate_body
from popart.lowering.graph import Graph, Tensor
from popart.lowering.losses import reduce_loss
from popart.lowering.operation import FLOATS, Operation, chip_rule, type_name

_INT32, _BOOL = TensorProto.INT32, TensorProto.BOOL
NEVER = np.float32(-1e30)
"""Logarithm of the probability of what cannot be; its sums stay finite."""


def read_ints(op: Graph, node: Operation, place: int) -> Tensor:
    """Return an input of whole numbers as a row."""
    tensor = op.cast(node.input(place), _INT32)
    return op.reshape(tensor, [tensor.size])


@chip_rule("SequenceSlice")
def _sequence_slice(op: Graph, node: Operation) -> Results:
    """Copy rows of a source to rows of a destination: counts[i] rows from source_offsets[i] to
    destination_offsets[i] for each i. Rows that get nothing stay, or are zero."""
    source, target = node.input(0), node.input(1)
    counts, froms, tos = (read_ints(op, node, place) for place in (2, 3, 4))
    rest = target
    if node.get("zeroUnused", 0):
        rest = op.constant(np.zeros([1] * target.rank, target.dtype))
    return _place_rows(op, source, rest, target.shape[0], (counts, froms, tos))


def _place_rows(
    op: Graph,
    source: Tensor,
    rest: Tensor,
    count: int,
    moves: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Return `count` rows: those that the moves (counts, from, to) take from the source, and for
    the others those of `rest`."""
    counts, froms, tos = moves
    rows = op.constant(np.arange(count, dtype=np.int32)[:, None])
    off = rows - tos
    is_within = op.And(op.Not(op.Less(off, 0)), op.Less(off, counts))
    hits = op.cast(is_within, _INT32)
    places = op.ReduceMax(hits * (off + froms), axes=[-1], keepdims=0)
    moved = op.Gather(source, op.Clip(places, 0, source.shape[0] - 1), axis=0)
    is_hit = op.cast(op.ReduceMax(hits, axes=[-1], keepdims=0), _BOOL)
    is_hit = op.reshape(is_hit, [count, *[1] * (source.rank - 1)])
    return op.Where(is_hit, moved, rest)


@chip_rule("PackedDataBlock")
def _packed_data_block(op: Graph, node: Operation) -> Results:
    """Unpack each input into sequences of one length, call the graph for batches of them, and pack
    the results. Inputs are data, offsets and lengths of each, then those of the result."""
    lengths = list(node.get("maxSequenceLengths"))
    batch = int(node.get("callbackBatchSize"))
    sequences = node.input(1).size
    steps = sequences // batch
    unpacked = [
        _unpack(op, node, 3 * place, length, steps * batch) for place, length in enumerate(lengths)
    ]
    batches = [op.reshape(rows, [steps, batch, *rows.shape[1:]]) for rows in unpacked]
    proto, inner = read_body(node, "callback"), Graph(op)
    inputs = [
        new_input(inner, value.name, rows.element_type, rows.shape[1:])
        for value, rows in zip(proto.input, batches, strict=True)
    ]
    for value, tensor in zip(proto.input, inputs, strict=True):
        inner.tensors[value.name] = tensor
    result = translate_body(node, proto, inner)[0]
    results = op.Scan(
        *batches,
        results=[result.with_shape((steps, *result.shape))],
        body=make_body(inner, inputs, [result], "callback"),
        num_scan_inputs=len(batches),
    )
    length, rest = result.shape[1], result.shape[2:]
    rows = op.reshape(results, [steps * batch * length, *rest])
    offsets, counts = (read_ints(op, node, place) for place in (-2, -1))
    starts = op.constant((np.arange(sequences) * length).astype(np.int32))
    zero = op.constant(np.zeros([1] * rows.rank, rows.dtype))
    size = int(node.get("resultSize"))
    return _place_rows(op, rows, zero, size, (counts, starts, offsets))


def _unpack(op: Graph, node: Operation, place: int, length: int, count: int) -> Tensor:
    """Return the first `count` sequences of a packed input; behind its end each is zero."""
    data = node.input(place)
    offsets, lengths = (
        op.reshape(op.Gather(read_ints(op, node, number), op.ints(np.arange(count))), [count, 1])
        for number in (place + 1, place + 2)
    )
    steps = op.constant(np.arange(length, dtype=np.int32))
    places = op.Clip(offsets + steps, 0, data.shape[0] - 1)
    rows = op.Gather(data, places, axis=0)
    is_within = op.Less(steps, lengths)
    is_within = op.reshape(is_within, [count, length, *[1] * (data.rank - 1)])
    return op.Where(is_within, rows, np.zeros([1] * rows.rank))


@chip_rule("Ctc")
def _ctc(op: Graph, node: Operation) -> Results:
    """The loss of CTC, by the forward variables: a[s] is the probability of all paths that have
    made the first s of the labels with blanks between them. A step adds those of the label before
    and, past a blank, of the one before that."""
    scores, targets = node.input(0), node.input(1)
    check_scores(node, scores)
    batch = scores.shape[1]
    if targets.rank != 2 or targets.shape[0] != batch:  # noqa: PLR2004
        raise popart_exception(
            f"Unsupported shape for input 1 of Op {node.describe()} (expected a 'targets' "
            f"tensor of rank 2 with the size of the first dimension being {batch} to match the "
            "size of the second dimension of the 'logarithmized probabilities' tensor, got "
            f"{format_shape(targets.shape)})."
        )
    states = 2 * targets.shape[1] + 1
    blank = int(node.get("blank", 0))
    labels = _with_blanks(op, op.cast(targets, _INT32), blank)
    skips = _find_skips(op, labels, blank)
    first = np.full((batch, states), NEVER, np.float32)
    first[:, 0] = 0
    lengths = op.reshape(read_ints(op, node, 2), [batch, 1])
    last = _run_steps(op, op.in_float(scores), labels, skips, lengths, op.constant(first))
    ends = op.reshape(read_ints(op, node, 3) * 2, [batch, 1])
    places = op.constant(np.arange(states, dtype=np.int32))
    before = ends - 1
    final = op.Or(op.Equal(places, ends), op.Equal(places, before))
    final_scores = op.Where(final, last, NEVER)
    axes = op.ints([-1])
    loss = op.Neg(op.ReduceLogSumExp(final_scores, axes, keepdims=0))
    endless = 0.0 if node.get("zeroInfinity", 0) else np.inf
    is_endless = op.Less(op.constant(-NEVER / 2), loss)
    loss = op.Where(is_endless, endless, loss)
    result_type = int(node.get("outDataType", 0)) or scores.element_type
    if node.get("reduction", "Mean") == "Mean":
        loss = loss / op.in_float(op.Max(read_ints(op, node, 3), 1))
    return [op.cast(reduce_loss(op, node, loss), result_type), None]


def check_scores(node: Operation, scores: Tensor) -> None:
    shown = node.describe()
    if scores.rank != 3:  # noqa: PLR2004
        raise popart_exception(
            f"Unsupported shape for input 0 of Op {shown} (expected a 'logarithmized "
            "probabilities' tensor of rank 3, got a tensor with shape "
            f"{format_shape(scores.shape)})."
        )
    if scores.element_type not in FLOATS:
        raise popart_exception(
            f"Unsupported data type for input 0 of Op {shown} (expected a 'logarithmized "
            "probabilities' tensor comprised of floating point data, got "
            f"{type_name(scores)})."
        )


def _with_blanks(op: Graph, targets: Tensor, blank: int) -> Tensor:
    """Return the labels with a blank before each and at the end."""
    batch, count = targets.shape
    column = op.reshape(targets, [batch, count, 1])
    blanks = op.constant(np.full((batch, count, 1), blank, np.int32))
    pairs = op.reshape(op.Concat(blanks, column, axis=2), [batch, 2 * count])
    end = op.constant(np.full((batch, 1), blank, np.int32))
    return op.Concat(pairs, end, axis=1)


def _find_skips(op: Graph, labels: Tensor, blank: int) -> Tensor:
    """Return whether each state may follow the one before the last: it is no blank, and another
    label."""
    states = labels.shape[1]
    head = op.constant(np.full((labels.shape[0], 2), blank, np.int32))
    cut = _columns(op, labels, 0, states - 2) if states > 2 else None  # noqa: PLR2004
    earlier = op.Concat(head, cut, axis=1) if cut is not None else _columns(op, head, 0, states)
    return op.Not(op.Or(op.Equal(labels, earlier), op.Equal(labels, blank)))


def _columns(op: Graph, tensor: Tensor, first: int, last: int) -> Tensor:
    return op.Slice(tensor, starts=[first], ends=[last], axes=[1])


def _run_steps(
    op: Graph,
    scores: Tensor,
    labels: Tensor,
    skips: Tensor,
    lengths: Tensor,
    first: Tensor,
) -> Tensor:
    """Return the forward variables after the last step of each sequence."""
    inner = Graph(op)
    state = new_input(inner, "state", first.element_type, first.shape)
    number = new_input(inner, "number", _INT32, (1,))
    row = new_input(inner, "row", scores.element_type, scores.shape[1:])
    emitted = inner.GatherElements(row, inner.cast(labels, TensorProto.INT64), axis=1)
    parts = [state, _shift(inner, state, 1)]
    if first.shape[1] > 2:  # noqa: PLR2004
        parts.append(inner.Where(skips, _shift(inner, state, 2), NEVER))
    columns = [inner.reshape(part, [*part.shape, 1]) for part in parts]
    joined = inner.ReduceLogSumExp(inner.Concat(*columns, axis=2), axes=[-1], keepdims=0)
    moved = inner.Max(joined + emitted, NEVER)
    next_state = inner.Where(inner.Less(number, lengths), moved, state)
    body = make_body(inner, [state, number, row], [next_state, number + 1], "step")
    begin = op.constant(np.zeros(1, np.int32))
    states = [first, begin]
    return op.add_all(2, "Scan", *states, scores, results=states, body=body, num_scan_inputs=1)[0]


def _shift(op: Graph, state: Tensor, count: int) -> Tensor:
    """Return the states moved on by `count`."""
    batch, states = state.shape
    head = op.constant(np.full((batch, min(count, states)), NEVER, np.float32))
    if states <= count:
        return head
    return op.Concat(head, _columns(op, state, 0, states - count), axis=1)
