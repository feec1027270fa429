"""Lowering of a program's placed graph, which its executable holds, to the computed graph: checks
of the placed graph, its resource demand, and the weights that the computed graph reads.

Weights are passed as arrays that are mapped from their file. Most are not copied.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    STANDARD_DOMAINS,
    GraphError,
    GraphTooLargeError,
    check_graph,
    check_tensors_only,
    describe_node,
    element_bytes,
    find_inputs,
    forget_values,
    infer_shapes,
    iter_nodes,
    iter_reads,
    set_shape,
)

from popef._tools.arrays import Array
from simipu import errors
from simipu.accelerators import uses_openvino
from simipu.demand import MAX_FOLDED_OPERATIONS, measure
from simipu.engines.computed import NO_DATA, GraphOptions, Lowered, Weights
from simipu.engines.library_operators import register_library
from simipu.executable import Program
from simipu.kernels import find_kernels, warn_of_none
from simipu.numerics import KernelUse, Numerics, lower
from simipu.numerics.comparisons import compare_exactly
from simipu.numerics.indices import IndexGuard
from simipu.numerics.kernels import KERNELS, set_threads
from simipu.numerics.lengths import clamp_lengths
from simipu.numerics.optimisers import find_unsafe_optimisers
from simipu.numerics.quarter import QUARTERS, decode
from simipu.numerics.weights import keep_codes, multiplies_parts, name_codes
from simipu.operators import operator_of
from simipu.operators.entry import Saturates
from simipu.operators.ranges import find_attribute_fault
from simipu.saturation import products_saturate
from simipu.streams import Direction


def read_graph(program: Program) -> onnx.ModelProto:
    """Return the graph of a MAIN program. Raises LoadError for a damaged graph, for one that refers
    to anything outside the executable, and for one whose inputs and outputs differ from the
    program's streams."""
    try:
        model = onnx.load_model_from_string(program.graph)
        check_graph(model, without_weights=True)
        check_tensors_only(model)
    except (DecodeError, GraphError) as error:
        raise errors.LoadError(f"the graph of {program.title} is damaged: {error}") from error
    if any(node.domain == KERNELS for node in iter_nodes(model.graph)):
        raise errors.LoadError(
            f"the graph of {program.title} has a node of domain {KERNELS!r}, which no file may "
            "have: the loader makes such nodes; compile it with poprt again"
        )
    _check_operators(program, model)
    for way, kind, values in (
        (Direction.HOST_TO_DEVICE, "inputs", find_inputs(model.graph)),
        (Direction.DEVICE_TO_HOST, "outputs", model.graph.output),
    ):
        streamed = {stream.tensor for stream in program.streams if stream.direction is way}
        names = {value.name for value in values}
        if names != streamed:
            raise errors.LoadError(
                f"the graph of {program.title}: expected {kind} {_list(streamed)}, found "
                f"{_list(names)}; compile it with poprt again"
            )
    return model


def read_static(program: Program, batch_size: int | None = None) -> onnx.ModelProto:
    """Return the graph of a program with the shapes of its streams, and with `batch_size` as its
    batch if given.

    Raises LoadError for a graph whose inputs do not fit its streams.
    """
    model = read_graph(program)
    streams = {stream.tensor: stream for stream in program.streams}
    for value in find_inputs(model.graph):
        stream = streams[value.name]
        shape, axis = stream.shape, stream.batch_axis
        rank = len(value.type.tensor_type.shape.dim)
        if rank not in (0, len(shape)):
            raise errors.LoadError(
                f"input {value.name!r} has {rank} dimensions, expected those of its stream of "
                f"shape {tuple(shape)}; compile it with poprt again"
            )
        set_shape(value, (*shape[:axis], batch_size, *shape[axis + 1 :]) if batch_size else shape)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    forget_values(model.graph)
    return model


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _check_operators(program: Program, model: onnx.ModelProto) -> None:
    """Raise LoadError for types that the chip does not have, such as sequences of unbounded size,
    and for attributes whose range no engine checks."""
    for node in iter_nodes(model.graph):
        operator = operator_of(node)
        if operator.refusal and not operator.counts_data and node.domain in STANDARD_DOMAINS:
            raise errors.LoadError(
                f"the graph of {program.title} has operator {node.op_type} (node {node.name!r}), "
                f"which is not supported: {operator.refusal}"
            )
        if fault := find_attribute_fault(node):
            raise errors.LoadError(f"the graph of {program.title}: {describe_node(node)}, {fault}")


