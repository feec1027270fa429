"""Recurrent Keras layers: LSTM and GRU with Keras' names of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import tensorflow as tf

from tensorflow_ipu.addons.base import IPULayer, as_shape, serialize_initializer
from tensorflow_ipu.operators import rand_ops, recurrent
from tensorflow_ipu.training.op_util import get_activation_name

ACTIVATIONS: Final = ("tanh", "relu", "softmax", "sigmoid", "hard_sigmoid")
RECURRENT_ACTIVATIONS: Final = ("tanh", "softmax", "sigmoid", "hard_sigmoid")
_RANK = 3
_KERAS_IMPLEMENTATION = 2
_UNSUPPORTED: Final = {
    "use_bias": True,
    "kernel_regularizer": None,
    "recurrent_regularizer": None,
    "bias_regularizer": None,
    "activity_regularizer": None,
    "kernel_constraint": None,
    "recurrent_constraint": None,
    "bias_constraint": None,
    "recurrent_dropout": 0.0,
    "implementation": _KERAS_IMPLEMENTATION,
    "go_backwards": False,
    "unroll": False,
}
"""Arguments of Keras' layers that must have their defaults."""


class _PopnnRNN(IPULayer):
    """A recurrent layer."""

    _label: ClassVar[str]
    _num_gates_per_layer: ClassVar[int]

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        dropout: float = 0.0,
        dropout_seed: Any = None,
        return_sequences: bool = False,
        return_state: bool = False,
        stateful: bool = False,
        partials_dtype: Any = tf.float32,
        seed: int | None = None,
        time_major: bool = False,
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            units: Number of units.
            activation: tanh, relu, softmax, sigmoid or hard_sigmoid.
            recurrent_activation: tanh, softmax, sigmoid or hard_sigmoid.
            use_bias: True.
            kernel_initializer: Initializer of the kernel.
            recurrent_initializer: Initializer of the recurrent kernel.
            bias_initializer: Initializer of the biases.
            dropout: Share of the inputs that training drops.
            dropout_seed: Seed of that: two whole numbers.
            return_sequences: Whether the outputs of all steps are returned.
            return_state: Whether the last state is returned too.
            stateful: Whether a call begins with the last state of the one before.
            partials_dtype: Type of partial sums.
            seed: Seed of the default initializers.
            time_major: Whether inputs and outputs are [time, batch, ...].
            options: Options of PopLibs, which are accepted without effect.
            options_bwd: Options of PopLibs for training, which are accepted without effect.
            kwargs: Arguments of Keras' layer and of Layer.

        Raises:
            ValueError: For an argument of Keras' layer that is not supported.
        """
        del options, options_bwd
        self._refuse({"use_bias": use_bias, **kwargs})
        super().__init__(**{k: v for k, v in kwargs.items() if k not in _UNSUPPORTED})
        self._activation = self._find_activation(activation, ACTIVATIONS, "an activation")
        self._recurrent_activation = self._find_activation(
            recurrent_activation, RECURRENT_ACTIVATIONS, "a recurrent activation"
        )
        self._plain_dtype = tf.as_dtype(self.dtype or tf.keras.backend.floatx())
        if self._plain_dtype not in (tf.float16, tf.float32):
            raise ValueError(f"Only support float16, float32, provided {self._plain_dtype}")
        self._num_units, self._seed = units, seed
        self._dropout, self._dropout_seed = dropout, dropout_seed
        self._return_state, self._return_sequences = return_state, return_sequences
        self._time_major, self._stateful = time_major, stateful
        self._partials_dtype = partials_dtype
        initializers = tf.keras.initializers
        self._kernel_initializer = (
            initializers.GlorotUniform(seed)
            if kernel_initializer is None
            else initializers.get(kernel_initializer)
        )
        self._recurrent_initializer = (
            initializers.Orthogonal(seed=seed)
            if recurrent_initializer is None
            else initializers.get(recurrent_initializer)
        )
        self._bias_initializer = initializers.get(bias_initializer or "zeros")
        self._input_size: int | None = None
        self.states: list[Any] = []

    def _refuse(self, arguments: Mapping[str, Any]) -> None:
        for name, default in _UNSUPPORTED.items():
            value = arguments.get(name, default)
            if name == "implementation" and value == 1:
                continue
            if value != default:
                shown = f"{name} = {value}" if isinstance(default, (bool, int, float)) else name
                raise ValueError(f"IPU custom {self._label} layer does not support {shown}.")

    @staticmethod
    def _find_activation(value: Any, accepted: Sequence[str], what: str) -> str:
        name = get_activation_name(value)
        if name not in accepted:
            listed = ",".join(f'"{word}"' for word in accepted)
            raise ValueError(
                f"IPU custom RNN layer does not support '{name}' as {what}. Acceptable value are "
                f"{listed}"
            )
        return name

    @property
    def num_units(self) -> int:
        """Number of units."""
        return self._num_units

    @property
    def input_size(self) -> int:
        """Size of the last axis of the inputs."""
        if not self._input_size:
            raise ValueError("`_input_size` is unknown because the layer has not been built yet.")
        return self._input_size

    @property
    def canonical_weight_shape(self) -> list[int]:
        """Shape of kernel and recurrent kernel together."""
        return [self.input_size + self._num_units, self._num_units * self._num_gates_per_layer]

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Shape of the biases."""
        return [self._num_gates_per_layer * self._num_units]

    def build(self, input_shape: Any) -> None:
        """Make the weights.

        Args:
            input_shape: Shape [batch, time, input], or [time, batch, input].

        Raises:
            ValueError: If the shape has another rank, or its last axis is unknown.
        """
        if getattr(self, "built", False) and self._input_size:
            return
        shape = as_shape(input_shape)
        if len(shape) != _RANK:
            raise ValueError(f"Expecting input_shape with 3 dims, got {len(shape)}")
        if shape[-1] is None:
            raise ValueError(
                "The last dimension of the inputs to `_PopnnRNN` should be defined. Found `None`."
            )
        self._input_size = shape[-1]
        columns = self._num_units * self._num_gates_per_layer
        self.kernel = self._add("kernel", self._kernel_initializer, [self._input_size, columns])
        self.recurrent_kernel = self._add(
            "recurrent_kernel", self._recurrent_initializer, [self._num_units, columns]
        )
        self.biases = self._add("biases", self._get_bias_initializer(), self.canonical_bias_shapes)
        if self._stateful:
            batch = shape[1 if self._time_major else 0]
            self.states = [
                tf.Variable(tf.zeros([batch, self._num_units], self._plain_dtype), trainable=False)
                for _ in range(self._count_states())
            ]
        self.built = True

    def _add(self, name: str, initializer: Any, shape: Sequence[int]) -> Any:
        return self.add_weight(
            name=name,
            dtype=self._plain_dtype.name,
            initializer=initializer,
            shape=tuple(shape),
        )

    def _get_bias_initializer(self) -> Any:
        return self._bias_initializer

    def _count_states(self) -> int:
        raise NotImplementedError

    def call(
        self, inputs: Any, mask: Any = None, training: bool | None = None, initial_state: Any = None
    ) -> Any:
        """Compute the layer.

        Args:
            inputs: Tensor [batch, time, input], or [time, batch, input] if `time_major`.
            mask: Not supported.
            training: Whether inputs are dropped.
            initial_state: First output, for an LSTM with the first state of the cells.

        Returns:
            The last output, or those of all steps; with the last state if `return_state`.
        """
        self._check_unsupported(mask is not None, "mask", "call")
        inputs = tf.convert_to_tensor(inputs, dtype=self._plain_dtype)
        if inputs.shape.rank != _RANK:
            raise ValueError("inputs tensor must be 3D")
        if not self._time_major:
            inputs = tf.transpose(inputs, [1, 0, 2])
        if initial_state is None:
            zeros = tf.zeros([tf.shape(inputs)[1], self._num_units], self._plain_dtype)
            initial_state = self.states or [zeros] * self._count_states()
        elif not isinstance(initial_state, (list, tuple)):
            initial_state = [initial_state]
        if self._dropout > 0 and training is True:
            shape = inputs.shape.as_list()
            inputs = rand_ops.dropout(
                inputs, seed=self._dropout_seed, rate=self._dropout, noise_shape=[1, *shape[1:]]
            )
        states = [tf.convert_to_tensor(state, self._plain_dtype) for state in initial_state]
        outputs, *last = self._compute(inputs, states)
        for variable, value in zip(self.states, last, strict=False):
            variable.assign(value)
        if not self._return_sequences:
            outputs = last[0]
        elif not self._time_major:
            outputs = tf.transpose(outputs, [1, 0, 2])
        return (outputs, *last) if self._return_state else outputs

    def _compute(self, inputs: Any, states: list[Any]) -> tuple[Any, ...]:
        raise NotImplementedError

    def _combine_kernels(self) -> Any:
        pair = [tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.recurrent_kernel)]
        return tf.concat(pair, axis=0)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            "units": self._num_units,
            "activation": self._activation,
            "recurrent_activation": self._recurrent_activation,
            "kernel_initializer": serialize_initializer(self._kernel_initializer),
            "recurrent_initializer": serialize_initializer(self._recurrent_initializer),
            "bias_initializer": serialize_initializer(self._bias_initializer),
            "dropout": self._dropout,
            "dropout_seed": self._dropout_seed,
            "return_sequences": self._return_sequences,
            "return_state": self._return_state,
            "stateful": self._stateful,
            "partials_dtype": self._partials_dtype,
            "seed": self._seed,
            "time_major": self._time_major,
        }


