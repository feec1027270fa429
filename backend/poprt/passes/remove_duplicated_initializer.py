"""The pass that keeps one of equal initializers; scripts import its class from here."""

from __future__ import annotations

import hashlib
import math
from collections import ChainMap, defaultdict
from collections.abc import Hashable, Iterable

import onnx
from onnx import TensorProto
from onnxgraph import iter_bodies, rename
from onnxgraph.weights import describe_place, has_data, is_outlined, read_array

from poprt.passes.base_pass import Pass, Stage, register

_Seen = ChainMap[Hashable, str]


@register("remove_duplicated_initializer", stage=Stage.FOLDING, default=True)
class RemoveDuplicatedInitializer(Pass):
    """Of initializers of equal type, shape and bits keep one, the first; bodies read those of the graphs
    around them.

    Outputs and inputs keep their own. Outlined weights are equal where they lie in one place, and what they
    hold is not read; weights without data are equal to none.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Names change where nodes read them only."""
        _keep_one(model.graph, ChainMap(), _find_shared(_iter_initializers(model.graph)))
        return model


def _iter_initializers(graph: onnx.GraphProto) -> Iterable[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for body in iter_bodies(node):
            yield from _iter_initializers(body)


def _shape_key(tensor: TensorProto) -> Hashable:
    return tensor.data_type, tuple(tensor.dims)


def _find_shared(tensors: Iterable[TensorProto]) -> set[Hashable]:
    """The types and shapes that several tensors have: data of others need not be read, which copies them."""
    counts: dict[Hashable, int] = defaultdict(int)
    for tensor in tensors:
        counts[_shape_key(tensor)] += 1
    return {key for key, count in counts.items() if count > 1}


def _content(tensor: TensorProto) -> Hashable | None:
    """What two equal tensors have in common, and no others; None for one that is equal to none."""
    if is_outlined(tensor):
        return _shape_key(tensor), describe_place(tensor)
    if not has_data(tensor) or tensor.data_type == TensorProto.STRING:
        return None
    data = read_array(tensor)
    if data.size != math.prod(tensor.dims):
        return None
    return _shape_key(tensor), hashlib.blake2b(data.tobytes()).digest()


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
    """The places of initializers that go, and whose names nodes read instead; those that stay are seen."""
    inputs, outputs = {value.name for value in graph.input}, {value.name for value in graph.output}
    own = inputs | {tensor.name for tensor in graph.initializer}
    doubles: list[int] = []
    renames: dict[str, str] = {}
    for i, tensor in enumerate(graph.initializer):
        content = _content(tensor) if _shape_key(tensor) in shared and tensor.name not in inputs else None
        if content is None:
            continue
        first = seen.setdefault(content, tensor.name)
        hidden = first in own and content not in seen.maps[0]
        if first != tensor.name and tensor.name not in outputs and not hidden:
            renames[tensor.name] = first
            doubles.append(i)
    return doubles, renames
