"""Computes a model in half and in float on the same inputs, and reports the effect of half: nodes
whose results overflow, and outputs that differ.

On the chip a result that overflows is clipped or NaN (see `Numerics`), and everything computed from
it is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxgraph import Tape, has_types, iter_nodes, replace_nodes
from simipu import LoadTimeoutError, RunTimeoutError, Stream
from simipu.numerics import QUARTERS, Numerics, unrounded_results
from simipu.operators import Rounding, operator_of

from popef._tools.arrays import Array
from poprt.comparing.findings import OWN_DATA, Findings, Overflow
from poprt.comparing.inputs import (
    SOUND,
    describe_ranges,
    iter_given,
    iter_made_up,
    make_loud,
)
from poprt.comparing.mending import explain
from poprt.comparing.outputs import (
    Comparer,
    Comparison,
    describe_inputs,
)
from poprt.comparing.sides import FAILURES, Feeds, Renarrow, Side

HALF_LIMIT = 65_520.0
"""Smallest float that rounds to more than the largest half, 65,504."""

_LOUD = f"sound of 16 bits (to {SOUND:.0f})"
_ZERO, _ONE = "calibration/zero", "calibration/one"
_MAX_JOINED, _MAX_NAMED = 256, 5
"""Maximum numbers of tensors that one Concat joins, and of nodes that a warning names."""

_log = logging.getLogger("poprt")


class OverflowWatch:
    """An output added to a lowered graph, in place: the largest magnitudes of all results before
    they are rounded.

    It adds a single output, and inserts each watching node right after the node that it watches.
    For other arrangements the time that ONNX Runtime takes grows with the square of their number.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._nodes = unrounded_results(graph)
        self._largest = np.zeros(len(self._nodes))
        if self._nodes:
            graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), _ZERO))
            graph.initializer.append(numpy_helper.from_array(np.ones(1, np.int64), _ONE))
        nodes, watch_names = [], {}
        for node in graph.node:
            nodes.append(node)
            for name in self._nodes.keys() & set(node.output):
                op = Tape(f"{name}/watched")
                growing = operator_of(node).rounding is Rounding.GROWING
                watch_names[name] = _watch(op, name, growing=growing)
                nodes += op.nodes
        op = Tape("calibration")
        watched = [watch_names[name] for name in self._nodes]
        while len(watched) > 1:
            parts = [watched[i : i + _MAX_JOINED] for i in range(0, len(watched), _MAX_JOINED)]
            watched = [op.add("Concat", *part, axis=0) for part in parts]
        replace_nodes(graph, [*nodes, *op.nodes])
        graph.output.extend(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [len(self._nodes)])
            for name in watched
        )

    def add(self, values: Sequence[Array]) -> None:
        """Add the values that a run returned for the added outputs."""
        for largest in values:
            self._largest = np.fmax(self._largest, largest)

    def overflows(self) -> tuple[Overflow, ...]:
        """Return the nodes whose results were too large in any run, in order."""
        pairs = zip(self._nodes.values(), self._largest, strict=True)
        return tuple(
            Overflow(node.name, node.op_type, float(size))
            for node, size in pairs
            if size >= HALF_LIMIT
        )


def report(
    overflows: tuple[Overflow, ...], drawn: str | None, comparison: Comparison | None = None
) -> None:
    """Log a warning about the nodes, the first of them by name. `drawn` describes made-up inputs;
    None means the calibration data. `comparison` says whether the outputs are right all the
    same."""
    if not overflows:
        return
    node_names = ", ".join(
        f"node {overflow.node!r} ({overflow.op_type}) reaches {overflow.largest:.4g}"
        for overflow in overflows[:_MAX_NAMED]
    )
    more = f" and {len(overflows) - _MAX_NAMED} more" if len(overflows) > _MAX_NAMED else ""
    advice = "Keep such operators in float with fp16_skip_op_types, or scale the values down"
    if comparison is not None and not comparison.is_bad:
        advice = (
            f"The outputs agree with float all the same (largest error {comparison.error:.2g}), as "
            "where masks overflow"
        )
    _log.warning(
        "with %s results overflow on the chip, where the largest half is 65504: %s%s. %s%s",
        describe_inputs(drawn),
        node_names,
        more,
        advice,
        "" if drawn is None else f". {OWN_DATA}",
    )


def _watch(op: Tape, name: str, *, growing: bool) -> str:
    """Return the name of a tensor with one element: the largest magnitude of tensor `name`.

    An infinity that results from an infinite input does not count.
    """
    size = op.add("Abs", name)
    if not growing:
        size = op.add("Where", op.add("IsInf", name), _ZERO, size)
    return op.add("Reshape", op.add("ReduceMax", size, keepdims=0), _ONE)


_FAILED = "the calibration run failed, so the effect of half precision is unknown: %s"
_TOOK_TOO_LONG = (
    "the calibration run took longer than its limit, which grows with the model's work, so the "
    "effect of half precision is unknown; compile with a smaller batch, or on more or faster cores"
)


