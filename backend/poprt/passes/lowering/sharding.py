"""Manual sharding: the IPU, and the pipeline stage, of each node, from a few nodes that the user
names.

The compiler reads them from the nodes' attributes (`placed`); no other code uses these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnxgraph import find_makers, iter_reads, sort_nodes
from onnxgraph.edit import set_attribute
from onnxgraph.errors import GraphError
from simipu import CompileError
from simipu.cost.placed import find_stages
from simipu.placement import IPU_ATTRIBUTE, STAGE_ATTRIBUTE
from simipu.target import MAX_IPUS

from poprt.rewrite.base import Pass, Stage, register

Points = Mapping[str, int]


@register("manual_sharding", stage=Stage.CHECKS)
class ManualSharding(Pass):
    """Distribute the main graph over IPUs, and over the stages of a pipeline.

    sharding_info, pipelining_info: the number of an IPU, or of a stage, by the name of a node. In
    the order of the graph each of those nodes takes itself and all that it is made of, as far as no
    node before has taken it; what is left gets the number after the largest. A node inside a body
    is where its If, Loop or Scan is.
    """

    def __init__(
        self, sharding_info: Points | None = None, pipelining_info: Points | None = None
    ) -> None:
        super().__init__()
        self._devices = _read("sharding_info", sharding_info)
        self._stages = _read("pipelining_info", pipelining_info)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Set the attributes. Raise CompileError for names that no node or several nodes have, and
        for a stage that needs a later one."""
        if not self._devices and not self._stages:
            return model
        _check_names(model.graph, [*self._devices, *self._stages])
        for key, points in ((IPU_ATTRIBUTE, self._devices), (STAGE_ATTRIBUTE, self._stages)):
            if points:
                for node, number in zip(
                    model.graph.node, _spread(model.graph, points), strict=True
                ):
                    set_attribute(node, key, number)
        check_stages(model.graph)
        return model


class Sharder:
    """Manual sharding under the real tool's name: `Sharder(sharding_info,
    pipelining_info).run(model)`. Nodes need unique names."""

    def __init__(
        self, sharding_info: Points | None = None, pipelining_info: Points | None = None
    ) -> None:
        self._pass = ManualSharding(sharding_info, pipelining_info)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Shard the model and return it, changed in place. Raise CompileError as the pass
        manual_sharding does."""
        return self._pass.run(model)


def _read(option: str, points: Any) -> dict[str, int]:
    if points is None:
        return {}
    if not isinstance(points, Mapping):
        raise CompileError(
            f"{option}: expected numbers by the names of nodes, found {type(points).__name__}"
        )
    for name, number in points.items():
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not isinstance(name, str) or not whole or not 0 <= number < MAX_IPUS:
            raise CompileError(
                f"{option} of {str(name)[:100]!r}: expected the name of a node and a number from 0 "
                f"to {MAX_IPUS - 1}, found {str(number)[:100]}"
            )
    return dict(points)


def _check_names(graph: onnx.GraphProto, points: Iterable[str]) -> None:
    names: set[str] = set()
    for node in graph.node:
        if not node.name or node.name in names:
            what = (
                f"two nodes are called {node.name!r}"
                if node.name
                else f"a {node.op_type} has no name"
            )
            raise CompileError(
                f"{what}: to be sharded a model needs nodes with names of their own; convert it "
                "first, or run the pass unique_name_for_nodes"
            )
        names.add(node.name)
    missing = next((name for name in points if name not in names), None)
    if missing is not None:
        raise CompileError(
            f"sharding names the node {missing!r}, which the model's main graph has not; poprt's "
            "conversion may have replaced it: --only_manual_sharding shards the model as it is"
        )


def _spread(graph: onnx.GraphProto, points: Points) -> list[int]:
    """Return the number of each node."""
    try:
        ordered = list(sort_nodes(graph) or graph.node)
    except GraphError as error:
        raise CompileError(str(error)) from error
    makers, numbers = find_makers(graph), dict[str, int]()
    for point in (node for node in ordered if node.name in points):
        waiting = [point]
        while waiting:
            node = waiting.pop()
            if node.name not in numbers:
                numbers[node.name] = points[point.name]
                waiting += (makers[name] for name in iter_reads(node) if name in makers)
    rest = max(points.values()) + 1
    return [numbers.get(node.name, rest) for node in graph.node]


def check_stages(graph: onnx.GraphProto) -> None:
    """Raise CompileError if a pipeline stage needs the result of a later one: batches only move
    forward."""
    stages = find_stages(graph)
    wrong = next((i for i, stage in enumerate(stages) if not 0 <= stage < MAX_IPUS), None)
    if wrong is not None:
        raise CompileError(
            f"node {graph.node[wrong].name!r}: {STAGE_ATTRIBUTE} must be a number from 0 to "
            f"{MAX_IPUS - 1}, found {stages[wrong]}"
        )
    made = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    for i, node in enumerate(graph.node):
        needed = [made[name] for name in iter_reads(node) if name in made] if stages else []
        later = next((maker for maker in needed if stages[maker] > stages[i]), None)
        if later is not None:
            raise CompileError(
                f"node {node.name!r} is of pipeline stage {stages[i]} and reads what node "
                f"{graph.node[later].name!r} makes in stage {stages[later]}: a stage cannot need a "
                "later one; number the stages in the order of the graph"
            )
