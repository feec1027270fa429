"""Nodes of a model in half whose results overflow half.

On the chip such a result is clipped or NaN (see `Numerics`), and everything computed from it is
wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxgraph import Chain, replace_nodes
from simipu.numerics.rounding import unrounded_results
from simipu.operators import Rounding, operator_of

from popef._tools.arrays import Array

HALF_LIMIT = 65_520.0
"""Smallest float that rounds to more than the largest half, 65,504."""

_ZERO, _ONE = "calibration/zero", "calibration/one"
_MAX_JOINED, _MAX_NAMED = 256, 5

_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class Overflow:
    """A node of a graph in half whose result, computed in float, is too large for half.

    `largest` is its largest magnitude.
    """

    node: str
    op_type: str
    largest: float


class Watch:
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
        nodes, found = [], {}
        for node in graph.node:
            nodes.append(node)
            for name in self._nodes.keys() & set(node.output):
                chain = Chain(f"{name}/watched")
                growing = operator_of(node).rounding is Rounding.GROWING
                found[name] = _watch(chain, name, growing=growing)
                nodes += chain.nodes
        chain = Chain("calibration")
        watched = [found[name] for name in self._nodes]
        while len(watched) > 1:
            parts = [watched[i : i + _MAX_JOINED] for i in range(0, len(watched), _MAX_JOINED)]
            watched = [chain.add("Concat", *part, axis=0) for part in parts]
        replace_nodes(graph, [*nodes, *chain.nodes])
        graph.output.extend(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [len(self._nodes)])
            for name in watched
        )

    def add(self, values: Sequence[Array]) -> None:
        """Add the values that a run returned for the added outputs."""
        for found in values:
            self._largest = np.fmax(self._largest, found)

    def overflows(self) -> tuple[Overflow, ...]:
        """Return the nodes whose results were too large in any run, in order."""
        found = zip(self._nodes.values(), self._largest, strict=True)
        return tuple(
            Overflow(node.name, node.op_type, float(size))
            for node, size in found
            if size >= HALF_LIMIT
        )


def report(overflows: tuple[Overflow, ...], *, made_up: bool) -> None:
    """Log a warning about the nodes, the first of them by name."""
    if not overflows:
        return
    named = ", ".join(
        f"node {each.node!r} ({each.op_type}) reaches {each.largest:.4g}"
        for each in overflows[:_MAX_NAMED]
    )
    more = f" and {len(overflows) - _MAX_NAMED} more" if len(overflows) > _MAX_NAMED else ""
    _log.warning(
        "with %s results overflow on the chip, where the largest half is 65504: %s%s. Keep such "
        "operators in float with fp16_skip_op_types, or scale the values down",
        "made-up inputs" if made_up else "the calibration data",
        named,
        more,
    )


def _watch(chain: Chain, name: str, *, growing: bool) -> str:
    """Return the name of a tensor with one element: the largest magnitude of tensor `name`.

    An infinity that results from an infinite input does not count.
    """
    size = chain.add("Abs", name)
    if not growing:
        size = chain.add("Where", chain.add("IsInf", name), _ZERO, size)
    return chain.add("Reshape", chain.add("ReduceMax", size, keepdims=0), _ONE)
