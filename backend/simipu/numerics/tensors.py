"""What a lowering knows of the tensors of a model and its subgraphs: types, shapes, makers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto
from onnxgraph import iter_bodies

from simipu.numerics.blocks import Shape
from simipu.numerics.bodies import find_constants
from simipu.numerics.kernels import Dims
from simipu.numerics.quarter import QUARTERS, QuarterFormat


@dataclass(slots=True)
class Tensors:
    """Facts about tensors, by name."""

    constants: Mapping[str, onnx.TensorProto]
    """Constants whose data the graph itself holds."""
    halves: set[str] = field(default_factory=set)
    quarters: dict[str, QuarterFormat] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    """Element types: float where the chip has half."""
    weights: set[str] = field(default_factory=set)
    """Weights and parts of them: their 8-bit data are codes."""
    from_quarters: set[str] = field(default_factory=set)
    """Halves that are widened 8-bit values: a product of two such tensors is an 8-bit product."""
    dims: dict[str, Dims] = field(default_factory=dict)
    """Shapes, with the names of open sizes."""
    positions: dict[str, int] = field(default_factory=dict)
    """Index of the main graph's node that makes a tensor."""

    @staticmethod
    def of(graph: onnx.GraphProto) -> Tensors:
        """Return what is known of a graph with inferred shapes, and its bodies."""
        tensors = Tensors(find_constants(graph))
        tensors._add_graph(graph)
        return tensors

    @property
    def is_narrow(self) -> bool:
        """Return whether there are tensors that are replaced by float."""
        return bool(self.halves or self.quarters)

    def add_names(self, renames: Mapping[str, str]) -> None:
        """Add what is known of halves under new names, by the old ones."""
        self.halves.update(renames.values())
        self.types.update({new: self.types[old] for old, new in renames.items()})
        mappings: tuple[dict[str, Any], ...] = (self.shapes, self.dims, self.positions)
        for facts in mappings:
            facts.update({new: facts[old] for old, new in renames.items() if old in facts})
        self.from_quarters.update(new for old, new in renames.items() if old in self.from_quarters)

    def _add_graph(self, graph: onnx.GraphProto) -> None:
        # Names in bodies and in the graphs around them form one set: ONNX requires them to differ.
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            self._add(value.name, tensor.elem_type)
            if tensor.HasField("shape"):
                sizes = tensor.shape.dim
                dims = [
                    d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in sizes
                ]
                self._add_shape(value.name, dims)
        for constant in graph.initializer:
            self._add(constant.name, constant.data_type)
            self.weights.add(constant.name)
            self._add_shape(constant.name, constant.dims)
        for place, node in enumerate(graph.node):
            self.positions.update(dict.fromkeys(node.output, place))
            for entry in node.attribute:
                if node.op_type == "Constant" and entry.type == onnx.AttributeProto.TENSOR:
                    self._add(node.output[0], entry.t.data_type)
                    self._add_shape(node.output[0], entry.t.dims)
            if node.op_type == "Cast" and node.input[0] in self.quarters:
                self.from_quarters.add(node.output[0])
            if node.op_type == "Slice" and node.input[0] in self.weights:
                self.weights.add(node.output[0])
            for subgraph in iter_bodies(node):
                self._add_graph(subgraph)

    def _add(self, name: str, data_type: int) -> None:
        self.types[name] = TensorProto.FLOAT if data_type == TensorProto.FLOAT16 else data_type
        if data_type == TensorProto.FLOAT16:
            self.halves.add(name)
        if data_type in QUARTERS:
            self.quarters[name] = QUARTERS[data_type]

    def _add_shape(self, name: str, dims: Iterable[int | str | None]) -> None:
        self.dims[name] = tuple(dims)
        self.shapes[name] = tuple(
            size if isinstance(size, int) else None for size in self.dims[name]
        )
