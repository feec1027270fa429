"""Admission of graphs to accelerators: what an accelerator cannot compute as the CPU kernels do is
rejected when the graph is loaded, with the node. These are results that are rounded as on the chip,
whole numbers that it computes otherwise, operators that it lacks, indices and numbers of rows that
it would not check, and memory that it would not limit. Sizes of operands are not checked here but
by ONNX Runtime, in a run that confirms the graph (`accelerated`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxgraph import (
    attribute,
    describe_node,
    has_data,
    infer_shapes,
    iter_bodies,
    iter_graphs,
    iter_nodes,
    iter_reads,
    set_shape,
)

from popef._tools.arrays import Array
from simipu.accelerators import describe_first, uses_openvino
from simipu.demand import bound_bytes
from simipu.engines.computed import GraphOptions, Lowered, Weights
from simipu.engines.libraries import is_library_domain
from simipu.engines.program_graphs import lower_program, read_graph, read_static
from simipu.errors import AcceleratorError, LoadMemoryError
from simipu.executable import Program
from simipu.numerics import QUARTERS, KernelUse, Numerics
from simipu.numerics.indices import find_unguarded
from simipu.operators import Family, operator_of
from simipu.rows import take_rows

_EXACT = (
    "half and fp8 are rounded as on the chip, which only the CPU kernels do; use sim_numerics "
    '"fast", compile the model with --precision fp32, or remove the accelerator'
)


def lower_accelerated(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    *,
    is_confined: bool,
) -> Lowered:
    """Return the graph of a MAIN program that the accelerators in `options` compute.
    `is_confined`: this is a child process with limited memory and no access to devices.

    Raises AcceleratorError for a graph that they cannot compute, LoadError for a damaged one,
    LoadMemoryError for one that exceeds the limit in `options`.
    """
    title = f"{program.title}: {describe_first(options.accelerators)}"
    on_cpu = uses_openvino(options.accelerators)
    if is_confined and not on_cpu:
        raise AcceleratorError(
            f"{title}: a child process of sim_isolation has no access to a GPU; use sim_isolation "
            '"none"'
        )
    model = read_graph(program)
    fault = find_fault(model, infer_shapes(model), numerics, options)
    if fault:
        raise AcceleratorError(f"{title}: {fault}")
    if on_cpu and not is_confined:
        _check_memory(program, options, title)
    if on_cpu and (dependence := _find_dependence(program, weights)):
        raise AcceleratorError(
            f"{title}: its rows are not proven to be independent, as the file says: {dependence}; "
            "compile it with poprt again, or remove the accelerator"
        )
    lowered = lower_program(program, weights, options, numerics, KernelUse.NONE)
    return _admit_to_openvino(lowered, program, title) if on_cpu else lowered


def find_fault(
    model: onnx.ModelProto,
    inferred: onnx.ModelProto,
    numerics: Numerics | None,
    options: GraphOptions,
) -> str:
    """Return why no accelerator can compute a graph as the CPU kernels do, or ""; `inferred` is the
    graph with its shapes and types."""
    if numerics is not None and (narrow := _find_narrow(inferred)):
        return f"{narrow} computes in half or fp8: {_EXACT}"
    if numerics is not None and numerics.raises:
        return "debug.floatPointOpException needs the CPU kernels, which check every result"
    if not options.prepack:
        return 'it always repacks weights; remove sim_prepack "false"'
    for node in iter_nodes(model.graph):
        if is_library_domain(node.domain):
            return f"it has no custom operators ({describe_node(node)}); remove the accelerator"
        place = operator_of(node).unchecked_input
        if place is not None and any(node.input[place:]):
            return (
                f"it does not check input {place} of {describe_node(node)}; remove the accelerator"
            )
    unguarded = find_unguarded(model.graph)
    if unguarded is not None:
        return (
            f"it does not check the indices of {describe_node(unguarded)}; remove the accelerator"
        )
    return _find_fault_of_data(model.graph, _find_types(inferred.graph), set())


def _find_fault_of_data(graph: onnx.GraphProto, types: Mapping[str, int], outer: Set[str]) -> str:
    """Return which node of a graph or its bodies has sizes, axes or places that depend on the data,
    or computes whole numbers of the data inexactly, or "". OpenVINO checks only some of the former,
    and ends the process or answers wrongly. `outer`: the tensors around the graph that depend on
    data."""
    weights = {tensor.name for tensor in graph.initializer}
    data = {*outer, *(value.name for value in graph.input)} - weights
    for node in graph.node:
        operator, bodies = operator_of(node), list(iter_bodies(node))
        shaped_by = [node.input[i] for i in operator.shaped_by if i < len(node.input)]
        if not bodies and not data.isdisjoint(shaped_by):
            return (
                f"the shape of the result of {describe_node(node)} depends on the data, which it "
                "does not check; remove the accelerator"
            )
        for body in bodies:
            if fault := _find_fault_of_data(body, types, data):
                return fault
        if operator.reads_shape or data.isdisjoint(iter_reads(node)):
            continue
        data.update(node.output)
        if _is_inexact(node, types):
            return (
                f"it computes the whole numbers of {describe_node(node)} as floats, or does not "
                "wrap them; remove the accelerator"
            )
    return ""


def _is_inexact(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    """Return whether OpenVINO computes a node of whole numbers in float, or ends at the largest
    number of few bits where ONNX's wrap."""
    operator = operator_of(node)
    kind, result = (types.get(name, 0) for name in (node.input[0], node.output[0]))
    if kind in (TensorProto.INT32, TensorProto.INT64):
        in_float = operator.family in (Family.PRODUCT, Family.REDUCTION)
        return in_float or operator.in_float_on_openvino
    wraps = operator.is_elementwise and operator.moves is None
    if kind in (TensorProto.UINT32, TensorProto.UINT64):
        return wraps and result in (kind, TensorProto.BOOL) and node.op_type != "Cast"
    return kind in _SMALL_NUMBERS and kind == result and wraps


