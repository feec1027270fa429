"""Rules of operators on packed sequences, and of the losses and decoders of CTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from popart.errors import format_shape, popart_exception
from popart.lowering.control import make_body, new_input, read_body, translate_body
from popart.lowering.graph import Graph, Tensor
from popart.lowering.losses import reduce_loss
from popart.lowering.operation import FLOATS, Operation, chip_rule, type_name

_INT32, _BOOL = TensorProto.INT32, TensorProto.BOOL
NEVER = np.float32(-1e30)
"""Logarithm of the probability of what cannot be; its sums stay finite."""


def read_ints(operation: Operation, place: int) -> Tensor:
    """Return an input of whole numbers as a row."""
    tensor = operation.cast(operation.input(place), _INT32)
    return operation.reshape(tensor, [tensor.size])


def _int(operation: Operation, value: int) -> Tensor:
    return operation.constant(np.int32(value))


def _not_less(operation: Operation, left: Tensor, right: Tensor) -> Tensor:
    return operation.add("Not", operation.add("Less", left, right))


@chip_rule("SequenceSlice")
def _sequence_slice(operation: Operation) -> Sequence[Tensor]:
    """Copy rows of a source to rows of a destination: counts[i] rows from source_offsets[i] to
    destination_offsets[i] for each i. Rows that get nothing stay, or are zero."""
    source, target = operation.input(0), operation.input(1)
    counts, froms, tos = (read_ints(operation, place) for place in (2, 3, 4))
    rest = target
    if operation.attribute("zeroUnused", 0):
        rest = operation.constant(np.zeros([1] * target.rank, target.dtype))
    return [_place_rows(operation, source, rest, target.shape[0], (counts, froms, tos))]


def _place_rows(
    operation: Operation,
    source: Tensor,
    rest: Tensor,
    count: int,
    moves: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Return `count` rows: those that the moves (counts, from, to) take from the source, and for
    the others those of `rest`."""
    counts, froms, tos = moves
    rows = operation.constant(np.arange(count, dtype=np.int32)[:, None])
    off = operation.add("Sub", rows, tos)
    begun = _not_less(operation, off, _int(operation, 0))
    within = operation.add("And", begun, operation.add("Less", off, counts))
    hits, last = operation.cast(within, _INT32), operation.numbers(np.asarray([-1]))
    taken = operation.add("Mul", hits, operation.add("Add", off, froms))
    places = operation.add("ReduceMax", taken, last, keepdims=0)
    ends = _int(operation, 0), _int(operation, source.shape[0] - 1)
    moved = operation.add("Gather", source, operation.add("Clip", places, *ends), axis=0)
    hit = operation.cast(operation.add("ReduceMax", hits, last, keepdims=0), _BOOL)
    hit = operation.reshape(hit, [count, *[1] * (source.rank - 1)])
    return operation.add("Where", hit, moved, rest)


@chip_rule("PackedDataBlock")
def _packed_data_block(operation: Operation) -> Sequence[Tensor]:
    """Unpack each input into sequences of one length, call the graph for batches of them, and pack
    the results. Inputs are data, offsets and lengths of each, then those of the result."""
    lengths = list(operation.attribute("maxSequenceLengths"))
    batch = int(operation.attribute("callbackBatchSize"))
    sequences = operation.input(1).size
    steps = sequences // batch
    unpacked = [
        _unpack(operation, 3 * place, length, steps * batch) for place, length in enumerate(lengths)
    ]
    batches = [operation.reshape(each, [steps, batch, *each.shape[1:]]) for each in unpacked]
    proto, inner = read_body(operation, "callback"), Graph(operation.graph)
    inputs = [
        new_input(inner, value.name, replace(each, shape=each.shape[1:]))
        for value, each in zip(proto.input, batches, strict=True)
    ]
    for value, each in zip(proto.input, inputs, strict=True):
        inner.tensors[value.name] = each
    made = translate_body(operation, proto, inner)[:1]
    found = operation.add(
        "Scan",
        *batches,
        results=[replace(made[0], shape=(steps, *made[0].shape))],
        body=make_body(inner, inputs, made, "callback"),
        num_scan_inputs=len(batches),
    )
    length, rest = made[0].shape[1], made[0].shape[2:]
    rows = operation.reshape(found, [steps * batch * length, *rest])
    offsets, counts = (read_ints(operation, place) for place in (-2, -1))
    starts = operation.constant((np.arange(sequences) * length).astype(np.int32))
    zero = operation.constant(np.zeros([1] * rows.rank, rows.dtype))
    size = int(operation.attribute("resultSize"))
    return [_place_rows(operation, rows, zero, size, (counts, starts, offsets))]


