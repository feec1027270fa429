"""Lowering of a whole model: inputs and weights, translation, anchors, integers of 64 bits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxgraph import (
    CHIP_DOMAIN,
    FLOAT_TYPES,
    STANDARD_DOMAINS,
    count_bytes,
    drop_unread_nodes,
    drop_weights,
    find_opset,
    iter_defined,
    iter_graphs,
    iter_nodes,
    replace_inputs,
    used_names,
    without_weights,
)
from poprt.passes import get_pass
from simipu import CompileError

from popart.errors import popart_exception
from popart.lowering import (  # noqa: F401 - their rules register themselves
    beams,
    collectives,
    control,
    elementwise,
    indexing,
    losses,
    norms,
    others,
    pooling,
    products,
    recurrent,
    reductions,
    resizing,
    sequences,
    shapes,
)
from popart.lowering.elementwise import check_type
from popart.lowering.graph import OPSET, Effect, Graph, Tensor
from popart.lowering.operation import NARROWED
from popart.lowering.translation import translate_nodes
from popart.tensorinfo import TensorInfo, from_onnx_type, to_onnx_type

OLDEST_OPSET, NEWEST_OPSET, DEFAULT_OPSET = 6, 11, 10
"""Opsets that PopART takes, and the one of its builders."""
_IR_VERSION = 8
_HEAVY_BYTES = 1024
"""Minimum size of a weight that is left out while the model is rewritten."""


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """Options of a session that change the graph."""

    constant_weights: bool = True
    """False: weights can be written between runs, so nothing is computed from them beforehand."""
    strided_channel_grouping: bool = False
    """Groups of GroupNormalization take every n-th channel (groupNormStridedChannelGrouping)."""
    replicas: int = 1
    """Number of replicas that collectives join."""
    split_weights: Collection[str] = ()
    """Weights that differ between replicas: nothing is computed from them beforehand."""


@dataclass(frozen=True, slots=True)
class LoweredModel:
    """Model that poprt's compiler takes, and what PopART knows of its tensors."""

    model: onnx.ModelProto
    """Its outputs are the anchors, in order, by their own names."""
    tensors: Mapping[str, TensorInfo]
    """Tensors of the main graph with PopART's types."""
    inputs: Mapping[str, TensorInfo]
    """Inputs that something reads."""
    weights: Mapping[str, np.dtype[Any]]
    """Weights that something reads, with their types on the chip."""
    host_types: Mapping[str, TensorInfo] = field(default_factory=dict)
    """Anchors, inputs and weights that have 64 bits at the host, and 32 on the chip."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """What the session does with further outputs after each run, by output."""


def lower(
    model: onnx.ModelProto,
    anchors: Sequence[str],
    input_infos: Mapping[str, TensorInfo] | None = None,
    options: LoweringOptions | None = None,
    check_graph: Callable[[], None] = lambda: None,
) -> LoweredModel:
    """Lower a model.

    Args:
        model: the model as a Builder or an exporter wrote it; it is not changed.
        anchors: names of the tensors that a run returns.
        input_infos: types and shapes of inputs with unknown dimensions (InputShapeInfo).
        options: the options; None means the defaults.
        check_graph: function that is called when the graph is known to be right, before the anchors
            are looked up.

    Returns:
        The lowered model.

    Raises:
        popart_exception: For all that PopART refuses of a graph.
    """
    options = options or LoweringOptions()
    graph, inputs = _read(model, input_infos or {}, options)
    check_graph()
    for name in anchors:
        if name not in graph.tensors:
            raise popart_exception(f"Anchor tensor `{name}' not in Ir Tensors. ")
    outputs = [(name, graph.tensors[name]) for name in dict.fromkeys((*anchors, *graph.effects))]
    lowered = _write(graph, inputs, outputs)
    weights = {
        tensor.name: helper.tensor_dtype_to_np_dtype(tensor.data_type)
        for tensor in lowered.graph.initializer
        if tensor.name in graph.tensors
    }
    tensors = {
        name: _info(tensor) for name, tensor in graph.tensors.items() if name not in graph.effects
    }
    read_inputs = {value.name for value in lowered.graph.input}
    return LoweredModel(
        model=lowered,
        tensors=tensors,
        inputs={name: tensors[name] for name in inputs if name in read_inputs},
        weights=weights,
        host_types={
            name: tensors[name]
            for name in (*inputs, *weights, *anchors)
            if graph.tensors[name].element_type in NARROWED
        },
        effects=graph.effects,
    )


def infer_tensors(model: onnx.ModelProto) -> dict[str, TensorInfo]:
    """Return the types and shapes of the tensors of a model's main graph.

    Args:
        model: the model as a Builder wrote it, finished or not.

    Returns:
        Types and shapes by name.

    Raises:
        popart_exception: For all that PopART refuses of a graph.
    """
    graph, _ = _read(model, {}, LoweringOptions())
    return {name: _info(tensor) for name, tensor in graph.tensors.items()}


def _info(tensor: Tensor) -> TensorInfo:
    return TensorInfo(from_onnx_type(tensor.element_type), list(tensor.shape))


def _read(
    model: onnx.ModelProto, input_infos: Mapping[str, TensorInfo], options: LoweringOptions
) -> tuple[Graph, list[str]]:
    """Translate a model. Return its main graph, and the names of its inputs."""
    opset = find_opset(model, DEFAULT_OPSET)
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise popart_exception(
            f"Encountered ONNX opset version {opset}, Maximimum supported opset is {NEWEST_OPSET}, "
            f"minimum {OLDEST_OPSET} and default {DEFAULT_OPSET}. poprt converts models of other "
            "opsets"
        )
    # Weights stay where they are: a model may have gigabytes of them.
    proto = _inline_custom(without_weights(model, _find_heavy(model.graph))).graph
    graph = Graph(taken={*iter_defined(proto), *used_names(proto)})
    for tensor in model.graph.initializer:
        check_type(tensor.data_type)
        graph.add_weight(
            tensor.name,
            tensor,
            is_constant=options.constant_weights,
            is_split=tensor.name in options.split_weights,
        )
    inputs = []
    for value in proto.input:
        if value.name in graph.tensors:
            continue
        element, shape = _read_input(value, input_infos)
        check_type(element)
        graph.tensors[value.name] = Tensor(graph, value.name, element, shape)
        inputs.append(value.name)
    del proto.initializer[:]
    translate_nodes(proto, graph, opset, options)
    return graph, inputs


def _inline_custom(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put the bodies of users' operators in their place, and return the model."""
    try:
        return get_pass("inline_custom_operators").run(model)
    except CompileError as error:
        raise popart_exception(str(error)) from error


