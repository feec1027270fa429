"""Resource demand of a graph: the bytes of its largest tensor, the work of its most expensive
operator.

Graphs from unknown sources may be small and still need unlimited time or memory. Their shapes show
this before a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    GraphTooLargeError,
    attribute,
    count_trips,
    element_bytes,
    is_unconditional,
    iter_any_bodies,
    iter_bodies,
    known_constants,
)

from simipu.operators import operator_of
from simipu.operators.counts import count_shape

MAX_FOLDED_OPERATIONS = 1 << 34
"""Maximum number of operations that ONNX Runtime may do while it loads a graph, which cannot be
cancelled: some seconds of one core."""
OPERATIONS_PER_CORE_SECOND = 10**11
"""Upper bound on the multiply-adds of one core per second: AVX-512 with two units at 3 GHz."""
TRIPS_PER_SECOND = 10**7
"""Upper bound on the trips of a loop per second: ONNX Runtime took 1.3 us for one of a body that
copies a number (EPYC, 2026), on one core."""
_ENDLESS = 1 << 63
"""Trips of a loop without a trip count."""
Shapes = Mapping[str, tuple[int, ...]]
Spec = tuple[int, tuple[int, ...]]
"""Element type and shape of a tensor."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Resource demand of a graph, as far as its shapes are known before a run."""

    tensor_bytes: int
    """Bytes of the largest tensor."""
    tensor: str
    operations: int
    """Operations of the most expensive operator."""
    node: str
    folded_operations: int | None
    """Operations of all nodes that do not depend on the graph's inputs; None if unknown."""
    folded_bytes: int
    """Bytes of the largest tensor that does not depend on the graph's inputs."""
    folded: str
    trips: int = 0
    """Trips that a loop certainly makes, those of a loop in a loop multiplied."""
    loop: str = ""

    def check(self, memory_bytes: int, seconds: float, cores: int) -> None:
        """Raise GraphTooLargeError if a tensor exceeds `memory_bytes`, or an operator or a loop
        takes longer than `seconds` on any machine with `cores` cores."""
        if self.tensor_bytes > memory_bytes:
            raise GraphTooLargeError(
                f"tensor {self.tensor!r} takes {self.tensor_bytes} bytes, more than the limit of "
                f"{memory_bytes} bytes of memory"
            )
        if self.operations > seconds * cores * OPERATIONS_PER_CORE_SECOND:
            raise GraphTooLargeError(
                f"node {self.node!r} takes {self.operations} multiply-adds, more than {cores} "
                f"cores can do within the limit of {seconds:g} s"
            )
        if self.trips > seconds * TRIPS_PER_SECOND:
            raise GraphTooLargeError(
                f"node {self.loop!r} (Loop) runs {self.trips} times, and nothing ends it before: "
                f"no machine can do that within the limit of {seconds:g} s"
            )


def measure(inferred: onnx.ModelProto) -> Demand:
    """Return the demand of a model whose shapes were inferred (`onnxgraph.infer_shapes`)."""
    graph = inferred.graph
    sizes: dict[str, int] = {}
    dearest = (0, "")
    inputs = {value.name for value in graph.input}
    constants = {tensor.name for tensor in graph.initializer} - inputs
    folded: int | None = 0
    results: list[str] = []
    for inner, is_main in _iter_graphs(graph):
        shapes, bytes_of = _find_shapes(inner)
        sizes.update(bytes_of)
        for node in inner.node:
            count = count_operations(node, shapes)
            dearest = max(dearest, (count or 0, node.name or node.op_type))
            is_constant = is_main and constants.issuperset(filter(None, node.input))
            if is_constant and not any(iter_bodies(node)):
                constants.update(node.output)
                results += node.output
                folded = None if folded is None or count is None else folded + count
    largest = max(sizes, key=lambda name: sizes[name], default="")
    largest_made = max(results, key=lambda name: sizes.get(name, 0), default="")
    return Demand(
        sizes.get(largest, 0),
        largest,
        *dearest,
        folded,
        sizes.get(largest_made, 0),
        largest_made,
        *_find_trips(graph, {}, 1),
    )


def _find_trips(
    graph: onnx.GraphProto, outer: Mapping[str, TensorProto], around: int
) -> tuple[int, str]:
    """Return the most trips that a loop of a graph, which runs `around` times, certainly makes, and
    the loop's name. A branch of an If may never run, and a Scan may have no steps."""
    constants, most = {**outer, **known_constants(graph)}, (0, "")
    for node in graph.node:
        if node.op_type == "Loop":
            body = attribute(node, "body")
            limit = node.input[0]
            trips = count_trips(constants.get(limit)) if limit else _ENDLESS
            if trips and is_unconditional(body, constants):
                total = around * trips
                most = max(
                    most, (total, node.name or node.output[0]), _find_trips(body, constants, total)
                )
    return most


def bound_bytes(inferred: onnx.ModelProto) -> int | None:
    """Return the bytes of all tensors that one run of a model makes; None if a shape is unknown, or
    if the model has bodies, which may run any number of times."""
    graph = inferred.graph
    if any(True for node in graph.node for _ in iter_any_bodies(node)):
        return None
    _, sizes = _find_shapes(graph)
    names = [name for node in graph.node for name in node.output if name]
    names += [value.name for value in graph.input]
    return sum(sizes[name] for name in names) if sizes.keys() >= set(names) else None


def _iter_graphs(
    graph: onnx.GraphProto, is_main: bool = True
) -> Iterator[tuple[onnx.GraphProto, bool]]:
    yield graph, is_main
    for node in graph.node:
        for body in iter_any_bodies(node):
            yield from _iter_graphs(body, False)


def find_specs(graph: onnx.GraphProto) -> dict[str, Spec]:
    """Return the types and shapes of a graph's tensors whose shapes are known."""
    specs = {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shape = tuple(dim.dim_value for dim in tensor.shape.dim)
            specs.setdefault(info.name, (tensor.elem_type, shape))
    return specs


def _find_shapes(graph: onnx.GraphProto) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Return the known shapes of a graph's tensors, and their bytes."""
    shapes, sizes = {}, {}
    for name, (data_type, shape) in find_specs(graph).items():
        shapes[name] = shape
        has_size = data_type in helper.get_all_tensor_dtypes() and data_type != TensorProto.STRING
        sizes[name] = count_shape(shape) * (element_bytes(data_type) if has_size else 8)
    return shapes, sizes


def count_all_operations(inferred: onnx.ModelProto) -> int:
    """Return the multiply-adds, or elements read, of one run of a model whose shapes were inferred,
    as far as they are known. A body counts once."""
    total = 0
    for graph, _ in _iter_graphs(inferred.graph):
        shapes, _ = _find_shapes(graph)
        total += sum(count_operations(node, shapes) or 0 for node in graph.node)
    return total


def count_operations(node: onnx.NodeProto, shapes: Shapes) -> int | None:
    """Return a lower bound on the multiply-adds, or elements read, of one run of `node`; None if a
    shape is unknown."""
    inputs = [shapes.get(name) for name in node.input if name]
    outputs = [shapes.get(name) for name in node.output if name]
    if None in inputs or None in outputs:
        return None
    known_shapes = [[shape for shape in side if shape is not None] for side in (inputs, outputs)]
    return operator_of(node).count(node, *known_shapes)