def _unpack(operation: Operation, place: int, length: int, count: int) -> Tensor:
    """Return the first `count` sequences of a packed input; behind its end each is zero."""
    data = operation.input(place)
    offsets, lengths = (
        operation.reshape(
            operation.add(
                "Gather", read_ints(operation, each), operation.numbers(np.arange(count))
            ),
            [count, 1],
        )
        for each in (place + 1, place + 2)
    )
    steps = operation.constant(np.arange(length, dtype=np.int32))
    ends = _int(operation, 0), _int(operation, data.shape[0] - 1)
    rows = operation.add("Clip", operation.add("Add", offsets, steps), *ends)
    found = operation.add("Gather", data, rows, axis=0)
    within = operation.add("Less", steps, lengths)
    within = operation.reshape(within, [count, length, *[1] * (data.rank - 1)])
    zero = operation.constant(np.zeros([1] * found.rank, found.dtype))
    return operation.add("Where", within, found, zero)


@chip_rule("Ctc")
def _ctc(operation: Operation) -> Sequence[Tensor | None]:
    """The loss of CTC, by the forward variables: a[s] is the probability of all paths that have
    made the first s of the labels with blanks between them. A step adds those of the label before
    and, past a blank, of the one before that."""
    scores, targets = operation.input(0), operation.input(1)
    check_scores(operation, scores)
    batch = scores.shape[1]
    if targets.rank != 2 or targets.shape[0] != batch:  # noqa: PLR2004
        raise popart_exception(
            f"Unsupported shape for input 1 of Op {operation.describe()} (expected a 'targets' "
            f"tensor of rank 2 with the size of the first dimension being {batch} to match the "
            "size of the second dimension of the 'logarithmized probabilities' tensor, got "
            f"{format_shape(targets.shape)})."
        )
    states = 2 * targets.shape[1] + 1
    blank = int(operation.attribute("blank", 0))
    labels = _with_blanks(operation, operation.cast(targets, _INT32), blank)
    skips = _find_skips(operation, labels, blank)
    first = np.full((batch, states), NEVER, np.float32)
    first[:, 0] = 0
    lengths = operation.reshape(read_ints(operation, 2), [batch, 1])
    last = _run_steps(
        operation, operation.in_float(scores), labels, skips, lengths, operation.constant(first)
    )
    ends = operation.reshape(
        operation.add("Mul", read_ints(operation, 3), _int(operation, 2)), [batch, 1]
    )
    places = operation.constant(np.arange(states, dtype=np.int32))
    before = operation.add("Sub", ends, _int(operation, 1))
    final = operation.add(
        "Or", operation.add("Equal", places, ends), operation.add("Equal", places, before)
    )
    kept = operation.add("Where", final, last, operation.constant(NEVER))
    axes = operation.numbers(np.asarray([-1]))
    loss = operation.add("Neg", operation.add("ReduceLogSumExp", kept, axes, keepdims=0))
    endless = 0.0 if operation.attribute("zeroInfinity", 0) else np.inf
    is_endless = operation.add("Less", operation.constant(-NEVER / 2), loss)
    loss = operation.add("Where", is_endless, operation.constant(np.float32(endless)), loss)
    wanted = int(operation.attribute("outDataType", 0)) or scores.type
    if operation.attribute("reduction", "Mean") == "Mean":
        one = _int(operation, 1)
        counts = operation.add("Max", read_ints(operation, 3), one)
        loss = operation.add("Div", loss, operation.in_float(counts))
    return [operation.cast(reduce_loss(operation, loss), wanted), None]


