"""Builders of small pieces of graphs: chains of nodes with their constants, bodies, casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(slots=True)
class Chain:
    """Nodes that compute one tensor from others; intermediate tensors are named after `prefix`."""

    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node and return its only output."""
        return self.add_as(self.new_name(), op_type, *inputs, **attributes)

    def add_as(self, name: str, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node whose output has the given name, and return that name."""
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], name=f"{name}/{op_type}", **attributes)
        )
        return name

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """Append a constant and return its name."""
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def shape(self, sizes: Sequence[int]) -> str:
        """Append a constant of sizes, axes or other whole numbers, and return its name."""
        return self.constant(sizes, np.int64)

    def new_name(self) -> str:
        """Return a name for the next node's output."""
        return f"{self.prefix}/{len(self.nodes)}"


def make_body(
    chain: Chain, inputs: Sequence[str], outputs: Sequence[str], whole: Sequence[str] = ()
) -> onnx.GraphProto:
    """Return a subgraph of the nodes of `chain`.

    Its tensors are float, the `whole` ones int64, and have no declared shapes.
    """
    types = dict.fromkeys(whole, TensorProto.INT64)
    taken, made = (
        [
            helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None)
            for name in names
        ]
        for names in (inputs, outputs)
    )
    return helper.make_graph(chain.nodes, chain.prefix, taken, made)


def make_cast(source: str, result: str, to: int, **attributes: Any) -> onnx.NodeProto:
    """Return a Cast of one tensor to the element type `to`, named after its result."""
    return helper.make_node("Cast", [source], [result], name=f"{result}/cast", to=to, **attributes)


def make_identity(source: str, result: str, name: str) -> onnx.NodeProto:
    """Return an Identity that gives a tensor another name."""
    return helper.make_node("Identity", [source], [result], name=name)
