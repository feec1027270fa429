"""Inputs and outputs of a model as requests see them, and their agreement with PopEF and
config.pbtxt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import popef
from popef._tools.text import find_name_fault
from popef.name_map import read_names
from triton_poplar.errors import ModelConfigError

TRITON_TYPES = {
    popef.DataType[name]: f"TYPE_{triton_name}"
    for name, triton_name in (
        pair.split(":")
        for pair in (
            "BOOL:BOOL F16:FP16 F32:FP32 F64:FP64 S8:INT8 U8:UINT8 S16:INT16 U16:UINT16 "
            "S32:INT32 U32:UINT32 S64:INT64 U64:UINT64"
        ).split()
    )
}
"""Triton types of the PopEF types that Triton has; fp8 is not among them."""

_TABLE = ", ".join(f"{popef_type.name} = {name}" for popef_type, name in TRITON_TYPES.items())


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. `shape` is the shape of a row, without the batch if the model has one.
    The batch is inserted at `batch_axis`."""

    name: str
    anchor: str
    dtype: np.dtype[Any]
    triton_type: str
    shape: tuple[int, ...]
    batch_axis: int

    def dims(self, batch: int) -> list[int]:
        """Return the dims of a configuration whose requests hold a batch of that size
        (max_batch_size 0); -1 means any size."""
        axis = self.batch_axis
        return [*open_empty(self.shape[:axis]), batch, *open_empty(self.shape[axis:])]


def open_empty(shape: Sequence[int]) -> list[int]:
    """Return dims of a shape: -1 in place of 0, which Triton allows in requests only. The shapes of
    requests are checked beside the model's."""
    return [size or -1 for size in shape]


def read_name_map(file: Path | None, anchors: Sequence[popef.Anchor]) -> dict[str, str]:
    """Return the friendly name of every anchor, by anchor name. Without a file both are the same.

    The file must hold one object of strings to strings, whose keys are anchors and whose values
    differ. Raises ModelConfigError for another file, and for a name that requests could not have.
    """
    names = {anchor.name(): anchor.name() for anchor in anchors}
    try:
        friendly_names = {} if file is None else read_names(file)
    except popef.PopefError as error:
        raise ModelConfigError(str(error)) from error
    unknown = sorted(set(friendly_names) - set(names))
    if unknown:
        raise ModelConfigError(
            f"name map {file}: anchor {unknown[0]!r} does not exist in the PopEF file; its "
            f"anchors are {', '.join(names)}"
        )
    names.update(friendly_names)
    owners: dict[str, str] = {}
    for anchor, friendly in names.items():
        if fault := find_name_fault(friendly):
            raise ModelConfigError(
                f"the name of anchor {anchor!r}: {fault}; rename it in name_map.json"
            )
        if friendly in owners:
            raise ModelConfigError(
                f"name map {file} maps both {owners[friendly]!r} and {anchor!r} to {friendly!r}"
            )
        owners[friendly] = anchor
    return names


def make_tensor(
    anchor: popef.Anchor, friendly: str, row_shape: tuple[int, ...], batch_axis: int
) -> Tensor:
    """Return the tensor of an anchor. Raises ModelConfigError for a type that Triton lacks."""
    info = anchor.tensorInfo()
    triton_type = TRITON_TYPES.get(info.dataType())
    if triton_type is None:
        raise ModelConfigError(
            f"anchor {anchor.name()!r} has type {info.dataType().name}, which Triton does not "
            f"support; supported are {_TABLE}"
        )
    dtype = np.dtype(popef.popefTypeToNumpyDType(info.dataType()))
    return Tensor(friendly, anchor.name(), dtype, triton_type, row_shape, batch_axis)


def check_config_tensors(
    kind: str,
    entries: Sequence[Mapping[str, Any]],
    tensors: Mapping[str, Tensor],
    batch: int,
    wraps_rows: bool,
    names_hint: str,
) -> None:
    """Raise ModelConfigError unless the config's `kind` ("input" or "output") entries are the
    model's tensors.

    `batch` is the size of the batch that dims hold in addition to the row's shape, as with
    max_batch_size 0. With `batch` 0 dims hold none. Without any batch a scalar has dims [1],
    because Triton has no scalars. `names_hint` ends the error for an unknown name.
    """
    scalar = [1] if wraps_rows else []
    for entry in entries:
        name = entry["name"]
        tensor = tensors.get(name)
        if tensor is None:
            raise ModelConfigError(
                f"config.pbtxt lists {kind} {name!r}, which the PopEF file does not have; its "
                f"{kind}s are {', '.join(tensors)}{names_hint}"
            )
        if entry["data_type"] not in TRITON_TYPES.values():
            raise ModelConfigError(
                f"{kind} {name!r}: config.pbtxt has type {entry['data_type']}, which PopEF does "
                f"not support; supported are {_TABLE}"
            )
        if entry["data_type"] != tensor.triton_type:
            raise ModelConfigError(
                f"{kind} {name!r}: config.pbtxt has type {entry['data_type']}, expected "
                f"{tensor.triton_type} of the PopEF file (anchor {tensor.anchor!r})"
            )
        reshape = entry.get("reshape")
        configured_dims = entry["dims"] if reshape is None else reshape.get("shape", [])
        dims = [int(dim) for dim in configured_dims]
        expected = tensor.dims(batch) if batch else open_empty(tensor.shape) or scalar
        if dims != expected and not (batch and dims == tensor.dims(-1)):
            raise ModelConfigError(
                f"{kind} {name!r}: config.pbtxt has dims {dims}, expected {expected} of the PopEF "
                f"file (anchor {tensor.anchor!r}; {_explain_dims(dims, tensor, batch, wraps_rows)})"
            )
    missing = sorted(set(tensors) - {entry["name"] for entry in entries})
    if missing and kind == "input":
        raise ModelConfigError(
            f"config.pbtxt has no input {missing[0]!r}; the model requires {', '.join(tensors)}"
        )
    if tensors and not entries:
        raise ModelConfigError(
            f"config.pbtxt lists no {kind}; the model's {kind}s are {', '.join(tensors)}"
        )


def _explain_dims(dims: Sequence[int], tensor: Tensor, batch: int, wraps_rows: bool) -> str:
    """Return an explanation of the expected dims, for a configuration with others."""
    fixed = "shapes are fixed at compile time; " if min(dims, default=0) < 0 else ""
    if batch:
        return (
            f"{fixed}with max_batch_size 0, dims include the batch, {batch} or -1, at position "
            f"{tensor.batch_axis}"
        )
    if wraps_rows:
        return f"{fixed}the model has no batch, so dims are whole shapes"
    return f"{fixed}dims do not include the batch dimension"
