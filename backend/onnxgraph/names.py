"""Names and weights that a pass adds to a model, and builders of the nodes that it adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxgraph.edit import Chain, drop_weights, set_attribute
from onnxgraph.nodes import (
    CHIP_DOMAIN,
    find_opset,
    fresh_name,
    iter_bodies,
    iter_defined,
    used_names,
)
from onnxgraph.opsets import (
    AXES_ARE_INPUTS,
    PAD_TAKES_SIZES,
    SLICE_TAKES_BOUNDS,
    SPLIT_TAKES_SIZES,
)


class NameScope:
    """Names of a whole model while a pass rewrites it, with the weights that the pass adds."""

    def __init__(
        self, graph: onnx.GraphProto, source: int, *, opset: int = 0, reserved: Collection[str] = ()
    ) -> None:
        """Args:
        graph: Main graph of the model.
        source: Opset of the model.
        opset: Opset of new nodes, if it is another.
        reserved: Names that count as taken.
        """
        self.source, self.opset = source, opset or source
        self.uses_chip = False
        """Flag that new nodes are operators of the chip's own compiler."""
        self.added: list[TensorProto] = []
        """New weights of the main graph."""
        self.left: set[str] = set()
        """Weights that removed nodes have read, and perhaps other tensors."""
        self._graph, self._reserved = graph, reserved
        self._shared: dict[Hashable, str] = {}
        """Names of weights that several places share, by what they hold or are made from."""

    @classmethod
    def of(cls, model: onnx.ModelProto, opset: int = 0) -> NameScope:
        """Return the names of a model, for new nodes of `opset`; 0 stands for the model's."""
        return cls(model.graph, find_opset(model, 1), opset=opset)

    @cached_property
    def taken(self) -> set[str]:
        """Names that the model uses."""
        return {*iter_defined(self._graph), *self._reserved}

    @cached_property
    def _prefixes(self) -> set[str]:
        """The part of each name before its last slash."""
        return {name.rpartition("/")[0] for name in iter_defined(self._graph)}

    @cached_property
    def doubled(self) -> frozenset[str]:
        """Names that are defined twice: a name inside a body hides the same name outside."""
        if not any(any(iter_bodies(node)) for node in self._graph.node):
            return frozenset()
        counts = Counter(iter_defined(self._graph))
        return frozenset(name for name, count in counts.items() if count > 1)

    def take(self, wanted: str, *, is_numbered: bool = False) -> str:
        """Return an unused name, and mark it as used. A taken one gets underscores, or a number."""
        if not is_numbered or wanted not in self.taken:
            return take_name(wanted, self.taken)
        numbered = (f"{wanted}_{number}" for number in count(1))
        return take_name(next(name for name in numbered if name not in self.taken), self.taken)

    def take_prefix(self, wanted: str) -> str:
        """Return a prefix that no name has before its last slash, and mark it as used."""
        return take_name(wanted, self._prefixes)

    def hold(self, wanted: str, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> str:
        """Add a weight to the main graph and return its name."""
        name = self.take(wanted)
        self.added.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def hold_unread(self, wanted: str, data_type: int, dims: Sequence[int]) -> str:
        """Add a weight without data and return its name. Such weights are made from others without
        data: a profile needs shapes only."""
        name = self.take(wanted)
        self.added.append(TensorProto(name=name, data_type=data_type, dims=dims))
        return name

    def hold_once(
        self, wanted: str, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None
    ) -> str:
        """Add a weight, unless there is one with equal values, and return its name."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._shared:
            self._shared[key] = self.hold(wanted, array)
        return self._shared[key]

    def share(self, key: Hashable, make: Any) -> str:
        """Return the name of the weight that `make` makes, which is called once for each key."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


def take_name(wanted: str, taken: set[str]) -> str:
    """Return an unused name, and add it to the taken ones. A taken one gets underscores."""
    found = fresh_name(wanted, taken)
    taken.add(found)
    return found


def drop_unread(graph: onnx.GraphProto, names: NameScope, *, bodies: bool = True) -> None:
    """Drop the weights of a main graph, and of its bodies, that only removed nodes have read."""
    left = names.left - {value.name for value in graph.input}
    unread = left - used_names(graph) if left else left
    if unread:
        _drop(graph, unread, bodies=bodies)


def _drop(graph: onnx.GraphProto, unread: set[str], *, bodies: bool) -> None:
    drop_weights(graph, {tensor.name for tensor in graph.initializer} - unread)
    for node in graph.node if bodies else ():
        for body in iter_bodies(node):
            _drop(body, unread, bodies=True)


@dataclass(slots=True)
class NodeBuilder(Chain):
    """Nodes that replace others, in the forms of the model's opset.

    Their constants become weights of the main graph, and their intermediate tensors have unique
    names.
    """

    names: NameScope = field(kw_only=True)
    is_alone: bool = False
    """Flag that no other name begins with the prefix, so that numbers make names unique."""
    held: int = 0

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """Add a weight and return its name."""
        if not self.is_alone:
            return self.names.hold(f"{self.prefix}/constant", value, dtype)
        name = f"{self.prefix}/constant_{self.held}"
        self.held += 1
        self.names.added.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def new_name(self) -> str:
        """Return an unused name."""
        name = f"{self.prefix}/{len(self.nodes)}"
        return name if self.is_alone else self.names.take(name)

    def end(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes. The last one takes the name of `node`, whose result it makes."""
        if node.name:
            self.nodes[-1].name = node.name
        return self.nodes

    def chip(self, result: str, op_type: str, *inputs: str, **attributes: Any) -> None:
        """Add an operator of the chip's own compiler."""
        self.add_as(result, op_type, *inputs, domain=CHIP_DOMAIN, **attributes)

    def reduce_sum_as(
        self, name: str, source: str, axes: Sequence[int], *, keepdims: int = 0
    ) -> str:
        """Add a sum along axes and return its name."""
        return self._along(name, "ReduceSum", source, axes, keepdims=keepdims)

    def unsqueeze_as(self, name: str, source: str, axes: Sequence[int]) -> str:
        """Add an Unsqueeze to new axes of one element and return its name."""
        return self._along(name, "Unsqueeze", source, axes)

    def _along(
        self, name: str, op_type: str, source: str, axes: Sequence[int], **attributes: int
    ) -> str:
        if self.names.opset >= AXES_ARE_INPUTS:
            return self.add_as(name, op_type, source, self.shape(axes), **attributes)
        return self.add_as(name, op_type, source, axes=list(axes), **attributes)

    def slice(self, source: str, start: int, end: int, axis: int, step: int = 1) -> str:
        """Add a Slice along one axis and return its name."""
        if self.names.opset < SLICE_TAKES_BOUNDS:
            return self.add("Slice", source, starts=[start], ends=[end], axes=[axis])
        return self.add("Slice", source, *map(self.shape, ([start], [end], [axis], [step])))

    def pad(
        self, source: str, rank: int, axis: int, added: int, value: float, dtype: npt.DTypeLike
    ) -> str:
        """Add a Pad and return its name. It appends elements of `value` to a tensor of that rank,
        at the end of one axis, which is negative."""
        pads = [0] * (2 * rank)
        pads[axis] = added
        if self.names.opset < PAD_TAKES_SIZES:
            return self.add("Pad", source, pads=pads, value=float(value))
        return self.add("Pad", source, self.shape(pads), self.constant(value, dtype))

    def split_as(
        self, results: Sequence[str], source: str, sizes: Sequence[int], axis: int
    ) -> None:
        """Add a Split of a tensor along one axis."""
        node = helper.make_node("Split", [source], results, name=f"{results[0]}/Split", axis=axis)
        if self.names.opset >= SPLIT_TAKES_SIZES:
            node.input.append(self.shape(sizes))
        else:
            set_attribute(node, "split", list(sizes))
        self.nodes.append(node)
