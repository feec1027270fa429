"""Losses and beam search of CTC."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2

from tensorflow_ipu.markers import chip_operator
from tensorflow_ipu.operators.placement import on_ipu

_ONNX_TYPES = {types_pb2.DT_FLOAT: 1, types_pb2.DT_HALF: 10}
"""ONNX's numbers of the types of a loss."""


@on_ipu
def ctc_loss_v2(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> Any:
    """Compute the loss of CTC from logits.

    Args:
        labels: Classes [batch, max_label_length] in int32.
        logits: Logits [max_time, batch, num_classes] in float16 or float32.
        label_length: Number of labels of each sequence, [batch].
        logit_length: Number of steps of each sequence, [batch].
        blank_index: Number of the blank class.
        out_dtype: Type of the loss; None means that of `logits`.
        name: Name of the operation.

    Returns:
        A loss for each sequence, [batch].

    Raises:
        ValueError: If `out_dtype` is narrower than the type of `logits`.
    """
    logits = tf.convert_to_tensor(logits)
    kind = _choose_type(logits, out_dtype, "logits")
    data = tf.nn.log_softmax(logits)
    return _loss(data, [labels, logit_length, label_length], blank_index, kind, name)


@on_ipu
def ctc_loss_with_log_probs(
    labels: Any,
    data: Any,
    label_length: Any,
    data_length: Any,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> Any:
    """Compute the loss of CTC from logarithms of probabilities.

    Args:
        labels: Classes [batch, max_label_length] in int32.
        data: Logarithms of probabilities [max_time, batch, num_classes], float16 or float32.
        label_length: Number of labels of each sequence, [batch].
        data_length: Number of steps of each sequence, [batch].
        blank_index: Number of the blank class.
        out_dtype: Type of the loss; None means that of `data`.
        name: Name of the operation.

    Returns:
        A loss for each sequence, [batch].

    Raises:
        ValueError: If `out_dtype` is narrower than the type of `data`.
    """
    data = tf.convert_to_tensor(data)
    kind = _choose_type(data, out_dtype, "data")
    return _loss(data, [labels, data_length, label_length], blank_index, kind, name)


def _choose_type(data: Any, out_dtype: Any, what: str) -> Any:
    if out_dtype is None:
        return data.dtype
    kind = tf.as_dtype(out_dtype)
    if data.dtype == tf.float32 and kind == tf.float16:
        raise ValueError(f"out_dtype cannot be float16 when dtype of {what} is float32.")
    return kind


def _loss(data: Any, others: list[Any], blank: int, kind: Any, name: str | None) -> Any:
    attributes = {
        "blank": blank % data.shape[2],
        "reduction": "None",
        "outDataType": _ONNX_TYPES[kind.as_datatype_enum],
    }
    inputs = [data, *(tf.cast(value, tf.int32) for value in others)]
    outputs = [(kind, data.shape[1:2])]
    return chip_operator("Ctc", inputs, outputs, attributes, label=name or "CTCLoss")[0]


@on_ipu
def ctc_beam_search_decoder(
    logits: Any,
    logits_lengths: Any,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[Any, Any, Any]:
    """Search for the most probable labels of sequences of logits.

    Args:
        logits: Logits [max_time, batch, num_classes] in float16 or float32.
        logits_lengths: Number of steps of each sequence, [batch].
        beam_width: Number of beams of the search.
        top_paths: Number of paths that are returned.
        blank_index: Number of the blank class.
        name: Name of the operation.

    Returns:
        Logarithms of the paths' probabilities [batch, top_paths], their lengths [batch,
        top_paths] and their labels [batch, top_paths, max_time].
    """
    data = tf.nn.log_softmax(tf.convert_to_tensor(logits))
    return _search(data, logits_lengths, beam_width, top_paths, blank_index, name)


@on_ipu
def ctc_beam_search_decoder_with_log_probs(
    log_probs: Any,
    input_lengths: Any,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[Any, Any, Any]:
    """Search for the most probable labels of sequences of logarithms of probabilities.

    Args:
        log_probs: Logarithms of probabilities [max_time, batch, num_classes].
        input_lengths: Number of steps of each sequence, [batch].
        beam_width: Number of beams of the search.
        top_paths: Number of paths that are returned.
        blank_index: Number of the blank class.
        name: Name of the operation.

    Returns:
        Logarithms of the paths' probabilities [batch, top_paths], their lengths [batch,
        top_paths] and their labels [batch, top_paths, max_time].
    """
    data = tf.convert_to_tensor(log_probs)
    return _search(data, input_lengths, beam_width, top_paths, blank_index, name)


def _search(
    data: Any, lengths: Any, width: int, paths: int, blank: int, name: str | None
) -> tuple[Any, Any, Any]:
    steps, batch, classes = data.shape
    attributes = {"blank": blank % classes, "beam_width": width, "top_paths": paths}
    outputs = [
        (data.dtype, [batch, paths]),
        (tf.int32, [batch, paths]),
        (tf.int32, [batch, paths, steps]),
    ]
    probabilities, counts, labels = chip_operator(
        "CtcBeamSearchDecoder",
        [data, tf.cast(lengths, tf.int32)],
        outputs,
        attributes,
        label=name or "CTCBeamSearch",
    )
    return probabilities, counts, labels
