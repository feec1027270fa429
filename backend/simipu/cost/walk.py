"""Traversal of a placed graph that computes the cost of its nodes, and of those in graphs inside
them, with the table of operators. It reads shapes and the IPU of each node, and changes nothing.

The options of the cost model are here, too, and the assumptions about control flow: how often the
graphs inside a node run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
from onnx import numpy_helper
from onnxgraph import (
    MAX_TRIPS,
    TensorSize,
    attribute,
    count_trips,
    graph_values,
    is_unconditional,
    iter_bodies,
    iter_reads,
    known_constants,
)

from simipu.chip.placement import PlacedGraph
from simipu.chip.target import Target
from simipu.cost.liveness import Liveness
from simipu.cost.outlining import find_copied_weights
from simipu.errors import CompileError
from simipu.operators import IPU_COPY, operator_of
from simipu.operators.formulas.calibration import Calibration
from simipu.operators.formulas.code import NO_CODE, Code
from simipu.operators.formulas.elementwise import is_quarter_cast
from simipu.operators.formulas.layout import Layout, View, follow, linear
from simipu.operators.formulas.moving import control, move
from simipu.operators.formulas.plan import PlanOptions
from simipu.operators.formulas.spread import Spread
from simipu.operators.formulas.work import VIEW, Context, Work


@dataclass(frozen=True, slots=True)
class CostOptions:
    """Compiler options that affect time and memory, with their names and defaults in PopRT."""

    partials_type: str = "half"
    available_memory_proportion: float = 0.6
    num_io_tiles: int = 0
    batches_per_step: int = 1
    """Batches of a call, which share its fixed cost."""
    stream_buffering_depth: int = 1
    """Number of buffers of each stream, on the host. A run takes as long with one as with two, as
    far as published times show: those of Wide&Deep have two, and its transfers and the host's work
    follow one another."""
    use_128bit_conv_unit_load: bool = False
    enable_outlining: bool = True
    """Option that lets equal operators share their code, and calls layers that repeat."""
    num_ipus: int = 1
    """IPUs of a replica; the layers are spread over them."""
    virtual_graph_mode: str = "off"
    """Placement of nodes. manual: by the nodes' attribute `__ipu_number`; else the model spreads
    them."""
    virtual_graph_split_ratios: Sequence[float] = ()
    """Share of each IPU if the model spreads the nodes; the shares sum to 1. Empty: equal
    shares."""
    enable_pipelining: bool = False
    """Option that lets the IPUs work on successive batches at the same time; else one IPU works at
    a time."""
    replication_factor: int = 1
    """Copies of the model that run in parallel and share the host's link."""


Known = Mapping[str, onnx.TensorProto]
"""Small constants by name; one may hold a trip count."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The graphs inside a node: one of them runs, `runs` times."""

    graphs: tuple[onnx.GraphProto, ...]
    runs: int = 1
    assumption: str = ""


def find_bodies(node: onnx.NodeProto, values: Mapping[str, TensorSize], known: Known) -> Bodies:
    """Return the graphs inside `node`; most operators have none."""
    graphs = tuple(iter_bodies(node))
    if node.op_type == "If":
        return Bodies(graphs, 1, "the dearer branch is taken")
    if node.op_type == "Loop":
        return Bodies(graphs, *_count_trips(node, graphs[0], known))
    if node.op_type == "Scan":
        return Bodies(graphs, *_count_steps(node, values))
    return Bodies(graphs)


def _count_trips(node: onnx.NodeProto, body: onnx.GraphProto, known: Known) -> tuple[int, str]:
    # Where the condition depends on values, which are not known, all trips are counted.
    trips = count_trips(known.get(node.input[0]))
    unconditional = is_unconditional(body, known)
    if trips is None or (trips > MAX_TRIPS and not unconditional):
        return 1, "the trip count is not known: one iteration is counted"
    if unconditional:
        return trips, ""
    return trips, f"all {trips} iterations are run, although the condition may end it before"


