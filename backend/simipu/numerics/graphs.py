"""Small pieces of graphs: nodes, constants, what is known of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper


def iter_subgraphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    """The bodies of an If, Loop or Scan."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def name_nodes(graph: onnx.GraphProto) -> None:
    """Name the unnamed nodes, in place, by what they make: reports and errors speak of nodes by name."""
    for node in graph.node:
        if not node.name:
            node.name = next((output for output in node.output if output), node.op_type)
        for subgraph in iter_subgraphs(node):
            name_nodes(subgraph)


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute of `node`."""
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)


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
