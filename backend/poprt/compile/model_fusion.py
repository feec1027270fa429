"""Model fusion: several models as one; each run computes the model that the input `index` selects.

In ONNX each model is the then-branch of its own If, whose else-branch returns zeros. Weights stay
in the main graph, and nothing is duplicated. The compiler separates the models again and compiles
each for itself: on the simulated chip a run takes the time of one model, and the memory holds the
weights and the code of all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    STANDARD_DOMAINS,
    Tape,
    attribute,
    find_inputs,
    find_opset,
    fresh_name,
    infer_shapes,
    iter_defined,
    iter_nodes,
    lend_weights,
    make_identity,
    rename,
    used_names,
    without_weights,
)
from simipu import CompileError, Direction, Program, ProgramKind, Stream
from simipu.cost import Code, Estimate, IpuCost

import popef
from poprt._names import MAX_MODELS
from poprt.options import CompilerOptions
from poprt.passes import get_pass
from poprt.rewrite.explanations import describe_shape

_MARK = "poprt.model_fusion"
_NUMBER = re.compile("[0-9]{1,5}")
"""Pattern of the value of the fused model's metadata entry, which is the number of models."""
_INDEX_TYPE = TensorProto.INT32


class MFConverter:
    """Fuses converted models.

    Each model is converted beforehand by its own `Converter`, in its own precision.
    """

    def convert(self, models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
        """Fuse the models.

        Args:
            models: converted models with static shapes, which are not changed. Models of older
                opsets are converted to the newest opset among them.

        Returns:
            The fused model, with the inputs `index`, an int32 scalar, `graph0/NAME`, `graph1/NAME`
            and so on.

        Raises:
            CompileError: naming the model.
        """
        if not 1 <= len(models) <= MAX_MODELS:
            raise CompileError(f"expected 1 to {MAX_MODELS} models to fuse, found {len(models)}")
        for number, model in enumerate(models):
            if not isinstance(model, onnx.ModelProto):
                raise CompileError(
                    f"model {number} to fuse: expected an onnx.ModelProto, found "
                    f"{type(model).__name__}"
                )
        opset = max(find_opset(model, 1) for model in models)
        fused = onnx.ModelProto(ir_version=max(model.ir_version for model in models))
        fused.graph.name = "model_fusion"
        fused.graph.input.append(helper.make_tensor_value_info(popef.INDEX, _INDEX_TYPE, []))
        domains: dict[str, int] = {"": opset}
        for number, model in enumerate(models):
            for entry in model.opset_import:
                if entry.domain not in STANDARD_DOMAINS:
                    domains[entry.domain] = max(entry.version, domains.get(entry.domain, 0))
            _add(fused.graph, number, _in_opset(model, opset, number))
        fused.opset_import.extend(helper.make_opsetid(*entry) for entry in domains.items())
        helper.set_model_props(fused, {_MARK: str(len(models))})
        return fused


def _in_opset(model: onnx.ModelProto, opset: int, number: int) -> onnx.ModelProto:
    if find_opset(model, 1) == opset:
        return model
    try:
        return get_pass("convert_version", opset)(deepcopy(model))
    except CompileError as error:
        raise CompileError(
            f"model {number} to fuse is of opset {find_opset(model, 1)}, the newest of opset "
            f"{opset}, and all have to be of one: {error}; export them with the same opset"
        ) from error


def _add(fused: onnx.GraphProto, number: int, model: onnx.ModelProto) -> None:
    """Add `model` to the fused graph as its model number `number`."""
    if model.functions:
        raise CompileError(
            f"model {number} to fuse has functions of its own; inline them when exporting it"
        )
    graph = without_weights(model, {t.name for t in model.graph.initializer}, as_inputs=False).graph
    outputs = _find_outputs(model, number)
    defined = [*iter_defined(graph), *(tensor.name for tensor in model.graph.initializer)]
    renames = {name: popef.member_name(number, name) for name in defined if name}
    inner = _name_results(graph, renames)
    _rename_all(graph, renames, inner, number, {value.name for value in find_inputs(model.graph)})
    for value in find_inputs(model.graph):
        _check_static(value, number, "input")
        _append(fused.input, value, renames[value.name])
    for tensor in model.graph.initializer:
        _append(fused.initializer, tensor, renames[tensor.name])
    branch = helper.make_graph(graph.node, popef.member_name(number, "taken"), [], [])
    for value in graph.value_info:
        if value.name in renames and value.name not in inner:
            _append(branch.value_info, value, renames[value.name])
    for value in outputs:
        _append(branch.output, value, inner[value.name])
        _append(fused.output, value, popef.member_name(number, value.name))
    _add_branches(fused, number, branch, outputs)


def _append(field: Any, message: Any, name: str) -> None:
    """Append a copy of a value or a weight under another name."""
    added = field.add()
    added.CopyFrom(message)
    added.name = name


def _rename_all(
    graph: onnx.GraphProto,
    renames: dict[str, str],
    inner: Mapping[str, str],
    number: int,
    inputs: set[str],
) -> None:
    """Rename the branch's nodes and their tensors to their names in the fused model."""
    made_names = {name for node in graph.node for name in node.output}
    unmade = [name for name in inner if name not in made_names]
    for name in unmade:  # a weight has the output's name
        if name in inputs:
            raise CompileError(
                f"model {number} to fuse: {name!r} is an input and an output, which no tensor of a "
                "fused model can be; put an Identity between them"
            )
        renames[name] += "@weight"
    rename(graph, renames | {name: result for name, result in inner.items() if name in made_names})
    for node in iter_nodes(graph):
        node.name = popef.member_name(
            number, node.name or next(filter(None, node.output), node.op_type)
        )
    graph.node.extend(make_identity(renames[name], inner[name], inner[name]) for name in unmade)


def _name_results(graph: onnx.GraphProto, renames: Mapping[str, str]) -> dict[str, str]:
    """Return the names of results inside the branch; outside they have the outputs' names."""
    taken_names = set(renames.values())
    names: dict[str, str] = {}
    for value in graph.output:
        if value.name in names or value.name not in renames:
            raise CompileError(
                f"output {value.name!r} of a model to fuse occurs twice, or no node makes it"
            )
        names[value.name] = fresh_name(f"{renames[value.name]}@taken", taken_names)
    return names


def _find_outputs(model: onnx.ModelProto, number: int) -> list[onnx.ValueInfoProto]:
    """Return the outputs with inferred types and shapes; the declared ones may be wrong."""
    with lend_weights(model) as light:
        inferred = infer_shapes(get_pass("forget_declared_shapes")(light)).graph
    for value in inferred.output:
        _check_static(value, number, "output")
    return list(inferred.output)


def _check_static(value: onnx.ValueInfoProto, number: int, kind: str) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not all(
        dim.HasField("dim_value") for dim in tensor.shape.dim
    ):
        raise CompileError(
            f"model {number} to fuse: {kind} {value.name!r} has shape {describe_shape(value)}; "
            "convert each "
            "model with a Converter that is given its input_shape before they are fused"
        )


def _add_branches(
    fused: onnx.GraphProto,
    number: int,
    taken: onnx.GraphProto,
    outputs: Sequence[onnx.ValueInfoProto],
) -> None:
    zeros, zero_outputs = Tape(popef.member_name(number, "left")), []
    for value in outputs:
        tensor = value.type.tensor_type
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        name = zeros.add(
            "ConstantOfShape",
            zeros.ints([dim.dim_value for dim in tensor.shape.dim]),
            value=numpy_helper.from_array(np.zeros(1, kind)),
        )
        zero_outputs.append(onnx.ValueInfoProto(name=name, type=value.type))
    op = Tape(popef.member_name(number, "choice"))
    chosen = op.add("Equal", popef.INDEX, op.constant(number, np.int32))
    fused.node.extend(op.nodes)
    fused.node.append(
        helper.make_node(
            "If",
            [chosen],
            [popef.member_name(number, value.name) for value in outputs],
            name=_branch_name(number),
            then_branch=taken,
            else_branch=helper.make_graph(
                zeros.nodes, popef.member_name(number, "left"), [], zero_outputs
            ),
        )
    )


def _branch_name(number: int) -> str:
    return popef.member_name(number, "model")


def is_fused(model: onnx.ModelProto) -> bool:
    """Return whether the model's metadata says that MFConverter made it."""
    return any(entry.key == _MARK for entry in model.metadata_props)


def _count_models(model: onnx.ModelProto) -> int:
    """Return how many models are fused in it; 0 for a model that MFConverter did not make."""
    marks = [entry.value for entry in model.metadata_props if entry.key == _MARK]
    if not marks:
        return 0
    count = int(marks[0]) if _NUMBER.fullmatch(marks[0]) else 0
    if len(marks) > 1 or not 1 <= count <= MAX_MODELS:
        raise CompileError(
            f"the model says in its metadata ({_MARK}) that {marks[0][:20]!r} models are fused in "
            f"it; expected 1 to {MAX_MODELS}: fuse them with MFConverter again"
        )
    return count


def split_models(model: onnx.ModelProto) -> list[onnx.ModelProto]:
    """Return the models of a fused model, under their names there; an empty list if the model is
    not fused.

    Raises CompileError for a model that is marked as fused but does not have the form that
    MFConverter makes.
    """
    branches = {node.name: node for node in model.graph.node if node.op_type == "If"}
    models = []
    for number in range(_count_models(model)):
        node = branches.get(_branch_name(number))
        body = attribute(node, "then_branch") if node is not None else None
        if (
            node is None
            or not isinstance(body, onnx.GraphProto)
            or len(body.output) != len(node.output)
        ):
            raise CompileError(
                f"fused model: expected an If {_branch_name(number)!r} that holds a model, found "
                "none: fuse them with MFConverter again"
            )
        models.append(_take_out(model, number, node, body))
    return models


def _take_out(
    model: onnx.ModelProto, number: int, node: onnx.NodeProto, body: onnx.GraphProto
) -> onnx.ModelProto:
    prefix = popef.member_name(number, "")
    graph = helper.make_graph(
        body.node, f"graph{number}", [v for v in model.graph.input if v.name.startswith(prefix)], []
    )
    rename(graph, {value.name: name for value, name in zip(body.output, node.output, strict=True)})
    for value, name in zip(body.output, node.output, strict=True):
        graph.output.append(onnx.ValueInfoProto(name=name, type=value.type))
    branch_names = used_names(graph)
    graph.initializer.extend(body.initializer)
    for tensor in model.graph.initializer:
        if tensor.name in branch_names:
            graph.initializer.add().CopyFrom(tensor)
    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, graph=graph
    )


