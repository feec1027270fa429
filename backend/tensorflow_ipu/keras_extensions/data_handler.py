"""Data of `predict` and `evaluate`: the rules that an IPU needs, and the number of steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.dataset_ops import DatasetV1Adapter
from tensorflow.python.platform import tf_logging as logging

from tensorflow_ipu.keras_extensions.dialects import Dialect, default_dialect, dialect_of

_array_counts: Final[Counter[str]] = Counter()
"""How often inputs and targets were numpy arrays."""
_WARNING_AT: Final = 2
"""The second time that a kind of data is an array is worth a warning."""


class IPUDataHandler:
    """A data set with its number of steps and of steps for each execution.

    Args:
        x: Inputs: arrays, tensors or structures of them, or a `tf.data.Dataset`.
        y: Targets.
        sample_weight: Weights of the samples.
        batch_size: Rows of a batch, 32 by default; of data that are not a data set.
        steps_per_epoch: Number of batches; by default all.
        initial_epoch: First epoch.
        epochs: End of the epochs.
        shuffle: Whether rows are shuffled.
        class_weight: Weights of classes, for training only.
        max_queue_size: Ignored.
        workers: Ignored.
        use_multiprocessing: Ignored.
        model: The model.
        steps_per_execution: A variable or a number; 1 by default.
        replication_factor: Number of replicas, or None to set it later.

    Raises:
        ValueError: The data break a rule.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
        epochs: int = 1,
        shuffle: bool = False,
        class_weight: Any = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
        model: Any = None,
        steps_per_execution: Any = None,
        replication_factor: int | None = 1,
    ) -> None:
        if class_weight is not None:
            raise NotImplementedError("`class_weight` is for training, which is not supported.")
        self._dialect = default_dialect() if model is None else dialect_of(model)
        self._steps_per_execution_value = _read_number(steps_per_execution)
        _warn_of_array("x", x, "`fit()`, `predict()` and `evaluate()`")
        _warn_of_array("y", y, "`fit()` and `evaluate()`")
        self._initial_epoch, self._epochs = initial_epoch, epochs
        options = {
            "batch_size": batch_size,
            "steps": steps_per_epoch,
            "epochs": epochs - initial_epoch,
            "sample_weight": sample_weight,
            "shuffle": shuffle,
            "max_queue_size": max_queue_size,
            "workers": workers,
            "use_multiprocessing": use_multiprocessing,
            "model": model,
        }
        self._adapter = self._dialect.make_adapter(x, y, options)
        self._dataset = self._process_dataset()
        self._steps_per_epoch = steps_per_epoch
        self._replication_factor: int | None = None
        self._inferred_steps: int | None = None
        if replication_factor is not None:
            self.set_replication_factor(replication_factor)

    def set_replication_factor(self, value: int) -> None:
        """Set the number of replicas, find the number of steps, and check both.

        Args:
            value: Number of replicas. Each gets its own batches.

        Raises:
            ValueError: The data do not suffice, or the steps do not divide.
        """
        self._replication_factor = value
        self._inferred_steps = self._infer_steps()
        self._check_dataset()
        self._check_steps()

    @property
    def inferred_steps(self) -> int:
        """Number of steps that each replica runs."""
        self._check_ready("inferred_steps")
        assert self._inferred_steps is not None
        return self._inferred_steps

    @property
    def steps_per_execution_value(self) -> int:
        """Number of steps of an execution, at most that of all steps."""
        if self._inferred_steps is None:
            return self._steps_per_execution_value
        return min(self._steps_per_execution_value, self._inferred_steps)

    @property
    def step_increment(self) -> int:
        """What to add to the first step of an execution to get its last one."""
        return self.steps_per_execution_value - 1

    @property
    def element_spec(self) -> Any:
        """Shapes and types of a batch."""
        return self._dataset.element_spec

    @property
    def dataset(self) -> Any:
        """The data set, with 64-bit floating point as 32-bit."""
        return self._dataset

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch, or None if they are not known."""
        size: int | None = self._adapter.batch_size()
        specs = tf.nest.flatten(self.element_spec)
        if size is None and specs and specs[0].shape.rank:
            size = specs[0].shape[0]
        return size

    def steps(self) -> Iterator[int]:
        """Return the first step of each execution."""
        yield from range(0, self.inferred_steps, self.steps_per_execution_value)

    def enumerate_epochs_with_reuse(
        self, manager: Any, mode: Any, infeed_kwargs: dict[str, Any]
    ) -> Iterator[tuple[int, Any]]:
        """Return each epoch with its infeed.

        Args:
            manager: The manager of infeeds.
            mode: Kind of execution; the infeed's name is the same for all of a kind.
            infeed_kwargs: Options of the infeed.
        """
        self._check_ready("enumerate_epochs_with_reuse")
        iterator = manager.get_infeed(mode, self._dataset, infeed_kwargs)
        for epoch in range(self._initial_epoch, self._epochs):
            if epoch > self._initial_epoch and self._adapter.should_recreate_iterator():
                iterator = manager.get_infeed(mode, self._dataset, infeed_kwargs)
            yield epoch, iterator
            self._adapter.on_epoch_end()

    def _check_ready(self, name: str) -> None:
        if self._replication_factor is None:
            raise RuntimeError(
                f"Cannot call {name} before the replication factor is set. Either specify the "
                "replication factor in the constructor or set it using set_replication_factor."
            )

    def _process_dataset(self) -> Any:
        dataset = self._adapter.get_dataset()
        if self._adapter.has_partial_batch():
            raise ValueError(
                "The provided set of data has a partial batch, which could result in data being "
                "dropped. Either adjust the `batch_size` of your model (currently set to "
                f"{self._adapter.batch_size()}) or pad your dataset to ensure there are no partial "
                "batches."
            )
        return _cast_doubles(dataset, self._dialect)

    def _count_batches(self) -> int | None:
        """Return the number of batches of all replicas, or None if it is not known."""
        if self._steps_per_epoch is not None:
            return self._steps_per_epoch
        size = self._adapter.get_size()
        if size is not None:
            return int(size)
        cardinality = int(self._dataset.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "When providing an infinite dataset, you must specify the number of steps to run "
                "(if you did not intend to create an infinite dataset, make sure to not call "
                "`repeat()` on the dataset)."
            )
        return cardinality if cardinality >= 0 else None

    def _infer_steps(self) -> int:
        replicas = self._replication_factor or 1
        batches = self._count_batches()
        if batches is None:
            raise ValueError(
                "Could not infer the size of the data. You must specify the number of steps to run."
            )
        rest = batches % replicas
        cardinality = int(self._dataset.cardinality())
        if rest and cardinality >= 0:
            logging.warning(
                f"Dataset of length {cardinality} is being evenly distributed between {replicas} "
                f"replicas. The remaining {rest} batch{'es' if rest > 1 else ''} will be dropped."
            )
        return int(batches // replicas)

    def _check_dataset(self) -> None:
        cardinality = int(self._dataset.cardinality())
        if cardinality == tf.data.UNKNOWN_CARDINALITY:
            logging.info(
                "The provided set of data has an unknown size. This can result in runtime errors "
                "if not enough data is provided during execution."
            )
        elif cardinality != tf.data.INFINITE_CARDINALITY:
            self._check_cardinality(cardinality)
        for spec in tf.nest.flatten(self.element_spec):
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"The provided set of data contains a shape {spec.shape} which is not fully "
                    "defined. Executing on IPU requires all dataset elements to have fully defined "
                    "shapes. If using batch() make sure to set `drop_remainder=True`."
                )

    def _check_cardinality(self, cardinality: int) -> None:
        epochs = 1
        if not self._adapter.should_recreate_iterator():
            epochs = self._epochs - self._initial_epoch
        needed = epochs * (self._inferred_steps or 0)
        if needed > cardinality:
            raise ValueError(
                "Your input does not have enough data. Make sure that your dataset or generator "
                f"can generate at least {needed} batches (currently it can only generate "
                f"{cardinality} batches). You may need to use the repeat() function when building "
                "your dataset."
            )

    def _check_steps(self) -> None:
        steps, replicas = self.inferred_steps, self._replication_factor or 1
        where = " to this replica" if replicas > 1 else ""
        if self._steps_per_execution_value > steps:
            logging.warning(
                f"`steps_per_execution` has been set to {self._steps_per_execution_value} but the "
                f"dataset provided{where} only contains {steps} batches. Using {steps} as "
                "`steps_per_execution`."
            )
        if steps == 0:
            self._refuse_lack_of_batches(replicas)
        if steps % self.steps_per_execution_value:
            raise ValueError(
                f"`steps_per_execution` ({self.steps_per_execution_value}) must be a divisor of "
                f"the number of batches ({steps}) in the dataset provided{where}."
            )

    def _refuse_lack_of_batches(self, replicas: int) -> None:
        batches = self._count_batches() or 0
        each = math.ceil(batches / replicas)
        raise ValueError(
            f"The provided dataset contains {batches} items, but all {replicas} replicas are "
            f"requested to run {each} steps each. Make sure the dataset contains at least "
            f"{each * replicas} items."
        )


def _read_number(steps: Any) -> int:
    if steps is None:
        return 1
    return int(steps.numpy()) if hasattr(steps, "numpy") else int(steps)


def _warn_of_array(name: str, value: Any, methods: str) -> None:
    if not isinstance(value, np.ndarray):
        return
    _array_counts[name] += 1
    if _array_counts[name] == _WARNING_AT:
        logging.warning(
            f"{name} is of type `np.ndarray`. This will be cast to `tf.Tensor` during every call "
            f"to: {methods}. If you plan to call any of these functions multiple times in your "
            "program, it is recommended to pre-emptively cast to `tf.Tensor` to avoid the repeated "
            "computation."
        )


def _cast_doubles(dataset: Any, dialect: Dialect) -> Any:
    """Return a data set whose float64 tensors are float32; what was prefetched still is."""
    spec = dataset.element_spec
    if not dialect.casts_doubles() or not any(
        leaf.dtype == tf.float64 for leaf in tf.nest.flatten(spec)
    ):
        return dataset

    def cast(*element: Any) -> Any:
        mapped = tf.nest.map_structure(
            lambda tensor: tf.cast(tensor, tf.float32) if tensor.dtype == tf.float64 else tensor,
            element,
        )
        return mapped if isinstance(spec, tuple) else mapped[0]

    depth = _find_prefetch(dataset)
    dataset = dataset.map(cast)
    return dataset if depth is None else dataset.prefetch(depth)


def _find_prefetch(dataset: Any) -> int | None:
    """Return how many elements the data set prefetches, or None."""
    if isinstance(dataset, DatasetV1Adapter):
        dataset = dataset._dataset
    if type(dataset).__name__ == "_PrefetchDataset":
        return int(dataset._buffer_size)
    return None