def lower_program(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    kernels: KernelUse,
) -> Lowered:
    """Return the graph that computes what the chip would, or fp32 without `numerics`, with its
    weights in the types that it reads.

    Raises LoadError for a damaged graph, and for weights that are not on the device. Raises
    LoadTimeoutError and LoadMemoryError if the graph is known in advance to exceed the limits.
    """
    for library in options.libraries:
        register_library(library)
    model = read_graph(program)
    reads = [tensor.name for tensor in model.graph.initializer if _is_variable(tensor)]
    missing = [name for name in reads if name not in weights]
    if missing:
        raise errors.LoadError(
            f"{program.title} needs the weights {', '.join(missing[:5])} on the device; run the "
            "load program with the weights' tensor data first"
        )
    for tensor in model.graph.initializer:
        if _is_variable(tensor) and not _holds(weights[tensor.name], tensor):
            raise errors.LoadError(
                f"{program.title}: expected weight {tensor.name!r} of shape {list(tensor.dims)}, "
                f"found shape {list(weights[tensor.name].shape)}; compile it with poprt again"
            )
    try:
        inferred, faults = _limit_values(model, options)
        demand = measure(inferred)
        keeps = not options.prepack or multiplies_parts(model, numerics)
        lowered, values, sources = _lower_from_sources(
            model,
            weights,
            numerics,
            inferred,
            kernels,
            keeps_codes=keeps,
            saturates=_find_saturation(options),
        )
    except errors.SimIpuError:
        raise
    except Exception as error:  # three libraries raise any exception for damaged data
        raise errors.LoadError(
            f"the graph of {program.title} is damaged: {type(error).__name__}: {error}"
        ) from error
    try:
        demand.check(options.memory_bytes, options.limit_seconds, options.num_cores)
    except GraphTooLargeError as error:
        raise errors.LoadMemoryError(f"{program.title}: {error}") from error
    set_threads(lowered.graph, options.num_cores)
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    rounds = numerics is not None and not kinds.isdisjoint((TensorProto.FLOAT16, *QUARTERS))
    if rounds and not find_kernels().are_there:
        warn_of_none()
    folded = demand.folded_operations
    fold = folded is not None and folded <= MAX_FOLDED_OPERATIONS
    left_out = [*find_unsafe_optimisers(lowered, values, inferred)]  # as read from the cache
    return Lowered(
        lowered.SerializeToString(), values, fold, left_out, reads, rounds, faults, sources=sources
    )


