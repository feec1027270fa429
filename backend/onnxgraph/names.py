"""Names and weights that a pass adds to a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from onnxgraph.edit import drop_weights
from onnxgraph.nodes import (
    find_opset,
    fresh_name,
    iter_bodies,
    iter_defined,
    used_names,
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
        self.maybe_unread: set[str] = set()
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
    name = fresh_name(wanted, taken)
    taken.add(name)
    return name


def drop_unread(graph: onnx.GraphProto, names: NameScope, *, bodies: bool = True) -> None:
    """Drop the weights of a main graph, and of its bodies, that only removed nodes have read."""
    maybe_unread = names.maybe_unread - {value.name for value in graph.input}
    unread = maybe_unread - used_names(graph) if maybe_unread else maybe_unread
    if unread:
        _drop(graph, unread, bodies=bodies)


def _drop(graph: onnx.GraphProto, unread: set[str], *, bodies: bool) -> None:
    drop_weights(graph, {tensor.name for tensor in graph.initializer} - unread)
    for node in graph.node if bodies else ():
        for body in iter_bodies(node):
            _drop(body, unread, bodies=True)
