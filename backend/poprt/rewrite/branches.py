"""Explains which branch of an If makes a model invalid at its shapes, and what to do about it.

Branches that are never taken are already removed at this point (`passes.elimination`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import attribute, infer_shapes, iter_defined, iter_nodes, used_names
from onnxgraph.weights import LARGE, has_data
from simipu import CompileError

from poprt.rewrite.origins import describe_inputs, find_source_inputs

Judge = Callable[[onnx.ModelProto], str | None]
"""Function that says why a model is invalid; returns None if it is valid."""


def explain_branches(model: onnx.ModelProto, judge: Judge) -> str | None:
    """Return an explanation of the first branch that is invalid at the given shapes, or None.

    If several nested branches are invalid, the innermost is explained. `judge` sees each branch as
    a separate model.
    """
    found = _find_invalid(model, model.graph, {}, {}, judge)
    if found is None:
        return None
    node, branch, reason = found
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
            found = _find_invalid(model, inner.graph, types, constants, judge)
            if found is not None:
                return found
            reason = judge(inner) if node.op_type == "If" else None
            if reason is not None:
                return node, name.replace("_", " "), reason
    return None


def _iter_named_bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the bodies of a node with their names, then_branch first."""
    bodies = {
        each.name: each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH
    }
    yield from sorted(bodies.items(), reverse=True)


def _small_constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Return the small constants of a graph by name; shapes may depend on their values."""
    found = {
        tensor.name: tensor
        for tensor in graph.initializer
        if len(tensor.raw_data) < LARGE and has_data(tensor)
    }
    for node in graph.node:
        value = attribute(node, "value") if node.op_type == "Constant" else None
        if value is not None:
            found[node.output[0]] = numpy_helper.from_array(
                numpy_helper.to_array(value), node.output[0]
            )
    return found


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
    given = [constants[name] for name in sorted(captured) if name in constants]
    outer = [types[name] for name in sorted(captured) if name in types and name not in constants]
    inputs = [*branch.input, *outer]
    graph = helper.make_graph(
        branch.node, branch.name or "branch", inputs, branch.output, [*branch.initializer, *given]
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
