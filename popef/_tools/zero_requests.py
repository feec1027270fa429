"""Requests of zeros to models, made from their Triton configurations: what a canary sends, and a
`curl` command that a user can run.

The protocol is KServe's version 2 with Triton's binary extension.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

MAX_BYTES = 16 << 20
"""Maximum size of the inputs of a request; larger ones are not sent."""
LENGTH_HEADER = "Inference-Header-Content-Length"
"""HTTP header with the length of the JSON in front of binary tensors."""
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8"), 1),
    **dict.fromkeys(("INT16", "UINT16", "FP16", "BF16"), 2),
    **dict.fromkeys(("INT32", "UINT32", "FP32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "FP64"), 8),
    "BYTES": 4,  # an empty string has only its length
}
"""Bytes of a value by the protocol's names of types; zeros are valid values of all types."""
BINARY_ONLY = frozenset(("FP16", "BF16"))
"""Types that Triton does not carry in JSON."""
_MAX_JSON_VALUES = 16
"""Maximum number of input values that a `curl` command spells out."""
_JSON_ZEROS: Mapping[str, Any] = {"BOOL": False, "BYTES": ""}
"""Zero in JSON, where it is not 0."""


@dataclass(frozen=True, slots=True)
class ZeroInput:
    """An input of zeros."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        """Return the number of values."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the size of the values in the protocol's binary form."""
        return self.num_values * _ITEM_BYTES[self.datatype]


def make_inputs(config: Mapping[str, Any]) -> list[ZeroInput]:
    """Return the smallest inputs that a model of this configuration takes. Raises ValueError, with
    the reason, if the model must not get such a request."""
    if "sequence_batching" in config:
        raise ValueError("it is a sequence model")
    if config.get("model_transaction_policy", {}).get("decoupled"):
        raise ValueError("it is decoupled")
    batch = (1,) if int(config.get("max_batch_size", 0)) else ()
    inputs = []
    for each in config.get("input", ()):
        if each.get("optional"):
            continue
        datatype = _read_datatype(each)
        if datatype not in _ITEM_BYTES:
            raise ValueError(f"its input {each['name']!r} has the unsupported type {datatype}")
        shape = tuple(max(1, int(size)) for size in each.get("dims", ()))
        inputs.append(ZeroInput(str(each["name"]), datatype, (*batch, *shape)))
    if (num_bytes := sum(each.num_bytes for each in inputs)) > MAX_BYTES:
        raise ValueError(
            f"its inputs have {num_bytes} bytes, more than the limit of {MAX_BYTES} of a request "
            "of zeros"
        )
    return inputs


def _read_datatype(tensor: Mapping[str, Any]) -> str:
    """Return the protocol's name of a tensor's type in a configuration."""
    return str(tensor["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES")


def encode_head(inputs: Sequence[ZeroInput], *, binary_outputs: bool) -> str:
    """Return the JSON in front of the zeros of a binary request."""
    return _encode(
        [
            {**_describe(each), "parameters": {"binary_data_size": each.num_bytes}}
            for each in inputs
        ],
        binary_outputs,
    )


def make_curl(address: str, model: str, config: Mapping[str, Any]) -> str:
    """Return a command for a POSIX shell that sends the model a request of zeros.

    Few values are spelled out in JSON, others are read from /dev/zero and sent in binary. The
    answer is JSON, or goes to a file if the model has an output that JSON cannot carry.

    Args:
        address: HOST:PORT of Triton's HTTP.
        model: the model's name.
        config: its configuration, as Triton's `/v2/models/NAME/config` returns it.

    Returns:
        One line. Names from the configuration are quoted.

    Raises:
        ValueError: with the reason, if no such request is possible, as in `make_inputs`.
    """
    inputs = make_inputs(config)
    url = shlex.quote(f"http://{address}/v2/models/{quote(model, safe='')}/infer")
    binary_outputs = any(_read_datatype(each) in BINARY_ONLY for each in config.get("output", ()))
    end = " --output answer.bin" if binary_outputs else ""
    is_small = sum(each.num_values for each in inputs) <= _MAX_JSON_VALUES
    if is_small and not any(each.datatype in BINARY_ONLY for each in inputs):
        body = shlex.quote(_encode([_spell_out(each) for each in inputs], binary_outputs))
        return f"curl -s {url} -d {body}{end}"
    head = encode_head(inputs, binary_outputs=binary_outputs)
    num_bytes = sum(each.num_bytes for each in inputs)
    return (
        f"{{ printf %s {shlex.quote(head)}; head -c {num_bytes} /dev/zero; }} | curl -s {url} "
        f"-H '{LENGTH_HEADER}: {len(head)}' --data-binary @-{end}"
    )


def _describe(tensor: ZeroInput) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def _spell_out(tensor: ZeroInput) -> dict[str, Any]:
    zero = _JSON_ZEROS.get(tensor.datatype, 0)
    return {**_describe(tensor), "data": [zero] * tensor.num_values}


def _encode(inputs: Sequence[Mapping[str, Any]], binary_outputs: bool) -> str:
    body: dict[str, Any] = {"inputs": inputs}
    if binary_outputs:
        body["parameters"] = {"binary_data_output": True}
    return json.dumps(body)
