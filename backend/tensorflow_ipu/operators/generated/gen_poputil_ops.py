"""Operators of poputil: layouts, queues, prints, counters, replicas."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu.operators import (
    control_flow_ops,
    cross_replica_ops,
    internal_ops,
    replication_ops,
)
from tensorflow_ipu.operators.internal_ops import remap as ipu_remap
from tensorflow_ipu.operators.internal_ops import remap_deduce as ipu_remap_deduce
from tensorflow_ipu.operators.replication_ops import replication_index

__all__ = [
    "execution_counter",
    "ipu_assume_equal_across_replicas",
    "ipu_barrier",
    "ipu_fifo",
    "ipu_print_tensor",
    "ipu_remap",
    "ipu_remap_deduce",
    "ipu_replication_normalise",
    "replication_index",
]


def execution_counter(name: str | None = None, lower_into_pipeline_stage: bool = False) -> Any:
    """Return the number of the iteration of the innermost loop or pipeline."""
    return internal_ops.get_current_iteration_counter(
        name, lower_into_pipeline_stage=lower_into_pipeline_stage
    )


def ipu_assume_equal_across_replicas(inputs: Any, name: str | None = None) -> Any:
    """Declare that a tensor is equal in all replicas."""
    del name
    return cross_replica_ops.assume_equal_across_replicas(inputs, inplace=True)


def ipu_barrier(
    inputs: Any, insert_barrier_for_gradients: bool = False, name: str | None = None
) -> Any:
    """Return tensors that are there when all of them are computed."""
    return control_flow_ops.barrier(inputs, insert_barrier_for_gradients, name)


def ipu_fifo(input: Any, depth: int, offload: bool = False, name: str | None = None) -> Any:
    """Return the tensor of `depth` calls ago, zeros before there is one."""
    return internal_ops.fifo(input, depth, offload, name)


def ipu_print_tensor(input: Any, tensor_name: str = "", name: str | None = None) -> Any:
    """Print a tensor each time that it is computed."""
    del name
    return internal_ops.print_tensor(input, tensor_name)


def ipu_replication_normalise(input: Any, name: str | None = None) -> Any:
    """Divide a tensor by the number of replicas."""
    del name
    return replication_ops.normalise(input)