def _read_number(tensor: onnx.TensorProto | None, default: int) -> int:
    """Return the element of a constant, as a whole number."""
    return default if tensor is None else int(numpy_helper.to_array(tensor).ravel()[0])


def _count_steps(node: onnx.NodeProto, values: Mapping[str, TensorSize]) -> tuple[int, str]:
    count, axes = attribute(node, "num_scan_inputs"), attribute(node, "scan_input_axes", [0])
    scanned = values.get(node.input[len(node.input) - count])
    if scanned is None:
        return 1, "the length of the scan is not known: one step is counted"
    return scanned.shape[axes[0]], ""


Path = tuple[int, ...]
"""Place of a node: its index in the main graph or, inside of another node, the path of that node,
the number of the graph inside it, and the index there."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """Cost of one node of the graph, and the live memory of a tile while it runs."""

    name: str
    op_type: str
    work: Work
    sync_cycles: int
    live_bytes: int
    """Bytes of a tile: live tensors, and copies of operands."""
    ipu: int = 0
    path: Path = (0,)
    """Its place in the graphs."""
    sender: int = 0
    """IPU that sends what a copy between IPUs receives; else the same as `ipu`."""
    copies_bytes: int = 0
    """Bytes of a tile: the part of `live_bytes` that copies of operands take."""
    tensor_bytes: int = field(default=0, compare=False)
    """Bytes of all tiles of the IPU: live tensors."""
    copied_weight_bytes: int = field(default=0, compare=False)
    """Bytes of all tiles of the IPU: weights that the call of an outlined layer copies."""

    @property
    def layer(self) -> str:
        """Kind of layer, for which a validation counts."""
        return self.work.layer or self.work.kind

    @property
    def depth(self) -> int:
        """Number of nodes that contain it: 0 in the main graph."""
        return len(self.path) // 2

    @property
    def cycles(self) -> int:
        """Cycles of compute, exchange and sync of the busiest tile, one after the other."""
        return self.work.compute + self.work.exchange + self.sync_cycles


@dataclass(frozen=True, slots=True)
class ParentScope:
    """The node that contains a graph, and what is live meanwhile; nothing for the main graph."""

    prefix: str = ""
    """Prefix of the names of the graph's nodes."""
    path: Path = ()
    """Path of the graph: that of the node that contains it, and the number of the graph there."""
    live_bytes: int = 0
    """Bytes of a tile that are live meanwhile."""
    tensor_bytes: int = 0
    """The tensors among them, in bytes of all tiles."""
    copied_weight_bytes: int = 0


_MAIN = ParentScope()


