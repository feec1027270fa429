"""Collectives between the IPUs of one replica: each tensor of a list lies on one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu import markers
from tensorflow_ipu.operators.collectives import reduce_operator
from tensorflow_ipu.operators.placement import on_ipu
from tensorflow_ipu.placement import SHARD

_REDUCTIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "ADD": tf.add,
    "MEAN": tf.add,
    "MUL": tf.multiply,
    "MIN": tf.minimum,
    "MAX": tf.maximum,
    "SQUARE_ADD": tf.add,
    "LOGICAL_AND": tf.logical_and,
    "LOGICAL_OR": tf.logical_or,
}


@on_ipu
def all_reduce(input_shards: Sequence[Any], op: str) -> list[Any]:
    """Reduce rows of several IPUs, each of which gets the result.

    Args:
        input_shards: Row or scalar of each IPU; zeros fill up shorter ones.
        op: Reduction: COLLECTIVE_OP_ADD, _MUL, _MIN, _MAX, _LOGICAL_AND, _LOGICAL_OR,
            _SQUARE_ADD, _LOCAL or _MEAN.

    Returns:
        The result for each IPU.

    Raises:
        ValueError: If tensors are given twice, or differ in type or rank, or are no rows.
    """
    rows = _make_rows(input_shards)
    kind = reduce_operator(op)
    if kind == "LOCAL":
        return [tf.identity(row) for row in rows]
    total = _reduce(rows, kind)
    return [tf.identity(total) for _ in rows]


@on_ipu
def reduce_scatter(input_shards: Sequence[Any], op: str) -> list[Any]:
    """Reduce rows of several IPUs, each of which gets an equal part.

    Args:
        input_shards: Row or scalar of each IPU; zeros fill up shorter ones.
        op: Reduction: COLLECTIVE_OP_ADD, _MUL, _MIN, _MAX, _LOGICAL_AND, _LOGICAL_OR,
            _SQUARE_ADD, _LOCAL or _MEAN.

    Returns:
        The part of each IPU; zeros fill up those with fewer elements.

    Raises:
        ValueError: If tensors are given twice, or differ in type or rank, or are no rows.
    """
    rows = _make_rows(input_shards)
    kind = reduce_operator(op)
    count, size = len(rows), rows[0].shape[0]
    totals = rows if kind == "LOCAL" else [_reduce(rows, kind)] * count
    # The first IPUs get one element more where the number of elements cannot be divided.
    ends = [
        (number + 1) * (size // count) + min(number + 1, size % count) for number in range(count)
    ]
    return [
        _pad(total[start:end], ends[0])
        for total, start, end in zip(totals, [0, *ends], ends, strict=False)
    ]


@on_ipu
def all_gather(input_shards: Sequence[Any], axis: int = 0) -> list[Any]:
    """Join tensors of several IPUs, each of which gets the result.

    Args:
        input_shards: Tensor of each IPU.
        axis: Axis along which they are joined.

    Returns:
        The joined tensor for each IPU.

    Raises:
        ValueError: If tensors are given twice, or differ in type, rank or another axis.
    """
    _check(input_shards)
    if input_shards[0].shape.rank == 0:
        joined = tf.stack(list(input_shards))
    else:
        _check_shapes(input_shards, axis)
        # The chip joins the elements in order and reshapes: along axis 0 that is a concatenation.
        shape = input_shards[0].shape.as_list()
        shape[axis] = sum(shard.shape[axis] for shard in input_shards)
        joined = tf.reshape(tf.concat([tf.reshape(x, [-1]) for x in input_shards], 0), shape)
    return [tf.identity(joined) for _ in input_shards]


def _find_ipu(shard: Any) -> int | None:
    """Return the IPU on which a tensor of a graph is made, if its operator names one."""
    attributes = shard.op.node_def.attr if hasattr(shard, "graph") else {}
    return int(attributes[SHARD].s.decode()) if SHARD in attributes else None


def _refuse_order(shards: Sequence[Any]) -> None:
    """Let the computation fail when it runs if tensors are not in the order of their IPUs."""
    ipus = [_find_ipu(shard) for shard in shards]
    if None not in ipus and ipus != list(range(len(ipus))):
        text = (
            "input_shards of a collective within a replica must be in the order of their IPUs: "
            f"expected {list(range(len(ipus)))}, found {ipus}"
        )
        facts = {"name": "within-replica collective", "refusal": text}
        markers.add_operation(markers.CHECK, facts, [], [], "check_order")


def _check(shards: Sequence[Any]) -> None:
    if len({id(shard) for shard in shards}) != len(shards):
        raise ValueError("input_shards should not contain any duplicate entries.")
    if len({shard.dtype for shard in shards}) != 1:
        raise ValueError("Expected tensors to all be of the same type.")
    if len({shard.shape.rank for shard in shards}) != 1:
        raise ValueError("Expected tensors to all be of the same rank.")
    _refuse_order(shards)


def _check_shapes(shards: Sequence[Any], axis: int) -> None:
    first = shards[0].shape.as_list()
    for number, shard in enumerate(shards[1:], 1):
        shape = shard.shape.as_list()
        if [*first[:axis], *first[axis + 1 :]] != [*shape[:axis], *shape[axis + 1 :]]:
            raise ValueError(
                "Expecting tensor dimensions to all have the same sizes, except for dim "
                f"{axis}, but got shapes {first} and {shape} for tensors 0 and {number}"
            )


def _make_rows(shards: Sequence[Any]) -> list[Any]:
    """Return tensors as rows of one size."""
    _check(shards)
    rows = [tf.reshape(x, [1]) if x.shape.rank == 0 else x for x in shards]
    for row in rows:
        row.shape.assert_has_rank(1)
    size = max(row.shape[0] for row in rows)
    return [_pad(row, size) for row in rows]


def _pad(row: Any, size: int) -> Any:
    missing = size - row.shape[0]
    return tf.concat([row, tf.zeros([missing], row.dtype)], 0) if missing else row


def _reduce(rows: Sequence[Any], kind: str) -> Any:
    is_logical = kind.startswith("LOGICAL") and rows[0].dtype != tf.bool
    values = [tf.not_equal(row, 0) for row in rows] if is_logical else list(rows)
    if kind == "SQUARE_ADD":
        values = [tf.square(value) for value in values]
    total = functools.reduce(_REDUCTIONS[kind], values)
    if kind == "MEAN":
        total = total / len(rows) if total.dtype.is_floating else total // len(rows)
    return tf.cast(total, rows[0].dtype)
