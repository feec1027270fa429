"""Pass that keeps one of several equal initializers. Scripts import its class from here."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Hashable, Iterable

import onnx
from onnx import TensorProto
from onnxgraph import iter_bodies, rename
from onnxgraph.weights import describe_place, has_data, is_outlined, read_array

from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.views import is_untrained

_SAMPLE_BYTES = 256
"""Number of bytes spread over a tensor that are compared first; they tell most different tensors
apart."""

_Seen = ChainMap[Hashable, tuple[TensorProto, ...]]
"""Initializers in scope that stay, by element type, shape and data."""


@register("remove_duplicated_initializer", stage=Stage.FOLDING, default=True)
class RemoveDuplicatedInitializer(Pass):
    """Keep the first of several initializers with equal type, shape and bits; bodies read the
    initializers of the graphs around them.

    Outputs and inputs keep their own. Outlined weights are equal where they lie in one place, and
    what they hold is not read; weights without data are equal to none, nor are those that are not
    trained yet.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Remove the duplicates. Only names that nodes read change."""
        # Reading data copies them, so tensors whose type and shape are unique are not read.
        counts = Counter(map(_shape_key, _iter_initializers(model.graph)))
        _keep_one(model.graph, ChainMap(), {key for key, count in counts.items() if count > 1})
        return model


def _iter_initializers(graph: onnx.GraphProto) -> Iterable[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for body in iter_bodies(node):
            yield from _iter_initializers(body)


def _shape_key(tensor: TensorProto) -> Hashable:
    return tensor.data_type, tuple(tensor.dims)


def _keep_one(graph: onnx.GraphProto, outer: _Seen, shared: set[Hashable]) -> None:
    seen = outer.new_child()
    doubles, renames = _find_doubles(graph, seen, shared)
    for i in reversed(doubles):
        del graph.initializer[i]
    rename(graph, renames)
    for node in graph.node:
        for body in iter_bodies(node):
            _keep_one(body, seen, shared)


def _find_doubles(
    graph: onnx.GraphProto, seen: _Seen, shared: set[Hashable]
) -> tuple[list[int], dict[str, str]]:
    """Return the places of the duplicates, and for each name the one to read instead. Initializers
    that stay are added to `seen`."""
    inputs, outputs = {value.name for value in graph.input}, {value.name for value in graph.output}
    own = inputs | {tensor.name for tensor in graph.initializer}
    here: set[str] = set()
    doubles: list[int] = []
    renames: dict[str, str] = {}
    for i, tensor in enumerate(graph.initializer):
        if _shape_key(tensor) not in shared or tensor.name in inputs or not _can_be_equal(tensor):
            continue
        data = _data(tensor)
        key = (_shape_key(tensor), data if isinstance(data, tuple) else _sample(data))
        first = next((each.name for each in seen.get(key, ()) if _data(each) == data), None)
        # A name of this graph hides the same name in a graph around it.
        if first is None or tensor.name in outputs or (first in own and first not in here):
            seen[key] = (*seen.get(key, ()), tensor)
            here.add(tensor.name)
        elif first != tensor.name:
            renames[tensor.name] = first
            doubles.append(i)
    return doubles, renames


def _can_be_equal(tensor: TensorProto) -> bool:
    if not has_data(tensor) or tensor.data_type == TensorProto.STRING:
        return False
    return is_outlined(tensor) or not is_untrained(read_array(tensor))


def _data(tensor: TensorProto) -> bytes | tuple[str, ...]:
    """Return the bytes of a tensor, or their place if it is outlined. They are equal for equal
    tensors of one type and shape."""
    if is_outlined(tensor):
        return describe_place(tensor)
    return tensor.raw_data if tensor.HasField("raw_data") else read_array(tensor).tobytes()


def _sample(data: bytes) -> bytes:
    return data[:: max(1, len(data) // _SAMPLE_BYTES)]
