"""Lookups in embedding tables on the chip and at the host."""

from __future__ import annotations

from math import prod
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.operators.placement import on_ipu

_STRATEGIES: Final = ("TOKEN", "ENCODING")


@on_ipu
def embedding_lookup(
    params: Any,
    ids: Any,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
    name: str | None = None,
) -> Any:
    """Look up rows of a table.

    Args:
        params: Table, whose first axis is that of the ids.
        ids: Numbers of rows in int32, of any shape.
        serialization_factor: Number of parts that the table is looked up in, one after the other.
        indices_are_sorted: Whether the ids are sorted; the values do not depend on it.
        name: Name of the operation.

    Returns:
        A tensor of the shape of `ids` followed by that of a row.

    Raises:
        ValueError: If `serialization_factor` is not positive or does not divide the table.
    """
    del indices_are_sorted
    factor = int(serialization_factor)
    if factor < 1:
        raise ValueError(f"serialization_factor has to be at least 1, but was {factor}.")
    name = name or "embedding_lookup"
    ids_shape, (count, *row) = ids.shape.as_list(), params.shape.as_list()
    flat_ids = tf.reshape(ids, [prod(ids_shape)])
    table = tf.reshape(params, [count, prod(row)])
    if count % factor:
        raise ValueError(
            f"The serialization_factor ({factor}) must divide the size of the 0th dimension of "
            f"params ({count})."
        )
    if factor == 1:
        # The chip reads some row for a number out of range; serial lookups mask what it reads.
        result = tf.gather(table, tf.clip_by_value(flat_ids, 0, count - 1), name=name)
    else:
        with tf.name_scope(f"{name}/Serialized"):
            result = _look_up_serially(table, flat_ids, factor)
    return tf.reshape(result, [*ids_shape, *row])


def _look_up_serially(table: Any, ids: Any, factor: int) -> Any:
    """Return the sum of the rows found in each part; a part without the id gives zeros."""
    size = table.shape[0] // factor
    parts = []
    for number in range(factor):
        places = ids - number * size
        is_here = tf.logical_and(places < size, places > -1)
        rows = tf.gather(
            table[number * size : (number + 1) * size], places * tf.cast(is_here, places.dtype)
        )
        parts.append(rows * tf.cast(tf.expand_dims(is_here, 1), rows.dtype))
    return sum(parts[1:], parts[0])


class HostEmbeddingOptimizerSpec:
    """Optimizer of a table at the host. Inference reads the table only."""

    def __init__(self, learning_rate: float, optimizer_name: str | None = None) -> None:
        self._learning_rate = learning_rate
        self._optimizer_name = optimizer_name or "SGD"

    def get_learning_rate(self) -> float:
        """Return the learning rate."""
        return self._learning_rate

    def create_lookup_instruction(
        self,
        embedding_tensor: Any,
        indices: Any,
        slot_vars: Any,
        partition_strategy: str,
        name: str,
    ) -> Any:
        """Return the rows of the table.

        Args:
            embedding_tensor: The table.
            indices: Numbers of rows, [n].
            slot_vars: Variables of the optimizer.
            partition_strategy: TOKEN or ENCODING.
            name: Name of the embedding.

        Returns:
            The rows, [n, encoding].
        """
        del slot_vars, partition_strategy
        return embedding_lookup(embedding_tensor, indices, name=f"{name}/lookup")

    def create_register_instruction(self, embedding_tensor: Any, slot_vars: Any, name: str) -> Any:
        """Return an operation without effect: the table is a variable already."""
        del embedding_tensor, slot_vars, name
        return tf.no_op()

    def create_deregister_instruction(
        self, embedding_tensor: Any, slot_vars: Any, name: str
    ) -> Any:
        """Return an operation without effect: the table is a variable already."""
        del embedding_tensor, slot_vars, name
        return tf.no_op()

    def create_slot_variables(self, embedding_tensor: Any, name: str) -> list[Any]:
        """Return the variables of the optimizer: none."""
        del embedding_tensor, name
        return []


