"""Custom operators of users. A Python function writes such an operator as operators of the
standard, which replace it in the graph.

After that the model has no custom operators. Shapes, precision, time and memory are those of the
written nodes, and a server needs none of the user's code. (The real tool loads C++ libraries
instead, which are code for the real compiler.)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx
from onnx import AttributeProto, defs
from onnxgraph import (
    STANDARD_DOMAINS,
    attribute,
    find_opset,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_reads,
    rename,
    replace_nodes,
    set_attribute,
)
from simipu import CompileError
from simipu.operators import CHIP_DOMAIN
from simipu.placement import IPU_ATTRIBUTE, STAGE_ATTRIBUTE

from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.names import take_name

Body = Callable[[onnx.NodeProto, int], Sequence[onnx.NodeProto]]
"""Function that returns the nodes for a node of the operator and the opset of its model. The nodes
read the node's inputs and make its outputs. The node's names are placeholders for those of the
model. Names between inputs and outputs are free."""
_MAX_NESTED = 16
"""Maximum depth of bodies inside bodies."""
_MAX_NODES = 20_000
"""Maximum number of nodes that all bodies may make."""
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
    register_op_body(function.name, function.domain)(_Function(function).expand)


class _Function:
    """ONNX function as a body."""

    def __init__(self, function: onnx.FunctionProto) -> None:
        self._function = function
        self._opset = max(
            (each.version for each in function.opset_import if each.domain in STANDARD_DOMAINS),
            default=0,
        )

    def expand(self, node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
        """Return the function's nodes with the names and attributes of `node`."""
        function = self._function
        self._check_opset(opset)
        given = {each.name: each for each in (*function.attribute_proto, *node.attribute)}
        graph = onnx.GraphProto(node=function.node)
        for inner in iter_graphs(graph):
            for each in inner.node:
                _resolve(each, given)
        missing = len(function.input) - len(node.input)
        names = dict(zip(function.input, [*node.input, *[""] * missing], strict=False))
        names |= dict(zip(function.output, node.output, strict=False))
        rename(graph, names)
        return list(graph.node)

    def _check_opset(self, opset: int) -> None:
        """Raise CompileError if an operator of the function differs between its opset and the
        model's."""
        for node in self._function.node:
            if node.domain not in STANDARD_DOMAINS or self._opset == opset:
                continue
            try:
                versions = {
                    defs.get_schema(node.op_type, each).since_version
                    for each in (self._opset, opset)
                }
            except defs.SchemaError:
                versions = set()
            if len(versions) != 1:
                raise CompileError(
                    f"its function is of opset {self._opset}, the model of opset {opset}, and "
                    f"{node.op_type} is not the same in both; write the function in the model's "
                    "opset"
                )


def _resolve(node: onnx.NodeProto, given: dict[str, AttributeProto]) -> None:
    """Replace references to attributes by their values. References without a value are removed."""
    found = []
    for each in node.attribute:
        value = given.get(each.ref_attr_name) if each.ref_attr_name else each
        if value is not None:
            own = copy.deepcopy(value)
            own.name = each.name
            found.append(own)
    del node.attribute[:]
    node.attribute.extend(found)


@register(
    "inline_custom_operators", stage=Stage.ADMISSION, default=True, is_ours=True, before="admit"
)
class InlineCustomOperators(Pass):
    """Put what was registered for users' operators (`register_op_body`, `register_op_function`) in
    the place of their nodes, bodies' too."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Inline the bodies. Raise CompileError for a body that does not make its node's outputs,
        and for endless nesting."""
        opset, made = find_opset(model, 1), 0
        for depth in range(_MAX_NESTED + 1):
            graphs = [
                graph for graph in iter_graphs(model.graph) if any(map(_is_custom, graph.node))
            ]
            if not graphs:
                break
            taken = set(iter_defined(model.graph))
            for graph in graphs:
                nodes: list[onnx.NodeProto] = []
                for node in graph.node:
                    found = _inline(node, opset, taken)
                    nodes += found
                    made += len(found) if _is_custom(node) else 0
                    if made > _MAX_NODES or depth == _MAX_NESTED:
                        raise CompileError(
                            f"{_describe(node)}: its body has no end: it holds the operator "
                            f"itself, or more than {_MAX_NODES} nodes"
                        )
                replace_nodes(graph, nodes)
        return model


def _describe(node: onnx.NodeProto) -> str:
    return f"node {node.name!r} ({node.domain}.{node.op_type})"


def _is_custom(node: onnx.NodeProto) -> bool:
    return (node.domain, node.op_type) in _BODIES


def _inline(node: onnx.NodeProto, opset: int, taken: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that replace a node."""
    if not _is_custom(node):
        return [node]
    given, names = _with_placeholders(node)
    try:
        made = list(_BODIES[node.domain, node.op_type](given, opset))
        _check(given, names, made)
        _check_standard(made, opset)
    except Exception as error:  # a user's function may raise anything
        text = " ".join(str(error).split())
        kind = "" if isinstance(error, CompileError) else f"{type(error).__name__}: "
        raise CompileError(f"{_describe(node)}: {kind}{text}") from error
    graph = onnx.GraphProto(node=made)
    prefix = f"{next(filter(None, node.output))}/{node.op_type}"
    renames = dict(names)
    for name in dict.fromkeys(_iter_made(graph.node)):
        if name not in names:
            renames[name] = take_name(f"{prefix}/{name}", taken)
    rename(graph, renames)
    for number, each in enumerate(graph.node):
        each.name = f"{node.name or prefix}/{number}"
        for key in (IPU_ATTRIBUTE, STAGE_ATTRIBUTE):
            if (place := attribute(node, key)) is not None:
                set_attribute(each, key, place)
    return list(graph.node)


def _with_placeholders(node: onnx.NodeProto) -> tuple[onnx.NodeProto, dict[str, str]]:
    """Return the node with placeholders for its names, and the model's names by placeholder.
    Otherwise a name of the model could equal a name inside the body."""
    given, names = onnx.NodeProto(), dict[str, str]()
    given.CopyFrom(node)
    for kind, listed in (("input", given.input), ("output", given.output)):
        for place, name in enumerate(listed):
            if name:
                listed[place] = f"{node.domain}.{node.op_type}/{kind}/{place}"
                names[listed[place]] = name
    return given, names


def _check_standard(made: Sequence[onnx.NodeProto], opset: int) -> None:
    """Raise CompileError for a node of a standard operator that is invalid in that opset."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = onnx.IR_VERSION, {"": opset}
    for each in made:
        if each.domain in STANDARD_DOMAINS:
            try:
                onnx.checker.check_node(each, context)
            except onnx.checker.ValidationError as error:
                raise CompileError(
                    f"its body makes a {each.op_type} that is invalid in opset {opset}, the "
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
    known = set(filter(None, node.input))
    for each in made:
        if not isinstance(each, onnx.NodeProto):
            raise CompileError(f"its body makes {type(each).__name__}, expected nodes")
        strange = next((name for name in iter_reads(each) if name not in known), None)
        if strange is not None:
            raise CompileError(
                f"its body reads {strange!r}, which is none of the node's inputs and made by none "
                "of its nodes"
            )
        twice = next((name for name in each.output if name and name in known), None)
        if twice is not None:
            raise CompileError(
                f"its body makes {names.get(twice, twice)!r} twice, or an input of the node"
            )
        known.update(filter(None, each.output))
    missing = next((name for name in node.output if name and name not in known), None)
    if missing is not None:
        raise CompileError(f"its body does not make the output {names[missing]!r}")
