"""Data sets with a number of elements that suits a device."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops


class BufferDataset(dataset_ops.UnaryUnchangedStructureDataset):  # type: ignore[misc]
    """Data set whose number of elements is a multiple of a number: the last ones may be left out.

    Args:
        input_dataset: The tf.data.Dataset.
        buffer_size: The number.
    """

    def __init__(self, input_dataset: Any, buffer_size: int) -> None:
        self._input_dataset = input_dataset
        self._buffer_size = tf.convert_to_tensor(buffer_size, dtype=tf.int64, name="buffer_size")
        groups = input_dataset.window(self._buffer_size, drop_remainder=True)
        spec = input_dataset.element_spec
        whole = groups.flat_map(_zip_windows if isinstance(spec, (tuple, dict)) else _first)
        super().__init__(input_dataset, whole._variant_tensor)  # noqa: SLF001


def _first(window: Any) -> Any:
    return window


def _zip_windows(*windows: Any) -> Any:
    return tf.data.Dataset.zip(windows[0] if len(windows) == 1 else windows)
