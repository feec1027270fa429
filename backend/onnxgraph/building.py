"""Making small pieces of graphs: chains of nodes with their constants, bodies, casts."""

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
    """Nodes that make one tensor of others; what is made on the way is named after `prefix`."""

    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node's only output."""
        return self.add_as(self.new_name(), op_type, *inputs, **attributes)

    def add_as(self, name: str, op_type: str, *inputs: str, **attributes: Any) -> str:
        """The same under a name of the caller's."""
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"{name}/{op_type}", **attributes))
        return name

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """A constant."""
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def shape(self, sizes: Sequence[int]) -> str:
        """Sizes, axes or other whole numbers."""
        return self.constant(sizes, np.int64)

    def new_name(self) -> str:
        """A name for the next node's output."""
        return f"{self.prefix}/{len(self.nodes)}"


def make_body(
    chain: Chain, inputs: Sequence[str], outputs: Sequence[str], whole: Sequence[str] = ()
) -> onnx.GraphProto:
    """A subgraph of the nodes of `chain`, of float tensors, the `whole` ones of int64, whose shapes nobody
    needs to know."""
    types = dict.fromkeys(whole, TensorProto.INT64)
    taken, made = (
        [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None) for name in names]
        for names in (inputs, outputs)
    )
    return helper.make_graph(chain.nodes, chain.prefix, taken, made)


def make_cast(source: str, result: str, to: int, **attributes: Any) -> onnx.NodeProto:
    """A Cast of one tensor to the element type `to`, named after what it makes."""
    return helper.make_node("Cast", [source], [result], name=f"{result}/cast", to=to, **attributes)


def make_identity(source: str, result: str, name: str) -> onnx.NodeProto:
    """A tensor under another name."""
    return helper.make_node("Identity", [source], [result], name=name)