class Walk:
    """Computes the cost of a graph's nodes in order, and of those in graphs inside them."""

    def __init__(
        self,
        target: Target,
        options: CostOptions,
        values: dict[str, TensorSize],
        calibration: Calibration,
    ) -> None:
        self.target, self.options = target, options
        self.values, self.calibration = values, calibration.of(target)
        self.assumptions: list[str] = []
        self.further_weight_bytes = Counter[int]()
        """Bytes, by IPU, of weights of graphs inside nodes, and of results of constants alone, as
        far as these are larger than the constants."""
        self.position = 0
        """Index of the main graph's node that is being costed."""
        self.liveness: dict[Path, Liveness] = {}
        """Liveness of each graph, by the path of the node that contains it and its number there; ()
        is the main graph."""
        self._plan_options = PlanOptions(
            options.available_memory_proportion, options.use_128bit_conv_unit_load
        )
        self._known: dict[str, onnx.TensorProto] = {}
        self._constants: set[str] = set()
        self._grown: dict[str, int] = {}
        """Constants that nodes compute from constants, with the number of elements that they have
        more than the weights."""
        self.layouts: dict[str, Layout] = {}
        """Layouts of tensors; weights and inputs of the graph have none."""
        self.stored: dict[str, Spread] = {}
        """Spread of the weights that a product reads, by its plan."""
        self._sources: dict[str, str] = {}
        """Constant from which a node computes a constant of as many elements."""

    def iter_operators(
        self, placed: PlacedGraph, around: ParentScope = _MAIN
    ) -> Iterator[OperatorCost]:
        """Yield the cost of each node of a graph, which runs inside of `around`."""
        graph, ipus = placed.graph, placed.ipus
        inside = around.prefix
        self._constants.update(tensor.name for tensor in graph.initializer)
        self._known.update(known_constants(graph))
        liveness = Liveness(placed, self.values, self._constants)
        self.liveness[around.path] = liveness
        copied = [0] * len(graph.node)
        if not inside and self.options.enable_outlining:
            copied = find_copied_weights(graph.node, self.values, self._constants)
        for i, node in enumerate(graph.node):
            if not inside:
                self.position = i
            tensors = liveness.during(i, node)
            live = around.live_bytes + self.per_tile(tensors + copied[i])
            here = ParentScope(
                inside,
                (*around.path, i),
                live,
                around.tensor_bytes + tensors,
                around.copied_weight_bytes + copied[i],
            )
            bodies = find_bodies(node, self.values, self._known)
            if bodies.graphs or not self._is_constant(node):
                self._hold(iter_reads(node), ipus[i])
            if bodies.graphs:
                yield from self._iter_bodies(node, bodies, ipus[i], here)
            else:
                work = self._work(node)
                # The node's own copies come on top of what is alive. A copy takes the place of
                # the operand that it copies if no later node reads that operand (section 8.1).
                freed = min(self.per_tile(liveness.freed), work.replaced_bytes)
                live = max(live, live + work.temporary_bytes - freed)
                yield self._operator(node, work, ipus[i], here, live)

        if not inside:
            self._hold((info.name for info in graph.output), ipus[-1] if ipus else 0)

    def per_tile(self, size: int) -> int:
        """Return the bytes of the fullest tile."""
        return math.ceil(size / self.target.num_tiles * self.calibration.imbalance)

    def _is_constant(self, node: onnx.NodeProto) -> bool:
        reads_constants = all(name in self._constants for name in node.input if name)
        return reads_constants and not operator_of(node).draws(node)

    def _hold(self, names: Iterable[str], ipu: int) -> None:
        """Add the bytes of constants that the compiler computes and that lie on the chip because a
        run needs them."""
        grown = {name: self._grown.pop(name, 0) for name in names}
        self.further_weight_bytes[ipu] += sum(
            size * self.values[name].bytes_per_element for name, size in grown.items() if size
        )

    def _grow(self, node: onnx.NodeProto) -> None:
        """Store how many elements the node adds to its constants. Elements count, not bytes: a
        weight that is widened at its use stays narrow on the chip."""
        # The compiler computes the result, and only the result is stored. The graph's weights are
        # counted elsewhere, so that only what exceeds them is added here:
        #     Expand [1, n] -> [m, n]       (m - 1) * n more
        #     Concat [a, n], [b, n]         none: both parts are counted as weights
        #     Add [m, n], [n]               none: the largest operand covers the result
        read = [name for name in node.input if name in self.values]
        stored = [self.values[name].size - self._grown.get(name, 0) for name in read]
        covered = sum(stored) if node.op_type == "Concat" else max(stored, default=0)
        for name in node.output:
            if name in self.values:
                self._grown[name] = max(0, self.values[name].size - covered)

    def _operator(
        self, node: onnx.NodeProto, work: Work, ipu: int, here: ParentScope, live: int
    ) -> OperatorCost:
        target, is_link = self.target, node.op_type == IPU_COPY
        # A superstep ends in a sync of all its tiles: the external one between two IPUs, else the
        # internal one and what an exchange takes beside its bytes (section 2). A local compute set
        # has only its launch.
        sync = target.external_sync_cycles if is_link else self.calibration.step_cycles(target)
        control = work.steps * sync + work.local_steps * self.calibration.local_step_cycles
        return OperatorCost(
            here.prefix + node.name,
            node.op_type,
            work,
            control,
            live,
            ipu,
            here.path,
            self.liveness[()].ipu_of(node.input[0]) if is_link else ipu,
            live - here.live_bytes,
            here.tensor_bytes,
            here.copied_weight_bytes,
        )

    def _work(self, node: onnx.NodeProto) -> Work:
        work = operator_work(self._context(node))
        if node.op_type == IPU_COPY:
            return work
        self._place(node, work)
        self._store(node, work)
        if self._is_constant(node):
            self._constants.update(node.output)
            self._grow(node)
        return work

    def _store(self, node: onnx.NodeProto, work: Work) -> None:
        """Record where the weights of a product lie. Constants that other nodes read first lie
        where these put them, which is not known."""
        # W -> Transpose -> MatMul: the compiler transposes, so that W itself lies as the product
        # needs it.
        sizes = {name: self.values[name].size for name in node.input if name in self.values}
        constants = [name for name in sizes if name in self._constants]
        if self._is_constant(node):
            source = max(constants, key=sizes.__getitem__, default="")
            same = (name for name in node.output if name in self.values and source)
            self._sources |= {
                name: source for name in same if self.values[name].size == sizes[source]
            }
        elif work.weights is not None:
            weights = (name for name in constants if sizes[name] == work.weights.elements)
            stored: str | None = next(weights, None)
            while stored is not None:
                self.stored.setdefault(stored, work.weights)
                stored = self._sources.get(stored)

    def _place(self, node: onnx.NodeProto, work: Work) -> None:
        """Set the layouts of the node's results: a view's follows its source, others are given by
        their work."""
        if self._is_constant(node):
            return
        read = [name for name in node.input if name in self.layouts and name in self.values]
        sizes = {name: self.values[name].size for name in node.input if name in self.values}
        for name in node.output:
            if name not in self.values:
                continue
            value = self.values[name]
            if work.kind == VIEW:
                # The largest input is the viewed tensor. A weight or an input of the graph has no
                # layout yet, because its first reader chooses one; then the view has none either.
                if not read or max(sizes, key=sizes.__getitem__) not in read:
                    continue
                layouts = [self.layouts[read_name] for read_name in read]
                inputs, strided = (
                    [self.values[read_name] for read_name in read],
                    self._is_strided(node),
                )
                view = View(node, layouts, inputs, value, strided, layouts[0], inputs[0])
                self.layouts[name] = follow(view, operator_of(node).view)
            else:
                # The layout of the work is that of the first result; others may have other axes.
                is_main = value.shape == self.values.get(node.output[0], value).shape
                work_layout = work.layout if is_main else None
                self.layouts[name] = work_layout or linear(value)

    def _is_strided(self, node: onnx.NodeProto) -> bool:
        """Return whether a Slice skips or reverses elements; False if its step is unknown."""
        steps = node.input[4:] if node.op_type == "Slice" else ()
        return any(_read_number(self._known.get(name), 1) != 1 for name in steps)

    def _context(self, node: onnx.NodeProto) -> Context:
        inputs = _values(node, node.input, self.values)
        outputs = _values(node, node.output, self.values)
        return Context(
            node,
            inputs,
            [value for value in outputs if value is not None],
            self.target,
            self._plan_options,
            self.calibration,
            self.options.partials_type == "half",
            frozenset(self._constants.intersection(node.input)),
            self._scalars(node) if operator_of(node).reads_scalars else {},
            [self.layouts.get(name) for name in node.input],
        )

    def _scalars(self, node: onnx.NodeProto) -> dict[str, float]:
        return {
            name: float(numpy_helper.to_array(self._known[name]).ravel()[0])
            for name in node.input
            if name in self._known
        }

    def _iter_bodies(
        self, node: onnx.NodeProto, bodies: Bodies, ipu: int, here: ParentScope
    ) -> Iterator[OperatorCost]:
        """Yield the cost of the node itself, which copies inputs and outputs, and of the nodes of
        the most expensive graph inside it."""
        inside, live = here.prefix, here.live_bytes
        self._check_runs(node, bodies, inside)
        if bodies.assumption:
            self.assumptions.append(f"{node.op_type} {inside + node.name!r}: {bodies.assumption}")
        branches = []
        for number, graph in enumerate(bodies.graphs):
            path = (*here.path, number)
            within = replace(here, prefix=f"{inside}{node.name}/", path=path)
            self.values.update(graph_values(graph))
            self.further_weight_bytes[ipu] += sum(
                self.values[tensor.name].bytes for tensor in graph.initializer
            )
            placed = PlacedGraph.at(graph, [ipu] * len(graph.node))
            branches.append(list(self.iter_operators(placed, within)))
        # One graph runs at a time: time is that of the most expensive branch. The code of all of
        # them is on the tiles, and the peak is that of the branch that needs most memory.
        dearest = max(
            branches, key=lambda operators: sum(operator.cycles for operator in operators)
        )
        others = [
            other for operators in branches if operators is not dearest for other in operators
        ]
        code = code_of_all(others, outlined=self.options.enable_outlining)
        work = control(self._context(node), bodies.runs).plus(code=code)
        peak = max([live, *(operator.live_bytes for operator in others)])
        yield self._operator(node, work, ipu, here, peak + work.temporary_bytes)
        for operator in dearest:
            yield _repeat(operator, bodies.runs)

    @staticmethod
    def _check_runs(node: onnx.NodeProto, bodies: Bodies, inside: str) -> None:
        if bodies.runs > MAX_TRIPS:
            raise CompileError(
                f"node {inside + node.name!r} ({node.op_type}) runs {bodies.runs} times, and "
                "nothing ends it before"
            )


