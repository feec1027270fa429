"""EffectiveTransformer: attention between padded sequences of numbers.

The real layer packs sequences without their padding, a few at a time, before it computes queries,
keys and values, which is quicker on the chip. Values do not depend on that: here all sequences are
computed at once, and what belongs to padding is zero.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.addons.base import as_shape
from tensorflow_ipu.addons.normalization import LayerNormalization
from tensorflow_ipu.addons.simple_layers import Dropout

_NUM_INPUTS = (4, 5)


class EffectiveTransformer(tf.keras.layers.Layer):  # type: ignore[misc]
    """Attention between two sets of padded sequences, with several heads."""

    def __init__(
        self,
        output_layer_size: int,
        max_batch_size: int,
        use_scale: bool = False,
        num_attention_heads: int = 1,
        attention_head_size: int = 1,
        sequences_per_iter: int = 1,
        qkv_activation: Any = None,
        attention_dropout_prob: float | None = None,
        output_activation: Any = None,
        output_dropout_prob: float | None = None,
        layer_norm_output: bool = True,
        embedding_initializer: Any = "glorot_uniform",
        embedding_bias_initializer: Any = "zeros",
        output_initializer: Any = "glorot_uniform",
        output_bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            output_layer_size: Size of the outputs.
            max_batch_size: Maximum number of sequences that are packed together.
            use_scale: Whether scores are multiplied by a weight.
            num_attention_heads: Number of heads.
            attention_head_size: Size of a head.
            sequences_per_iter: Number of whole sequences that a pack is as large as.
            qkv_activation: Activation of queries, keys and values.
            attention_dropout_prob: Share of the attention's results that training drops.
            output_activation: Activation of the outputs.
            output_dropout_prob: Share of the outputs that training drops.
            layer_norm_output: Whether the outputs are normalized.
            embedding_initializer: Initializer of the kernels of queries, keys and values.
            embedding_bias_initializer: Initializer of their biases.
            output_initializer: Initializer of the kernel of the outputs.
            output_bias_initializer: Initializer of their bias.
            kwargs: Arguments of Keras' Layer.

        Raises:
            ValueError: If a pack has more sequences than `max_batch_size`.
        """
        super().__init__(**kwargs)
        keras = tf.keras
        if sequences_per_iter > max_batch_size:
            raise ValueError("max_batch_size must be greater than sequences_per_iter")
        self.output_layer_size, self.max_batch_size = output_layer_size, max_batch_size
        self.use_scale = use_scale
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = attention_head_size
        self.sequences_per_iter = sequences_per_iter
        self.qkv_activation = keras.activations.get(qkv_activation)
        self.output_activation = keras.activations.get(output_activation)
        self.attention_dropout_prob = attention_dropout_prob
        self.output_dropout_prob = output_dropout_prob
        self.layer_norm_output = layer_norm_output
        self.embedding_initializer = keras.initializers.get(embedding_initializer)
        self.embedding_bias_initializer = keras.initializers.get(embedding_bias_initializer)
        self.output_initializer = keras.initializers.get(output_initializer)
        self.output_bias_initializer = keras.initializers.get(output_bias_initializer)

    def build(self, input_shapes: Any) -> None:
        """Make the weights, for four or five inputs."""
        if len(input_shapes) not in _NUM_INPUTS:
            raise ValueError(
                "EffectiveTransformer must be built with either four or five input shapes."
            )
        size = self.num_attention_heads * self.attention_head_size
        self._q_layer, self._k_layer, self._v_layer = (
            self._make_dense(size, name) for name in ("query_layer", "key_layer", "value_layer")
        )
        self._output_layer = tf.keras.layers.Dense(
            self.output_layer_size,
            activation=self.output_activation,
            kernel_initializer=self.output_initializer,
            bias_initializer=self.output_bias_initializer,
            name="output_layer",
        )
        self._output_layer.build((None, int(as_shape(input_shapes[0])[1] or 0) * size))
        self._scale = None
        if self.use_scale:
            self._scale = self.add_weight(
                name="scale", shape=(1,), initializer="ones", dtype=self.dtype, trainable=True
            )
        self._attention_dropout = self._make_dropout(self.attention_dropout_prob)
        self._output_dropout = self._make_dropout(self.output_dropout_prob)
        self._output_layer_norm = None
        if self.layer_norm_output:
            self._output_layer_norm = LayerNormalization()
            self._output_layer_norm.build((self.max_batch_size, self.output_layer_size))
        self.built = True

    def _make_dense(self, size: int, name: str) -> Any:
        layer = tf.keras.layers.Dense(
            size,
            activation=self.qkv_activation,
            kernel_initializer=self.embedding_initializer,
            bias_initializer=self.embedding_bias_initializer,
            name=name,
        )
        layer.build((None, 1))
        return layer

    @staticmethod
    def _make_dropout(rate: float | None) -> Any:
        return None if rate is None else Dropout(rate)

    def call(self, inputs: Any, training: bool | None = None) -> tuple[Any, Any]:
        """Compute the layer.

        Args:
            inputs: Sequences [batch, from], their lengths [batch, 1], sequences [batch, to], their
                lengths, and optionally a mask of heads [batch, heads].
            training: Whether elements are dropped.

        Returns:
            Outputs [batch, size], and the attention's results [batch, from, heads, head size].

        Raises:
            ValueError: If the inputs do not fit each other.
        """
        sources, targets, lengths, mask = self._check(list(inputs))
        q = self._embed(self._q_layer, sources, lengths[0])
        k = self._embed(self._k_layer, targets, lengths[1])
        v = self._embed(self._v_layer, targets, lengths[1])
        scores = tf.matmul(q, k, transpose_b=True)
        if self._scale is not None:
            scores = scores * tf.convert_to_tensor(self._scale)
        context = tf.matmul(tf.nn.softmax(scores), v)
        context = context * tf.cast(mask, context.dtype)[:, :, None, None]
        if self._attention_dropout is not None:
            context = self._attention_dropout.call(context, training=training)
        context = tf.transpose(context, [0, 2, 1, 3])
        output = self._output_layer(tf.reshape(context, [context.shape[0], -1]))
        if self._output_dropout is not None:
            output = self._output_dropout.call(output, training=training)
        if self._output_layer_norm is not None:
            output = self._output_layer_norm.call(output)
        return output, context

    def _check(self, inputs: list[Any]) -> tuple[Any, Any, tuple[Any, Any], Any]:
        if len(inputs) not in _NUM_INPUTS:
            raise ValueError("EffectiveTransformer must take either four or five inputs.")
        sources, source_lengths, targets, target_lengths = map(tf.convert_to_tensor, inputs[:4])
        if sources.shape.rank != targets.shape.rank:
            raise ValueError("from_sequences and to_sequences must be equal rank")
        if sources.shape[0] != targets.shape[0]:
            raise ValueError(
                "from_sequences and to_sequences must contain an equal number of sequences"
            )
        if (
            source_lengths.shape[0] != sources.shape[0]
            or source_lengths.shape != target_lengths.shape
        ):
            raise ValueError(
                "from_sequence_lengths and to_sequence_lengths must have lengths equal to the "
                "number of sequences provided."
            )
        if sources.dtype != targets.dtype:
            raise ValueError("from_sequences and to_sequences must be equal types")
        shape = (sources.shape[0], self.num_attention_heads)
        mask = inputs[4] if len(inputs) == max(_NUM_INPUTS) else None
        mask = tf.ones(shape, tf.bool) if mask is None else tf.convert_to_tensor(mask)
        if mask.shape != shape:
            raise ValueError("q_mask must have shape [num_sequences, num_attention_heads]")
        return sources, targets, (source_lengths, target_lengths), mask

    def _embed(self, layer: Any, sequences: Any, lengths: Any) -> Any:
        """Return queries, keys or values, [batch, heads, length, head size]; padding has zeros."""
        batch, length = sequences.shape
        numbers = tf.cast(tf.reshape(sequences, [-1, 1]), self.compute_dtype)
        heads = (self.num_attention_heads, self.attention_head_size)
        values = tf.reshape(layer(numbers), [batch, length, *heads])
        is_number = tf.range(length)[None] < tf.cast(tf.reshape(lengths, [-1, 1]), tf.int32)
        values = values * tf.cast(is_number, values.dtype)[:, :, None, None]
        return tf.transpose(values, [0, 2, 1, 3])

    def _unpad(self, sequences: Any, sequence_lengths: Any, slices_per_iter: int) -> Any:
        """Return sequences one behind the other, without their padding, in the same shape."""
        sequences = tf.convert_to_tensor(sequences)[:slices_per_iter]
        lengths = tf.cast(tf.convert_to_tensor(sequence_lengths)[:slices_per_iter], tf.int32)
        rows, columns = sequences.shape
        ends = tf.cumsum(lengths)
        place = tf.range(rows * columns)
        row = tf.reduce_sum(tf.cast(ends[None] <= place[:, None], tf.int32), axis=1)
        row = tf.minimum(row, rows - 1)
        column = tf.clip_by_value(place - tf.gather(ends - lengths, row), 0, columns - 1)
        values = tf.gather(tf.reshape(sequences, [-1]), row * columns + column)
        packed = tf.where(place < ends[-1], values, tf.zeros_like(values))
        return tf.reshape(packed, [rows, columns])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        keras = tf.keras
        return {
            **super().get_config(),
            "output_layer_size": self.output_layer_size,
            "max_batch_size": self.max_batch_size,
            "use_scale": self.use_scale,
            "num_attention_heads": self.num_attention_heads,
            "attention_head_size": self.attention_head_size,
            "sequences_per_iter": self.sequences_per_iter,
            "qkv_activation": keras.activations.serialize(self.qkv_activation),
            "attention_dropout_prob": self.attention_dropout_prob,
            "output_activation": keras.activations.serialize(self.output_activation),
            "output_dropout_prob": self.output_dropout_prob,
            "layer_norm_output": self.layer_norm_output,
            "embedding_initializer": keras.initializers.serialize(self.embedding_initializer),
            "embedding_bias_initializer": keras.initializers.serialize(
                self.embedding_bias_initializer
            ),
            "output_initializer": keras.initializers.serialize(self.output_initializer),
            "output_bias_initializer": keras.initializers.serialize(self.output_bias_initializer),
        }
