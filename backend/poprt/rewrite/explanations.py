"""Texts for messages: nodes and shapes in words, the inputs that a tensor depends on, and which
branch of an If makes a model invalid at its shapes.

Branches that are never taken are already removed at this point (`passes.folding`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    LARGE,
    attribute,
    find_inputs,
    find_makers_anywhere,
    has_data,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_nodes,
    used_names,
)
from simipu import CompileError
from simipu.operators import names_where


def describe_node(node: onnx.NodeProto) -> str:
    """Return a description of a node: its name, or its first output if it has no name."""
    return (
        f"{node.name or '(making ' + node.output[0] + ')'!r} ({node.op_type})"
        if node.output
        else repr(node.name)
    )


def describe_shape(value: onnx.ValueInfoProto) -> str:
    """Return the shape as the model declares it: `[batch, 3, ?, 224]`."""
    dims = value.type.tensor_type.shape.dim
    sizes = (d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in dims)
    return f"[{', '.join(sizes)}]"


OF_SHAPES = names_where(lambda entry: entry.reads_shape)
"""Operators that read only shapes, not values; all shapes are known."""


def find_source_inputs(graph: onnx.GraphProto, name: str) -> list[str]:
    """Return the main graph's inputs from which a tensor is computed.

    The tensor may be in the main graph `graph` or in a body.
    """
    makers = find_makers_anywhere(graph)
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        node = makers.get(name)
        if name not in seen and node is not None and node.op_type not in OF_SHAPES:
            waiting += node.input
            waiting += [read_name for body in iter_bodies(node) for read_name in used_names(body)]
        seen.add(name)
    return [value.name for value in find_inputs(graph) if value.name in seen]


def describe_inputs(names: list[str]) -> str:
    """Return `input 'a'` or `inputs 'a', 'b'`.

    A value that is computed from no input must be a random number.
    """
    if not names:
        return "no input"
    return f"input{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


Judge = Callable[[onnx.ModelProto], str | None]
"""Function that says why a model is invalid; returns None if it is valid."""


def explain_branches(model: onnx.ModelProto, judge: Judge) -> str | None:
    """Return an explanation of the first branch that is invalid at the given shapes, or None.

    If several nested branches are invalid, the innermost is explained. `judge` sees each branch as
    a separate model.
    """
    invalid = _find_invalid(model, model.graph, {}, {}, judge)
    if invalid is None:
        return None
    node, branch, reason = invalid
    inputs = find_source_inputs(model.graph, node.input[0])
    name = node.name or f"(making {node.output[0]})"
    text = (
        f"node {name!r} (If): its {branch} is invalid at the given input shapes: {reason}. "
        f"Its condition depends on {describe_inputs(inputs)}"
    )
    if not inputs:
        return f"{text}; export the model without that branch"
    return f"{text}: {advise_to_fix(inputs)}, so that only the branch taken is compiled"


def advise_to_fix(inputs: list[str]) -> str:
    """Return advice on how to fix inputs that must be known at compile time."""
    options = " ".join(f"{name}=VALUE" for name in inputs)
    return (
        f"fix {'it' if len(inputs) == 1 else 'them'} to a value with poprt --fix_input {options} "
        "(of Converter: fix_inputs)"
    )


def _find_invalid(
    model: onnx.ModelProto,
    graph: onnx.GraphProto,
    types: dict[str, onnx.ValueInfoProto],
    constants: dict[str, TensorProto],
    judge: Judge,
) -> tuple[onnx.NodeProto, str, str] | None:
    """Return the innermost invalid branch: its If node, its name and the reason.

    `graph` is the main graph or a body. `types` and `constants` are those of the graphs around it,
    by name.
    """
    own = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)
    inferred = infer_shapes(own).graph
    types = {
        **types,
        **{
            value.name: value for value in (*inferred.input, *inferred.value_info, *inferred.output)
        },
    }
    constants = {**constants, **_small_constants(graph)}
    for node in graph.node:
        for name, body in _iter_named_bodies(node):
            inner = _as_model(model, body, types, constants)
            invalid = _find_invalid(model, inner.graph, types, constants, judge)
            if invalid is not None:
                return invalid
            reason = judge(inner) if node.op_type == "If" else None
            if reason is not None:
                return node, name.replace("_", " "), reason
    return None


def _iter_named_bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the bodies of a node with their names, then_branch first."""
    bodies = {
        entry.name: entry.g for entry in node.attribute if entry.type == onnx.AttributeProto.GRAPH
    }
    yield from sorted(bodies.items(), reverse=True)


def _small_constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Return the small constants of a graph by name; shapes may depend on their values."""
    small = {
        tensor.name: tensor
        for tensor in graph.initializer
        if len(tensor.raw_data) < LARGE and has_data(tensor)
    }
    for node in graph.node:
        value = attribute(node, "value") if node.op_type == "Constant" else None
        if value is not None:
            small[node.output[0]] = numpy_helper.from_array(
                numpy_helper.to_array(value), node.output[0]
            )
    return small


def _as_model(
    model: onnx.ModelProto,
    branch: onnx.GraphProto,
    types: Mapping[str, onnx.ValueInfoProto],
    constants: Mapping[str, TensorProto],
) -> onnx.ModelProto:
    """Return a body as a model.

    Values that the body takes from outside become initializers (small constants) or inputs (tensors
    of known types).
    """
    captured = used_names(branch) - set(iter_defined(branch))
    weights = [constants[name] for name in sorted(captured) if name in constants]
    outer = [types[name] for name in sorted(captured) if name in types and name not in constants]
    inputs = [*branch.input, *outer]
    graph = helper.make_graph(
        branch.node, branch.name or "branch", inputs, branch.output, [*branch.initializer, *weights]
    )
    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, graph=graph
    )


def raise_for_branch(model: onnx.ModelProto, judge: Judge) -> None:
    """Raise CompileError if a branch of the model is invalid."""
    has_if = any(node.op_type == "If" for node in iter_nodes(model.graph))
    explanation = explain_branches(model, judge) if has_if else None
    if explanation is not None:
        raise CompileError(explanation)
