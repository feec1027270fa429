"""Nodes of a model in half whose results half cannot hold.

On the chip such a result is clipped or NaN (see `Numerics`), and what follows from it is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from simipu.numerics.graphs import Chain
from simipu.numerics.lowering import GROWING_OPERATORS, unrounded_results

Array = npt.NDArray[Any]

HALF_LIMIT = 65_520.0
"""The least float that rounds to more than the largest half, 65,504."""

_ZERO = "calibration/zero"

_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class Overflow:
    """A node of a graph in half whose result, computed in float, is too large; `largest` is its largest magnitude."""

    node: str
    op_type: str
    largest: float


class Watch:
    """Outputs added to a lowered graph, in place: the largest magnitude of each result that is about to be rounded."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._nodes = unrounded_results(graph)
        before = len(graph.output)
        if self._nodes:
            graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), _ZERO))
        for name, node in self._nodes.items():
            _watch(graph, name, growing=node.op_type in GROWING_OPERATORS)
        self.names = [value.name for value in graph.output[before:]]
        """The outputs, all scalars."""
        self._largest = np.zeros(len(self.names))

    def add(self, values: Sequence[Array]) -> None:
        """Take what a run gave for `names`."""
        self._largest = np.fmax(self._largest, np.array(values, float).reshape(-1))

    def overflows(self) -> tuple[Overflow, ...]:
        """The nodes whose results were too large in any run, in order."""
        found = zip(self._nodes.values(), self._largest, strict=True)
        return tuple(Overflow(node.name, node.op_type, float(size)) for node, size in found if size >= HALF_LIMIT)


def report(overflows: tuple[Overflow, ...], *, made_up: bool) -> None:
    """Warn of each node by name."""
    inputs = "made-up inputs" if made_up else "the calibration data"
    for overflow in overflows:
        _log.warning(
            "node %r (%s): with %s its result reaches %.4g, but the largest half is 65504: it overflows on the chip, too. Keep "
            "such operators in float with fp16_skip_op_types, or scale the values down",
            overflow.node,
            overflow.op_type,
            inputs,
            overflow.largest,
        )


def _watch(graph: onnx.GraphProto, name: str, *, growing: bool) -> None:
    """Add an output: the largest magnitude of tensor `name`. An infinity that another went into is not one of its own."""
    chain = Chain(f"{name}/watched")
    size = chain.add("Abs", name)
    if not growing:
        size = chain.add("Where", chain.add("IsInf", name), _ZERO, size)
    largest = chain.add("ReduceMax", size, keepdims=0)
    graph.node.extend(chain.nodes)
    graph.output.append(helper.make_tensor_value_info(largest, onnx.TensorProto.FLOAT, []))
