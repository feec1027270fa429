"""Expansion of operators that the standard defines by other operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, defs


def expand(
    node: onnx.NodeProto, opset: int, types: Sequence[onnx.TypeProto], prefix: str
) -> list[onnx.NodeProto] | None:
    """Return the nodes, in that opset, by which the standard defines `node`; None if it does not
    define it.

    `types` are the types of the node's inputs. The names of the new nodes start with `prefix`.
    """
    body = _find_body(node, opset, types)
    if body is None:
        return None
    schema = defs.get_schema(node.op_type, opset)
    given = {each.name: each for each in node.attribute}
    for name, declared in schema.attributes.items():
        if declared.default_value.type:
            given.setdefault(name, declared.default_value)
    renames = dict(zip(body.input, [*node.input, *[""] * len(body.input)], strict=False))
    renames.update(
        (inner, name) for inner, name in zip(body.output, node.output, strict=False) if name
    )
    made = []
    for number, inner in enumerate(body.node):
        own = onnx.NodeProto()
        own.CopyFrom(inner)
        own.name = f"{prefix}/{inner.op_type}_{number}"
        _settle(own, prefix, renames, given)
        made.append(own)
    return made


def _find_body(
    node: onnx.NodeProto, opset: int, types: Sequence[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    schema: Any = defs.get_schema(node.op_type, opset)  # onnx's stubs are incomplete
    body = onnx.FunctionProto()
    fixed = [each for each in schema.function_opset_versions if each <= opset]
    if fixed:
        body.ParseFromString(schema.get_function_with_opset_version(max(fixed)))
        return body
    built = [each for each in schema.context_dependent_function_opset_versions if each <= opset]
    if not built:
        return None
    found = schema.get_context_dependent_function_with_opset_version(
        max(built), node.SerializeToString(), [each.SerializeToString() for each in types]
    )
    body.ParseFromString(found)
    return body if body.node else None


def _settle(
    node: onnx.NodeProto, prefix: str, renames: dict[str, str], given: dict[str, AttributeProto]
) -> None:
    """Replace the names and attribute references of a function's node, in place, by those of the
    graph."""
    node.input[:] = [_own_name(name, prefix, renames) for name in node.input]
    node.output[:] = [_own_name(name, prefix, renames) for name in node.output]
    kept = list(_iter_attributes(node, given))
    del node.attribute[:]
    node.attribute.extend(kept)
    for each in node.attribute:
        for body in (each.g, *each.graphs):
            for value in (*body.input, *body.output):
                value.name = _own_name(value.name, prefix, renames)
            for inner in body.node:
                _settle(inner, prefix, renames, given)


def _own_name(name: str, prefix: str, renames: dict[str, str]) -> str:
    return renames.setdefault(name, f"{prefix}/{name}") if name else ""


def _iter_attributes(
    node: onnx.NodeProto, given: dict[str, AttributeProto]
) -> Iterator[AttributeProto]:
    for each in node.attribute:
        if not each.ref_attr_name:
            yield each
        elif each.ref_attr_name in given:
            own = AttributeProto()
            own.CopyFrom(given[each.ref_attr_name])
            own.name = each.name
            yield own