def _read_input(
    value: onnx.ValueInfoProto, input_infos: Mapping[str, TensorInfo]
) -> tuple[int, tuple[int, ...]]:
    """Return the type and shape of an input."""
    tensor = value.type.tensor_type
    sizes = [
        dim.dim_param if dim.HasField("dim_param") else dim.dim_value for dim in tensor.shape.dim
    ]
    unknown = next((size for size in sizes if isinstance(size, str) or size < 0), None)
    if unknown is None and tensor.HasField("shape"):
        return tensor.elem_type, tuple(int(size) for size in sizes)
    info = input_infos.get(value.name)
    if info is not None:
        return to_onnx_type(info.dataType()), tuple(info.shape())
    if unknown is None:
        raise popart_exception(
            f"Could not find tensor {value.name} in InputShapeInfo, but no shape is specified in "
            "the onnx model"
        )
    shown = ", ".join(map(str, sizes))
    raise popart_exception(
        f"Input tensor '{value.name}' must be specified in InputShapeInfo, as it has shape "
        f"[{shown}], which uses an unknown value '{unknown}'."
    )


def _find_heavy(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the weights that no pass needs to see."""
    return {
        tensor.name
        for tensor in graph.initializer
        if tensor.data_type in FLOAT_TYPES and count_bytes(tensor) >= _HEAVY_BYTES
    }


def _write(
    graph: Graph, inputs: Sequence[str], outputs: Sequence[tuple[str, Tensor]]
) -> onnx.ModelProto:
    """Write the model whose outputs are the anchors. Heavy weights are inputs until the end."""
    light = {
        name: weight
        for name, weight in graph.weights.items()
        if weight.data_type not in FLOAT_TYPES or count_bytes(weight) < _HEAVY_BYTES
    }
    heavy = [name for name in graph.weights if name not in light]
    written_graph = helper.make_graph(
        graph.write_nodes(),
        "maingraph",
        [_value(name, graph.tensors[name]) for name in (*inputs, *heavy)],
        [_value(name, tensor) for name, tensor in outputs],
        list(light.values()),
    )
    domains = {node.domain for node in iter_nodes(written_graph)} - {*STANDARD_DOMAINS, CHIP_DOMAIN}
    opsets = [
        helper.make_opsetid("", OPSET),
        *(helper.make_opsetid(domain, 1) for domain in (CHIP_DOMAIN, *sorted(domains))),
    ]
    model = helper.make_model(written_graph, opset_imports=opsets, ir_version=_IR_VERSION)
    drop_unread_nodes(model.graph)
    _drop_unread(model.graph)
    _narrow_unsigned(model.graph)
    model = get_pass("int64_to_int32").run(model)
    read = {value.name for value in model.graph.input}
    replace_inputs(
        model.graph, [value for value in model.graph.input if value.name not in graph.weights]
    )
    model.graph.initializer.extend(graph.weights[name] for name in heavy if name in read)
    return model


def _narrow_unsigned(graph: onnx.GraphProto) -> None:
    """Let unsigned integers of 64 bits have 32, as on the chip: no operator asks for 64."""
    wide, narrow = onnx.TensorProto.UINT64, onnx.TensorProto.UINT32
    for inner in iter_graphs(graph):
        for value in (*inner.input, *inner.output, *inner.value_info):
            if value.type.tensor_type.elem_type == wide:
                value.type.tensor_type.elem_type = narrow
        tensors = [*inner.initializer]
        for node in inner.node:
            for entry in node.attribute:
                if entry.HasField("t"):
                    tensors.append(entry.t)
                if node.op_type == "Cast" and entry.name == "to" and entry.i == wide:
                    entry.i = narrow
        for tensor in tensors:
            if tensor.data_type == wide:
                values = numpy_helper.to_array(tensor).astype(np.uint32)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _value(name: str, tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, tensor.element_type, tensor.shape)


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Remove inputs and weights that nothing reads."""
    names = used_names(graph)
    replace_inputs(graph, [value for value in graph.input if value.name in names])
    drop_weights(graph, names)
