"""Control flow: the graphs inside a node, how often they run, and the assumptions made about
that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import numpy_helper
from onnxgraph import Value, attribute, iter_bodies
from onnxgraph.inference import MAX_TRIPS, count_trips
from onnxgraph.weights import has_data

Known = Mapping[str, onnx.TensorProto]
"""Small constants by name; one may hold a trip count."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The graphs inside a node: one of them runs, `runs` times."""

    graphs: tuple[onnx.GraphProto, ...]
    runs: int = 1
    assumption: str = ""


def find_bodies(node: onnx.NodeProto, values: Mapping[str, Value], known: Known) -> Bodies:
    """Return the graphs inside `node`; most operators have none."""
    graphs = tuple(iter_bodies(node))
    if node.op_type == "If":
        return Bodies(graphs, 1, "the dearer branch is taken")
    if node.op_type == "Loop":
        return Bodies(graphs, *_count_trips(node, graphs[0], known))
    if node.op_type == "Scan":
        return Bodies(graphs, *_count_steps(node, values))
    return Bodies(graphs)


def known_constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return initializers and constants of one element, by name."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            known.update(
                (node.output[0], each.t) for each in node.attribute if each.name == "value"
            )
    return {
        name: tensor
        for name, tensor in known.items()
        if list(tensor.dims) in ([], [1]) and has_data(tensor)
    }


def _count_trips(node: onnx.NodeProto, body: onnx.GraphProto, known: Known) -> tuple[int, str]:
    # A Loop ends at its trip count or when its condition turns false, whichever comes first. The
    # count holds if the body returns its condition unchanged (through Identity) or as a constant
    # that is true. Otherwise values decide, which are not known: all trips are counted.
    trips = count_trips(known.get(node.input[0]))
    goes_on = body.output[0].name
    makers = {output: inner for inner in body.node for output in inner.output}
    while goes_on in makers and makers[goes_on].op_type == "Identity":
        goes_on = makers[goes_on].input[0]
    unconditional = goes_on == body.input[1].name or bool(
        _value(goes_on, {**known, **known_constants(body)})
    )
    if trips is None or (trips > MAX_TRIPS and not unconditional):
        return 1, "the trip count is not known: one iteration is counted"
    return (
        trips,
        ""
        if unconditional
        else f"all {trips} iterations are run, although the condition may end it before",
    )


def _value(name: str, known: Known) -> int | None:
    return int(numpy_helper.to_array(known[name]).ravel()[0]) if name in known else None


def _count_steps(node: onnx.NodeProto, values: Mapping[str, Value]) -> tuple[int, str]:
    count, axes = attribute(node, "num_scan_inputs"), attribute(node, "scan_input_axes", [0])
    scanned = values.get(node.input[len(node.input) - count])
    if scanned is None:
        return 1, "the length of the scan is not known: one step is counted"
    return scanned.shape[axes[0]], ""
