"""Requests of zeros to models, made from their configurations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poplar_triton.errors import ServerError

MAX_BYTES = 16 << 20
"""Maximum size of the inputs of a canary; larger ones are not sent."""
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8"), 1),
    **dict.fromkeys(("INT16", "UINT16", "FP16", "BF16"), 2),
    **dict.fromkeys(("INT32", "UINT32", "FP32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "FP64"), 8),
    "BYTES": 4,  # an empty string has only its length
}
"""Bytes of a value by the protocol's names of types; zeros are valid values of all types."""


@dataclass(frozen=True, slots=True)
class ZeroInput:
    """An input of zeros."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the request in the protocol's binary form."""
        return math.prod(self.shape) * _ITEM_BYTES[self.datatype]


def make_inputs(config: Mapping[str, Any]) -> list[ZeroInput]:
    """Return the smallest inputs that a model of this configuration takes. Raises ServerError, with
    the reason, if the model must not get such a request."""
    if "sequence_batching" in config:
        raise ServerError("it is a sequence model")
    if config.get("model_transaction_policy", {}).get("decoupled"):
        raise ServerError("it is decoupled")
    batch = (1,) if int(config.get("max_batch_size", 0)) else ()
    inputs = []
    for each in config.get("input", ()):
        if each.get("optional"):
            continue
        datatype = str(each["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES")
        if datatype not in _ITEM_BYTES:
            raise ServerError(f"its input {each['name']!r} has the unsupported type {datatype}")
        shape = tuple(max(1, int(size)) for size in each.get("dims", ()))
        inputs.append(ZeroInput(str(each["name"]), datatype, (*batch, *shape)))
    if (num_bytes := sum(each.num_bytes for each in inputs)) > MAX_BYTES:
        raise ServerError(
            f"its inputs have {num_bytes} bytes, more than a canary's limit of {MAX_BYTES}"
        )
    return inputs
