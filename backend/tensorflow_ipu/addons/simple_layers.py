"""Layers that are one operator: dropout, lookup in a table, marks of values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.addons.base import IPULayer, as_shape, serialize_initializer
from tensorflow_ipu.operators import embedding_ops, rand_ops

_RANK = 2


class Dropout(tf.keras.layers.Layer):  # type: ignore[misc]
    """Dropout, which only acts in calls with `training=True`."""

    def __init__(
        self, rate: float, noise_shape: Any = None, seed: Any = None, **kwargs: Any
    ) -> None:
        """Make a layer.

        Args:
            rate: Share of the elements that become zero.
            noise_shape: Shape of the mask; by default that of the inputs.
            seed: Two whole numbers; random by default.
            kwargs: Arguments of Keras' Layer.
        """
        self.ref = kwargs.pop("ref", True)
        super().__init__(**kwargs)
        self.seed, self.rate, self.noise_shape = seed, rate, noise_shape

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the inputs, with elements dropped in training."""
        if training is not True:
            return tf.identity(inputs)
        return rand_ops.dropout(
            inputs, seed=self.seed, rate=self.rate, noise_shape=self.noise_shape, ref=self.ref
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            "rate": self.rate,
            "noise_shape": self.noise_shape,
            "seed": self.seed,
            "ref": self.ref,
        }


class Embedding(IPULayer):
    """Lookup in a table of vectors."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: int | None = None,
        serialization_factor: int = 1,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            input_dim: Number of vectors.
            output_dim: Size of a vector.
            embeddings_initializer: Initializer of the table.
            embeddings_regularizer: Not supported.
            activity_regularizer: Not supported.
            embeddings_constraint: Not supported.
            mask_zero: Not supported.
            input_length: Not supported.
            serialization_factor: Number of parts in which the lookup is made.
            kwargs: Arguments of Keras' Layer.
        """
        kwargs["autocast"] = False
        super().__init__(**kwargs)
        self.input_dim, self.output_dim = input_dim, output_dim
        self.embeddings_initializer = tf.keras.initializers.get(embeddings_initializer)
        self.serialization_factor = serialization_factor
        self._check_unsupported(embeddings_regularizer, "embeddings_regularizer")
        self._check_unsupported(activity_regularizer, "activity_regularizer")
        self._check_unsupported(embeddings_constraint, "embeddings_constraint")
        self._check_unsupported(mask_zero, "mask_zero")
        self._check_unsupported(input_length, "input_length")

    def build(self, input_shape: Any) -> None:
        """Make the table."""
        if len(as_shape(input_shape)) != _RANK:
            raise ValueError("The input shape should be a tensor of shape [batch, input_length]")
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            name="embeddings",
        )
        self.built = True

    def call(
        self, inputs: Any, inputs_are_sorted: bool = False, training: bool | None = None
    ) -> Any:
        """Return the vectors of the indices."""
        del training
        return embedding_ops.embedding_lookup(
            tf.convert_to_tensor(self.embeddings),
            ids=tf.cast(inputs, tf.int32) if inputs.dtype.is_floating else inputs,
            indices_are_sorted=inputs_are_sorted,
            serialization_factor=self.serialization_factor,
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return (*as_shape(input_shape), self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": serialize_initializer(self.embeddings_initializer),
            "serialization_factor": self.serialization_factor,
        }


class AssumeEqualAcrossReplicas(tf.keras.layers.Layer):  # type: ignore[misc]
    """Mark of values that are equal on all replicas."""

    def __init__(self, inplace: bool = False, **kwargs: Any) -> None:
        """Make a layer.

        Args:
            inplace: Whether the values are not copied.
            kwargs: Arguments of Keras' Layer.
        """
        super().__init__(**kwargs)
        self.inplace = inplace

    def call(self, inputs: Any, **_: Any) -> Any:
        """Return the inputs."""
        # Looked up under its public name, where users replace it.
        from tensorflow.python.ipu.ops import cross_replica_ops

        return cross_replica_ops.assume_equal_across_replicas(inputs, self.inplace)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {"inplace": self.inplace}


class RecomputationCheckpoint(tf.keras.layers.Layer):  # type: ignore[misc]
    """Mark of values that training keeps instead of computing them again."""

    def call(self, inputs: Any, **_: Any) -> Any:
        """Return the inputs: inference computes nothing again."""
        return tf.nest.map_structure(tf.identity, inputs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {}
