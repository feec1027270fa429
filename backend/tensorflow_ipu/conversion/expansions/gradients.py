"""Expansions of operators that TensorFlow's gradients are made of.

Scripts that train are refused. These operators also occur alone, in functions that compute
derivatives of inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.conversion.expanding import expands

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
_RELU6_LIMIT: Final = 6


def _where(condition: Any, value: Any) -> Any:
    return tf.where(condition, value, tf.zeros_like(value))


_BY_INPUT: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "ReluGrad": lambda dy, x: _where(x > 0, dy),
    "Relu6Grad": lambda dy, x: _where((x > 0) & (x < _RELU6_LIMIT), dy),
    "SoftplusGrad": lambda dy, x: dy * tf.sigmoid(x),
    "SoftsignGrad": lambda dy, x: dy / tf.square(1 + tf.abs(x)),
    "EluGrad": lambda dy, y: dy * tf.where(y < 0, y + 1, tf.ones_like(y)),
    "SeluGrad": lambda dy, y: (
        dy * tf.where(y < 0, y + _SELU_SCALE * _SELU_ALPHA, _SELU_SCALE * tf.ones_like(y))
    ),
}
"""Derivatives whose operators have the gradient first, then a value."""
_BY_OUTPUT: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "SigmoidGrad": lambda y, dy: dy * y * (1 - y),
    "TanhGrad": lambda y, dy: dy * (1 - tf.square(y)),
    "SqrtGrad": lambda y, dy: dy * tf.constant(0.5, y.dtype) / y,
    "RsqrtGrad": lambda y, dy: dy * tf.constant(-0.5, y.dtype) * y * y * y,
    "ReciprocalGrad": lambda y, dy: -dy * y * y,
    "InvGrad": lambda y, dy: -dy * y * y,
}
"""Derivatives whose operators have the result first, then the gradient."""


@expands(*_BY_INPUT, *_BY_OUTPUT)
def _elementwise(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    derivative = _BY_INPUT.get(operation.type) or _BY_OUTPUT[operation.type]
    return derivative(*inputs)


@expands("LeakyReluGrad")
def _leaky_relu_grad(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    dy, x = inputs
    return tf.where(x > 0, dy, dy * tf.constant(operation.get_attr("alpha"), dy.dtype))


@expands("BiasAddGrad")
def _bias_add_grad(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    [dy] = inputs
    channels = 1 if operation.get_attr("data_format") == b"NCHW" else dy.shape.rank - 1
    return tf.reduce_sum(dy, [axis for axis in range(dy.shape.rank) if axis != channels])


@expands("Conv2DBackpropFilter")
def _conv2d_backprop_filter(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Return the filters' gradient: a convolution of the images by the results' gradient, with
    channels and batch exchanged, and strides and dilations too."""
    x, _, dy = inputs
    strides, dilations = operation.get_attr("strides"), operation.get_attr("dilations")
    if operation.get_attr("data_format") == b"NCHW":
        x, dy = tf.transpose(x, [0, 2, 3, 1]), tf.transpose(dy, [0, 2, 3, 1])
        strides, dilations = strides[2:], dilations[2:]
    else:
        strides, dilations = strides[1:3], dilations[1:3]
    size = operation.outputs[0].shape.as_list()
    pads = _find_padding(operation, x, dy, (strides, dilations), size)
    result = tf.nn.conv2d(
        tf.transpose(x, [3, 1, 2, 0]),
        tf.transpose(dy, [1, 2, 0, 3]),
        strides=dilations,
        padding=[[0, 0], *pads, [0, 0]],
        dilations=strides,
    )
    return tf.transpose(result[:, : size[0], : size[1]], [1, 2, 0, 3])


def _find_padding(
    operation: tf.Operation,
    x: tf.Tensor,
    dy: tf.Tensor,
    steps: tuple[list[int], list[int]],
    size: list[int],
) -> list[list[int]]:
    """Return the rows and columns in front of an image and behind it."""
    kind = operation.get_attr("padding")
    if kind == b"EXPLICIT":
        explicit = operation.get_attr("explicit_paddings")
        first = 2 if operation.get_attr("data_format") == b"NHWC" else 4
        return [explicit[first : first + 2], explicit[first + 2 : first + 4]]
    pads = []
    for axis, (stride, dilation) in enumerate(zip(*steps, strict=True)):
        extent = (size[axis] - 1) * dilation + 1
        missing = (dy.shape[axis + 1] - 1) * stride + extent - x.shape[axis + 1]
        total = max(missing, 0) if kind == b"SAME" else 0
        pads.append([total // 2, total - total // 2])
    return pads
