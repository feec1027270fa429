"""Base class of passes that replace single nodes, with the walk through graphs and bodies, and
unused names.

The passes define what is replaced, and when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper
from onnxgraph import (
    Chain,
    drop_weights,
    find_opset,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_nodes,
    replace_nodes,
    used_names,
)
from onnxgraph.nodes import STANDARD_DOMAINS
from simipu import CompileError

from poprt.rewrite.base import Pass
from poprt.rewrite.views import AXES_ARE_INPUTS, FreshNames, GraphView, constants_of, types_of

FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE))
WHOLE = frozenset(
    getattr(TensorProto, name) for name in "INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 UINT64".split()
)


@dataclass(slots=True, kw_only=True)
class Names(FreshNames):
    """Names taken, added and no longer read in a whole model. Of each name the part before the last
    slash counts as taken."""

    source: int
    """Opset of the model."""

    @classmethod
    def of(cls, model: onnx.ModelProto, opset: int = 0) -> Names:
        """Return the names of `model`, for new nodes of that opset; 0 stands for the model's."""
        source = find_opset(model, 1)
        taken = {name.rpartition("/")[0] for name in iter_defined(model.graph)}
        return cls(opset or source, taken, source=source)


@dataclass(slots=True, kw_only=True)
class View(GraphView):
    """View of a graph and the graphs around it, with names for new nodes."""

    names: Names

    @classmethod
    def of(
        cls, names: Names, graph: onnx.GraphProto, known: onnx.GraphProto | None, outer: View | None
    ) -> View:
        """Return the view of a graph, with the types inferred for it, if any."""
        makers = {name: node for node in graph.node for name in node.output if name}
        types = types_of(graph if known is None else known)
        return cls(outer, types, constants_of(graph), makers, names=names)

    @property
    def opset(self) -> int:
        """Opset of new nodes. It differs from the model's only during a conversion to another
        opset."""
        return self.names.opset

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor."""
        home = self.home(name)
        return home.makers.get(name) if home is not None else None

    def is_float(self, name: str) -> bool:
        """Return whether a tensor is known to be of floats that numpy has, too."""
        return self.type(name) in FLOATS

    def start(self, node: onnx.NodeProto, what: str) -> Replacement:
        """Return an empty replacement of `node`; `what` makes its names distinct."""
        wanted = next(filter(None, node.output), node.op_type)
        return Replacement(self.names.take(f"{wanted}/{what}"), names=self.names)


@dataclass(slots=True)
class Replacement(Chain):
    """Nodes that replace one. Their constants become initializers of the main graph."""

    names: Names = field(kw_only=True)
    held: int = 0

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """Add an initializer and return its name."""
        name = f"{self.prefix}/constant_{self.held}"
        self.held += 1
        self.names.added.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def end(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes. The last one takes the name of `node`, whose result it makes."""
        if node.name:
            self.nodes[-1].name = node.name
        return self.nodes

    def reduce_sum(self, source: str, axes: Sequence[int], *, keepdims: bool = False) -> str:
        """Add a sum along axes and return its name."""
        if self.names.opset >= AXES_ARE_INPUTS:
            return self.add("ReduceSum", source, self.shape(axes), keepdims=int(keepdims))
        return self.add("ReduceSum", source, axes=list(axes), keepdims=int(keepdims))

    def unsqueeze_as(self, name: str, source: str, axes: Sequence[int]) -> str:
        """Add an Unsqueeze to new axes of one element and return its name."""
        if self.names.opset >= AXES_ARE_INPUTS:
            return self.add_as(name, "Unsqueeze", source, self.shape(axes))
        return self.add_as(name, "Unsqueeze", source, axes=list(axes))


class NodeRule(Pass):
    """Base class of passes that visit single nodes, including those in bodies, and may replace
    each.

    It takes time linear in the number of nodes if `replace` looks only at nodes near the given one.
    """

    op_types: ClassVar[frozenset[str]]
    """Standard operators that the pass visits. A model without any of them does not change."""
    needs_shapes: ClassVar[bool] = True
    """Flag that the pass needs types and shapes of results."""
    opset = 0
    """Opset of new nodes, if it is not the model's."""

    def replace(self, node: onnx.NodeProto, view: View) -> Iterable[onnx.NodeProto] | None:
        """Return the nodes that replace a node, or None to keep it. Subclasses define it."""
        raise NotImplementedError

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace nodes, and remove weights that only replaced nodes have read."""
        if any(self.looks_at(node) for node in iter_nodes(model.graph)):
            known = self._infer(model) if self.needs_shapes else None
            names = Names.of(model, self.opset)
            self._visit(model.graph, known, View.of(names, model.graph, known, None))
            model.graph.initializer.extend(names.added)
            unused = names.left - used_names(model.graph) - {value.name for value in model.graph.input}
            if unused:
                drop_weights(model.graph, {tensor.name for tensor in model.graph.initializer} - unused)
        return model

    def _infer(self, model: onnx.ModelProto) -> onnx.GraphProto:
        try:
            return infer_shapes(model).graph
        except onnx.shape_inference.InferenceError as error:
            raise CompileError(f"pass {self.name}: {' '.join(str(error).split())}") from error

    def looks_at(self, node: onnx.NodeProto) -> bool:
        """Return whether `replace` is called for a node."""
        return node.op_type in self.op_types and node.domain in STANDARD_DOMAINS

    def _try(self, node: onnx.NodeProto, view: View) -> Iterable[onnx.NodeProto] | None:
        """Return the nodes that replace a node. Raise CompileError if the node does not match its
        operator: ranks, axes and counts of a given model may be invalid."""
        try:
            return self.replace(node, view)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            name = node.name or ", ".join(node.output)
            raise CompileError(
                f"pass {self.name}: node {name!r} ({node.op_type}) is not what opset "
                f"{view.names.source} says of it: {error}; check the model with onnx.checker"
            ) from error

    def _visit(self, graph: onnx.GraphProto, known: onnx.GraphProto | None, view: View) -> None:
        nodes: list[onnx.NodeProto] = []
        is_changed = False
        for place, node in enumerate(graph.node):
            inferred = list(iter_bodies(known.node[place])) if known is not None else []
            for number, body in enumerate(iter_bodies(node)):
                known_body = inferred[number] if number < len(inferred) else None
                self._visit(body, known_body, View.of(view.names, body, known_body, view))
            made = self._try(node, view) if self.looks_at(node) else None
            is_changed |= made is not None
            if made is None:
                nodes.append(node)
            else:
                nodes.extend(made)
                view.names.left.update(node.input)
        if is_changed:
            replace_nodes(graph, nodes)