class HostEmbeddingSGDGAOptimizerSpec(HostEmbeddingOptimizerSpec):
    """SGD with gradient accumulation."""

    def __init__(self, learning_rate: float, accumulation_factor: int) -> None:
        super().__init__(learning_rate, "SGD+GA" if accumulation_factor > 1 else None)
        self._accumulation_factor = accumulation_factor

    def get_accumulation_factor(self) -> int:
        """Return the number of gradients that are accumulated."""
        return self._accumulation_factor


class HostEmbedding:
    """Embedding table that lies at the host on the real chip."""

    def __init__(
        self,
        name: str,
        embedding_tensor: Any,
        partition_strategy: str = "TOKEN",
        optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    ) -> None:
        if not (tf.is_tensor(embedding_tensor) or isinstance(embedding_tensor, tf.Variable)):
            raise ValueError("HostEmbedding embedding_tensor is not a tensorflow tensor")
        if not isinstance(optimizer_spec, (type(None), HostEmbeddingOptimizerSpec)):
            raise ValueError(
                "HostEmbedding optimizer_spec is not a HostEmbeddingOptimizerSpec or None"
            )
        if partition_strategy not in _STRATEGIES:
            raise ValueError(f"Unknown partition strategy {partition_strategy}")
        self._name = name
        self._embedding_tensor = embedding_tensor
        self._partition_strategy = partition_strategy
        self._optimizer_spec = optimizer_spec or HostEmbeddingOptimizerSpec(0)
        self._has_lookup = False
        self._slot_vars = self._optimizer_spec.create_slot_variables(embedding_tensor, name)

    def get_embedding_tensor(self) -> Any:
        """Return the table."""
        return self._embedding_tensor

    def register(self, session: Any = None) -> _Registration:
        """Return a context in which computations can look the table up.

        Args:
            session: Session that holds the table; required in graph mode.

        Returns:
            The context; entering it gives the embedding.

        Raises:
            ValueError: If there is no session in graph mode.
        """
        if session is None and not tf.executing_eagerly():
            raise ValueError(
                "HostEmbedding.register requires a session when eager executionis disabled."
            )
        return _Registration(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise NotImplementedError: an older interface."""
        raise NotImplementedError(
            "HostEmbedding.__call__ is not supported. Please use the context manager created with "
            "HostEmbedding.register."
        )

    def lookup(self, indices: Any, clip_indices: bool = True) -> Any:
        """Look up rows of the table.

        Args:
            indices: Numbers of rows in int32, of any shape.
            clip_indices: Replace numbers out of range by the nearest row.

        Returns:
            A tensor of the shape of `indices` followed by the size of a row.
        """
        shape, (count, encoding) = indices.shape.as_list(), self._embedding_tensor.shape
        if clip_indices:
            indices = tf.clip_by_value(indices, 0, count - 1)
        rows = self._optimizer_spec.create_lookup_instruction(
            self._embedding_tensor,
            tf.reshape(indices, [prod(shape)]),
            self._slot_vars,
            self._partition_strategy,
            self._name,
        )
        self._has_lookup = True
        return tf.reshape(rows, [*shape, encoding])


class _Registration:
    """Context in which a table can be looked up."""

    def __init__(self, embedding: HostEmbedding) -> None:
        self._embedding = embedding

    def __enter__(self) -> HostEmbedding:
        return self._embedding

    def __exit__(self, *_: object) -> None:
        return None


def create_host_embedding(
    name: str,
    shape: Any,
    dtype: Any,
    partition_strategy: str = "TOKEN",
    optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    initializer: Any = None,
) -> HostEmbedding:
    """Make an embedding with a new table.

    Args:
        name: Name of the embedding and of its variable.
        shape: Shape of the table, [tokens, encoding].
        dtype: Type of the table.
        partition_strategy: TOKEN or ENCODING.
        optimizer_spec: Optimizer, which inference does not use.
        initializer: Initial value; None means zeros.

    Returns:
        The embedding.
    """
    value = tf.zeros(shape, dtype) if initializer is None else initializer
    with tf.device("cpu"):
        table = tf.compat.v1.Variable(value, name=name, use_resource=True)
    return HostEmbedding(name, table, partition_strategy, optimizer_spec)
