"""Recurrent layers: LSTM, GRU and GRU with attention, in popnn's order of gates.

The columns of a kernel are gates: input, forget, candidate and output of an LSTM; update, reset and
candidate of a GRU. LSTM and GRU are one node of ONNX each, so that the compiler sees a layer,
unless an activation is softmax, which ONNX's layers do not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.markers import chip_operator
from tensorflow_ipu.operators.placement import on_ipu

ONNX_ACTIVATIONS: Final = {
    "tanh": "Tanh",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "hard_sigmoid": "HardSigmoid",
}
"""Activations of ONNX's recurrent layers by Keras' names."""
_FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "sigmoid": tf.sigmoid,
    "softmax": tf.nn.softmax,
    "hard_sigmoid": lambda x: tf.clip_by_value(0.2 * x + 0.5, 0, 1),
}
LSTM_GATES, GRU_GATES = 4, 3


@on_ipu
def lstm(
    inputs: Any,
    kernel: Any,
    biases: Any,
    h_state: Any,
    c_state: Any,
    seq_len: Any = None,
    activation: str = "tanh",
    recurrent_activation: str = "sigmoid",
) -> tuple[Any, Any, Any]:
    """Compute an LSTM.

    Args:
        inputs: Tensor [time, batch, input].
        kernel: Tensor [input + units, 4 units]; gates are input, forget, candidate, output.
        biases: Tensor [4, units].
        h_state: First output, [batch, units].
        c_state: First state of the cells, [batch, units].
        seq_len: Number of steps of each example, [batch]; None means all.
        activation: Activation of candidate and output.
        recurrent_activation: Activation of the gates.

    Returns:
        Outputs [time, batch, units], which are zero beyond an example's steps, the last output and
        the last state of the cells.
    """
    time, batch, size = inputs.shape.as_list()
    units = h_state.shape[-1]
    if not {activation, recurrent_activation} <= set(ONNX_ACTIVATIONS):
        step = _LstmStep(kernel, biases, size, activation, recurrent_activation)
        outputs, (h, c) = _unroll(inputs, (h_state, c_state), seq_len, step)
        return outputs, h, c
    order = (0, 3, 1, 2)  # ONNX has input, output, forget, candidate
    weights, recurrence, bias = _arrange(kernel, biases, size, order)
    lengths = _make_lengths(seq_len, inputs)
    shape = tf.TensorShape([1, batch, units])
    gate, cell = ONNX_ACTIVATIONS[recurrent_activation], ONNX_ACTIVATIONS[activation]
    outputs, h, c = chip_operator(
        "LSTM",
        [inputs, weights, recurrence, bias, lengths, h_state[None], c_state[None]],
        [(inputs.dtype, [time, 1, batch, units]), (inputs.dtype, shape), (inputs.dtype, shape)],
        {"hidden_size": int(units), "activations": [gate, cell, cell]},
        domain="",
    )
    return outputs[:, 0], h[0], c[0]


@on_ipu
def gru(
    inputs: Any,
    kernel: Any,
    biases: Any,
    state: Any,
    seq_len: Any = None,
    activation: str = "tanh",
    recurrent_activation: str = "sigmoid",
    reset_after: bool = False,
) -> tuple[Any, Any]:
    """Compute a GRU.

    Args:
        inputs: Tensor [time, batch, input].
        kernel: Tensor [input + units, 3 units]; gates are update, reset, candidate.
        biases: Tensor [3, units], or [3, 2, units] if `reset_after`.
        state: First output, [batch, units].
        seq_len: Number of steps of each example, [batch]; None means all.
        activation: Activation of the candidate.
        recurrent_activation: Activation of the gates.
        reset_after: Whether the reset gate is applied after the product of the recurrence.

    Returns:
        Outputs [time, batch, units], which are zero beyond an example's steps, and the last output.
    """
    time, batch, size = inputs.shape.as_list()
    units = state.shape[-1]
    if not {activation, recurrent_activation} <= set(ONNX_ACTIVATIONS):
        step = _GruStep(kernel, biases, size, activation, recurrent_activation, reset_after)
        outputs, (h,) = _unroll(inputs, (state,), seq_len, step)
        return outputs, h
    weights, recurrence, bias = _arrange(kernel, biases, size, (0, 1, 2))
    shape = tf.TensorShape([1, batch, units])
    gate, candidate = ONNX_ACTIVATIONS[recurrent_activation], ONNX_ACTIVATIONS[activation]
    outputs, h = chip_operator(
        "GRU",
        [inputs, weights, recurrence, bias, _make_lengths(seq_len, inputs), state[None]],
        [(inputs.dtype, [time, 1, batch, units]), (inputs.dtype, shape)],
        {
            "hidden_size": int(units),
            "activations": [gate, candidate],
            "linear_before_reset": int(reset_after),
        },
        domain="",
    )
    return outputs[:, 0], h[0]


@on_ipu
def augru(
    inputs: Any,
    attention: Any,
    kernel: Any,
    biases: Any,
    state: Any,
    seq_len: Any = None,
    activation: str = "tanh",
    recurrent_activation: str = "sigmoid",
    reset_after: bool = False,
) -> tuple[Any, Any]:
    """Compute a GRU whose update gate an attention score scales.

    The update gate is multiplied by one minus the score (Zhou et al., Deep Interest Evolution
    Network, 2018).

    Args:
        inputs: Tensor [time, batch, input].
        attention: Scores [time, batch].
        kernel: As for `gru`.
        biases: As for `gru`.
        state: As for `gru`.
        seq_len: As for `gru`.
        activation: As for `gru`.
        recurrent_activation: As for `gru`.
        reset_after: As for `gru`.

    Returns:
        As `gru`.
    """
    size = inputs.shape[-1]
    step = _GruStep(kernel, biases, size, activation, recurrent_activation, reset_after, attention)
    outputs, (h,) = _unroll(inputs, (state,), seq_len, step)
    return outputs, h


def _arrange(kernel: Any, biases: Any, size: int, order: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return weights, recurrence and biases as ONNX has them: gates are rows, in its order."""
    gates = tf.split(kernel, len(order), axis=1)
    columns = tf.concat([gates[place] for place in order], axis=1)
    rows = tf.transpose(columns)[None]
    biases = tf.gather(tf.convert_to_tensor(biases), list(order))
    if biases.shape.rank == 2:  # noqa: PLR2004 # [gates, units]: none for the recurrence
        biases = tf.stack([biases, tf.zeros_like(biases)], axis=1)
    flat = tf.reshape(tf.transpose(biases, [1, 0, 2]), [1, -1])
    return rows[:, :, :size], rows[:, :, size:], flat


