"""Custom operators of users, and the functions of a model. A Python function, or an ONNX function
of the user or of the model, writes such an operator as operators of the standard, which replace it
in the graph.

After that the model has neither. Shapes, precision, time and memory are those of the written nodes,
and a server needs none of the user's code. (The real tool loads C++ libraries instead, which are
code for the real compiler.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx
from onnxgraph import (
    CHIP_DOMAIN,
    STANDARD_DOMAINS,
    attribute,
    find_opset,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    iter_reads,
    rename,
    replace_nodes,
    set_attribute,
    take_name,
)
from simipu import CompileError
from simipu.chip.placement import IPU_ATTRIBUTE, STAGE_ATTRIBUTE

from poprt.passes.inlining.functions import (
    MAX_NESTED,
    MAX_NODES,
    Body,
    Function,
    ModelFunctions,
)
from poprt.rewrite.base import Pass, Stage, register

_BODIES: dict[tuple[str, str], Body] = {}


def register_op_body(
    op_types: Sequence[str] | str, domain: str = CHIP_DOMAIN
) -> Callable[[Body], Body]:
    """Return a decorator of a function `(node, opset) -> nodes` that defines operators of that
    domain.

    A later function replaces an earlier one, and the chip's operator of that name. Raises
    CompileError for operators of the ONNX standard.
    """
    names = [op_types] if isinstance(op_types, str) else list(op_types)
    if domain in STANDARD_DOMAINS:
        raise CompileError(
            f"operator {', '.join(names)}: the domain is that of the ONNX standard, whose "
            "operators are known; give the operator a domain of its own"
        )

    def add(body: Body) -> Body:
        _BODIES.update(((domain, name), body) for name in names)
        return body

    return add


def register_op_function(function: onnx.FunctionProto) -> None:
    """Define an operator by an ONNX function of its domain and name. The function gives the
    defaults of the attributes.

    Raises CompileError for operators of the ONNX standard.
    """
    register_op_body(function.name, function.domain)(Function(function).expand)


@register(
    "inline_custom_operators", stage=Stage.ADMISSION, default=True, is_ours=True, before="admit"
)
class InlineCustomOperators(Pass):
    """Put what was registered for users' operators (`register_op_body`, `register_op_function`),
    and the bodies of the model's own functions, in the place of their nodes, bodies' too."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Inline the bodies. Raise CompileError for a body that does not make its node's outputs,
        for functions that call themselves, and for more nodes than a model may have."""
        functions = ModelFunctions(model, _BODIES)
        model, num_made = functions.raise_opset(model), 0
        opset = find_opset(model, 1)
        for depth in range(MAX_NESTED + 1):
            graphs = [
                graph
                for graph in iter_graphs(model.graph)
                if any(_find_body(node, functions) for node in graph.node)
            ]
            if not graphs:
                break
            defined = set(iter_defined(model.graph))
            for graph in graphs:
                nodes: list[onnx.NodeProto] = []
                for node in graph.node:
                    body = _find_body(node, functions)
                    if body is None:
                        nodes.append(node)
                        continue
                    inlined = _inline(node, body, opset, defined, functions)
                    nodes += inlined
                    num_made += len(inlined)
                    if num_made > MAX_NODES or depth == MAX_NESTED:
                        raise CompileError(
                            f"{_describe(node)}: its body has no end: it holds the operator "
                            f"itself, or more than {MAX_NODES} nodes"
                        )
                replace_nodes(graph, nodes)
        del model.functions[:]
        return model


def _describe(node: onnx.NodeProto) -> str:
    return f"node {node.name!r} ({node.domain}.{node.op_type})"


def _find_body(node: onnx.NodeProto, functions: ModelFunctions) -> Body | None:
    """Return what writes the node as others; None for a node that stays."""
    body = _BODIES.get((node.domain, node.op_type))
    if body is None:
        function = functions.find(node)
        body = function.expand if function is not None else None
    return body


def _inline(
    node: onnx.NodeProto, body: Body, opset: int, taken: set[str], functions: ModelFunctions
) -> list[onnx.NodeProto]:
    """Return the nodes that replace a node.

    The tensors inside are named after the node's first result and its operator, the nodes after the
    node. Names that a Python body gives to nodes could be the node's own and so double each time.
    """
    call, names = _with_placeholders(node)
    try:
        nodes = list(body(call, opset))
        _check(call, names, nodes)
        _check_standard(nodes, opset, functions)
    except Exception as error:  # a user's function may raise anything
        text = " ".join(str(error).split())
        kind = "" if isinstance(error, CompileError) else f"{type(error).__name__}: "
        raise CompileError(f"{_describe(node)}: {kind}{text}") from error
    graph = onnx.GraphProto(node=nodes)
    prefix = f"{next(filter(None, node.output), node.name)}/{node.op_type}"
    renames = dict(names)
    for name in dict.fromkeys(_iter_made(graph.node)):
        if name not in names:
            renames[name] = take_name(f"{prefix}/{name}", taken)
    rename(graph, renames)
    for number, inner in enumerate(graph.node):
        own = inner.name if functions.find(node) is not None else ""
        inner.name = f"{node.name or prefix}/{own or number}"
        for key in (IPU_ATTRIBUTE, STAGE_ATTRIBUTE):
            if (place := attribute(node, key)) is not None:
                set_attribute(inner, key, place)
    return list(graph.node)


def _with_placeholders(node: onnx.NodeProto) -> tuple[onnx.NodeProto, dict[str, str]]:
    """Return the node with placeholders for its names, and the model's names by placeholder.
    Otherwise a name of the model could equal a name inside the body."""
    call, names = onnx.NodeProto(), dict[str, str]()
    call.CopyFrom(node)
    for kind, listed in (("input", call.input), ("output", call.output)):
        for place, name in enumerate(listed):
            if name:
                listed[place] = f"{node.domain}.{node.op_type}/{kind}/{place}"
                names[listed[place]] = name
    return call, names


def _check_standard(made: Sequence[onnx.NodeProto], opset: int, functions: ModelFunctions) -> None:
    """Raise CompileError for a node of a standard operator that is invalid in that opset.

    The checker does not see what bodies read from around them, so of nodes with bodies only those
    inside are checked.
    """
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = onnx.IR_VERSION, {"": opset}
    for node in iter_nodes(onnx.GraphProto(node=made)):
        is_plain = not any(True for _ in iter_bodies(node))
        if node.domain in STANDARD_DOMAINS and is_plain and functions.find(node) is None:
            try:
                onnx.checker.check_node(node, context)
            except onnx.checker.ValidationError as error:
                raise CompileError(
                    f"its body makes a {node.op_type} that is invalid in opset {opset}, the "
                    f"model's: {error}"
                ) from error


def _iter_made(nodes: Iterable[onnx.NodeProto]) -> Iterable[str]:
    for node in nodes:
        yield from filter(None, node.output)
        for body in iter_bodies(node):
            yield from _iter_made(body.node)


def _check(node: onnx.NodeProto, names: Mapping[str, str], made: Sequence[onnx.NodeProto]) -> None:
    """Raise CompileError for nodes that do not compute the outputs of `node` from its inputs.
    `names` are the model's names."""
    defined = set(filter(None, node.input))
    for inner in made:
        if not isinstance(inner, onnx.NodeProto):
            raise CompileError(f"its body makes {type(inner).__name__}, expected nodes")
        strange = next((name for name in iter_reads(inner) if name not in defined), None)
        if strange is not None:
            raise CompileError(
                f"its body reads {strange!r}, which is none of the node's inputs and made by none "
                "of its nodes"
            )
        twice = next((name for name in inner.output if name and name in defined), None)
        if twice is not None:
            raise CompileError(
                f"its body makes {names.get(twice, twice)!r} twice, or an input of the node"
            )
        defined.update(filter(None, inner.output))
    missing = next((name for name in node.output if name and name not in defined), None)
    if missing is not None:
        raise CompileError(f"its body does not make the output {names[missing]!r}")