class PopnnLSTM(_PopnnRNN):
    """LSTM. Gates are input, forget, candidate and output, as in Keras."""

    _label = "LSTM"
    _num_gates_per_layer = recurrent.LSTM_GATES

    def __init__(
        self, units: int, *args: Any, unit_forget_bias: bool = True, **kwargs: Any
    ) -> None:
        """Make a layer.

        Args:
            units: Number of units.
            args: Further arguments: those of all recurrent layers.
            unit_forget_bias: Whether the biases of the forget gate begin with one.
            kwargs: The same, by name.
        """
        self.unit_forget_bias = unit_forget_bias
        super().__init__(units, *args, **kwargs)

    def _count_states(self) -> int:
        return 2

    def _get_bias_initializer(self) -> Any:
        if not self.unit_forget_bias:
            return self._bias_initializer
        units, initializer = self._num_units, self._bias_initializer

        def initialize(_: Any, *args: Any, **kwargs: Any) -> Any:
            parts = [
                initializer((units,), *args, **kwargs),
                tf.keras.initializers.Ones()((units,), *args, **kwargs),
                initializer((2 * units,), *args, **kwargs),
            ]
            return tf.concat(parts, axis=0)

        return initialize

    def state_shape(self, batch_size: int) -> tuple[list[int], list[int]]:
        """Return the shapes of the output and the cells' state.

        Args:
            batch_size: Number of examples.
        """
        return [batch_size, self._num_units], [batch_size, self._num_units]

    def _compute(self, inputs: Any, states: list[Any]) -> tuple[Any, ...]:
        biases = tf.reshape(tf.convert_to_tensor(self.biases), [recurrent.LSTM_GATES, -1])
        return recurrent.lstm(
            inputs,
            self._combine_kernels(),
            biases,
            states[0],
            states[1],
            activation=self._activation,
            recurrent_activation=self._recurrent_activation,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "unit_forget_bias": self.unit_forget_bias}


