"""Completion of a model configuration from the PopEF file and the name map.

The user's own entries stay unchanged. ModelState checks whether they agree with the PopEF file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_poplar.model_state import ModelState
from triton_poplar.tensors import Tensor

BATCHES_PER_REQUEST = 1_000
"""Factor of the guide's example: max_batch_size is 1000 times the compiled batch. The backend
splits and joins requests."""
MAX_BATCH_SIZE = 2**31 - 1
"""Maximum of max_batch_size, which is an int32."""
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def complete_config(config: Mapping[str, Any], version_folder: Path) -> dict[str, Any]:
    """Return the entries that `config` (Triton's JSON form) lacks: max_batch_size,
    dynamic_batching, input, output.

    If the configuration has neither inputs nor outputs, and the rows of the compiled batch are
    proven to be independent, the model gets a max_batch_size unless it has one. It also gets an
    empty dynamic_batching unless it names a scheduler. If the rows are not proven to be
    independent, or lie along another axis than the first, dims hold the batch. Raises
    ModelConfigError if the model's files are invalid.
    """
    state = ModelState(config, version_folder)
    untouched = not config.get("input") and not config.get("output")
    max_batch_size = state.max_batch_size
    proven = state.rows.dependence is None
    if (
        untouched
        and proven
        and not max_batch_size
        and state.batch_size
        and not state.rows.batch_axes
    ):
        max_batch_size = min(state.total_batch_size * BATCHES_PER_REQUEST, MAX_BATCH_SIZE)
    added: dict[str, Any] = {"max_batch_size": max_batch_size}
    if max_batch_size and not any(name in config for name in _SCHEDULERS):
        added["dynamic_batching"] = {}
    batch = state.total_batch_size if state.batch_size and not max_batch_size else 0
    if batch and proven and state.rows.batch_axes:
        batch = -1
    for kind, tensors in (("input", state.inputs), ("output", state.outputs)):
        if not config.get(kind):
            added[kind] = [
                _describe(tensor, batch, bool(max_batch_size)) for tensor in tensors.values()
            ]
    if state.models:  # a request brings the inputs of one of them
        for entry in added.get("input", []):
            entry["optional"] = True
    return added


def _describe(tensor: Tensor, batch: int, batched: bool) -> dict[str, Any]:
    dims = tensor.dims(batch) if batch else [*tensor.shape] or [1]
    entry: dict[str, Any] = {"name": tensor.name, "data_type": tensor.triton_type, "dims": dims}
    # Triton has scalars in batches only; without a batch a scalar is a tensor of one element.
    if batched and not tensor.shape:
        entry["reshape"] = {"shape": []}
    return entry
