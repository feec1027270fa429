"""Recurrent layers of TensorFlow 1: their variables are those of tf.compat.v1.get_variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from tensorflow_ipu.operators import recurrent
from tensorflow_ipu.training.op_util import get_activation_name

v1 = tf.compat.v1
_RANK = 3


class LSTMStateTuple(NamedTuple):
    """State of an LSTM, as TensorFlow 1 has it."""

    c: Any
    """State of the cells."""
    h: Any
    """Last output."""


class _PopnnRNN:
    """A recurrent layer: one kernel for inputs and recurrence, and biases by gate."""

    _num_gates_per_layer: ClassVar[int]
    _scope_name: ClassVar[str]

    def __init__(
        self,
        num_units: int,
        dtype: Any = tf.float32,
        partials_dtype: Any = tf.float32,
        seed: int | None = None,
        weights_initializer: Any = None,
        bias_initializer: Any = None,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        return_state: bool = True,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a layer; its variables are made by the first call.

        Args:
            num_units: Number of units.
            dtype: tf.float16 or tf.float32.
            partials_dtype: Type of partial sums.
            seed: Seed of the default initializer of the kernel.
            weights_initializer: Initializer of the kernel; Glorot's uniform one by default.
            bias_initializer: Initializer of the biases; zeros by default.
            activation: tanh, relu, softmax, sigmoid or hard_sigmoid.
            recurrent_activation: tanh, softmax, sigmoid or hard_sigmoid.
            return_state: Whether calls return the last state too.
            name: Name of the variable scope.
            options: Options of PopLibs, which are accepted without effect.
            options_bwd: Options of PopLibs for training, which are accepted without effect.

        Raises:
            ValueError: For another type.
        """
        del partials_dtype, options, options_bwd
        dtype = tf.as_dtype(dtype)
        if dtype not in (tf.float16, tf.float32):
            raise ValueError(f"Only support float16, float32, provided {dtype}")
        self.dtype, self.name = dtype, name
        self._num_units, self._seed = num_units, seed
        self._weights_initializer, self._bias_initializer = weights_initializer, bias_initializer
        self._activation = get_activation_name(activation)
        self._recurrent_activation = get_activation_name(recurrent_activation)
        self._return_state = return_state
        self._input_size: int | None = None
        self._scope: Any = None
        self.built = False
        self.kernel: Any = None
        self.biases: Any = None

    @property
    def num_layers(self) -> int:
        """Number of layers, which is 1."""
        return 1

    @property
    def num_units(self) -> int:
        """Number of units."""
        return self._num_units

    @property
    def input_size(self) -> int:
        """Size of the last axis of the inputs."""
        if not self._input_size:
            raise ValueError("'input_size' is unknown since layer has not been built.")
        return self._input_size

    @property
    def variables(self) -> list[Any]:
        """The variables."""
        return [variable for variable in (self.kernel, self.biases) if variable is not None]

    weights = trainable_variables = trainable_weights = variables

    @property
    def saveable(self) -> Any:
        """Whether the layer can be saved as an object."""
        return False

    @property
    def canonical_weight_shape(self) -> list[int]:
        """Shape of the kernel."""
        if not self._input_size:
            raise RuntimeError(
                f"{type(self).__name__}.canonical_weight_shape invoked before input shape is known"
            )
        columns = self._num_units * self._num_gates_per_layer
        return [self._input_size + self._num_units, columns]

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Shape of the biases."""
        return [self._num_gates_per_layer, self._num_units]

    def build(self, input_shape: Any) -> None:
        """Make the variables.

        Args:
            input_shape: Shape [time, batch, input].

        Raises:
            ValueError: If the shape has another rank, or its last axis is unknown.
        """
        if self.built:
            return
        shape = tf.TensorShape(input_shape)
        if shape.rank != _RANK:
            raise ValueError(f"Expecting input_shape with 3 dims, got {shape.rank}")
        if shape[-1] is None:
            raise ValueError(
                "The last dimension of the inputs to `_PopnnRNN` should be defined. Found `None`."
            )
        self._input_size = int(shape[-1])
        with self._enter_scope():
            self.kernel = v1.get_variable(
                "kernel",
                dtype=self.dtype,
                initializer=self._weights_initializer
                or v1.glorot_uniform_initializer(self._seed, dtype=self.dtype),
                shape=self.canonical_weight_shape,
            )
            self.biases = v1.get_variable(
                "biases",
                dtype=self.dtype,
                initializer=self._bias_initializer
                or v1.constant_initializer(0.0, dtype=self.dtype),
                shape=self.canonical_bias_shapes,
            )
        self.built = True

    def _enter_scope(self) -> Any:
        if self._scope is None:
            with v1.variable_scope(None, default_name=self.name or self._scope_name) as scope:
                self._scope = scope
                self.name = self.name or scope.name.rpartition("/")[2]
        return v1.variable_scope(self._scope, reuse=v1.AUTO_REUSE, auxiliary_name_scope=False)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer; `call` has the arguments."""
        inputs = tf.convert_to_tensor(inputs, dtype=self.dtype)
        is_major = kwargs.get("time_major", True)
        self.build(inputs.shape if is_major else [*inputs.shape[1::-1], inputs.shape[2]])
        with self._enter_scope():
            return self.call(inputs, *args, **kwargs)

    apply = __call__

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer."""
        raise NotImplementedError


def _make_tuple(c: Any, h: Any) -> Any:
    """Return TensorFlow's own LSTMStateTuple where it has one, else ours."""
    return _tuple_class()(c, h)


