"""Conversion of a model without its weights: times and bytes follow from shapes.

Large weights of products lose their data before constants are folded, and folding leaves such
weights unchanged. Weights that folding reads keep their data, above all those of convolutions that
absorb a normalisation. They get a constant if a file with external data is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    FLOAT_TYPES,
    GraphError,
    bring_in,
    count_bytes,
    has_data,
    iter_bodies,
    iter_tensors,
)
from simipu import CompileError, CompileMemoryError
from simipu.operators import Operator, names_where

MAX_FILLED_BYTES = 2 << 30
"""Maximum size of all filled tensors, which is what protobuf, and so a model, can hold."""
LARGE_BYTES = 1 << 20
"""Minimum size of weights whose data is dropped; smaller ones cost nothing to keep."""
_FILLED = (*FLOAT_TYPES, TensorProto.INT8, TensorProto.UINT8)

_log = logging.getLogger("poprt")


def strip_weights(model: onnx.ModelProto, folders: Sequence[Path]) -> None:
    """Drop the data of large weights of products, in place. Other weights without data get theirs
    from one of the folders, or a constant.

    Raises CompileError for integers whose file is missing, because shapes may depend on them.
    """
    _take_constants(model.graph)
    filling = _Filling(folders)
    users, merged = _users(model.graph), _merged_weights(model.graph)
    keeping = names_where(_keeps_weights)
    for tensor in model.graph.initializer:
        large = tensor.data_type in FLOAT_TYPES and count_bytes(tensor) >= LARGE_BYTES
        if large and tensor.name not in merged and users.get(tensor.name, {""}) <= keeping:
            tensor.CopyFrom(_stub(tensor.name, tensor.data_type, tensor.dims))
        elif not has_data(tensor):
            filling.load_or_fill(tensor)
    for tensor, is_weight in iter_tensors(model.graph):
        if not is_weight and tensor.data_location == TensorProto.EXTERNAL:
            filling.load_or_fill(tensor)


def _keeps_weights(entry: Operator) -> bool:
    """Return whether folding never computes an operator with such weights, unless all its inputs
    are weights: a product, a lookup or a transposition. The result is then a weight without data. A
    convolution may absorb a constant that follows it."""
    is_transposed = entry.keeps_elements and not entry.keeps_order
    return entry.is_product or entry.reads_mapped_weights or is_transposed


def _take_constants(graph: onnx.GraphProto) -> None:
    """Replace large ConstantOfShape nodes by weights without data. Models that are published for
    their shapes have such nodes."""
    shapes = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.INT64 and has_data(tensor)
    }
    for node in [
        node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in shapes
    ]:
        types = [entry.t.data_type for entry in node.attribute]
        stub = _stub(
            node.output[0],
            types[0] if types else TensorProto.FLOAT,
            numpy_helper.to_array(shapes[node.input[0]]),
        )
        if stub.data_type in FLOAT_TYPES and count_bytes(stub) >= LARGE_BYTES:
            graph.initializer.append(stub)
            graph.node.remove(node)


def _users(graph: onnx.GraphProto) -> dict[str, set[str]]:
    """Return the operators that read each tensor. An output of the graph and a subgraph count as
    operators of their own."""
    users: dict[str, set[str]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, set()).add(node.op_type)
        for subgraph in iter_bodies(node):
            for name in _users(subgraph):
                users.setdefault(name, set()).add("subgraph")
    for value in graph.output:
        users.setdefault(value.name, set()).add("output")
    return users


def _merged_weights(graph: onnx.GraphProto) -> set[str]:
    """Return the weights of products into which a pass multiplies a following normalisation or
    constant. A convolution also absorbs what is added."""
    weights = {tensor.name for tensor in graph.initializer}
    weights |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    changed: dict[str, set[str]] = {"BatchNormalization": set(), "Mul": set(), "Add": set()}
    for node in graph.node:
        if node.op_type == "BatchNormalization" or weights.intersection(node.input):
            changed.get(node.op_type, set()).update(node.input)
    scaled = changed["BatchNormalization"] | changed["Mul"]
    absorbed = {"Conv": scaled | changed["Add"], "Gemm": scaled, "MatMul": scaled}
    return {
        name
        for node in graph.node
        if node.output and node.output[0] in absorbed.get(node.op_type, ())
        for name in node.input
    }


class _Filling:
    """Gives tensors without data the content of their files, or a constant, up to the size that a
    model can hold."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._left = MAX_FILLED_BYTES

    def load_or_fill(self, tensor: TensorProto) -> None:
        """Load the tensor's data in place, or fill it with constants.

        A model that is published for its shapes lacks the file of its data. Any other fault is
        logged as a warning.
        """
        self._left -= max(0, count_bytes(tensor))
        if self._left < 0:
            raise CompileMemoryError(
                f"weight {tensor.name!r} has no data and shape {list(tensor.dims)}: constants "
                f"that replace such weights would take more than {MAX_FILLED_BYTES} bytes; "
                "profile the model with its data"
            )
        try:
            if tensor.data_location == TensorProto.EXTERNAL:
                bring_in(tensor, *self._folders)
                return
        except FileNotFoundError:
            pass
        except (GraphError, OSError) as error:
            _log.warning("%s; only its shape is used", error)
        _fill(tensor)


def _fill(tensor: TensorProto) -> None:
    if tensor.data_type not in _FILLED or min(tensor.dims, default=0) < 0:
        element = TensorProto.DataType.Name(tensor.data_type)
        raise CompileError(
            f"weight {tensor.name!r} has no data, but its type is {element}: shapes may depend "
            "on its values; put the model's external data beside it"
        )
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    filled = _stub(tensor.name, tensor.data_type, tensor.dims)
    # Neither 0 nor 1: folding would drop an operation with those.
    filled.raw_data = np.full(tuple(tensor.dims), 0.5 if dtype.kind == "f" else 2, dtype).tobytes()
    tensor.CopyFrom(filled)


def _stub(name: str, data_type: int, dims: object) -> TensorProto:
    return TensorProto(name=name, data_type=data_type, dims=dims)  # type: ignore[arg-type]
