"""Passes from the converted graph to the placed one, which describes what the chip would run:
products of 8-bit operands, the IPU of each node, the copies between IPUs.

Time and memory are counted on the placed graph (`simipu.cost`). These passes change no value: an
executable holds the graph from before them. Every shape is declared in the graph, and stays
declared.

Layers follow one another on the IPUs in the order of the graph. `virtual_graph_mode` manual takes
the nodes' attribute `__ipu_number`. auto cuts the graph into parts of equal weights, or of equal
time if they are pipelined, or into those of virtual_graph_split_ratios."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from onnx import helper
from onnxgraph import (
    CHIP_DOMAIN,
    TensorSize,
    attribute,
    find_inputs,
    find_makers,
    fresh_name,
    graph_values,
    iter_defined,
    iter_graphs,
    iter_nodes,
    iter_reads,
    like_first_input,
    register_stand_in,
    replace_nodes,
    set_attribute,
)
from simipu import MAX_IPUS, CompileError, Target
from simipu.chip.placement import (
    IPU_ATTRIBUTE,
    STAGE_ATTRIBUTE,
    PlacedGraph,
    find_stages,
)
from simipu.cost import CALIBRATION, Calibration, CostOptions, node_cycles
from simipu.numerics import QUARTERS
from simipu.operators import IPU_COPY, operator_of

from poprt.passes.interface.surgery import order_nodes
from poprt.rewrite.base import Pass, Stage, register


@register("take_quarters", stage=Stage.LOWERING, option="has_quarters", is_ours=True)
class TakeQuarters(Pass):
    """Hand products whose operands are both widened 8-bit tensors those tensors, and drop the Casts
    of only them: the graph writes such products with operands widened by a Cast, the chip's AMP
    units take the 8 bits.

    An activation stays as it was before it was narrowed: the chip does that for each product that
    reads it, and the cost of the product has it.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace the operands. Types must be declared."""
        graphs = list(iter_graphs(model.graph))
        narrow = {t.name for graph in graphs for t in graph.initializer if t.data_type in QUARTERS}
        narrow |= {
            v.name
            for graph in graphs
            for v in graph.value_info
            if v.type.tensor_type.elem_type in QUARTERS
        }
        all_casts = [node for node in iter_nodes(model.graph) if node.op_type == "Cast"]
        casts = {node.output[0]: node for node in all_casts if node.input[0] in narrow}
        narrowed = {node.output[0]: node for node in all_casts if node.output[0] in narrow}
        for node in iter_nodes(model.graph):
            if operator_of(node).is_product and casts.keys() >= set(node.input[:2]):
                operand, weights = (casts[name].input[0] for name in node.input[:2])
                node.input[:2] = [
                    narrowed[operand].input[0] if operand in narrowed else operand,
                    weights,
                ]
        for unread in (casts.keys(), narrowed.keys()):
            reads = {name for node in iter_nodes(model.graph) for name in node.input}
            reads |= {value.name for graph in graphs for value in graph.output}
            dropped = unread - reads
            for graph in graphs:
                replace_nodes(
                    graph, [node for node in graph.node if not dropped.intersection(node.output)]
                )
        return model


@register(
    "place_nodes",
    stage=Stage.LOWERING,
    option="shards",
    takes="target options calibration",
    is_ours=True,
)
class PlaceNodes(Pass):
    """Write its IPU into each node, as the attribute `__ipu_number`."""

    def __init__(
        self, target: Target, options: CostOptions, calibration: Calibration = CALIBRATION
    ) -> None:
        self._target, self._options, self._calibration = target, options, calibration

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Place the nodes. Shapes must be declared. Raise CompileError for an IPU that does not
        exist."""
        for node, ipu in zip(model.graph.node, self._place(model), strict=True):
            set_attribute(node, IPU_ATTRIBUTE, ipu)
        return model

    def _place(self, model: onnx.ModelProto) -> list[int]:
        graph, options = model.graph, self._options
        if options.virtual_graph_mode == "manual":
            if options.enable_pipelining:
                check_stages(graph)
            return _place_manually(graph, options.num_ipus)
        values = graph_values(graph)
        if options.enable_pipelining:
            sizes = node_cycles(model, self._target, options, self._calibration)
        else:
            sizes = _weight_bytes(graph, values)
        slack = self._calibration.cut_slack
        shares = options.virtual_graph_split_ratios or [1 / options.num_ipus] * options.num_ipus
        return _place_by_share(sizes, _crossing_bytes(graph, values), shares, slack)


