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
from enum import IntEnum, auto
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
_LABELLED = frozenset(_ITEM_BYTES) - BINARY_ONLY - {"BOOL", "BYTES"}
"""Types of outputs for which Triton returns labels."""
_MAX_JSON_VALUES = 16
"""Maximum number of input values that a `curl` command spells out."""
_MAX_SHOWN_VALUES = 1000
"""Maximum number of output values that a `curl` command prints in full."""
_SHOWN_BYTES = 400
"""Bytes of a JSON answer that are shown: the first values, without those that would fill the
screen."""
_SHOW_HALVES = (
    "import io, json, struct, sys; body = sys.stdin.buffer.read(); "
    'head, end = json.JSONDecoder().raw_decode(body.decode("latin-1")); '
    "rest = io.BytesIO(body[end:]); "
    'sys.exit(head["error"]) if "error" in head else [print(y["name"], y["datatype"], y["shape"], '
    '*data[:8], *["..."][:len(data) > 8]) for y in head["outputs"] '
    'for size in [y.get("parameters", {}).get("binary_data_size", 0)] '
    'for data in [y.get("data") or struct.unpack("<%de" % (size // 2), rest.read(size))]]'
)
"""Python program that prints the first values of each output of a response. Halves follow the JSON
in binary, in the order of the outputs."""
_JSON_ZEROS: Mapping[str, Any] = {"BOOL": False, "BYTES": ""}
"""Zero in JSON, where it is not 0."""


class Answer(IntEnum):
    """What a `curl` command prints, the most readable first."""

    LABELS = auto()
    VALUES = auto()
    FIRST_VALUES = auto()
    HALVES = auto()
    FILE = auto()


_ENDS = {
    Answer.LABELS: "",
    Answer.VALUES: "",
    Answer.FIRST_VALUES: f" | head -c {_SHOWN_BYTES}",
    Answer.HALVES: f" | python3 -c {shlex.quote(_SHOW_HALVES)}",
    Answer.FILE: " --output answer.bin",
}
"""Ends of `curl` commands."""


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
    for tensor in config.get("input", ()):
        if tensor.get("optional"):
            continue
        datatype = _read_datatype(tensor)
        if datatype not in _ITEM_BYTES:
            raise ValueError(f"its input {tensor['name']!r} has the unsupported type {datatype}")
        shape = tuple(max(1, int(size)) for size in tensor.get("dims", ()))
        inputs.append(ZeroInput(str(tensor["name"]), datatype, (*batch, *shape)))
    if (num_bytes := sum(source.num_bytes for source in inputs)) > MAX_BYTES:
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
    parameters = {"parameters": {"binary_data_output": True}} if binary_outputs else {}
    return json.dumps({"inputs": [_describe_binary(source) for source in inputs], **parameters})


def find_answer(config: Mapping[str, Any]) -> Answer:
    """Return what `make_curl` prints for a model of this configuration."""
    outputs = config.get("output", ())
    types = {_read_datatype(result) for result in outputs}
    if _find_labelled(config):
        return Answer.LABELS
    if types.isdisjoint(BINARY_ONLY):
        sizes = [math.prod(map(int, result.get("dims", ()))) for result in outputs]
        is_short = min(sizes, default=0) >= 0 and sum(sizes) <= _MAX_SHOWN_VALUES
        return Answer.VALUES if is_short else Answer.FIRST_VALUES
    return Answer.FILE if types & BINARY_ONLY - {"FP16"} else Answer.HALVES


def make_curl(address: str, model: str, config: Mapping[str, Any]) -> str:
    """Return a command for a POSIX shell that sends the model a request of zeros.

    Few values are spelled out in JSON, others are read from /dev/zero and sent in binary. It prints
    the most likely label if the model has labels that Triton can return, and otherwise the values,
    or the first of many. Halves, which JSON cannot carry, are decoded by python3. BF16 goes to a
    file.

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
    answer = find_answer(config)
    tensors = _find_labelled(config) or config.get("output", ())
    outputs = [_ask_for(tensor, answer) for tensor in tensors]
    chosen = {"outputs": outputs} if any("parameters" in result for result in outputs) else {}
    end = _ENDS[answer]
    is_small = sum(source.num_values for source in inputs) <= _MAX_JSON_VALUES
    if is_small and not any(source.datatype in BINARY_ONLY for source in inputs):
        body = json.dumps({"inputs": [_spell_out(source) for source in inputs], **chosen})
        return f"curl -s {url} -d {shlex.quote(body)}{end}"
    head = json.dumps({"inputs": [_describe_binary(source) for source in inputs], **chosen})
    num_bytes = sum(source.num_bytes for source in inputs)
    return (
        f"{{ printf %s {shlex.quote(head)}; head -c {num_bytes} /dev/zero; }} | curl -s {url} "
        f"-H '{LENGTH_HEADER}: {len(head)}' --data-binary @-{end}"
    )


def _find_labelled(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the outputs for which Triton returns labels."""
    return [
        tensor
        for tensor in config.get("output", ())
        if tensor.get("label_filename") and _read_datatype(tensor) in _LABELLED
    ]


def _ask_for(output: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Return the entry of an output in a request."""
    name = {"name": str(output["name"])}
    if answer is Answer.LABELS:
        return {**name, "parameters": {"classification": 1}}
    if _read_datatype(output) in BINARY_ONLY:
        return {**name, "parameters": {"binary_data": True}}
    return name


def _describe_binary(tensor: ZeroInput) -> dict[str, Any]:
    return {**_describe(tensor), "parameters": {"binary_data_size": tensor.num_bytes}}


def _describe(tensor: ZeroInput) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def _spell_out(tensor: ZeroInput) -> dict[str, Any]:
    zero = _JSON_ZEROS.get(tensor.datatype, 0)
    return {**_describe(tensor), "data": [zero] * tensor.num_values}
