"""Recurrent layers of popnn under the names of their generated operators.

Attributes that only training, or how the IPU computes, depends on are accepted. The intermediate
values, which only gradients read, are empty.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu.operators import recurrent


class LstmLayer(NamedTuple):
    """Results of an LSTM: outputs [time, batch, units], and the last state of the cells."""

    output: Any
    output_c_state: Any
    intermediates: Any


class GruLayer(NamedTuple):
    """Results of a GRU: outputs [time, batch, units]."""

    output: Any
    intermediates: Any


def _nothing(values: Any) -> Any:
    return tf.zeros([0], values.dtype)


def popnn_dynamic_lstm_layer(
    inputs: Any,
    input_h_state: Any,
    input_c_state: Any,
    kernel: Any,
    biases: Any,
    seq_len: Any,
    activation: str,
    recurrent_activation: str,
    **_: Any,
) -> LstmLayer:
    """Compute an LSTM over examples of several lengths; see `recurrent.lstm`."""
    outputs, _, cells = recurrent.lstm(
        tf.convert_to_tensor(inputs),
        tf.convert_to_tensor(kernel),
        tf.convert_to_tensor(biases),
        tf.convert_to_tensor(input_h_state),
        tf.convert_to_tensor(input_c_state),
        seq_len=seq_len,
        activation=activation,
        recurrent_activation=recurrent_activation,
    )
    return LstmLayer(outputs, cells, _nothing(outputs))


def popnn_lstm_layer(
    inputs: Any,
    input_h_state: Any,
    input_c_state: Any,
    kernel: Any,
    biases: Any,
    activation: str,
    recurrent_activation: str,
    **attributes: Any,
) -> LstmLayer:
    """Compute an LSTM; see `recurrent.lstm`."""
    states = (input_h_state, input_c_state)
    names = (activation, recurrent_activation)
    return popnn_dynamic_lstm_layer(inputs, *states, kernel, biases, None, *names, **attributes)


def popnn_dynamic_gru_layer(
    inputs: Any,
    kernel: Any,
    biases: Any,
    initial_state: Any,
    seq_len: Any,
    activation: str,
    recurrent_activation: str,
    reset_after: bool = False,
    **_: Any,
) -> GruLayer:
    """Compute a GRU over examples of several lengths; see `recurrent.gru`."""
    outputs, _ = recurrent.gru(
        tf.convert_to_tensor(inputs),
        tf.convert_to_tensor(kernel),
        tf.convert_to_tensor(biases),
        tf.convert_to_tensor(initial_state),
        seq_len=seq_len,
        activation=activation,
        recurrent_activation=recurrent_activation,
        reset_after=reset_after,
    )
    return GruLayer(outputs, _nothing(outputs))


def popnn_gru_layer(
    inputs: Any,
    kernel: Any,
    biases: Any,
    initial_state: Any,
    activation: str,
    recurrent_activation: str,
    reset_after: bool = False,
    **attributes: Any,
) -> GruLayer:
    """Compute a GRU; see `recurrent.gru`."""
    names = (activation, recurrent_activation)
    return popnn_dynamic_gru_layer(
        inputs, kernel, biases, initial_state, None, *names, reset_after, **attributes
    )


def popnn_augru_layer(
    inputs: Any,
    kernel: Any,
    biases: Any,
    initial_state: Any,
    seq_len: Any,
    att_score: Any,
    activation: str,
    recurrent_activation: str,
    reset_after: bool = False,
    **_: Any,
) -> GruLayer:
    """Compute a GRU whose update gate scores scale; see `recurrent.augru`."""
    outputs, _ = recurrent.augru(
        tf.convert_to_tensor(inputs),
        tf.convert_to_tensor(att_score),
        tf.convert_to_tensor(kernel),
        tf.convert_to_tensor(biases),
        tf.convert_to_tensor(initial_state),
        seq_len=seq_len,
        activation=activation,
        recurrent_activation=recurrent_activation,
        reset_after=reset_after,
    )
    return GruLayer(outputs, _nothing(outputs))
