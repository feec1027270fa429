"""Dense layers: in parts, and in 8-bit floats."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import tensorflow as tf

from tensorflow_ipu.addons.base import as_shape
from tensorflow_ipu.operators import f8_ops, math_ops

_DIMENSIONS: Final = {
    "input_columns": "a_columns",
    "input_rows_kernel_columns": "a_rows_b_columns",
    "kernel_rows": "b_rows",
}
"""Axis that is divided, by its name in the layer to that in the operator."""
_MIN_SCALE, _MAX_SCALE = -32, 31
_NAN_CODE: Final = 0x80
"""Code that is no number."""


class SerialDense(tf.keras.layers.Layer):  # type: ignore[misc]
    """Dense layer whose product is computed in parts, one after the other."""

    def __init__(
        self,
        units: int,
        serialization_factor: int,
        serialization_dimension: str,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            units: Size of the outputs.
            serialization_factor: Number of parts.
            serialization_dimension: input_columns, input_rows_kernel_columns or kernel_rows.
            activation: Function of the outputs.
            use_bias: Whether a bias is added.
            kernel_initializer: Initializer of the kernel.
            bias_initializer: Initializer of the bias.
            kernel_regularizer: Regularizer of the kernel, for training.
            bias_regularizer: Regularizer of the bias, for training.
            activity_regularizer: Regularizer of the outputs, for training.
            kernel_constraint: Constraint of the kernel, for training.
            bias_constraint: Constraint of the bias, for training.
            kwargs: Arguments of Keras' Layer.
        """
        keras = tf.keras
        if "input_shape" not in kwargs and "input_dim" in kwargs:
            kwargs["input_shape"] = (kwargs.pop("input_dim"),)
        super().__init__(
            activity_regularizer=keras.regularizers.get(activity_regularizer), **kwargs
        )
        self.serialization_factor = int(serialization_factor)
        self.serialization_dimension = serialization_dimension
        self.units = int(units)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(min_ndim=2)

    def build(self, input_shape: Any) -> None:
        """Make the weights."""
        dtype = tf.as_dtype(self.dtype or tf.keras.backend.floatx())
        if not (dtype.is_floating or dtype.is_complex):
            raise TypeError(
                f"Unable to build `SerialDense` layer with non-floating point dtype {dtype}"
            )
        size = as_shape(input_shape)[-1]
        if size is None:
            raise ValueError(
                "The last dimension of the inputs to `SerialDense` should be defined. Found `None`."
            )
        self.input_spec = tf.keras.layers.InputSpec(min_ndim=2, axes={-1: size})
        self.kernel = self.add_weight(
            name="kernel",
            shape=(size, self.units),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            dtype=self.dtype,
            trainable=True,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                dtype=self.dtype,
                trainable=True,
            )
        self.built = True

    def call(self, inputs: Any, **_: Any) -> Any:
        """Return activation(inputs @ kernel + bias)."""
        if isinstance(inputs, tf.SparseTensor):
            raise TypeError("Unable to build `SerialDense` layer with sparse inputs.")
        if self.serialization_factor < 1:
            raise ValueError(
                f"serialization_factor has to be at least 1, but was {self.serialization_factor}."
            )
        if self.serialization_dimension not in _DIMENSIONS:
            raise ValueError(
                f"Invalid serialization_dimension={self.serialization_dimension}, expected one of: "
                "'input_columns', 'input_rows_kernel_columns', 'kernel_rows'."
            )
        outputs = math_ops.serialized_matmul(
            tf.cast(inputs, self.compute_dtype),
            tf.convert_to_tensor(self.kernel),
            self.serialization_factor,
            _DIMENSIONS[self.serialization_dimension],
        )
        if self.bias is not None:
            outputs = outputs + tf.convert_to_tensor(self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        shape = tf.TensorShape(input_shape).with_rank_at_least(2)
        if shape[-1] is None:
            raise ValueError(
                f"The innermost dimension of input_shape must be defined, but saw: {input_shape}"
            )
        return shape[:-1].concatenate(self.units)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        keras = tf.keras
        return {
            **super().get_config(),
            "units": self.units,
            "serialization_factor": self.serialization_factor,
            "serialization_dimension": self.serialization_dimension,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }


class Dense(tf.keras.layers.Dense):  # type: ignore[misc]
    """Dense layer that multiplies 8-bit floats if its input is a list, as ConvertToF8 returns."""

    def __init__(
        self,
        units: int,
        kernel_format: Any = f8_ops.Format.F143,
        kernel_scale: int = 0,
        kernel_data_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            units: Size of the outputs.
            kernel_format: Format of an 8-bit kernel.
            kernel_scale: Scale of an 8-bit kernel: -32 to 31.
            kernel_data_initializer: Initializer of the codes of an 8-bit kernel; random by default.
            kwargs: Arguments of Keras' Dense.
        """
        if not _MIN_SCALE <= kernel_scale <= _MAX_SCALE:
            raise ValueError(
                f"`kernel_scale` should be in the range [-32, 31]. The passed scale was "
                f"{kernel_scale}."
            )
        super().__init__(units, **kwargs)
        self.kernel_format, self.kernel_scale = kernel_format, kernel_scale
        self.kernel_data_initializer = kernel_data_initializer
        self.input_spec = None
        self._has_weights = False

    def build(self, input_shape: Any) -> None:
        """Check the shape. The first call makes the weights, which depend on its input."""
        dtype = tf.as_dtype(self.dtype or tf.keras.backend.floatx())
        if not (dtype.is_floating or dtype.is_complex):
            raise TypeError(f"Unable to build `Dense` layer with non-floating point dtype {dtype}")
        if isinstance(input_shape, list):
            self.built = True
            return
        if as_shape(input_shape)[-1] is None:
            raise ValueError(
                "The last dimension of the inputs to `Dense` should be defined. Found `None`."
            )
        super().build(input_shape)
        self._has_weights = True

    def call(self, inputs: Any) -> Any:
        """Return activation(inputs @ kernel + bias)."""
        if not isinstance(inputs, list):
            return super().call(inputs)
        quarter = f8_ops.QuarterTensor(*inputs)
        if not self._has_weights:
            self._make_quarter_weights(int(quarter.shape[-1]))
        kernel = f8_ops.QuarterTensor(
            tf.convert_to_tensor(self.kernel_data), tf.convert_to_tensor(self.kernel_metadata)
        )
        outputs = f8_ops.f8_matmul(lhs=quarter, rhs=kernel)
        if self.use_bias:
            outputs = outputs + tf.convert_to_tensor(self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def _make_quarter_weights(self, size: int) -> None:
        initializer = self.kernel_data_initializer
        if not initializer:
            codes = np.random.default_rng().integers(0, 256, [size, self.units])
            codes[codes == _NAN_CODE] = 0
            initializer = tf.keras.initializers.Constant(codes)
        metadata = f8_ops.create_metadata(self.kernel_format, self.kernel_scale)
        self.kernel_data = self.add_weight(
            name="kernel_data",
            shape=(size, self.units),
            initializer=initializer,
            dtype="uint8",
            trainable=True,
        )
        self.kernel_metadata = self.add_weight(
            name="kernel_metadata",
            shape=(),
            dtype="uint8",
            trainable=True,
            initializer=tf.keras.initializers.Constant(metadata),
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                dtype="float16",
                trainable=True,
            )
        self._has_weights = True


class ConvertToF8(tf.keras.layers.Layer):  # type: ignore[misc]
    """Conversion to 8-bit floats, as a list of codes and metadata."""

    def call(self, data: Any, metadata: Any, **_: Any) -> list[Any]:
        """Return the codes and the metadata.

        Args:
            data: A tensor in float.
            metadata: What `create_metadata` returned.
        """
        quarter = f8_ops.convert_to_f8(data, metadata)
        return [quarter.data, quarter.metadata]


class ConvertFromF8(tf.keras.layers.Layer):  # type: ignore[misc]
    """Conversion from 8-bit floats."""

    def __init__(self, dtype: Any = tf.half, **kwargs: Any) -> None:
        """Make a layer.

        Args:
            dtype: Type of the outputs.
            kwargs: Arguments of Keras' Layer.
        """
        super().__init__(dtype=tf.as_dtype(dtype).name, **kwargs)

    def call(self, inputs: Any, **_: Any) -> Any:
        """Return the values of a list of codes and metadata."""
        quarter = f8_ops.QuarterTensor(*inputs)
        return f8_ops.convert_from_f8(quarter, dtype=tf.as_dtype(self.dtype))