def calibrate(
    half: Side,
    whole: Side | None,
    streams: Sequence[Stream],
    batch_size: int,
    data: Mapping[str, Array] | None = None,
    renarrow: Renarrow | None = None,
) -> Findings:
    """Compare a model in half with the same in float; log warnings about overflow and outputs that
    differ.

    `whole` is the model in float; None means the model in half without rounding. `streams` are the
    inputs, `data` rows by input name (None: random data). With `renarrow`, search for the option
    that makes the two agree. Raises CompileError for data that do not fit, and LoadTimeoutError for
    a model that cannot be made ready in time.
    """
    source = (
        iter_made_up(half.model, streams, batch_size, weights=half.weights)
        if data is None
        else iter_given(streams, data, batch_size)
    )
    batches = list(islice(source, half.count_batches()))
    drawn = describe_ranges(batches) if data is None else None
    loud = None
    if data is None and batches:
        loud = make_loud(half.model, streams, batch_size, batches[0], half.weights)
    whole = whole or Side(half.model, half.weights, None)
    try:
        overflows, ours = _compute(half, batches, loud)
    except LoadTimeoutError:
        raise
    except FAILURES as error:
        _warn_of_failure(error)
        return Findings()
    if any(operator_of(node).draws(node) for node in iter_nodes(half.model.graph)):
        report(overflows, drawn)
        _log.info("outputs in half were not compared with float: each run draws other numbers")
        return Findings(overflows=overflows)
    try:
        comparison, theirs, worst = _compare(half, whole, batches, loud, ours, drawn)
    except FAILURES as error:  # not of the compiled model, which is ready in time
        report(overflows, drawn)
        _warn_of_failure(error)
        return Findings(overflows=overflows)
    report(overflows, drawn, comparison)
    if comparison.is_bad:
        _explain(comparison, half, whole, batches, theirs, worst, renarrow)
    return Findings(comparison, overflows)


def _warn_of_failure(error: Exception) -> None:
    if isinstance(error, RunTimeoutError):
        _log.warning(_TOOK_TOO_LONG)
    else:
        _log.warning(_FAILED, error)


def _compare(
    half: Side,
    whole: Side,
    batches: Sequence[Feeds],
    loud: Feeds | None,
    ours: Sequence[Sequence[Array]],
    drawn: str | None,
) -> tuple[Comparison, list[list[Array]], int]:
    """Return the comparison, the outputs of `whole`, and the number of the worst batch."""
    comparer = Comparer.of(half.model)
    count = len(batches)
    theirs = list(whole.run([*batches, *([loud] if loud else [])]))
    errors = [comparer.add(*pair) for pair in zip(ours[:count], theirs[:count], strict=False)]
    comparison = comparer.result(drawn)
    for pair in zip(ours[count:], theirs[count:], strict=False):
        apart = Comparer(comparer.names, comparer.classes)
        apart.add(*pair)
        comparison = replace(comparison, loud=apart.result(_LOUD))
    return comparison, theirs[:count], int(np.argmax(errors))


def _explain(
    comparison: Comparison,
    half: Side,
    whole: Side,
    batches: Sequence[Feeds],
    theirs: Sequence[Sequence[Array]],
    worst: int,
    renarrow: Renarrow | None,
) -> None:
    """Log a warning about outputs that differ, with the reason if it can be found."""
    if has_types(half.model.graph, QUARTERS):  # such a model differs at every layer
        reason = "poprt --precision_compare says how far each layer of 8 bits is off"
    else:
        try:
            reason = explain(half, whole, batches, theirs, worst, renarrow)
        except FAILURES as error:
            reason = f"The reason was not found: {error}"
    advice = "" if comparison.drawn is None else f". {OWN_DATA}"
    _log.warning("%s. %s%s", comparison.describe(), reason, advice)


def _compute(
    half: Side, batches: Sequence[Feeds], loud: Feeds | None
) -> tuple[tuple[Overflow, ...], list[list[Array]]]:
    """Return the nodes that overflow on the batches, and the outputs as they will be served, on
    `loud`, too, if time allows.

    If sums are kept in float, one graph computes both.
    """
    floats = Numerics(half_partials=False)
    num_batches = len(batches)
    batches = [*batches, *([loud] if loud else [])]
    ours = list(half.run(batches)) if half.numerics != floats else []
    watches: list[OverflowWatch] = []
    watching = Side(half.model, half.weights, floats)
    try:
        results = list(
            watching.run(batches, change=lambda graph: watches.append(OverflowWatch(graph)))
        )
    except LoadTimeoutError as error:
        _log.warning("overflow in half precision is unknown: with every result watched, %s", error)
        return (), ours or list(half.run(batches))
    count = len(half.model.graph.output)
    for values in results[:num_batches]:
        watches[0].add(values[count:])
    return watches[0].overflows(), ours or [values[:count] for values in results]
