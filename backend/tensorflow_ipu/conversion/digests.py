"""Digests of graphs that do not depend on names, which differ between processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.graphs import function_graph

_IGNORED: Final = frozenset(("_output_shapes", "_class", "token", "T_user_specified_name"))


def digest_graph(graph: Any, inputs: Mapping[str, str], outputs: Mapping[str, tf.Tensor]) -> bytes:
    """Return a digest that is equal for equal computations.

    A tensor's digest is made of its operator and the digests of the operator's inputs.

    Args:
        graph: The graph of a segment.
        inputs: Names of its inputs by the names of the placeholders.
        outputs: Its outputs by name.

    Returns:
        The digest.
    """
    tensors = {tensor: name.encode() for tensor, name in inputs.items()}
    digests = _digest_operations(graph, tensors, [0])
    parts = [part for name in sorted(inputs.values()) for part in (name.encode(),)]
    for name, tensor in outputs.items():
        parts += [name.encode(), digests[tensor.name]]
    return _digest(parts)


def _digest_operations(
    graph: Any, inputs: Mapping[str, bytes], draws: list[int]
) -> dict[str, bytes]:
    """Return the digests of a graph's tensors.

    Args:
        graph: The graph.
        inputs: Digests of its placeholders.
        draws: Number of operators with a state so far, which draw: two are never the same.

    Returns:
        The digests by the names of the tensors.
    """
    known = dict(inputs)
    for operation in graph.get_operations():
        parts = [operation.type.encode()]
        parts += [known[tensor.name] for tensor in operation.inputs]
        for name, value in sorted(operation.node_def.attr.items()):
            if name not in _IGNORED:
                parts += [name.encode(), *_digest_attribute(graph, operation, name, value, draws)]
        if operation.op_def.is_stateful:
            draws[0] += 1
            parts.append(str(draws[0]).encode())
        whole = _digest(parts)
        for place, tensor in enumerate(operation.outputs):
            parts = [whole, str(place).encode(), str(tensor.shape).encode()]
            known.setdefault(tensor.name, _digest(parts))
    return known


def _digest_attribute(
    graph: Any, operation: tf.Operation, name: str, value: Any, draws: list[int]
) -> list[bytes]:
    count = 1 if value.HasField("func") else len(value.list.func)
    if not count:
        return [value.SerializeToString(deterministic=True)]
    parts = []
    for number in range(count):
        called = function_graph(graph, operation, name, number)
        inputs = {tensor.name: f"input{n}".encode() for n, tensor in enumerate(called.inputs)}
        digests = _digest_operations(called, inputs, draws)
        parts += [digests[tensor.name] for tensor in called.outputs]
    return parts


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.digest()
