"""Scatters that do not depend on each other, merged into one operator with a group for each.

A merged operator needs one plan and one exchange instead of several. PopTorch does the same; which
scatters it merges is seen in PopART's graph.

    a = ScatterReduce(x, index)      t = ScatterReduce[group_size=2](concat(x, y), concat(...))
    b = ScatterReduce(y, index)  ->  a, b = the two slices of t along a new axis 0
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper
from onnxgraph import CHIP_DOMAIN, Tape, attribute, iter_reads, replace_nodes, sort_nodes

from poptorch.capture import bodies
from poptorch.capture.popart_names import iter_places
from poptorch.operators.placement import Placement
from poptorch.translations.aten import OPSET

SCATTER = "ScatterReduce"


def group_scatters(graph: onnx.GraphProto, places: Mapping[str, Placement]) -> None:
    """Merge the scatters of a captured graph that may run at once.

    They have the same attributes, types and shapes, stand in the same block, and equally many
    scatters lie on the longest way from an input to each of them. In a model with control flow all
    scatters stay apart, because a body must not compute what is needed outside.

    Args:
        graph: The graph, with PopART's operators, which is changed.
        places: Places of operators by their names in torch's program.
    """
    has_bodies = any(node.domain == bodies.DOMAIN for node in graph.node)
    if has_bodies or sum(map(_is_scatter, graph.node)) < 2:  # noqa: PLR2004 # nothing to merge
        return
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type for value in values}
    types |= {
        tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
        for tensor in graph.initializer
    }
    groups: dict[Hashable, list[onnx.NodeProto]] = {}
    for node, key in _iter_keys(graph, places, types):
        groups.setdefault(key, []).append(node)
    merged = [_Group(nodes, types, graph) for nodes in groups.values() if len(nodes) > 1]
    _replace(graph, merged)


def _is_scatter(node: onnx.NodeProto) -> bool:
    return node.domain == CHIP_DOMAIN and node.op_type == SCATTER


def _iter_keys(
    graph: onnx.GraphProto,
    places: Mapping[str, Placement],
    types: Mapping[str, onnx.TypeProto.Tensor],
) -> Iterator[tuple[onnx.NodeProto, Hashable]]:
    """Yield each scatter whose inputs' types are known, with what mergeable ones have in common."""
    levels: dict[str, int] = {}
    for node, place in iter_places(graph, places):
        level = max((levels.get(name, 0) for name in iter_reads(node)), default=0)
        if _is_scatter(node):
            if all(name in types for name in node.input):
                described = tuple(types[name].SerializeToString() for name in node.input)
                attributes = tuple(
                    sorted(entry.SerializeToString(deterministic=True) for entry in node.attribute)
                )
                yield node, (level, place, attributes, described)
            level += 1
        levels.update(dict.fromkeys(node.output, level))


class _Group:
    """Scatters that become one; those with the same inputs share a place in it."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        types: Mapping[str, onnx.TypeProto.Tensor],
        graph: onnx.GraphProto,
    ) -> None:
        self.members: dict[tuple[str, ...], list[str]] = {}
        for node in nodes:
            self.members.setdefault(tuple(node.input), []).append(node.output[0])
        self.outputs = {name for names in self.members.values() for name in names}
        self._last = nodes[-1]
        self._prefix = f"{self._last.output[0]}/group"
        self._type = types[self._last.output[0]]
        self._graph = graph

    def make_nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes that compute the outputs of all members."""
        op, size = Tape(self._prefix, OPSET), len(self.members)
        if size == 1:
            ((inputs, names),) = self.members.items()
            results = op.copy(self._last, inputs) * len(names)
            return self._note(op.finish(results, names))
        columns = [
            op.Concat(*(op.Unsqueeze(name, axes=[0]) for name in column), axis=0)
            for column in zip(*self.members, strict=True)
        ]
        # The groups lie along a new axis in front.
        axis = attribute(self._last, "axis") + 1
        group = op.copy(self._last, columns, axis=axis, group_size=size)
        parts = op.add_all(size, "Split", group[0], axis=0, num_outputs=size)
        pairs = zip(parts, self.members.values(), strict=True)
        results = [op.Squeeze(part, axes=[0]) for part, names in pairs for _ in names]
        self._declare(size)
        outputs = [self._prefix, *(name for names in self.members.values() for name in names)]
        return self._note(op.finish([*group, *results], outputs))

    def _declare(self, size: int) -> None:
        shape = [size, *(dim.dim_value for dim in self._type.shape.dim)]
        kind = self._type.elem_type or TensorProto.FLOAT
        value = helper.make_tensor_value_info(self._prefix, kind, shape)
        self._graph.value_info.append(value)

    def _note(self, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Give nodes the notes of torch's exporter, which say where the members stand."""
        for node in nodes:
            if not node.metadata_props:
                node.metadata_props.extend(self._last.metadata_props)
        return nodes


def _replace(graph: onnx.GraphProto, groups: Sequence[_Group]) -> None:
    """Put groups in the place of their last members, and what reads the others behind them."""
    grouped = {name: group for group in groups for name in group.outputs}
    if not grouped:
        return
    nodes: list[onnx.NodeProto] = []
    missing = {id(group): len(group.outputs) for group in groups}
    for node in graph.node:
        group = grouped.get(node.output[0]) if node.output else None
        if group is None:
            nodes.append(node)
            continue
        missing[id(group)] -= 1
        if not missing[id(group)]:
            nodes.extend(group.make_nodes())
    replace_nodes(graph, nodes)
    ordered = sort_nodes(graph)
    if ordered is not None:
        replace_nodes(graph, ordered)
