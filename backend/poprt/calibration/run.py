"""Computes a model in half and in float on the same inputs, and reports the effect of half."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import iter_bodies
from simipu import LoadError, RunError, Stream
from simipu.errors import DeviceLostError, LoadTimeoutError, RunTimeoutError
from simipu.numerics import Numerics
from simipu.numerics.quarter import QUARTERS

from popef._tools.arrays import Array
from poprt.calibration import divergence
from poprt.calibration.comparison import Comparer, Comparison, find_classes
from poprt.calibration.inputs import iter_given, iter_made_up
from poprt.calibration.overflow import Overflow, Watch, report
from poprt.calibration.sides import Feeds, Renarrow, Side

_FAILURES = (LoadError, RunError, DeviceLostError, ValueError)
_FAILED = "the calibration run failed, so nothing is known of what half precision does: %s"
_TOOK_TOO_LONG = (
    "the calibration run took longer than its limit, which grows with the model's work, so nothing "
    "is known of what half precision does; compile with a smaller batch, or on more or faster "
    "cores, to know it"
)

_log = logging.getLogger("poprt")
_HALVES = frozenset((TensorProto.FLOAT16,))


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of the calibration run; empty if the model computes in float or cannot run here."""

    comparison: Comparison | None = None
    overflows: tuple[Overflow, ...] = ()


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
    if not has_types(half.model.graph, _HALVES):
        return Findings()
    made = (
        iter_made_up(half.model, streams, batch_size)
        if data is None
        else iter_given(streams, data, batch_size)
    )
    batches = list(made)
    whole = whole or Side(half.model, half.weights, None)
    try:
        overflows, ours = _compute(half, batches)
    except LoadTimeoutError:
        raise
    except _FAILURES as error:
        _warn_of_failure(error)
        return Findings()
    report(overflows, made_up=data is None)
    try:
        comparison = _compare(half, whole, batches, ours, made_up=data is None, renarrow=renarrow)
    except _FAILURES as error:  # not of the compiled model, which is ready in time
        _warn_of_failure(error)
        return Findings(overflows=overflows)
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
    ours: Sequence[Sequence[Array]],
    *,
    made_up: bool,
    renarrow: Renarrow | None,
) -> Comparison:
    comparer = Comparer([value.name for value in half.model.graph.output], find_classes(half.model))
    errors = [comparer.add(*pair) for pair in zip(ours, whole.run(batches), strict=False)]
    comparison = comparer.result(made_up=made_up)
    if comparison.is_bad:
        if has_types(half.model.graph, QUARTERS):  # such a model differs at every layer
            reason = "poprt --precision_compare says how far each layer of 8 bits is off"
        else:
            reason = divergence.explain(half, whole, batches[int(np.argmax(errors))], renarrow)
        _log.warning("%s. %s", comparison.describe(), reason)
    return comparison


def has_types(graph: onnx.GraphProto, kinds: Collection[int]) -> bool:
    """Return whether a graph has inputs, outputs, weights or Casts of one of these types."""
    types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    types |= {tensor.data_type for tensor in graph.initializer}
    types |= {
        each.i
        for node in graph.node
        if node.op_type == "Cast"
        for each in node.attribute
        if each.name == "to"
    }
    return not types.isdisjoint(kinds) or any(
        has_types(body, kinds) for node in graph.node for body in iter_bodies(node)
    )


def _compute(
    half: Side, batches: Sequence[Feeds]
) -> tuple[tuple[Overflow, ...], list[list[Array]]]:
    """Return the nodes that overflow, and the outputs as they will be served.

    If sums are kept in float, one graph computes both.
    """
    floats = Numerics(half_partials=False)
    ours = list(half.run(batches)) if half.numerics != floats else []
    watches: list[Watch] = []
    watching = Side(half.model, half.weights, floats)
    try:
        results = list(watching.run(batches, change=lambda graph: watches.append(Watch(graph))))
    except LoadTimeoutError as error:
        _log.warning("nothing is known of overflow: with every result watched, %s", error)
        return (), ours or list(half.run(batches))
    count = len(half.model.graph.output)
    for values in results:
        watches[0].add(values[count:])
    return watches[0].overflows(), ours or [values[:count] for values in results]
