"""Ranges of the values of a graph's inputs, found by following the inputs to the operators that use
them. Floats may be indices, too.

An index must be inside its table, or a run fails. A mask of only ones, or bytes that are all 1,
would show nothing of the effect of half precision on a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import attribute, graph_values, infer_shapes
from onnxgraph.weights import read_array

from popef._tools.arrays import Array

_PASSING = frozenset(
    (
        "Cast Concat Expand Flatten Gather HCSR Identity Pad Remap Reshape Slice Split Squeeze "
        "Tile Transpose Unsqueeze"
    ).split()
)
"""Operators that pass on the values of their first input, or of all inputs."""
_TABLES = frozenset({"Gather", "GatherElements", "ScatterElements"})
"""Operators whose second input indexes the elements of the first along an axis."""
_OF_TRUTH = frozenset(
    (
        "And AttentionMask Equal Greater GreaterOrEqual Less LessOrEqual Mul Not NotZero Or Sub "
        "Where WhereV2 Xor"
    ).split()
)
"""Operators that are applied to masks."""
_SWITCH = 2
"""Maximum number of values of a constant with which an input is compared to switch between the
two."""
_SMALL = 4_096


@dataclass(slots=True)
class Range:
    """Smallest and largest value of an integer input, if the graph determines them.

    Otherwise `is_truth` says whether the input looks like a mask.
    """

    least: float = -np.inf
    greatest: float = np.inf
    is_truth: bool = False

    @property
    def is_known(self) -> bool:
        """Return whether both bounds are finite."""
        return bool(np.isfinite(self.least) and np.isfinite(self.greatest))


@dataclass(slots=True)
class _Users:
    """Users of each tensor, and the known shapes and constants."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, TensorProto]
    users: dict[str, list[tuple[onnx.NodeProto, int]]] = field(default_factory=dict)


def find_range(model: onnx.ModelProto, name: str) -> Range:
    """Return the range of input `name` of a static model."""
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


def _look(
    node: onnx.NodeProto, index: int, known: _Users, found: Range, added: float
) -> float | None:
    """Narrow the range by what one node does with the input, to which `added` has been added.

    Returns what has been added to the node's results; None if the results are unrelated values.
    """
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
        if other is not None and other.size > _SWITCH:  # a one-hot encoding, written out
            _narrow(found, float(other.min()), float(other.max()), added)
            return None
    if node.op_type in _OF_TRUTH:
        found.is_truth = True
        return None
    passes = node.op_type in _PASSING and (index == 0 or node.op_type == "Concat")
    return added if passes else None


def _pass_offset(
    node: onnx.NodeProto, index: int, known: _Users, found: Range, added: float
) -> float | None:
    """Return the offset of the result of a sum or a difference; None for an unrelated value."""
    other = _constant(known, node.input[1 - index])
    if other is None and node.op_type == "Add":
        return added  # most likely the offset that lets negative indices count from the end
    if other is None or (node.op_type == "Sub" and index):
        found.is_truth |= node.op_type == "Sub"
        return None
    # The largest offset keeps all values inside the table.
    return added + float(other.max() if node.op_type == "Add" else -other.min())


def _narrow(found: Range, least: float, greatest: float, added: float) -> None:
    # least <= input + added <= greatest; several users of an input must all be satisfied.
    found.least, found.greatest = (
        max(found.least, least - added),
        min(found.greatest, greatest - added),
    )


def _constant(known: _Users, name: str) -> Array | None:
    tensor = known.constants.get(name)
    if tensor is None or int(np.prod(tensor.dims)) > _SMALL:
        return None
    values = read_array(tensor)
    return values if values.size and values.dtype.kind in "iuf" else None