def _make_lengths(seq_len: Any, inputs: Any) -> Any:
    time, batch = inputs.shape[:2]
    if seq_len is None:
        count = tf.shape(inputs)[1] if batch is None else batch
        return tf.fill([count], tf.constant(time, tf.int32))
    return tf.cast(seq_len, tf.int32)


class _LstmStep:
    """One step of an LSTM."""

    def __init__(
        self, kernel: Any, biases: Any, size: int, activation: str, recurrent_activation: str
    ) -> None:
        self._kernel, self._size = tf.convert_to_tensor(kernel), size
        self._biases = tf.reshape(biases, [-1])
        self._activation = _FUNCTIONS[activation]
        self._gate = _FUNCTIONS[recurrent_activation]

    def __call__(self, _: int, x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        h, c = states
        sums = tf.matmul(tf.concat([x, h], axis=1), self._kernel) + self._biases
        i, f, g, o = tf.split(sums, LSTM_GATES, axis=1)
        c = self._gate(f) * c + self._gate(i) * self._activation(g)
        return self._gate(o) * self._activation(c), c


class _GruStep:
    """One step of a GRU, with attention scores or without."""

    def __init__(
        self,
        kernel: Any,
        biases: Any,
        size: int,
        activation: str,
        recurrent_activation: str,
        reset_after: bool,
        attention: Any = None,
    ) -> None:
        kernel = tf.convert_to_tensor(kernel)
        biases = tf.convert_to_tensor(biases)
        pairs = biases.shape.rank == 3  # noqa: PLR2004 # [gates, 2, units]
        self._weights, self._recurrence = kernel[:size], kernel[size:]
        self._bias = tf.reshape(biases[:, 0] if pairs else biases, [-1])
        self._recurrent_bias = (
            tf.reshape(biases[:, 1], [-1]) if pairs else tf.zeros_like(self._bias)
        )
        self._activation = _FUNCTIONS[activation]
        self._gate = _FUNCTIONS[recurrent_activation]
        self._reset_after, self._attention = reset_after, attention

    def __call__(self, number: int, x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = states
        xz, xr, xg = tf.split(tf.matmul(x, self._weights) + self._bias, GRU_GATES, axis=1)
        wz, wr, wg = tf.split(self._recurrence, GRU_GATES, axis=1)
        bz, br, bg = tf.split(self._recurrent_bias, GRU_GATES)
        z = self._gate(xz + tf.matmul(h, wz) + bz)
        r = self._gate(xr + tf.matmul(h, wr) + br)
        if self._reset_after:
            g = self._activation(xg + r * (tf.matmul(h, wg) + bg))
        else:
            g = self._activation(xg + tf.matmul(r * h, wg) + bg)
        if self._attention is not None:
            z = (1 - self._attention[number][:, None]) * z
        return (z * h + (1 - z) * g,)


def _unroll(
    inputs: Any, states: tuple[Any, ...], seq_len: Any, step: Callable[..., tuple[Any, ...]]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the outputs of all steps, and the last states."""
    outputs = []
    for number in range(inputs.shape[0]):
        following = step(number, inputs[number], states)
        output = following[0]
        if seq_len is not None:
            goes_on = (tf.cast(seq_len, tf.int32) > number)[:, None]
            output = tf.where(goes_on, output, tf.zeros_like(output))
            pairs = zip(following, states, strict=True)
            following = tuple(tf.where(goes_on, new, old) for new, old in pairs)
        outputs.append(output)
        states = following
    return tf.stack(outputs), states
