"""Operators of neural networks: activations, losses and decoders of CTC, sampled losses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from tensorflow_ipu.markers import MULTI_CONV_OPTIONS, chip_operator
from tensorflow_ipu.operators import embedding_ops
from tensorflow_ipu.operators.ctc import (
    ctc_beam_search_decoder,
    ctc_beam_search_decoder_with_log_probs,
    ctc_loss_v2,
    ctc_loss_with_log_probs,
)
from tensorflow_ipu.operators.functional_ops import inline
from tensorflow_ipu.operators.placement import on_ipu

__all__ = [
    "ctc_beam_search_decoder",
    "ctc_beam_search_decoder_with_log_probs",
    "ctc_loss_v2",
    "ctc_loss_with_log_probs",
    "gelu",
    "hard_sigmoid",
    "multi_conv",
    "nce_loss",
    "sampled_softmax_loss",
    "softmax",
    "swish",
]

_HALF_ROOT = 0.7071067811865475
"""1 / sqrt(2)."""


@on_ipu
def gelu(x: Any, approximate: bool = True, name: str | None = None) -> Any:
    """Compute the Gaussian error linear unit.

    Args:
        x: Tensor in float16 or float32.
        approximate: Use the formula with tanh instead of erf.
        name: Name of the operation.

    Returns:
        A tensor of the type and shape of `x`.
    """
    x = tf.convert_to_tensor(x)
    if approximate:
        return chip_operator("Gelu", [x], [(x.dtype, x.shape)], label=name or "IpuGelu")[0]
    return tf.multiply(0.5 * x, 1.0 + tf.math.erf(x * tf.cast(_HALF_ROOT, x.dtype)), name=name)


@on_ipu
def hard_sigmoid(x: Any, name: str | None = None) -> Any:
    """Compute max(0, min(1, 0.2 x + 0.5)).

    Args:
        x: Tensor in float16 or float32.
        name: Name of the operation.

    Returns:
        A tensor of the type and shape of `x`.
    """
    x = tf.convert_to_tensor(x)
    return tf.clip_by_value(0.2 * x + 0.5, 0.0, 1.0, name=name or "IpuHardSigmoid")


@on_ipu
def swish(x: Any, name: str | None = None) -> Any:
    """Compute x * sigmoid(x).

    Args:
        x: Tensor in float16 or float32.
        name: Name of the operation.

    Returns:
        A tensor of the type and shape of `x`.
    """
    x = tf.convert_to_tensor(x)
    return tf.multiply(x, tf.sigmoid(x), name=name or "IpuSwish")


@on_ipu
def softmax(x: Any, stable: bool = False, name: str | None = None) -> Any:
    """Compute softmax along the last axis.

    Args:
        x: Tensor in float16 or float32.
        stable: Subtract the largest value first. The simulated IPU always does.
        name: Name of the operation.

    Returns:
        A tensor of the type and shape of `x`.
    """
    del stable
    return tf.nn.softmax(tf.convert_to_tensor(x), name=name or "IpuSoftmax")


def multi_conv(
    func: Callable[..., Any] | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """Return a function whose convolutions run in parallel on the real chip.

    On the simulated IPU they are ordinary convolutions: the values are the same.

    Args:
        func: Function of positional arguments that are tensors; it returns tensors.
        options: Poplar's options of a multi-convolution by name.

    Returns:
        The function, or a decorator if `func` is None.
    """

    def decorate(inner: Callable[..., Any]) -> Callable[..., Any]:
        def multi_conv_wrapper(*args: Any) -> Any:
            if options and not isinstance(options, dict):
                raise TypeError(
                    f"Expected the multi_conv `options` to be a `dict`, but got {options} instead."
                )
            first = len(_operations())
            results = inline(inner, args, "multi_conv")
            _check_independence(_operations()[first:])
            if not options:
                return results
            return tf.nest.map_structure(lambda tensor: _label(tensor, options), results)

        return multi_conv_wrapper

    return decorate if func is None else decorate(func)


def _operations() -> list[tf.Operation]:
    if tf.executing_eagerly():
        return []
    operations: list[tf.Operation] = tf.compat.v1.get_default_graph().get_operations()
    return operations


def _check_independence(operations: Sequence[tf.Operation]) -> None:
    """Raise FailedPreconditionError if a convolution depends on another one."""
    dependent: set[str] = set()
    for operation in operations:
        depends = any(tensor.op.name in dependent for tensor in operation.inputs)
        is_convolution = "Conv" in operation.type
        if depends and is_convolution:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                "A MultiConvolution operation requires all convolutions to be independent of each "
                f"other, but {operation.name} depends on another one",
            )
        if depends or is_convolution:
            dependent.add(operation.name)


def _label(tensor: Any, options: Mapping[str, Any]) -> Any:
    """Return a tensor whose operation has the options; those that Poplar lacks are an error when
    the program is compiled."""
    outputs = [(tensor.dtype, tensor.shape)]
    attributes = {"options": list(map(str, options))}
    result = chip_operator(MULTI_CONV_OPTIONS, [tensor], outputs, attributes, label="MultiConv")[0]
    flags = [{"option": str(name), "value": str(value)} for name, value in options.items()]
    text = json.dumps({"flags": flags})
    result.op._set_attr("option_flags", AttrValue(s=text.encode()))  # noqa: SLF001
    return result


def _compute_sampled_logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    subtract_log_q: bool = True,
    name: str | None = None,
    seed: int | None = None,
) -> tuple[Any, Any]:
    """Return logits and labels of the true classes and of sampled ones: each [batch,
    num_true + num_sampled]."""
    table = weights[0] if isinstance(weights, (list, tuple)) else weights
    with tf.name_scope(name or "compute_sampled_logits"):
        flat = tf.reshape(tf.cast(labels, tf.int32), [-1])
        count = flat.shape[0]
        if sampled_values is None:
            sampled_values = tf.random.log_uniform_candidate_sampler(
                true_classes=tf.cast(labels, tf.int64),
                num_true=num_true,
                num_sampled=num_sampled,
                unique=True,
                range_max=num_classes,
                seed=seed,
            )
        sampled, true_expected, sampled_expected = sampled_values
        ids = tf.concat([flat, tf.cast(sampled, tf.int32)], 0)
        rows = tf.cast(embedding_ops.embedding_lookup(table, ids), inputs.dtype)
        offsets = tf.cast(embedding_ops.embedding_lookup(biases, ids), inputs.dtype)
        true_rows = tf.reshape(rows[:count], [-1, num_true, rows.shape[1]])
        true_logits = tf.reduce_sum(tf.expand_dims(inputs, 1) * true_rows, axis=2)
        true_logits += tf.reshape(offsets[:count], [-1, num_true])
        sampled_logits = tf.matmul(inputs, rows[count:], transpose_b=True) + offsets[count:]
        if subtract_log_q:
            true_logits -= tf.math.log(true_expected)
            sampled_logits -= tf.math.log(sampled_expected)
        truth = [tf.ones_like(true_logits) / num_true, tf.zeros_like(sampled_logits)]
        return tf.concat([true_logits, sampled_logits], 1), tf.concat(truth, 1)


@on_ipu
def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    name: str = "sampled_softmax_loss",
    seed: int | None = None,
) -> Any:
    """Compute the softmax loss over the true classes and a sample of the others.

    Args:
        weights: Table [num_classes, dim], or a list of one.
        biases: Biases [num_classes].
        labels: True classes [batch, num_true].
        inputs: Activations [batch, dim].
        num_sampled: Number of classes that are sampled.
        num_classes: Number of classes.
        num_true: Number of true classes of an example.
        sampled_values: Result of a candidate sampler; None means the log-uniform one.
        name: Name of the operation.
        seed: Seed of the sampler.

    Returns:
        A loss for each example, [batch].
    """
    logits, truth = _compute_sampled_logits(
        weights,
        biases,
        labels,
        inputs,
        num_sampled,
        num_classes,
        num_true,
        sampled_values,
        subtract_log_q=True,
        name=name,
        seed=seed,
    )
    # The sum over classes is written out: only the loss itself is computed, no gradient.
    return -tf.reduce_sum(truth * tf.nn.log_softmax(logits), axis=1)


@on_ipu
def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    name: str = "nce_loss",
) -> Any:
    """Compute the noise-contrastive loss over the true classes and a sample of the others.

    Args:
        weights: Table [num_classes, dim], or a list of one.
        biases: Biases [num_classes].
        labels: True classes [batch, num_true].
        inputs: Activations [batch, dim].
        num_sampled: Number of classes that are sampled.
        num_classes: Number of classes.
        num_true: Number of true classes of an example.
        sampled_values: Result of a candidate sampler; None means the log-uniform one.
        name: Name of the operation.

    Returns:
        A loss for each example, [batch].
    """
    logits, truth = _compute_sampled_logits(
        weights,
        biases,
        labels,
        inputs,
        num_sampled,
        num_classes,
        num_true,
        sampled_values,
        subtract_log_q=True,
        name=name,
    )
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=truth, logits=logits)
    return tf.reduce_sum(losses, axis=1)
