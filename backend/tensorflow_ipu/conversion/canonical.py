"""Models without the names that differ between processes: equal computations are equal bytes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def canonical_bytes(model: onnx.ModelProto) -> bytes:
    """Return bytes of a model that are equal for equal computations.

    Names of inputs and outputs stay; others are numbers, in the order in which they occur.

    Args:
        model: The model, which is not changed.

    Returns:
        The bytes.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [value.name for value in (*copy.graph.input, *copy.graph.output)]
    names = {"": "", **{name: name for name in kept}}
    for graph in _iter_graphs(copy.graph):
        graph.name = ""
        del graph.value_info[:]
        for tensor in graph.initializer:
            tensor.name = _number(names, tensor.name)
        for value in (*graph.input, *graph.output):
            value.name = _number(names, value.name)
        for node in graph.node:
            node.name, node.doc_string = "", ""
            node.input[:] = [_number(names, name) for name in node.input]
            node.output[:] = [_number(names, name) for name in node.output]
    return bytes(copy.SerializeToString(deterministic=True))


def _number(names: dict[str, str], name: str) -> str:
    return names.setdefault(name, f"#{len(names)}")


def _iter_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _iter_graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _iter_graphs(inner)
