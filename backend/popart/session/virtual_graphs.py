"""Checks of a model's virtual graphs and pipeline stages, with PopART's messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx
from onnxgraph import iter_bodies

from popart.builder.placement import PIPELINE_STAGE, VIRTUAL_GRAPH
from popart.enums import VirtualGraphMode
from popart.errors import format_operator, popart_exception
from popart.options.session_options import SessionOptions

_UNSET = -1


def check_placement(model: onnx.ModelProto, options: SessionOptions, num_ipus: int) -> None:
    """Check the IPUs and pipeline stages that the operators of a model are assigned to.

    Args:
        model: The model, as the builder made it.
        options: Options of the session.
        num_ipus: Number of IPUs of a replica.

    Raises:
        popart_exception: If only some operators are placed, or the options contradict that.
    """
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    if options.virtualGraphMode is VirtualGraphMode.Manual:
        _check_virtual_graphs(model, nodes)
    if options.enablePipelining:
        _check_stages(nodes, options, num_ipus)
        for node in nodes:
            _check_subgraphs(model, node)


def check_virtual_graph_numbers(
    model: onnx.ModelProto, options: SessionOptions, num_ipus: int
) -> None:
    """Check that each operator is on an IPU that the device has.

    Args:
        model: The model, as the builder made it.
        options: Options of the session.
        num_ipus: Number of IPUs of a replica.

    Raises:
        popart_exception: For a virtual graph that the device lacks.
    """
    if options.virtualGraphMode is VirtualGraphMode.Off:
        return
    for node in model.graph.node:
        number = _read(node, VIRTUAL_GRAPH)
        if number >= num_ipus:
            raise popart_exception(
                f"{_describe(model, node)} has been assigned to an invalid virtual graph {number}. "
                f"numIPUs = {num_ipus}."
            )


def check_depth(model: onnx.ModelProto, options: SessionOptions, batches_per_step: int) -> None:
    """Check that a pipeline has enough batches.

    Args:
        model: The model, as the builder made it.
        options: Options of the session.
        batches_per_step: Number of batches of a step.

    Raises:
        popart_exception: If a step has fewer batches than the pipeline has stages.
    """
    if options.enablePipelining and batches_per_step < (stages := count_stages(model)):
        raise popart_exception(
            "For pipelining, depth (batchesPerStep) must equal at least the number of pipeline "
            f"stages ({stages})"
        )


def count_stages(model: onnx.ModelProto) -> int:
    """Return the number of pipeline stages; by default an IPU is a stage."""
    kind = PIPELINE_STAGE
    if all(_read(node, kind) == _UNSET for node in model.graph.node):
        kind = VIRTUAL_GRAPH
    return len({_read(node, kind) for node in model.graph.node} - {_UNSET})


def _check_virtual_graphs(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> None:
    counts = Counter(_read(node, VIRTUAL_GRAPH) for node in nodes)
    if set(counts) == {_UNSET}:
        raise popart_exception(
            "SessionOptions flag virtualGraphMode is VirtualGraphMode::Manual, but no Ops have "
            "been annotated with virtual graph information. This is an inconsistent combination. "
        )
    if counts[_UNSET]:
        lines = "".join(f"  {number} : {count}\n" for number, count in sorted(counts.items()))
        unset = "".join(
            f"  {_describe(model, node)}\n"
            for node in nodes
            if _read(node, VIRTUAL_GRAPH) == _UNSET
        )
        raise popart_exception(
            "Either all Ops must have their virtual graph ids set, or none must. Op count per "
            f"virtual graph id\n{lines}Ops with no virtual graph id :  \n{unset}"
        )


def _check_stages(nodes: Sequence[onnx.NodeProto], options: SessionOptions, num_ipus: int) -> None:
    mode = options.virtualGraphMode
    if options.implicitPipeliningEnabled() and (mode is VirtualGraphMode.Off or num_ipus == 1):
        raise popart_exception(
            f"Pipelining requires more than 1 IPU (currently {num_ipus}) and the "
            "'virtualGraphMode' session option to not be VirtualGraphMode::Off (currently "
            f"VirtualGraphMode::{mode.name})."
        )
    stages: dict[int, list[onnx.NodeProto]] = {}
    for node in nodes:
        stages.setdefault(_read(node, PIPELINE_STAGE), []).append(node)
    if _UNSET in stages and len(stages) > 1:
        missing = "".join(f"\n  {node.name or node.op_type}" for node in stages[_UNSET])
        raise popart_exception(
            f"Only some ops have had their pipeline stage set. Ops missing the pipeline stage:"
            f"{missing}"
        )
    for stage, placed in stages.items():
        graphs = sorted({_read(node, VIRTUAL_GRAPH) for node in placed})
        if stage != _UNSET and len(graphs) > 1:
            names = ", ".join(node.name or node.op_type for node in placed)
            raise popart_exception(
                f"Ops [{names}] have the same pipeline stage {stage}, but different virtual graph "
                f"ids {graphs}. All ops with the same pipeline stage must also have the same "
                "virtual graph id"
            )


def _check_subgraphs(model: onnx.ModelProto, caller: onnx.NodeProto) -> None:
    """Check that the operators of a called subgraph are on the IPU of the node that calls it."""
    if caller.op_type != "Call":
        return
    caller_number = _read(caller, VIRTUAL_GRAPH)
    for body in iter_bodies(caller):
        for node in body.node:
            number = _read(node, VIRTUAL_GRAPH)
            if number == _UNSET and node.op_type != "Constant":
                raise popart_exception(
                    f'Op {_describe(model, node)} in subgraph "{body.name}" does not have a '
                    "virtual graph id. When pipelining, subgraph ops must have a virtual graph id "
                    "set."
                )
            if number not in (_UNSET, caller_number):
                raise popart_exception(
                    f"The virtual graph id ({number}) for Op {_describe(model, node)} in subgraph "
                    f'"{body.name}" does not match the virtual graph id ({caller_number}) of the '
                    "calling op. When pipelining, subgraph ops must have a virtual graph id "
                    "matching the calling op. If you are trying to call the same subgraph from "
                    "different pipeline stages, you will need to create a separate subgraph for "
                    "each virtual graph."
                )


def _read(node: onnx.NodeProto, name: str) -> int:
    return next((entry.i for entry in node.attribute if entry.name == name), _UNSET)


def _describe(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
    versions = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    domain = node.domain or "ai.onnx"
    version = find_since_version(node.op_type, domain, versions.get(domain, 1))
    return format_operator(domain, node.op_type, version, node.input, node.output, node.name)


def find_since_version(op_type: str, domain: str, opset: int) -> int:
    """Return the opset version that introduced an operator in the form of an opset.

    Args:
        op_type: The operator.
        domain: Its domain.
        opset: The opset of the model.

    Returns:
        The version; 1 for operators that the standard lacks.
    """
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain.replace("ai.onnx", ""))
        return int(schema.since_version)
    except onnx.defs.SchemaError:
        return 1
