"""The captured graph as PopART's IR: JSON with the operators of the model in `maingraph`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import onnx
from popart.session import reports
from simipu.chip.placement import IPU_ATTRIBUTE, STAGE_ATTRIBUTE, read_places
from simipu.operators import find_operator

from poptorch.capture.popart_names import list_operators

_MAIN: Final = "maingraph"
_IN_PLACE: Final = ":InPlace"
"""End of the name of an operator whose result takes its input's place."""


def serialize(graph: onnx.GraphProto) -> str:
    """Return the operators of a graph as JSON.

    Args:
        graph: The graph, before PopART's own operators are lowered.
    """
    nodes = list_operators(graph)
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, _MAIN, [], []))
    graphs = json.loads(reports.serialize_ir(model))
    for place in _find_in_place(graph, nodes):
        graphs[_MAIN][place]["name"] += _IN_PLACE
    return json.dumps(graphs, separators=(",", ":"))


def add_partials(ir: str, options: Mapping[str, Any]) -> str:
    """Return an IR whose products say which type their partial sums have.

    Args:
        ir: The IR.
        options: PopART's options by name.
    """
    convolutions = options.get("convolutionOptions", {})
    products = options.get("partialsTypeMatMuls", "float").upper()
    product = {"partialsType": f"MatMulPartialsType::{products}"}
    convolution = {"partialsType[0]": convolutions.get("partialsType", "float")}
    graphs = json.loads(ir)
    for operators in graphs.values():
        for operator in operators:
            entry = find_operator(operator["type"])
            if entry.keeps_sums:
                operator["attributes"].update(convolution if entry.is_convolution else product)
    return json.dumps(graphs, separators=(",", ":"))


def add_places(ir: str, graph: onnx.GraphProto) -> str:
    """Return an IR whose operators say on which IPU and in which pipeline stage they are.

    Args:
        ir: The IR.
        graph: The graph that was compiled, whose operators have their places.
    """
    places = read_places(graph)
    graphs = json.loads(ir)
    for operators in graphs.values():
        for operator in operators:
            ipu, stage = places.get(operator["outputs"][0]["name"], (None, None))
            marks = {IPU_ATTRIBUTE: ipu, STAGE_ATTRIBUTE: stage}
            attributes = {name: str(value) for name, value in marks.items() if value is not None}
            operator["attributes"].update(attributes)
    return json.dumps(graphs, separators=(",", ":"))


def _find_in_place(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Return the places of the operators whose result can take an input's place.

    As in PopART, nothing else may read that input, it must be no weight and no result, and have the
    type and shape of the operator's result.
    """
    types = {
        value.name: value.type.SerializeToString()
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    readers = Counter(name for node in graph.node for name in set(node.input))
    fixed_names = {value.name for value in graph.output} | {
        tensor.name for tensor in graph.initializer
    }

    def is_free(name: str, result: str) -> bool:
        fits = name in types and types[name] == types.get(result)
        return fits and name not in fixed_names and readers[name] == 1

    return [
        place
        for place, node in enumerate(nodes)
        if any(
            is_free(node.input[index], node.output[0])
            for index in find_operator(node.op_type, node.domain).in_place
        )
    ]
