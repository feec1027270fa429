"""Check that operators get tensors of supported types, that every tensor read has a maker, and that
it has only one.

Shape inference does not check this. ONNX Runtime does, but loads a model only when it is served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx import TensorProto
from onnxgraph import infer_shapes, iter_bodies
from onnxgraph.nodes import STANDARD_DOMAINS
from simipu import CompileError
from simipu.numerics.quarter import QUARTERS

from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.branches import raise_for_branch
from poprt.rewrite.descriptions import describe_node
from poprt.rewrite.names import NameScope
from poprt.rewrite.views import GraphView

_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


@register(
    "check_types", stage=Stage.FOLDING, default=True, is_ours=True, before=("constant_folding",)
)
class CheckTypes(Pass):
    """Reject nodes whose inputs have types that the standard does not allow or are produced by no
    node, and results that are produced twice."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check the types. Raise CompileError at the first fault, with the branch of an If that
        contains it."""
        fault = _find_fault(model)
        if fault is not None:
            raise_for_branch(model, _find_fault)
            raise CompileError(fault)
        return model


def _find_fault(model: onnx.ModelProto) -> str | None:
    known = infer_shapes(model).graph
    return next(_iter_faults(GraphView(NameScope.of(model), model.graph, known), known, []), None)


def _iter_faults(
    view: GraphView, known: onnx.GraphProto, outside: Sequence[Collection[str]]
) -> Iterator[str]:
    graph = view.graph
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    given |= {sparse.values.name for sparse in graph.sparse_initializer}
    yield from _iter_doubles(graph, given)
    # Nodes may be unsorted here.
    seen = [*outside, given | {name for node in graph.node for name in node.output}]
    for place, node in enumerate(graph.node):
        for name in filter(None, node.input):
            if not any(name in names for names in seen):
                yield (
                    f"node {describe_node(node)}: reads {name!r}, which is no input and no weight, "
                    "and nothing makes it; export the model again"
                )
        if node.domain in STANDARD_DOMAINS and onnx.defs.has(node.op_type):
            yield from _iter_mismatches(node, view)
        for body, known_body in zip(iter_bodies(node), iter_bodies(known.node[place]), strict=True):
            inner = GraphView(view.names, body, known_body, view)
            yield from _iter_faults(inner, known_body, seen)


def _iter_doubles(graph: onnx.GraphProto, given: Collection[str]) -> Iterator[str]:
    makers: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in given or name in makers:
                first = (
                    f"of node {describe_node(makers[name])}"
                    if name in makers
                    else "an input or a weight"
                )
                yield (
                    f"node {describe_node(node)}: makes {name!r}, which is {first} already; give "
                    "each result a name of its own"
                )
            makers[name] = node


def _iter_mismatches(node: onnx.NodeProto, view: GraphView) -> Iterator[str]:
    """Yield the type errors of a node's inputs with known types."""
    try:
        schema = onnx.defs.get_schema(node.op_type, view.opset)
    except onnx.defs.SchemaError:
        return  # of a newer opset: the conversion reports it
    bound: dict[str, tuple[str, int]] = {}
    for place, name in enumerate(node.input):
        parameter = _find_parameter(schema.inputs, place)
        found = view.type(name) if name else 0
        # A model that was converted before has 8-bit floats, between our Casts, in an opset without
        # them.
        if parameter is None or not found or (node.op_type == "Cast" and found in QUARTERS):
            continue
        if f"tensor({_name(found)})" not in parameter.types:
            wanted = ", ".join(
                sorted(each.removeprefix("tensor(").rstrip(")") for each in parameter.types)
            )
            yield (
                f"node {describe_node(node)}: input {name!r} is of type {_name(found)}, expected "
                f"{wanted}; cast it before exporting the model"
            )
        if parameter.option == _VARIADIC and not parameter.is_homogeneous:
            continue
        first, kind = bound.setdefault(parameter.type_str, (name, found))
        if kind != found:
            yield (
                f"node {describe_node(node)}: expected inputs {first!r} and {name!r} of one type, "
                "found "
                f"{_name(kind)} and {_name(found)}; cast one of them before exporting the model"
            )


def _find_parameter(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], place: int
) -> onnx.defs.OpSchema.FormalParameter | None:
    """Return the schema's parameter for an input; the last one may stand for all that follow."""
    if place < len(parameters):
        return parameters[place]
    last = parameters[-1] if parameters else None
    return last if last is not None and last.option == _VARIADIC else None


def _name(element: int) -> str:
    """Return a type's name in the standard's schemas."""
    return str(TensorProto.DataType.Name(element)).lower()
