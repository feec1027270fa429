"""Passes that check a model. They reject, or warn of, nodes that cannot be compiled, and name
them.

Shape inference does not check types and makers. ONNX Runtime does, but loads a model only when it
is served."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx import TensorProto
from onnxgraph import (
    CHIP_DOMAIN,
    STANDARD_DOMAINS,
    GraphError,
    GraphTooLargeError,
    GraphView,
    NameScope,
    check_graph,
    drop_functions,
    find_inputs,
    find_opset,
    has_shape_function,
    infer_shapes,
    iter_bodies,
    iter_graphs,
    iter_nodes,
    iter_shapes,
)
from simipu import CompileError, CompileMemoryError, GraphOptions, is_library_domain, measure
from simipu.numerics import OLDEST_OPSET, QUARTERS
from simipu.operators import CHIP_OPERATORS, find_attribute_fault, operator_of

from poprt.passes.admission.ipu_operators import Forms, describe_missing, find_refused_attributes
from poprt.passes.folding.elimination import RemoveDuplicatedInitializer
from poprt.passes.interface.surgery import SortGraph, UniqueNameForNodes
from poprt.passes.onnx_helper import clean_info
from poprt.rewrite.base import ImmutablePass, Pass, Stage, register
from poprt.rewrite.explanations import describe_node, raise_for_branch

_MAX_TOLD = 10
"""Maximum number of tensors that final_check names."""


_ADVICE = {
    "com.microsoft": ". ONNX Runtime's optimiser and quantizers write operators of com.microsoft: "
    "compile the model from which they made this one (for 8-bit models: the one in float)"
}
"""What to do about operators of a domain."""


@register("check_operators", stage=Stage.ADMISSION, default=True, is_ours=True, before="admit")
class CheckOperators(ImmutablePass):
    """Reject operators that are neither in the ONNX standard, nor supported operators of the chip,
    nor custom operators with a registered shape function."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check all nodes. Raise CompileError at the first unsupported operator, and at the first
        node that does not match its operator or has a number that the backend rejects."""
        forms = Forms(find_opset(model, OLDEST_OPSET))
        for node in iter_nodes(model.graph):
            if not _is_known(node):
                operator = f"{node.domain or 'ai.onnx'}.{node.op_type}"
                raise CompileError(
                    f"node {describe_node(node)}: operator {operator} is not supported on the IPU; "
                    f"only operators of the standard domain ai.onnx are, of {CHIP_DOMAIN} "
                    f"{', '.join(sorted(CHIP_OPERATORS))}, and those that "
                    "poprt.passes.register_op_body says or a --custom_ort_library has"
                    f"{_ADVICE.get(node.domain, '')}"
                )
            forms.check(node)
            if fault := find_attribute_fault(node):
                raise CompileError(f"node {describe_node(node)}: {fault}")
        return model


def _is_known(node: onnx.NodeProto) -> bool:
    if node.domain in STANDARD_DOMAINS:
        return bool(onnx.defs.has(node.op_type)) or has_shape_function(node.op_type)
    is_ours = node.domain == CHIP_DOMAIN and node.op_type in CHIP_OPERATORS
    return is_ours or is_library_domain(node.domain) or has_shape_function(node.op_type)


@register("admit", stage=Stage.ADMISSION, default=True, is_ours=True)
class Admit(Pass):
    """Reject a graph that needs unlimited time or memory, or refers to files. Functions go:
    standard operators call none."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check the graph. Raise CompileError if it is invalid. Weights may have no data."""
        drop_functions(model)
        try:
            check_graph(model, without_weights=True)
        except GraphError as error:
            raise CompileError(str(error)) from error
        inputs = find_inputs(model.graph)
        for side, values in (("input", inputs), ("output", model.graph.output)):
            for value in values:
                kind = value.type.WhichOneof("value")
                if kind not in (None, "tensor_type"):
                    raise CompileError(
                        f"{side} {value.name!r} is a {kind.removesuffix('_type')}; the IPU has "
                        "tensors only: export the model with a tensor for each element, or joined "
                        "to one (ConcatFromSequence)"
                    )
        for value in inputs:
            tensor = value.type.tensor_type
            if value.type.WhichOneof("value") in (None, "tensor_type") and not tensor.elem_type:
                raise CompileError(
                    f"input {value.name!r} has no type; export the model with its element type, "
                    "such as FLOAT"
                )
        return model


@register("check_ipu_operators", stage=Stage.CHECKS, is_ours=True, takes="only=only_ipu_operators")
class CheckIpuOperators(ImmutablePass):
    """Warn about operators that the IPU's own compiler does not support; with `only`, reject
    them."""

    def __init__(self, only: bool = False) -> None:
        self._only = only

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Warn of missing operators, or raise CompileError that lists them."""
        missing = describe_missing(model.graph)
        if missing and self._only:
            raise CompileError(
                f"the IPU's compiler has no {missing}, and only_ipu_operators asks for a model "
                "that it could compile"
            )
        if missing:
            self.logger.warning("runs here only; the IPU's compiler has no %s", missing)
        return model


@register("check_unsupported_attribute", stage=Stage.CHECKS, default=True)
class CheckUnsupportedAttribute(ImmutablePass):
    """Warn about attribute values that the IPU's own compiler does not support; here they are
    supported."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Write one warning for each attribute of an operator, with its first node."""
        unsupported: dict[str, list[str]] = {}
        for node in iter_nodes(model.graph):
            if node.domain in STANDARD_DOMAINS:
                for name in find_refused_attributes(node):
                    unsupported.setdefault(f"{node.op_type}'s attribute {name!r}", []).append(
                        node.name
                    )
        for what, nodes in unsupported.items():
            more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
            self.logger.warning(
                "runs here only; the IPU's compiler does not take the value of %s (node %r%s)",
                what,
                nodes[0],
                more,
            )
        return model