def _tuple_class() -> Any:
    cells = getattr(v1.nn, "rnn_cell", None)
    try:
        return cells.LSTMStateTuple if cells is not None else LSTMStateTuple
    except (AttributeError, ImportError):
        return LSTMStateTuple


class PopnnLSTM(_PopnnRNN):
    """LSTM. Inputs are [time, batch, input]; gates are input, forget, candidate, output."""

    _num_gates_per_layer = recurrent.LSTM_GATES
    _scope_name = "popnn_lstm"

    def state_shape(self, batch_size: int) -> tuple[list[int], list[int]]:
        """Return the shapes of the cells' state and the output.

        Args:
            batch_size: Number of examples.
        """
        return [batch_size, self._num_units], [batch_size, self._num_units]

    def call(self, inputs: Any, initial_state: Any = None, training: bool = True) -> Any:
        """Compute the layer.

        Args:
            inputs: Tensor [time, batch, input].
            initial_state: An LSTMStateTuple of tensors [batch, units]; zeros by default.
            training: Accepted without effect.

        Returns:
            Outputs [time, batch, units], and the last LSTMStateTuple if `return_state`.
        """
        del training
        return self._compute(inputs, None, initial_state)

    def _compute(self, inputs: Any, seq_len: Any, initial_state: Any) -> Any:
        if initial_state is None:
            zeros = tf.zeros([tf.shape(inputs)[1], self._num_units], self.dtype)
            initial_state = _make_tuple(zeros, zeros)
        elif not isinstance(initial_state, (_tuple_class(), LSTMStateTuple)):
            raise ValueError(
                f"Invalid initial_state type: `{type(initial_state)}`, expecting `LSTMStateTuple`."
            )
        c, h = (tf.convert_to_tensor(state, self.dtype) for state in initial_state)
        outputs, h, c = recurrent.lstm(
            inputs,
            self.kernel,
            self.biases,
            h,
            c,
            seq_len,
            activation=self._activation,
            recurrent_activation=self._recurrent_activation,
        )
        return (outputs, _make_tuple(c, h)) if self._return_state else outputs


class PopnnDynamicLSTM(PopnnLSTM):
    """LSTM with a number of steps for each example."""

    _scope_name = "popnn_dynamic_lstm"

    def call(  # type: ignore[override]
        self, inputs: Any, seq_len: Any, initial_state: Any = None, training: bool = True
    ) -> Any:
        """Compute the layer.

        Args:
            inputs: Tensor [time, batch, input].
            seq_len: Number of steps of each example, [batch].
            initial_state: An LSTMStateTuple of tensors [batch, units]; zeros by default.
            training: Accepted without effect.

        Returns:
            Outputs [time, batch, units], and the last LSTMStateTuple if `return_state`.
        """
        del training
        return self._compute(inputs, seq_len, initial_state)