def check_fusion(
    models: Sequence[onnx.ModelProto], outputs: Collection[str] | None, options: CompilerOptions
) -> None:
    """Raise CompileError if options require a fused model and this is none, or keep only some
    outputs of one."""
    if options.enable_model_fusion and not models:
        raise CompileError(
            "compiler option enable_model_fusion: expected a fused model; fuse models with "
            "poprt.compile.converter.MFConverter first"
        )
    if (
        models
        and outputs is not None
        and set(outputs) != {value.name for model in models for value in model.graph.output}
    ):
        raise CompileError(
            "a fused model is compiled with all its outputs: give None for outputs; remove "
            "unneeded ones from its models before they are fused"
        )


def fuse_costs(costs: Sequence[Estimate]) -> Estimate:
    """Return the memory cost of all models together. A tile holds the weights, the code and the
    streams of all models, and the live tensors of the model that has most of them."""
    fullest = max(costs, key=lambda cost: max(ipu.live_bytes for ipu in cost.ipus))
    ipus = tuple(
        IpuCost(
            cycles=max(ipu.cycles for ipu in mine),
            weight_bytes=sum(ipu.weight_bytes for ipu in mine),
            code=sum((ipu.code for ipu in mine), Code()),
            handed_bytes=sum(ipu.handed_bytes for ipu in mine),
            live_bytes=max(ipu.live_bytes for ipu in mine),
            io_tile_bytes=max(ipu.io_tile_bytes for ipu in mine),
        )
        for mine in zip(*(cost.ipus for cost in costs), strict=True)
    )
    return replace(fullest, ipus=ipus)


def fuse_programs(programs: Sequence[Program]) -> Program:
    """Return a MAIN program; each run executes one of `programs`, which are MAIN programs."""
    selector = Stream(
        f"h2d_{popef.INDEX}", popef.INDEX, Direction.HOST_TO_DEVICE, np.dtype(np.int32), ()
    )
    dearest = max(programs, key=lambda program: program.cycles)
    return replace(
        dearest,
        name="main_program",
        kind=ProgramKind.MAIN,
        streams=(
            selector,
            *(stream for program in programs for stream in program.inputs),
            *(stream for program in programs for stream in program.outputs),
        ),
        graph=b"",
        row_independent=False,
        row_dependence="each request is one of a single one of its models",
        branches=tuple(programs),
        selector=popef.INDEX,
    )