def operator_work(context: Context) -> Work:
    """Return the work of a node, by its entry in the table. Results of constants alone are computed
    by the compiler.

    Raises CompileError if one of the node's tensors has no shape.
    """
    operator = operator_of(context.node)
    cost = operator.cost
    is_constant = context.constants.issuperset(
        filter(None, context.node.input)
    ) and not operator.draws(context.node)
    # Two nodes with known operands remain. fp8 weights must stay small, so that their casts run on
    # the chip. A copy between IPUs belongs to the placement: the compiler does not remove it.
    folded = is_constant and not is_quarter_cast(context) and context.node.op_type != IPU_COPY
    if cost is None or not context.outputs or folded:
        return Work(VIEW)
    # Without data to compute with, the result, if any, is filled with a value.
    settings = operator.shaped_by
    read = [value for place, value in enumerate(context.inputs) if place not in settings]
    is_empty = any(value is not None and not value.size for value in (*read, context.result))
    return move(context) if is_empty else cost(context)


def code_of_all(operators: Iterable[OperatorCost], *, outlined: bool) -> Code:
    """Return the code of the operators on a tile. With outlining (PopART's SubgraphOutline) equal
    operators share their code."""
    works: Collection[Work] = [operator.work for operator in operators]
    # Operators of equal work count as equal. Vertices are shared in any case: Code adds them once.
    return sum((work.code for work in (set(works) if outlined else works)), NO_CODE)


def _repeat(operator: OperatorCost, runs: int) -> OperatorCost:
    # Cycles and counts grow with the runs. Memory and code do not: runs follow one another.
    work = operator.work
    work = replace(
        work,
        compute=work.compute * runs,
        exchange=work.exchange * runs,
        steps=work.steps * runs,
        local_steps=work.local_steps * runs,
        macs=work.macs * runs,
    )
    return replace(operator, work=work, sync_cycles=operator.sync_cycles * runs)


def _values(
    node: onnx.NodeProto, names: Iterable[str], values: Mapping[str, TensorSize]
) -> list[TensorSize | None]:
    listed = list(names)
    missing = [name for name in listed if name and name not in values]
    if missing and not operator_of(node).is_view:
        raise CompileError(
            f"node {node.name!r} ({node.op_type}): the shape of {missing[0]!r} is not known at "
            "compile time; the IPU runs static graphs only"
        )
    return [values.get(name) for name in listed]
