"""REST's responses as JSON, in the format of their requests and laid out like TensorFlow Serving's
(util/json_tensor.cc); and the process in which large JSON is read and written.

Floating-point numbers have TensorFlow Serving's format (WriteDecimal): `%g`, with its six digits,
if that reads back as the same number, otherwise all digits. Whole numbers end in `.0`. One format
string, made for all numbers of an array, prints them: some 250 ns each.
"""

from __future__ import annotations

import base64
import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from popef._tools.arrays import Array
from poplar_triton.tfserving.json_tensors import BASE64, Format, parse_predict
from poplar_triton.tfserving.models import Call, Signature, refuse
from poplar_triton.tfserving.work_process import WorkProcess, check_wanted

_ALL_DIGITS = {2: 5, 4: 9, 8: 17}
"""Number of decimal digits that distinguish all numbers, by their size in bytes: max_digits10."""
_SHORT_DIGITS = 6
_EXACT_POWERS = 22
"""Largest exact power: 10**22 is the largest power of ten that is a double."""


def print_floats(numbers: npt.NDArray[np.floating[Any]]) -> list[str]:
    """Format the numbers of a flat array of float16, float32 or float64 as JSON, with NaN, Infinity
    and -Infinity."""
    digits = _ALL_DIGITS[numbers.dtype.itemsize]
    values = numbers.astype(np.float64)
    short = (
        _find_short(values, numbers.dtype) if digits > _SHORT_DIGITS else np.ones(len(values), bool)
    )
    # From this number on %g writes an exponent.
    largest = np.where(short, 10.0**_SHORT_DIGITS, 10.0**digits)
    formats = np.select(
        [
            np.isnan(values),
            values == np.inf,
            values == -np.inf,
            (values == np.rint(values)) & (np.abs(values) < largest),
            short,
        ],
        ["NaN%.0s", "Infinity%.0s", "-Infinity%.0s", "%.1f", "%g"],
        default=f"%.{digits}g",
    )
    if not len(values):
        return []
    return ("\n".join(formats.tolist()) % tuple(values.tolist())).split("\n")


def _find_short(values: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Return which numbers six decimal digits read back as.

    If m and 10**k are doubles, the decimal m * 10**-k reads as m / 10**k rounded once, and m *
    10**k likewise. So the result of reading is known without printing. If 10**k is not a double,
    the number is printed and read.
    """
    with np.errstate(all="ignore"):
        exponents = np.where(values == 0, 0, np.floor(np.log10(np.abs(values))))
        scale = _SHORT_DIGITS - 1 - exponents
        power = 10.0 ** np.abs(scale)
        read = np.where(
            scale >= 0, np.rint(values * power) / power, np.rint(values / power) * power
        )
        short: npt.NDArray[np.bool_] = np.equal(read.astype(dtype), values)
    for index in np.flatnonzero(np.isfinite(values) & (np.abs(scale) > _EXACT_POWERS)).tolist():
        short[index] = dtype.type(f"{values[index]:g}") == values[index]
    return short


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
        text = ", ".join(next(iter(columns.values())))
    else:
        keys = [json.dumps(name, ensure_ascii=False) for name in columns]
        text = ",".join(
            "\n        {\n"
            + ",\n".join(
                f"            {key}: {value}" for key, value in zip(keys, row, strict=True)
            )
            + "\n        }"
            for row in zip(*columns.values(), strict=True)
        )
    end = "\n    ]" if rows else "]"
    return f'{{\n    "predictions": [{text}{end}\n}}'.encode()


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
        value_text = next(iter(columns.values()))
    else:
        lines = (
            f"        {json.dumps(name, ensure_ascii=False)}: {text}"
            for name, text in columns.items()
        )
        value_text = "{\n" + ",\n".join(lines) + "\n    }"
    return f'{{\n    "outputs": {value_text}\n}}'.encode()


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


LARGE_BYTES = 1 << 18
"""Minimum size of a body that is read in the process. A smaller one blocks other threads for at
most some 30 ms, at 250 ns for a value of two bytes."""
LARGE_VALUES = 1 << 15
"""Minimum number of values of a response that is written in the process. A smaller one takes at
most some 30 ms, at 1 us for a value."""

Parsed: TypeAlias = "tuple[Format, str, dict[str, Array]]"
"""See parse_predict."""


class JsonProcess:
    """Reads bodies and writes responses: one small body at a time, and one large body or response
    at a time. The values take many times the size of the body. Threads may share it."""

    def __init__(self) -> None:
        self._reading_small = threading.Lock()
        self._process = WorkProcess("process of large JSON")

    def read(self, body: bytearray, signature: Signature, call: Call) -> Parsed:
        """See parse_predict. Also raises ServingError for a call that is given up meanwhile."""
        if len(body) > LARGE_BYTES:
            parsed: Parsed = self._process.run(call, parse_predict, body, signature)
            return parsed
        with self._reading_small:
            check_wanted(call)
            return parse_predict(body, signature)

    def write(self, outputs: Mapping[str, Array], format: Format, call: Call) -> bytes:
        """See write_predictions. Also raises ServingError for a call that is given up meanwhile."""
        if _is_large(outputs):
            answer: bytes = self._process.run(call, write_predictions, dict(outputs), format)
            return answer
        return write_predictions(outputs, format)

    def close(self) -> None:
        """End the process. Its work is lost, and waiting requests are refused."""
        self._process.close()


def _is_large(outputs: Mapping[str, Array]) -> bool:
    """Return whether the JSON of outputs takes long to write, because they have many values or long
    strings."""
    if sum(array.size for array in outputs.values()) > LARGE_VALUES:
        return True
    texts = (array for array in outputs.values() if array.dtype.hasobject)
    return sum(len(text) for array in texts for text in array.flat) > LARGE_BYTES
