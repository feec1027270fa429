"""Connectionist temporal classification: beam search, and the most likely labels."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.operators import nn_ops


class CTCInferenceLayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """Beam search."""

    def __init__(
        self,
        blank_index: int = 0,
        beam_width: int = 100,
        top_paths: int = 1,
        from_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            blank_index: Index of the blank label.
            beam_width: Number of beams.
            top_paths: Number of paths that are returned.
            from_logits: Whether inputs are logits, not logarithms of probabilities.
            kwargs: Arguments of Keras' Layer.
        """
        super().__init__(**kwargs)
        self.blank_index, self.beam_width = blank_index, beam_width
        self.top_paths, self.from_logits = top_paths, from_logits

    def call(self, data: Any, data_length: Any, **_: Any) -> Any:
        """Search.

        Args:
            data: Tensor [time, batch, classes].
            data_length: Number of steps of each example, [batch].

        Returns:
            Negative logarithms of the paths' probabilities, their lengths, and their labels.
        """
        search = (
            nn_ops.ctc_beam_search_decoder
            if self.from_logits
            else nn_ops.ctc_beam_search_decoder_with_log_probs
        )
        return search(
            data,
            data_length,
            beam_width=self.beam_width,
            top_paths=self.top_paths,
            blank_index=self.blank_index,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            **super().get_config(),
            "blank_index": self.blank_index,
            "beam_width": self.beam_width,
            "top_paths": self.top_paths,
            "from_logits": self.from_logits,
        }


class CTCPredictionsLayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """The most likely labels, with blanks beyond their end."""

    def __init__(
        self,
        blank_index: int = 0,
        beam_width: int = 100,
        top_paths: int = 1,
        from_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make a layer; arguments are those of CTCInferenceLayer."""
        super().__init__(**kwargs)
        self._inference_layer = CTCInferenceLayer(
            blank_index, beam_width, top_paths, from_logits, **kwargs
        )

    @staticmethod
    def _select_most_likely_path(probs: Any, predicted: Any, top_paths: int, lengths: Any) -> Any:
        shape = tf.shape(predicted)
        if top_paths == 1:
            best = tf.reshape(predicted, [shape[0], shape[2]])
            return best if lengths is None else (best, lengths)
        paths = tf.argmin(probs, axis=1, output_type=tf.int32)
        best = tf.gather(predicted, paths, axis=1, batch_dims=1)
        if lengths is None:
            return best
        return best, tf.gather(lengths, paths, axis=1, batch_dims=1)

    @staticmethod
    def _mask_out_junk_values(blank_index: int, best_predictions: Any, lengths: Any) -> Any:
        steps = tf.range(best_predictions.shape[1], dtype=lengths.dtype)[None]
        is_label = steps < tf.reshape(lengths, [-1, 1])
        return tf.where(is_label, best_predictions, tf.cast(blank_index, best_predictions.dtype))

    def _perform_inference(self, data: Any, data_length: Any, **kwargs: Any) -> Any:
        layer = self._inference_layer
        probs, lengths, predicted = layer.call(data, data_length, **kwargs)
        best, lengths = self._select_most_likely_path(probs, predicted, layer.top_paths, lengths)
        return self._mask_out_junk_values(layer.blank_index, best, lengths)

    def call(self, data: Any, data_length: Any, **kwargs: Any) -> Any:
        """Return the most likely labels [batch, time].

        Args:
            data: Tensor [time, batch, classes].
            data_length: Number of steps of each example, [batch].
            kwargs: Accepted without effect.
        """
        return self._perform_inference(data, data_length, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return dict(self._inference_layer.get_config())


class CTCLoss(tf.keras.layers.Layer):  # type: ignore[misc]
    """Loss of labels, as a layer."""

    def __init__(self, blank_index: int = 0, from_logits: bool = False, **kwargs: Any) -> None:
        """Make a layer.

        Args:
            blank_index: Index of the blank label.
            from_logits: Whether inputs are logits, not logarithms of probabilities.
            kwargs: Arguments of Keras' Layer.
        """
        super().__init__(**kwargs)
        self.blank_index, self.from_logits = blank_index, from_logits

    def call(self, labels: Any, data: Any, label_length: Any, data_length: Any, **_: Any) -> Any:
        """Return the mean of the losses, [1].

        Args:
            labels: Tensor [batch, labels].
            data: Tensor [time, batch, classes].
            label_length: Number of labels of each example, [batch].
            data_length: Number of steps of each example, [batch].
        """
        loss = nn_ops.ctc_loss_v2 if self.from_logits else nn_ops.ctc_loss_with_log_probs
        losses = loss(labels, data, label_length, data_length, self.blank_index)
        return tf.reshape(tf.reduce_mean(losses), [1])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            **super().get_config(),
            "blank_index": self.blank_index,
            "from_logits": self.from_logits,
        }
