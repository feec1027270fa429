"""Values of small constants, for a pass that follows a graph from node to node: positions, counts
and conditions, which `constants` would compute for the whole graph at once, in a child process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper
from onnxgraph import KEEPS_SIZE, STANDARD_DOMAINS, evaluate_node, find_opset, has_data, read_array
from simipu.operators import operator_of

from popef._tools.arrays import Array

MAX_ELEMENTS = 4_096
"""Maximum number of elements of a constant that is computed on the way: positions, counts and
conditions have one, offsets some."""


class SmallConstants:
    """Small weights of a model, and what was computed of them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._imports = [helper.make_opsetid("", find_opset(model, 1))]
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._values: dict[str, Array] = {}

    def note(self, name: str, value: Array) -> None:
        """Note the value of a tensor."""
        self._values[name] = value

    def find(self, name: str) -> Array | None:
        """Return the value of a small constant; None if it is not known or not small."""
        if name not in self._values and name in self._weights:
            tensor = self._weights[name]
            if has_data(tensor) and math.prod(tensor.dims) <= MAX_ELEMENTS:
                self._values[name] = np.asarray(read_array(tensor))
        return self._values.get(name)

    def follow(self, node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Compute the result of a node, if it counts something and its inputs are known. `shapes`
        are those of tensors that are not."""
        if node.domain not in STANDARD_DOMAINS or node.op_type not in KEEPS_SIZE:
            return
        values: list[Array | None] = [self.find(name) for name in node.input]
        if operator_of(node).reads_shape:
            shape = shapes.get(node.input[0])
            is_small = shape is not None and math.prod(shape) <= MAX_ELEMENTS
            values = [np.zeros(shape or (), np.bool_) if is_small else None]
        if all(value is not None for value in values):
            self._compute(node, values)

    def _compute(self, node: onnx.NodeProto, values: Sequence[Array | None]) -> None:
        feeds = {
            name: value for name, value in zip(node.input, values, strict=True) if value is not None
        }
        try:
            results = evaluate_node(node, feeds, self._imports)
        except Exception:  # noqa: BLE001  whatever it lacks, the value is not known then
            return
        if isinstance(results[0], (np.ndarray, np.generic)) and results[0].size <= MAX_ELEMENTS:
            self._values[node.output[0]] = np.asarray(results[0])
