"""Exported graph: the computed graph of a model without kernels, with the names and shapes that
clients use.

The computed graph is in float; with the numerics exact it also rounds where the chip does, by
standard operators. Weights that are halves or 8-bit floats in the file are float in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import onnx
from onnx import helper
from onnxgraph import (
    STANDARD_DOMAINS,
    Expansion,
    Tape,
    expand,
    find_opset,
    forget_values,
    fresh_name,
    iter_bodies,
    iter_defined,
    iter_nodes,
    keep_opsets,
    name_nodes,
    rename,
    replace_nodes,
    used_names,
)
from onnxgraph.expansions import fast_gelu, gelu
from simipu import inline_weights, lower_program
from simipu.numerics import KernelUse
from triton_poplar.sessions import make_graph_options

from popef._tools.text import escape
from poplar_triton.errors import ExportError
from poplar_triton.export.source import ROWS, ExportSource

EXACT, FAST = "exact", "fast"
ORT_DOMAIN = "com.microsoft"
"""Domain of the operators that only ONNX Runtime has."""
_ROWS_NAME = "rows"
_MAX_NAMED = 5


def make_exported(
    source: ExportSource, numerics: str, domains: Iterable[str] = ()
) -> onnx.ModelProto:
    """Return the model as ONNX with its weights inside.

    Its operators are those of the standard, and of `domains`. Raises ExportError that names the
    nodes with others.
    """
    options = replace(make_graph_options(source.state), portable=True)
    lowered = lower_program(
        source.program,
        source.session.read_weights(),
        options,
        source.session.executable.numerics if numerics == EXACT else None,
        KernelUse.NONE,
    )
    model = inline_weights(lowered)
    allowed = (*STANDARD_DOMAINS, *domains)
    if ORT_DOMAIN not in allowed:
        _expand(model.graph)
    forget_values(model.graph)
    _settle_ports(model.graph, source)
    name_nodes(model.graph)
    _check_operators(model, allowed, source.name)
    keep_opsets(model, {node.domain for node in iter_nodes(model.graph)} | {""})
    model.graph.name = source.name
    return model


def _check_operators(model: onnx.ModelProto, allowed: Iterable[str], name: str) -> None:
    """Raise ExportError for operators of other domains, and for those that the standard added after
    the model's opset, which only ONNX Runtime would compute."""
    opset, allows_late = find_opset(model), ORT_DOMAIN in allowed
    newer = []
    for node in iter_nodes(model.graph):
        is_standard = node.domain in STANDARD_DOMAINS
        late = is_standard and not allows_late and not onnx.defs.has(node.op_type, opset)
        if node.domain not in allowed or late:
            domain = node.domain or f"opset {opset}"
            newer.append(f"{node.name!r} ({node.op_type} of {domain})")
    if newer:
        more = "" if len(newer) <= _MAX_NAMED else f" and {len(newer) - _MAX_NAMED} more"
        raise ExportError(
            escape(
                f"model {name!r}: expected operators of the ONNX standard, found "
                f"{', '.join(newer[:_MAX_NAMED])}{more}; export the source model without them, or "
                "serve it here"
            )
        )


def _settle_ports(graph: onnx.GraphProto, source: ExportSource) -> None:
    """Give the graph's inputs and outputs the names and shapes of requests."""
    ports = (*source.inputs, *source.outputs)
    reshaped = [port for port in ports if port.shape != port.wire_shape]
    _rename_all(graph, {port.stream.tensor: port.name for port in ports})
    nodes = list(graph.node)
    used_tensors = {*iter_defined(graph), *used_names(graph)}
    renames = {port.name: fresh_name(f"{port.name}/whole", used_tensors) for port in reshaped}
    rename(graph, renames)
    before, after = (
        Tape(fresh_name("requests", used_tensors)),
        Tape(fresh_name("responses", used_tensors)),
    )
    for port in reshaped:
        if port in source.inputs:
            before.add_as(renames[port.name], "Reshape", port.name, before.ints(port.shape))
        else:
            sizes = after.ints(port.wire_shape)
            after.add_as(port.name, "Reshape", renames[port.name], sizes)
    replace_nodes(graph, [*before.nodes, *nodes, *after.nodes])
    shapes = {port.name: port.wire_shape for port in ports}
    for value in (*graph.input, *graph.output):
        value.CopyFrom(_describe(value, shapes[value.name]))


def _describe(value: onnx.ValueInfoProto, shape: Iterable[int]) -> onnx.ValueInfoProto:
    sizes = [_ROWS_NAME if size == ROWS else size for size in shape]
    return helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, sizes)


def _rename_all(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors of the graph; another tensor that has such a name already gets a new one."""
    renames = {old: new for old, new in names.items() if old != new}
    used_tensors = {*iter_defined(graph), *used_names(graph)}
    for name in [*renames.values()]:
        if name in used_tensors and name not in renames:
            renames[name] = fresh_name(name, {*used_tensors, *renames.values()})
    rename(graph, renames)
    for value in (*graph.input, *graph.output):
        value.name = renames.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = renames.get(tensor.name, tensor.name)


def _expand(graph: onnx.GraphProto) -> None:
    """Replace ONNX Runtime's operators for Gelu, here and in bodies, by those of the standard."""
    for node in graph.node:
        for body in iter_bodies(node):
            _expand(body)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        expansion = _EXPANSIONS.get(node.op_type) if node.domain == ORT_DOMAIN else None
        if expansion is None:
            nodes.append(node)
        else:
            nodes += expand(node, expansion, Tape(f"{node.output[0]}/gelu"))
    replace_nodes(graph, nodes)


_EXPANSIONS: Mapping[str, Expansion] = {"Gelu": gelu, "FastGelu": fast_gelu}
"""Expansions of ONNX Runtime's own operators, which no entry of the table of operators has."""
