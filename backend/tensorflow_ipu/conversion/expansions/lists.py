"""Expansions of lists of tensors (TensorArray) as tensors with an axis in front.

tf2onnx converts the lists of ordinary loops itself, which gives better models; so these expansions
are used for graphs only that it cannot convert.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.constant_folding import static_value
from tensorflow_ipu.conversion.expanding import expands_list, open_function
from tensorflow_ipu.errors import IpuError


@expands_list("TensorListReserve")
def _reserve(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    count = static_value(inputs[1])
    shape = static_value(inputs[0])
    sizes = None if shape is None or np.ndim(shape) == 0 else [int(size) for size in shape]
    if sizes is None or min(sizes, default=0) < 0:
        sizes = _find_element_shape(operation)
    if count is None or sizes is None:
        raise IpuError(
            f"{operation.name} (TensorListReserve): the number of the list's elements and their "
            "shape must be known when the IPU's program is compiled; give TensorArray a size and "
            "an element_shape"
        )
    return tf.zeros([int(count), *sizes], operation.get_attr("element_dtype"))


def _find_element_shape(operation: tf.Operation) -> list[int] | None:
    """Return the shape of the tensors that are written into a list, or read from it."""
    for shape in _iter_element_shapes(operation.graph, operation.outputs[0], 0):
        if shape.is_fully_defined():
            return list(shape)
    return None


_MAX_DEPTH = 8


def _iter_element_shapes(graph: Any, tensor: tf.Tensor, depth: int) -> Iterator[tf.TensorShape]:
    if depth > _MAX_DEPTH:
        return
    for reader in tensor.consumers():
        if reader.type == "TensorListSetItem":
            yield reader.inputs[2].shape
            yield from _iter_element_shapes(graph, reader.outputs[0], depth + 1)
        elif reader.type == "TensorListStack":
            if reader.outputs[0].shape.rank is not None:
                yield reader.outputs[0].shape[1:]
        elif reader.type in ("TensorListGetItem", "Identity"):
            yield from _iter_element_shapes(graph, reader.outputs[0], depth + 1)
        elif reader.type in ("While", "StatelessWhile"):
            place = next(i for i, value in enumerate(reader.inputs) if value is tensor)
            body = open_function(graph, reader.get_attr("body").name)
            yield from _iter_element_shapes(body, body.inputs[place], depth + 1)
            yield from _iter_element_shapes(graph, reader.outputs[place], depth + 1)


@expands_list("TensorListFromTensor", "TensorListStack", "Identity")
def _whole(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.identity(inputs[0])


@expands_list("TensorListGetItem", "TensorListGather")
def _read(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.gather(inputs[0], inputs[1])


@expands_list("TensorListSetItem")
def _write(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    items, index, item = inputs
    return tf.tensor_scatter_nd_update(items, tf.reshape(index, [1, 1]), item[None])


@expands_list("TensorListScatterIntoExistingList")
def _write_some(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    items, values, indices = inputs
    return tf.tensor_scatter_nd_update(items, indices[:, None], values)


@expands_list("TensorListScatter", "TensorListScatterV2")
def _scatter(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    values, indices = inputs[:2]
    places = static_value(indices)
    if places is None:
        return NotImplemented
    count = -1 if len(inputs) == 3 else static_value(inputs[3])  # noqa: PLR2004
    count = max(int(-1 if count is None else count), int(places.max()) + 1)
    zeros = tf.zeros([count, *values.shape[1:]], values.dtype)
    return tf.tensor_scatter_nd_update(zeros, indices[:, None], values)


@expands_list("TensorListLength")
def _length(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.constant(inputs[0].shape[0], tf.int32)


@expands_list("TensorListElementShape")
def _element_shape(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    return tf.constant(inputs[0].shape[1:].as_list(), operation.get_attr("shape_type"))


@expands_list("TensorListConcat", "TensorListConcatV2")
def _concatenate(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The tensors one behind the other, and their lengths."""
    count, length, *rest = inputs[0].shape
    joined = tf.reshape(inputs[0], [count * length, *rest])
    return [joined, tf.constant([length] * count, tf.int64)]


@expands_list("TensorListSplit")
def _split(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    lengths = static_value(inputs[2])
    if lengths is None or len(set(lengths.tolist())) != 1:
        return NotImplemented
    return tf.reshape(inputs[0], [len(lengths), int(lengths[0]), *inputs[0].shape[1:]])


@expands_list("TensorListResize")
def _resize(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    size = static_value(inputs[1])
    if size is None:
        return NotImplemented
    items = inputs[0]
    missing = max(int(size) - items.shape[0], 0)
    padded = tf.pad(items, [[0, missing], *[[0, 0]] * (items.shape.rank - 1)])
    return padded[: int(size)]