def _limit_values(
    model: onnx.ModelProto, options: GraphOptions
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Change `model`, in place, so that indices and lengths are within range where nothing checks
    them. Return it with its shapes, and the errors that its additional outputs stand for. Only ONNX
    Runtime's CPU kernels check indices and lengths."""
    inferred = infer_shapes(model)
    raises, engine_checks = options.index_check == "error", not options.accelerators
    guard = IndexGuard(raises=raises, engine_checks=engine_checks)
    if not (raises and engine_checks) and guard.apply(model, inferred):
        inferred = infer_shapes(model)
    if options.accelerators:
        is_changed = clamp_lengths(model, guard.faults) | compare_exactly(model, inferred)
        if uses_openvino(options.accelerators):
            from simipu.numerics.quantized import quantize_exactly

            is_changed |= quantize_exactly(model, inferred)
        inferred = infer_shapes(model) if is_changed else inferred
    return inferred, guard.faults


def _find_saturation(options: GraphOptions) -> Saturates | None:
    """Return which products of 8 bits saturate where a graph is computed; None for those that do on
    this machine's processor."""
    if options.portable:
        return lambda _node: True
    if options.accelerators and not uses_openvino(options.accelerators):
        # TensorRT has no uint8. A GPU's session makes no products of dequantized tensors.
        return lambda node: node.op_type != "DequantizeLinear" and products_saturate()
    return None


def _holds(value: Array, tensor: onnx.TensorProto) -> bool:
    """Return whether a weight has the declared size: ONNX Runtime would read beyond a smaller
    one."""
    num_bytes = element_bytes(tensor.data_type)
    return value.shape == tuple(tensor.dims) and value.dtype.itemsize == num_bytes


def lower_model(
    model: onnx.ModelProto,
    weights: Weights,
    numerics: Numerics | None,
    inferred: onnx.ModelProto | None = None,
    kernels: KernelUse = KernelUse.NONE,
    *,
    keeps_codes: bool = False,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Lower a model whose initializers without data are all among `weights`, and return it with the
    weights that it reads; `inferred` is the model with known shapes. With `keeps_codes` 8-bit
    weights stay a byte each, as the kernels read them anyway."""
    return _lower_from_sources(
        model, weights, numerics, inferred, kernels, keeps_codes=keeps_codes
    )[:2]


def _lower_from_sources(
    model: onnx.ModelProto,
    weights: Weights,
    numerics: Numerics | None,
    inferred: onnx.ModelProto | None,
    kernels: KernelUse,
    *,
    keeps_codes: bool,
    saturates: Saturates | None = None,
) -> tuple[onnx.ModelProto, dict[str, Array], dict[str, str]]:
    """Lower a model like `lower_model`, and return for each weight that it reads also the one of
    `weights` whose data it is, unless the graph holds values of that one, too."""
    lowered = lower(model, numerics, inferred, kernels, saturates, weights)
    if lowered is model:
        lowered = onnx.ModelProto()
        lowered.CopyFrom(model)
    quarters = {
        t.name: QUARTERS[t.data_type] for t in model.graph.initializer if t.data_type in QUARTERS
    }
    for tensor in lowered.graph.initializer:
        is_coded = tensor.data_type == TensorProto.UINT8 and tensor.name in quarters
        if is_coded and _is_variable(tensor):
            weights = {**weights, tensor.name: weights[tensor.name].view(np.uint8)}
            del quarters[tensor.name]
    codes = keep_codes(model.graph, lowered.graph, quarters, weights) if keeps_codes else {}
    renamed = {name_codes(name): name for name in codes}
    weights = {**weights, **{name: codes[source] for name, source in renamed.items()}}
    mapped, values = _find_mappable(lowered.graph), dict[str, Array]()
    sources, copied = dict[str, str](), set[str]()
    for tensor in lowered.graph.initializer:
        if not _is_variable(tensor):
            continue
        name, value = tensor.name, weights[tensor.name]
        if name in quarters:
            value = decode(value.view(np.uint8), quarters[name])
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        reads_in_place = name in mapped and value.dtype == dtype and value.flags.c_contiguous
        source = renamed.get(name, name)
        if reads_in_place:
            values[name] = value
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value=NO_DATA.name)
        else:
            tensor.CopyFrom(numpy_helper.from_array(value.astype(dtype), name))
        if reads_in_place and value is weights[name]:
            sources[name] = source
        else:
            copied.add(source)
    sources = {name: source for name, source in sources.items() if source not in copied}
    return lowered, values, sources


def _find_mappable(graph: onnx.GraphProto) -> set[str]:
    """Return the weights that ONNX Runtime can read in place, for every node that reads them.

    Its optimiser computes a node whose inputs are all constant, and looks for their values in the
    graph.
    """
    constants = {tensor.name for tensor in graph.initializer}
    mappable = set(constants)
    for node in graph.node:
        reads = set(iter_reads(node))
        is_constant = reads <= constants
        if is_constant:
            constants.update(node.output)
        reads_in_place = node.domain == KERNELS or operator_of(node).reads_mapped_weights
        if is_constant or not reads_in_place:
            mappable -= reads
    return mappable


def _is_variable(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)
