"""Conversion of tensors into JSON: REST's responses, in the format of their requests, laid out like
TensorFlow Serving's (util/json_tensor.cc)."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence

from popef._tools.arrays import Array
from poplar_triton.tfserving.decimals import print_floats
from poplar_triton.tfserving.json_tensors import BASE64, Format, refuse

_BYTES_SUFFIX = "_bytes"
"""Suffix of outputs that are bytes, not text: kBytesTensorNameSuffix."""


def write_predictions(outputs: Mapping[str, Array], format: Format) -> bytes:
    """Write the JSON of a response: `predictions` in row format, or `outputs`.

    Row format takes the first axis of every output as the axis of the rows. A single output stands
    without its name.

    Floats have six digits if these read back as the same number, otherwise nine (float64: 17).
    Halves always have at most six. Raises ServingError, INVALID_ARGUMENT, for outputs that have no
    rows in common.
    """
    if not outputs:
        raise refuse("Cannot convert empty tensor map to JSON")
    if format is Format.COLUMN:
        return _write_columns(outputs)
    rows = _count_rows(outputs)
    columns = {
        name: _nest(_print(name, array), (rows, *array.shape[1:]), 1)
        for name, array in outputs.items()
    }
    if len(columns) == 1:
        written = ", ".join(next(iter(columns.values())))
    else:
        keys = [json.dumps(name, ensure_ascii=False) for name in columns]
        written = ",".join(
            "\n        {\n"
            + ",\n".join(
                f"            {key}: {value}" for key, value in zip(keys, row, strict=True)
            )
            + "\n        }"
            for row in zip(*columns.values(), strict=True)
        )
    end = "\n    ]" if rows else "]"
    return f'{{\n    "predictions": [{written}{end}\n}}'.encode()


def _count_rows(outputs: Mapping[str, Array]) -> int:
    rows = None
    for name, array in outputs.items():
        if not array.shape:
            raise refuse(f"Tensor name: {name} has no shape information ")
        if rows not in (None, array.shape[0]):
            raise refuse(
                f"Tensor name: {name} has inconsistent batch size: {array.shape[0]} expecting: "
                f"{rows}"
            )
        rows = array.shape[0]
    return rows or 0


def _write_columns(outputs: Mapping[str, Array]) -> bytes:
    """Write the outputs in column format. TensorFlow Serving writes every number in a line of its
    own; the document is the same."""
    columns = {
        name: _nest(_print(name, array), array.shape, 0)[0] for name, array in outputs.items()
    }
    if len(columns) == 1:
        written = next(iter(columns.values()))
    else:
        lines = (
            f"        {json.dumps(name, ensure_ascii=False)}: {text}"
            for name, text in columns.items()
        )
        written = "{\n" + ",\n".join(lines) + "\n    }"
    return f'{{\n    "outputs": {written}\n}}'.encode()


def _nest(texts: list[str], shape: Sequence[int], outer: int) -> list[str]:
    """Return `texts` of single values in lists of `shape`, without the lists of its `outer` first
    dimensions."""
    for axis in range(len(shape) - 1, outer - 1, -1):
        size, count = shape[axis], math.prod(shape[:axis])
        texts = [
            f"[{', '.join(texts[index * size : (index + 1) * size])}]" for index in range(count)
        ]
    return texts


def _print(name: str, array: Array) -> list[str]:
    """Format the values as JSON, in order."""
    flat = array.reshape(-1)
    kind = array.dtype.kind
    if kind == "O":
        return [_print_bytes(value, name.endswith(_BYTES_SUFFIX)) for value in flat.tolist()]
    if kind == "b":
        return ["true" if value else "false" for value in flat.tolist()]
    if kind == "f":
        return print_floats(flat)
    return list(map(str, flat.tolist()))


def _print_bytes(value: bytes, as_bytes: bool) -> str:
    """Format a string. Bytes that are not UTF-8 are written in base64; TensorFlow Serving writes
    invalid JSON for them."""
    if not as_bytes:
        try:
            return json.dumps(value.decode(), ensure_ascii=False)
        except UnicodeDecodeError:
            pass
    return f'{{"{BASE64}": "{base64.b64encode(value).decode()}"}}'