@register("final_check", stage=Stage.CHECKS, default=True)
class FinalCheck(Pass):
    """Put a converted model in order: nodes sorted, types and shapes declared anew, equal
    initializers one, nodes under names of their own. Warn of tensors whose type or shape is not
    known, or has nothing in it.

    The compiler refuses them.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Put the model in order. Raise CompileError for nodes in a cycle."""
        model = SortGraph().run(model)
        model = RemoveDuplicatedInitializer().run(model)
        model = clean_info(model)
        faults = [fault for graph in iter_graphs(model.graph) for fault in _iter_unknown(graph)]
        for fault in faults[:_MAX_TOLD]:
            self.logger.warning("%s", fault)
        if len(faults) > _MAX_TOLD:
            self.logger.warning("and %d more tensors", len(faults) - _MAX_TOLD)
        return UniqueNameForNodes().run(model)


def _iter_unknown(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield a message for each tensor whose type or shape is not known, or that has no elements."""
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
    for name in (name for node in graph.node for name in node.output if name):
        tensor = types.get(name)
        if tensor is None:
            yield f"graph {graph.name}: tensor {name!r} has no known type or shape"
            continue
        shape = [dim.dim_value for dim in tensor.shape.dim]
        standard = TensorProto.FLOAT <= tensor.elem_type <= TensorProto.BFLOAT16
        valid = standard or tensor.elem_type in QUARTERS
        if not valid or not tensor.HasField("shape") or 0 in shape:
            described = shape if tensor.HasField("shape") else "unknown"
            kind = _name_type(tensor.elem_type)
            yield f"graph {graph.name}: tensor {name!r} has type {kind} and shape {described}"


def _name_type(elem_type: int) -> str:
    is_named = elem_type in TensorProto.DataType.values()
    return TensorProto.DataType.Name(elem_type) if is_named else str(elem_type)


@register("check_demand", stage=Stage.CHECKS, is_ours=True)
class CheckDemand(ImmutablePass):
    """Reject a model that this machine could not load and run."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check the demand. Raise CompileMemoryError if the model needs too much memory or time."""
        options = GraphOptions()
        try:
            measure(infer_shapes(model)).check(
                options.memory_bytes, options.limit_seconds, options.num_cores
            )
        except GraphTooLargeError as error:
            raise CompileMemoryError(f"the model could not be run: {error}") from error
        return model


@register("check_chip_operators", stage=Stage.CHECKS, is_ours=True)
class CheckChipOperators(ImmutablePass):
    """Reject nodes of the chip's own operators with invalid shapes or attributes, and inputs that
    are shorter than a window."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check the nodes. Raise CompileError at the first invalid one."""
        if not any(operator_of(node).fault for node in iter_nodes(model.graph)):
            return model
        graph = infer_shapes(model).graph
        for part, shapes in zip(iter_graphs(graph), iter_shapes(graph), strict=True):
            for node in part.node:
                find = operator_of(node).fault
                fault = find(node, [shapes.get(name) for name in node.input]) if find else ""
                if fault:
                    raise CompileError(f"node {describe_node(node)}: {fault}")
        return model


_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


@register("check_types", stage=Stage.FOLDING, default=True, is_ours=True, before="constant_folding")
class CheckTypes(Pass):
    """Reject nodes whose inputs have types that the standard does not allow or are produced by no
    node, and results that are produced twice."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check the types. Raise CompileError at the first fault, with the branch of an If that
        contains it."""
        fault = _find_type_fault(model)
        if fault is not None:
            raise_for_branch(model, _find_type_fault)
            raise CompileError(fault)
        return model


def _find_type_fault(model: onnx.ModelProto) -> str | None:
    inferred = infer_shapes(model).graph
    return next(
        _iter_faults(GraphView(NameScope.of(model), model.graph, inferred), inferred, []), None
    )


def _iter_faults(
    view: GraphView, known: onnx.GraphProto, outside: Sequence[Collection[str]]
) -> Iterator[str]:
    graph = view.graph
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    defined |= {sparse.values.name for sparse in graph.sparse_initializer}
    yield from _iter_doubles(graph, defined)
    # Nodes may be unsorted here.
    seen = [*outside, defined | {name for node in graph.node for name in node.output}]
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
        element_type = view.type(name) if name else 0
        # A model that was converted before has 8-bit floats, between our Casts, in an opset without
        # them.
        if (
            parameter is None
            or not element_type
            or (node.op_type == "Cast" and element_type in QUARTERS)
        ):
            continue
        if f"tensor({_name(element_type)})" not in parameter.types:
            expected = ", ".join(
                sorted(
                    type_text.removeprefix("tensor(").rstrip(")") for type_text in parameter.types
                )
            )
            yield (
                f"node {describe_node(node)}: input {name!r} is of type {_name(element_type)}, "
                f"expected {expected}; cast it before exporting the model"
            )
        if parameter.option == _VARIADIC and not parameter.is_homogeneous:
            continue
        first, kind = bound.setdefault(parameter.type_str, (name, element_type))
        if kind != element_type:
            yield (
                f"node {describe_node(node)}: expected inputs {first!r} and {name!r} of one type, "
                f"found {_name(kind)} and {_name(element_type)}; cast one of them before "
                "exporting the model"
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