def _find_types(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the element types of the tensors of a graph and its bodies."""
    types = dict[str, int]()
    for inner in iter_graphs(graph):
        infos = (*inner.input, *inner.value_info, *inner.output)
        types.update((info.name, info.type.tensor_type.elem_type) for info in infos)
        types.update((tensor.name, tensor.data_type) for tensor in inner.initializer)
    return types


def _find_narrow(inferred: onnx.ModelProto) -> str:
    """Return the first node with a tensor of half or fp8, or ""."""
    for graph in iter_graphs(inferred.graph):
        types = _find_types(graph)
        for node in graph.node:
            if any(types.get(name) in _NARROW for name in (*node.input, *node.output)):
                return describe_node(node)
    return ""


_SMALL_NUMBERS = frozenset(
    (TensorProto.INT8, TensorProto.INT16, TensorProto.UINT8, TensorProto.UINT16)
)
"""Whole numbers whose sums OpenVINO does not wrap."""
_WIDE = frozenset((TensorProto.INT64, TensorProto.UINT64, TensorProto.UINT32))
_SLICE_AXES = 3
"""First input of a Slice after the starts and ends."""
_NARROW = frozenset((TensorProto.FLOAT16, *QUARTERS))


def _check_memory(program: Program, options: GraphOptions, title: str) -> None:
    """Raise LoadMemoryError unless all tensors of a run together are within the limit: OpenVINO has
    no limit of its own. The author's word for their shapes does not count."""
    num_bytes = bound_bytes(infer_shapes(read_static(program)))
    if num_bytes is None:
        reason = "a tensor has a size that only the run determines"
    elif num_bytes > options.memory_bytes:
        reason = f"its tensors take {num_bytes} bytes"
    else:
        return
    raise LoadMemoryError(
        f"{title} cannot limit the memory of a run to {options.memory_bytes} bytes "
        f'(sim_memory_mib): {reason}; use sim_isolation "process", whose limit is the child '
        "process's, or remove the accelerator"
    )


def _admit_to_openvino(lowered: Lowered, program: Program, title: str) -> Lowered:
    """Return the graph with the names of its outputs, and with the shapes of the streams as those
    of its inputs, so that only the number of rows may vary. Raises AcceleratorError for one that
    declares doubles, which OpenVINO computes in float, one with a constant of more than 32 bits,
    and one whose constants OpenVINO would take too long to compute."""
    if not lowered.fold:
        raise AcceleratorError(
            f"{title}: constants of the graph take longer to compute than loading may take; remove "
            "the accelerator"
        )
    model = onnx.load_model_from_string(lowered.model)
    if wide := _find_wide(model, lowered.weights):
        raise AcceleratorError(
            f"{title} computes whole numbers in 32 bits, and {wide}; remove the accelerator"
        )
    if cut := _find_cut(model):
        raise AcceleratorError(
            f"{title} does not check negative pads, which {cut} has or may have; remove the "
            "accelerator"
        )
    kind = TensorProto.DOUBLE
    doubles = [tensor.name for tensor in model.graph.initializer if tensor.data_type == kind]
    infos = (*model.graph.input, *model.graph.output)
    doubles += [info.name for info in infos if info.type.tensor_type.elem_type == kind]
    doubles += [
        node.name or node.output[0]
        for node in iter_nodes(model.graph)
        if node.op_type == "Cast"
        and any(entry.name == "to" and entry.i == kind for entry in node.attribute)
    ]
    if doubles:
        raise AcceleratorError(
            f"{title} computes doubles in float ({doubles[0]!r} is double); remove the accelerator"
        )
    _set_shapes(model.graph.input, program, is_open=_has_open_rows(program))
    outputs = [value.name for value in model.graph.output]
    return replace(lowered, model=model.SerializeToString(), outputs=outputs)


def _has_open_rows(program: Program) -> bool:
    """Return whether runs of a program have different numbers of rows."""
    return program.row_independent and program.batch_size > 1


def _find_dependence(program: Program, weights: Weights) -> str:
    """Return why rows depend on each other, though the file says that they do not, or "". Sizes of
    tensors that depend on the number of rows in any other way could differ from run to run, which
    OpenVINO does not check."""
    if not _has_open_rows(program):
        return ""
    model = read_static(program)
    _set_shapes(model.graph.output, program)
    axes = (stream.batch_axis for stream in program.inputs)
    return take_rows(model, program.streams, next(axes), weights)[2]


def _set_shapes(
    infos: Iterable[onnx.ValueInfoProto], program: Program, *, is_open: bool = False
) -> None:
    """Give tensors, in place, the shapes of their streams; if it `is_open`, without the number of
    rows."""
    streams = {stream.tensor: stream for stream in program.streams}
    for info in infos:
        if stream := streams.get(info.name):
            shape: list[int | str] = [*stream.shape]
            if is_open:
                shape[stream.batch_axis] = "rows"
            set_shape(info, shape)


def _find_wide(model: onnx.ModelProto, weights: Weights) -> str:
    """Return which constant of a graph or its bodies has a whole number of more than 32 bits, or
    "". OpenVINO takes the nearest one of 32 bits, which is the same only as an end of a Slice.
    It reads beyond a tensor by a step of -2^31."""
    mapped = {
        name for name, value in weights.items() if value.dtype == np.int64 and _exceeds(value)
    }
    for graph in iter_graphs(model.graph):
        wide = mapped.union(tensor.name for tensor in graph.initializer if _is_wide(tensor))
        for node in graph.node:
            if node.op_type == "Constant" and any(_is_wide(value.t) for value in node.attribute):
                wide.update(node.output)
        for node in iter_nodes(graph) if wide else ():
            is_slice = node.op_type == "Slice"
            others = (*node.input[:1], *node.input[_SLICE_AXES:]) if is_slice else node.input
            for name in wide.intersection(others):
                return f"the constant {name!r} of {describe_node(node)} has more"
    return ""


def _find_cut(model: onnx.ModelProto) -> str:
    """Return the first Pad that cuts elements, or whose pads are not in the graph, or "". If it
    cuts more than there are, which the standard allows, OpenVINO writes beyond its memory."""
    for graph in iter_graphs(model.graph):
        constants = {tensor.name: tensor for tensor in graph.initializer if has_data(tensor)}
        constant_nodes = (node for node in graph.node if node.op_type == "Constant")
        constants.update((node.output[0], attribute(node, "value")) for node in constant_nodes)
        for node in graph.node:
            if node.op_type == "Pad" and min(_read_pads(node, constants), default=-1) < 0:
                return describe_node(node)
    return ""


def _read_pads(node: onnx.NodeProto, known: Mapping[str, TensorProto]) -> list[int]:
    """Return the pads of a Pad, or none if they are not in the graph."""
    tensor = known.get(node.input[1]) if len(node.input) > 1 else None
    if tensor is None:
        return list(attribute(node, "pads", attribute(node, "paddings", ())))
    return [int(value) for value in numpy_helper.to_array(tensor).ravel()]


def _is_wide(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type not in _WIDE or tensor.data_location == TensorProto.EXTERNAL:
        return False
    return _exceeds(numpy_helper.to_array(tensor))


def _exceeds(values: Array) -> bool:
    return bool(values.size and (int(values.min()) <= -(2**31) or int(values.max()) >= 2**31))