@register(
    "insert_copies",
    stage=Stage.LOWERING,
    option="shards",
    takes="num_ipus",
    is_ours=True,
    depend="place_nodes",
)
class InsertCopies(Pass):
    """Put a copy, IpuCopy as in PopART, of each tensor that another IPU reads before the first node
    there that reads it.

    Weights need none: they are on every IPU that reads them.
    """

    def __init__(self, num_ipus: int) -> None:
        self._num_ipus = num_ipus

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Insert the copies. Nodes must have their IPUs as attributes."""
        graph = model.graph
        placed = PlacedGraph.read(graph, self._num_ipus)
        places, defined = dict(placed.input_ipus), set(iter_defined(graph))
        copies: dict[tuple[str, int], str] = {}
        nodes: list[onnx.NodeProto] = []
        for node, ipu in zip(graph.node, placed.ipus, strict=True):
            for name in dict.fromkeys(iter_reads(node)):
                if places.get(name, ipu) == ipu:
                    continue
                if (name, ipu) not in copies:
                    copies[name, ipu] = fresh_name(f"{name}@{ipu}", defined)
                    nodes.append(
                        _make_copy(name, copies[name, ipu], ipu, attribute(node, STAGE_ATTRIBUTE))
                    )
                node.input[:] = [copies[name, ipu] if read == name else read for read in node.input]
            nodes.append(node)
            places.update(dict.fromkeys(node.output, ipu))
        replace_nodes(graph, nodes)
        if copies:
            model.opset_import.add(domain=CHIP_DOMAIN, version=1)
            _declare_copies(graph, {copy: name for (name, _), copy in copies.items()})
        return model


def _declare_copies(graph: onnx.GraphProto, copies: dict[str, str]) -> None:
    """Declare copies with the type and shape of their sources."""
    infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    for copy, name in copies.items():
        if name in infos:
            graph.value_info.add().CopyFrom(infos[name])
            graph.value_info[-1].name = copy


def _make_copy(source: str, result: str, ipu: int, stage: int | None) -> onnx.NodeProto:
    """Return a node that copies a tensor to an IPU, in the pipeline stage that reads it first."""
    copy = helper.make_node(IPU_COPY, [source], [result], name=result, domain=CHIP_DOMAIN)
    set_attribute(copy, IPU_ATTRIBUTE, ipu)
    if stage is not None:
        set_attribute(copy, STAGE_ATTRIBUTE, stage)
    return copy


register_stand_in(CHIP_DOMAIN, IPU_COPY)(like_first_input)


def _place_manually(graph: onnx.GraphProto, num_ipus: int) -> list[int]:
    """Return the IPU of each node from its attribute `__ipu_number`; without one, a node is on the
    IPU of the node before it."""
    places, place = [], 0
    for node in graph.node:
        place = attribute(node, IPU_ATTRIBUTE, place)
        if not 0 <= place < num_ipus:
            raise CompileError(
                f"node {node.name!r}: __ipu_number must be at least 0 and below "
                f"num_ipus={num_ipus}, found {place}"
            )
        places.append(place)
    return places


def _place_by_share(
    sizes: Sequence[int], crossing: Sequence[int], shares: Sequence[float], slack: float
) -> list[int]:
    """Return the IPU of each node, in order. Every IPU gets about its share of `sizes`; the shares
    sum to 1.

    A cut before node i moves `crossing[i]` bytes. Of the cuts within `slack` of an IPU's share the
    cheapest is taken.
    """
    before = list(itertools.accumulate(sizes, initial=0))
    cuts = [0]
    for end, share in zip(itertools.accumulate(shares[:-1]), shares, strict=False):
        off = [abs(size - end * before[-1]) for size in before[:-1]]
        within = max(slack * share * before[-1], min(off, default=0))
        near = [i for i, distance in enumerate(off) if distance <= within and i >= cuts[-1]]
        cuts.append(min(near, key=lambda i: (crossing[i], off[i]), default=cuts[-1]))
    return [bisect.bisect_right(cuts, i) - 1 for i in range(len(sizes))]


def _crossing_bytes(graph: onnx.GraphProto, values: dict[str, TensorSize]) -> list[int]:
    """Return the bytes made before each node and read by it or a later one. Inputs of the graph and
    views count as made."""
    makers = {info.name: 0 for info in find_inputs(graph)}
    change = [0] * (len(graph.node) + 1)
    last: dict[str, int] = {}
    for i, node in enumerate(graph.node):
        last.update((name, i) for name in iter_reads(node) if name in makers)
        makers.update((name, i + 1) for name in node.output)
    for name, i in last.items():
        size = values[name].bytes if name in values else 0
        change[makers[name]] += size
        change[i + 1] -= size
    return list(itertools.accumulate(change[:-1]))


def _weight_bytes(graph: onnx.GraphProto, values: dict[str, TensorSize]) -> list[int]:
    """Return the bytes of the weights that each node is the first to read."""
    unplaced = {tensor.name: values[tensor.name].bytes for tensor in graph.initializer}
    return [sum(unplaced.pop(name, 0) for name in iter_reads(node)) for node in graph.node]


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
        is_integer = isinstance(number, int) and not isinstance(number, bool)
        if not isinstance(name, str) or not is_integer or not 0 <= number < MAX_IPUS:
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
    ordered = list(order_nodes(graph) or graph.node)
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
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    for i, node in enumerate(graph.node):
        inputs = [makers[name] for name in iter_reads(node) if name in makers] if stages else []
        later = next((maker for maker in inputs if stages[maker] > stages[i]), None)
        if later is not None:
            raise CompileError(
                f"node {node.name!r} is of pipeline stage {stages[i]} and reads what node "
                f"{graph.node[later].name!r} makes in stage {stages[later]}: a stage cannot need a "
                "later one; number the stages in the order of the graph"
            )