class PopnnGRU(_PopnnRNN):
    """GRU. Inputs are [time, batch, input]; gates are update, reset, candidate."""

    _num_gates_per_layer = recurrent.GRU_GATES
    _scope_name = "popnn_gru"

    def __init__(
        self, num_units: int, *args: Any, reset_after: bool = False, **kwargs: Any
    ) -> None:
        """Make a layer.

        Args:
            num_units: Number of units.
            args: As for PopnnLSTM.
            reset_after: Whether the reset gate is applied after the product of the recurrence.
            kwargs: As for PopnnLSTM.
        """
        super().__init__(num_units, *args, **kwargs)
        self._reset_after = reset_after

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Shape of the biases."""
        pairs = [2] if self._reset_after else []
        return [self._num_gates_per_layer, *pairs, self._num_units]

    def state_shape(self, batch_size: int) -> list[int]:
        """Return the shape of the state.

        Args:
            batch_size: Number of examples.
        """
        return [batch_size, self._num_units]

    def call(self, inputs: Any, initial_state: Any = None, training: bool = True) -> Any:
        """Compute the layer.

        Args:
            inputs: Tensor [time, batch, input].
            initial_state: Tensor [batch, units]; zeros by default.
            training: Accepted without effect.

        Returns:
            Outputs [time, batch, units], and the last output if `return_state`.
        """
        del training
        return self._compute(recurrent.gru, inputs, None, initial_state, self.biases)

    def _compute(
        self, function: Any, inputs: Any, seq_len: Any, state: Any, biases: Any, *scores: Any
    ) -> Any:
        if state is None:
            state = tf.zeros([tf.shape(inputs)[1], self._num_units], self.dtype)
        outputs, state = function(
            inputs,
            *scores,
            self.kernel,
            biases,
            tf.convert_to_tensor(state, self.dtype),
            seq_len,
            activation=self._activation,
            recurrent_activation=self._recurrent_activation,
            reset_after=self._reset_after,
        )
        return (outputs, state) if self._return_state else outputs


def _pair_biases(biases: Any) -> Any:
    return tf.stack([biases, biases], axis=1)


class PopnnDynamicGRU(PopnnGRU):
    """GRU with a number of steps for each example."""

    _scope_name = "popnn_dynamic_gru"

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Shape of the biases."""
        return [self._num_gates_per_layer, self._num_units]

    def call(  # type: ignore[override]
        self,
        inputs: Any,
        seq_len: Any,
        initial_state: Any = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Compute the layer.

        Args:
            inputs: Tensor [time, batch, input], or [batch, time, input].
            seq_len: Number of steps of each example, [batch].
            initial_state: Tensor [batch, units]; zeros by default.
            training: Accepted without effect.
            time_major: Whether the first axis of the inputs is the time.

        Returns:
            Outputs [time, batch, units], and the last output if `return_state`.
        """
        del training
        if not time_major:
            inputs = tf.transpose(inputs, [1, 0, 2])
        biases = _pair_biases(self.biases) if self._reset_after else self.biases
        return self._compute(recurrent.gru, inputs, seq_len, initial_state, biases)


class PopnnAUGRU(PopnnGRU):
    """GRU whose update gate an attention score scales."""

    _scope_name = "popnn_augru"

    def call(  # type: ignore[override]
        self,
        inputs: Any,
        seq_len: Any,
        attention_score: Any,
        initial_state: Any = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Compute the layer.

        Args:
            inputs: Tensor [time, batch, input], or [batch, time, input].
            seq_len: Number of steps of each example, [batch].
            attention_score: Scores [time, batch], or [batch, time].
            initial_state: Tensor [batch, units]; zeros by default.
            training: Accepted without effect.
            time_major: Whether the first axis of inputs and scores is the time.

        Returns:
            Outputs [time, batch, units], and the last output if `return_state`.
        """
        del training
        attention_score = tf.convert_to_tensor(attention_score, self.dtype)
        if not time_major:
            inputs = tf.transpose(inputs, [1, 0, 2])
            attention_score = tf.transpose(attention_score)
        gates = v1.get_variable("bias_r_u", [2, self._num_units], self.dtype, v1.ones_initializer())
        candidate = v1.get_variable(
            "bias_c", [1, self._num_units], self.dtype, v1.zeros_initializer()
        )
        biases = tf.concat([gates, candidate], axis=0)
        if self._reset_after:
            biases = _pair_biases(biases)
        return self._compute(
            recurrent.augru, inputs, seq_len, initial_state, biases, attention_score
        )