def check_scores(operation: Operation, scores: Tensor) -> None:
    shown = operation.describe()
    if scores.rank != 3:  # noqa: PLR2004
        raise popart_exception(
            f"Unsupported shape for input 0 of Op {shown} (expected a 'logarithmized "
            "probabilities' tensor of rank 3, got a tensor with shape "
            f"{format_shape(scores.shape)})."
        )
    if scores.type not in FLOATS:
        raise popart_exception(
            f"Unsupported data type for input 0 of Op {shown} (expected a 'logarithmized "
            "probabilities' tensor comprised of floating point data, got "
            f"{type_name(scores)})."
        )


def _with_blanks(operation: Operation, targets: Tensor, blank: int) -> Tensor:
    """Return the labels with a blank before each and at the end."""
    batch, count = targets.shape
    column = operation.reshape(targets, [batch, count, 1])
    blanks = operation.constant(np.full((batch, count, 1), blank, np.int32))
    pairs = operation.reshape(operation.add("Concat", blanks, column, axis=2), [batch, 2 * count])
    end = operation.constant(np.full((batch, 1), blank, np.int32))
    return operation.add("Concat", pairs, end, axis=1)


def _find_skips(operation: Operation, labels: Tensor, blank: int) -> Tensor:
    """Return whether each state may follow the one before the last: it is no blank, and another
    label."""
    states = labels.shape[1]
    head = operation.constant(np.full((labels.shape[0], 2), blank, np.int32))
    cut = _columns(operation, labels, 0, states - 2) if states > 2 else None  # noqa: PLR2004
    earlier = (
        operation.add("Concat", head, cut, axis=1)
        if cut is not None
        else _columns(operation, head, 0, states)
    )
    same = operation.add("Equal", labels, earlier)
    is_blank = operation.add("Equal", labels, _int(operation, blank))
    return operation.add("Not", operation.add("Or", same, is_blank))


def _columns(operation: Operation, tensor: Tensor, first: int, last: int) -> Tensor:
    bounds = (operation.numbers(np.asarray([each])) for each in (first, last, 1))
    return operation.add("Slice", tensor, *bounds)


def _run_steps(
    operation: Operation,
    scores: Tensor,
    labels: Tensor,
    skips: Tensor,
    lengths: Tensor,
    first: Tensor,
) -> Tensor:
    """Return the forward variables after the last step of each sequence."""
    outer, inner = operation.graph, Graph(operation.graph)
    operation.graph = inner
    try:
        state = new_input(inner, "state", first)
        number = Tensor(inner.new_name("number"), _INT32, (1,))
        row = new_input(inner, "row", replace(scores, shape=scores.shape[1:]))
        places = operation.cast(labels, TensorProto.INT64)
        emitted = operation.add("GatherElements", row, places, axis=1)
        states = first.shape[1]
        parts = [state, _shift(operation, state, 1)]
        if states > 2:  # noqa: PLR2004
            past = _shift(operation, state, 2)
            parts.append(operation.add("Where", skips, past, operation.constant(NEVER)))
        stacked = operation.add(
            "Concat", *(operation.reshape(part, [*part.shape, 1]) for part in parts), axis=2
        )
        axes = operation.numbers(np.asarray([-1]))
        joined = operation.add("ReduceLogSumExp", stacked, axes, keepdims=0)
        moved = operation.add("Add", joined, emitted)
        moved = operation.add("Max", moved, operation.constant(NEVER))
        goes_on = operation.add("Less", number, lengths)
        kept = operation.add("Where", goes_on, moved, state)
        following = operation.add("Add", number, _int(operation, 1))
        body = make_body(inner, [state, number, row], [kept, following], "step")
    finally:
        operation.graph = outer
    begin = operation.constant(np.zeros(1, np.int32))
    return operation.add_all(
        "Scan",
        first,
        begin,
        scores,
        outputs=2,
        results=[first, begin],
        body=body,
        num_scan_inputs=1,
    )[0]


def _shift(operation: Operation, state: Tensor, count: int) -> Tensor:
    """Return the states moved on by `count`."""
    batch, states = state.shape
    head = operation.constant(np.full((batch, min(count, states)), NEVER, np.float32))
    if states <= count:
        return head
    return operation.add("Concat", head, _columns(operation, state, 0, states - count), axis=1)
