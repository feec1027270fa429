"""What values a graph's inputs can have, found by following them to the operators that use them; floats may
be indices, too.

An index must be inside its table or a run fails; a mask of nothing but ones, or bytes that are all 1, would
show nothing of what half precision does to a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from onnxgraph import attribute, graph_values, infer_shapes
from onnxgraph.weights import read_array

_PASSING = frozenset(
    (
        "Cast Concat Expand Flatten Gather HCSR Identity Pad Remap Reshape Slice Split Squeeze Tile "
        "Transpose Unsqueeze"
    ).split()
)
"""Operators that hand on the values of their first input, or of all."""
_TABLES = frozenset({"Gather", "GatherElements", "ScatterElements"})
"""Operators whose second input numbers the elements of the first along an axis."""
_OF_TRUTH = frozenset(
    (
        "And AttentionMask Equal Greater GreaterOrEqual Less LessOrEqual Mul Not NotZero Or Sub Where "
        "WhereV2 Xor"
    ).split()
)
"""What masks are put to."""
_SWITCH = 2
"""Values that what is compared with, to switch between the two, has at the most."""
_SMALL = 4_096


@dataclass(slots=True)
class Range:
    """The least and the greatest value that an input of whole numbers may have, where the graph says so;
    whether it looks like a mask otherwise."""

    least: float = -np.inf
    greatest: float = np.inf
    is_truth: bool = False

    @property
    def is_known(self) -> bool:
        """Whether there are so many values."""
        return bool(np.isfinite(self.least) and np.isfinite(self.greatest))


@dataclass(slots=True)
class _Users:
    """Who uses which tensor, and what is known of the others."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, TensorProto]
    users: dict[str, list[tuple[onnx.NodeProto, int]]] = field(default_factory=dict)


def find_range(model: onnx.ModelProto, name: str) -> Range:
    """The range of input `name` of a static model."""
    graph = model.graph
    shapes = {each: value.shape for each, value in graph_values(infer_shapes(model).graph).items()}
    known = _Users(shapes, {t.name: t for t in graph.initializer})
    for node in graph.node:
        for index, taken in enumerate(node.input):
            known.users.setdefault(taken, []).append((node, index))
    found = Range()
    waiting, seen = [(name, 0.0)], {name}
    while waiting:
        tensor, added = waiting.pop()
        for node, index in known.users.get(tensor, []):
            passed = _look(node, index, known, found, added)
            if passed is not None:
                waiting += [(result, passed) for result in node.output if result not in seen]
                seen.update(node.output)
    return found


def _look(node: onnx.NodeProto, index: int, known: _Users, found: Range, added: float) -> float | None:
    """Narrow the range by what one node does with it, to which `added` has been added; the same for its
    results, None where they are others."""
    if node.op_type in _TABLES and index == 1:
        shape = known.shapes.get(node.input[0], ())
        if shape:
            _narrow(found, 0, shape[attribute(node, "axis", 0)] - 1, added)
        return None
    if node.op_type == "OneHot" and index == 0:
        depth = _constant(known, node.input[1])
        if depth is not None:
            _narrow(found, 0, float(depth.max()) - 1, added)
        return None
    if node.op_type in ("Add", "Sub"):
        return _pass_offset(node, index, known, found, added)
    if node.op_type == "Equal":
        other = _constant(known, node.input[1 - index])
        if other is not None and other.size > _SWITCH:  # one-hot, spelt out
            _narrow(found, float(other.min()), float(other.max()), added)
            return None
    if node.op_type in _OF_TRUTH:
        found.is_truth = True
        return None
    passes = node.op_type in _PASSING and (index == 0 or node.op_type == "Concat")
    return added if passes else None


def _pass_offset(node: onnx.NodeProto, index: int, known: _Users, found: Range, added: float) -> float | None:
    """The same of a sum or a difference."""
    other = _constant(known, node.input[1 - index])
    if other is None and node.op_type == "Add":
        return added  # most likely what makes negative indices count from the end
    if other is None or (node.op_type == "Sub" and index):
        found.is_truth |= node.op_type == "Sub"
        return None
    # The largest offset keeps the whole inside.
    return added + float(other.max() if node.op_type == "Add" else -other.min())


def _narrow(found: Range, least: float, greatest: float, added: float) -> None:
    found.least, found.greatest = max(found.least, least - added), min(found.greatest, greatest - added)


def _constant(known: _Users, name: str) -> npt.NDArray[Any] | None:
    tensor = known.constants.get(name)
    if tensor is None or int(np.prod(tensor.dims)) > _SMALL:
        return None
    values = read_array(tensor)
    return values if values.size and values.dtype.kind in "iuf" else None