class PopnnGRU(_PopnnRNN):
    """GRU. Gates are update, reset and candidate, as in Keras."""

    _label = "GRU"
    _num_gates_per_layer = recurrent.GRU_GATES

    def __init__(self, units: int, *args: Any, reset_after: bool = True, **kwargs: Any) -> None:
        """Make a layer.

        Args:
            units: Number of units.
            args: Further arguments: those of all recurrent layers.
            reset_after: Whether the reset gate is applied after the product of the recurrence.
            kwargs: The same, by name.
        """
        self._reset_after = reset_after
        super().__init__(units, *args, **kwargs)

    def _count_states(self) -> int:
        return 1

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Shape of the biases."""
        pairs = [2] if self._reset_after else []
        return [*pairs, self._num_gates_per_layer * self._num_units]

    def state_shape(self, batch_size: int) -> list[int]:
        """Return the shape of the state.

        Args:
            batch_size: Number of examples.
        """
        return [batch_size, self._num_units]

    def _compute(self, inputs: Any, states: list[Any]) -> tuple[Any, ...]:
        biases = tf.convert_to_tensor(self.biases)
        if self._reset_after:
            biases = tf.stack(tf.split(biases, recurrent.GRU_GATES, axis=1))
        else:
            biases = tf.reshape(biases, [recurrent.GRU_GATES, -1])
        return recurrent.gru(
            inputs,
            self._combine_kernels(),
            biases,
            states[0],
            activation=self._activation,
            recurrent_activation=self._recurrent_activation,
            reset_after=self._reset_after,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "reset_after": self._reset_after}


LSTM = PopnnLSTM
GRU = PopnnGRU
