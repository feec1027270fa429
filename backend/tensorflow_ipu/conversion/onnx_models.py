"""A segment's TensorFlow graph as an ONNX model: tf2onnx with the handlers of this package."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx
import tensorflow as tf
from onnxgraph import iter_nodes

from tensorflow_ipu.constant_folding import find_constants
from tensorflow_ipu.conversion.expanding import expand
from tensorflow_ipu.errors import IpuError, TrainingError

OPSET: Final = 18
_lock = threading.RLock()
"""tf2onnx keeps the functions of the graph that it converts in a module's variable."""
_CHIP_DOMAIN: Final = "ai.graphcore"
_DOMAINS: Final = frozenset(("", "ai.onnx", "ai.onnx.ml", _CHIP_DOMAIN))


def to_onnx(
    graph: tf.Graph,
    inputs: Mapping[str, tf.Tensor],
    outputs: Mapping[str, tf.Tensor],
) -> onnx.ModelProto:
    """Convert a graph.

    Args:
        graph: The graph, which has placeholders for its inputs only.
        inputs: Placeholders by the names that they have in the model.
        outputs: Tensors by the names that they have in the model.

    Returns:
        The model.

    Raises:
        IpuError: If the graph has an operator that cannot be converted.
    """
    with _lock:
        try:
            model = _expand_and_convert(graph, inputs, outputs, with_lists=False)
            is_good = not _has_lists(model.graph)
        except IpuError:
            if not _uses_lists(graph):
                raise
            is_good = False
        if not is_good and _uses_lists(graph):
            model = _expand_and_convert(graph, inputs, outputs, with_lists=True)
    _add_unread(model.graph, inputs)
    if any(node.domain == _CHIP_DOMAIN for node in iter_nodes(model.graph)):
        del model.opset_import[1:]
        model.opset_import.append(onnx.helper.make_opsetid(_CHIP_DOMAIN, 1))
    return model


def _expand_and_convert(
    graph: tf.Graph,
    inputs: Mapping[str, tf.Tensor],
    outputs: Mapping[str, tf.Tensor],
    with_lists: bool,
) -> onnx.ModelProto:
    expanded, starts, ends = expand(
        graph, list(inputs.values()), list(outputs.values()), with_lists
    )
    # Names that users give are no names for tf2onnx's lists: they come in afterwards.
    sources = [tensor.name for tensor in starts]
    with expanded.as_default(), tf.control_dependencies(None):
        targets = [tf.identity(tensor).name for tensor in ends]
    with tf.Graph().as_default():  # tf2onnx refuses eager mode
        model = _convert(expanded, sources, targets)
    _rename(
        model, dict(zip(sources, inputs, strict=True)), dict(zip(targets, outputs, strict=True))
    )
    _check_operators(model)
    return model


def _uses_lists(graph: tf.Graph) -> bool:
    """Return whether a graph has lists of tensors (TensorArray)."""
    return any(
        tensor.dtype == tf.variant
        for operation in graph.get_operations()
        for tensor in operation.outputs
    )


def _has_lists(graph: onnx.GraphProto) -> bool:
    """Return whether a model has sequences, or Loops that stack results: poprt takes neither where
    the number of iterations is known at run time only. Or nodes that tf2onnx left half converted,
    as it does with lists that are read in one way only."""
    return any(
        "Sequence" in node.op_type
        or _has_odd_inputs(node)
        or (node.op_type == "Loop" and len(node.output) > len(node.input) - _LOOP_FIXED)
        for node in iter_nodes(graph)
    )


def _has_odd_inputs(node: onnx.NodeProto) -> bool:
    if node.domain or not onnx.defs.has(node.op_type):
        return False
    schema = onnx.defs.get_schema(node.op_type, OPSET)
    return not schema.min_input <= len(node.input) <= schema.max_input


_LOOP_FIXED: Final = 2
"""Number of the inputs of a Loop that are not carried: the trip count and the condition."""


def _convert(graph: tf.Graph, sources: list[str], targets: list[str]) -> onnx.ModelProto:
    from tf2onnx import optimizer, tfonnx

    from tensorflow_ipu.conversion.handlers import custom_handlers, restore_markers

    for name in ("tf2onnx", "tf2onnx.tfonnx", "tf2onnx.tf_utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # tf2onnx computes constants in sessions, whose threads may all wait for this conversion.
    tfonnx.compute_const_folding_using_tf = find_constants
    # The converter folds constants in a session, which would launch what is placed on an IPU.
    for operation in graph.get_operations():
        operation._set_device("")  # noqa: SLF001
    with graph.as_default():
        try:
            converted = tfonnx.process_tf_graph(
                graph,
                opset=OPSET,
                custom_op_handlers=custom_handlers(),
                input_names=sources,
                output_names=targets,
            )
        except Exception as error:  # tf2onnx raises whatever its handlers do
            raise IpuError(f"the graph cannot be converted to ONNX: {error}") from error
        optimized = optimizer.optimize_graph(converted, catch_errors=True)
        model: onnx.ModelProto = optimized.make_model("tensorflow")
    restore_markers(model)
    return model


def _rename(model: onnx.ModelProto, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    """Give inputs and outputs their own names, and all other values other ones."""
    graph = model.graph
    names = {**inputs, **outputs}
    taken = set(names.values())

    def rename(name: str) -> str:
        if name in names:
            return names[name]
        return f"{name}/value" if name in taken else name

    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        for value in values:
            value.name = rename(value.name)
    for node in iter_nodes(graph):
        node.input[:] = [rename(name) for name in node.input]
        node.output[:] = [rename(name) for name in node.output]


def _add_unread(graph: onnx.GraphProto, inputs: Mapping[str, tf.Tensor]) -> None:
    """Add the inputs that no operator reads, which tf2onnx leaves out."""
    present = {value.name for value in graph.input}
    for name, tensor in inputs.items():
        if name not in present:
            dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype.as_numpy_dtype))
            shape = tensor.shape.as_list()
            graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, shape))


def _check_operators(model: onnx.ModelProto) -> None:
    """Raise IpuError for operators that no domain has, which tf2onnx writes into the model, and
    TrainingError if it trains."""
    schemas = _Schemas()
    for node in iter_nodes(model.graph):
        if node.domain not in _DOMAINS or (not node.domain and node.op_type not in schemas):
            if node.op_type.endswith("Grad") or "Apply" in node.op_type:
                raise TrainingError(
                    f"operator {node.op_type} ({node.name}) trains: training is not supported, "
                    "this TensorFlow for the IPU computes inference"
                )
            raise IpuError(
                f"operator {node.op_type} ({node.name}) is not supported on the IPU: nothing "
                "converts it"
            )


class _Schemas:
    """The operators of the ONNX standard."""

    def __contains__(self, name: str) -> bool:
        return bool(onnx.defs.has(name))
