"""Conversion of JSON into tensors: REST's requests in row format (`instances`) or column format
(`inputs`).

JSON has no types, so they come from the signature. TensorFlow Serving's util/json_tensor.cc is the
specification, including the texts of errors. It accepts duplicate keys, whole numbers that do not
fit the type, and text that is not UTF-8; this module rejects them. Lists are checked and converted
level by level instead of value by value, because a value would cost some 250 ns.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np

from popef._tools.arrays import Array
from popef._tools.text import escape
from poplar_triton.tfserving.models import (
    BY_DTYPE,
    DEFAULT_SIGNATURE,
    ServingError,
    Signature,
    refuse,
)

MAX_LISTS = 1 << 22
"""Maximum number of lists and objects in a request; each takes up to 230 bytes while it is read."""
_MAX_DIMS = 32
"""Maximum number of dimensions in numpy 1."""
_MAX_SHOWN = 256
"""Maximum number of characters of a value or name in an error: kMaxJsonDebugStringBytes."""
_SPACE = " \t\n\r"
BASE64 = "b64"
"""Only key of an object that stands for bytes."""
_BASE64_GROUP = 4
_INFINITY, _MINUS_INFINITY = float("inf"), float("-inf")
_CONSTANTS = {"NaN": float("nan"), "Infinity": _INFINITY, "-Infinity": _MINUS_INFINITY}
_SHORT_CONSTANT = re.compile(r"-?Inf(?!inity)|-NaN")
_STRING_OR_CONSTANT = re.compile(r'"[^"]*"?|-?Inf(?!inity)|-NaN')
_LONG_NAMES = {"Inf": "Infinity", "-Inf": "-Infinity", "-NaN": "NaN"}
_TOO_BIG = "JSON Parse error: Number too big to be stored in double."
_ACCEPTED: dict[str, frozenset[type]] = {
    "f": frozenset((int, float)),
    "i": frozenset((int,)),
    "u": frozenset((int,)),
    "b": frozenset((bool,)),
    "O": frozenset((str, dict)),
}
"""JSON types that are accepted for numpy's kinds."""
_JSON_TYPES = {
    type(None): "Null",
    dict: "Object",
    list: "Array",
    str: "String",
    int: "Number",
    float: "Number",
}
_PARSE_ERRORS = (
    ("Expecting value", "Invalid value."),
    ("Expecting property name", "Missing a name for object member."),
    ("Expecting ':'", "Missing a colon after a name of object member."),
    ("Expecting ','", "Missing a comma or a closing bracket."),
    ("Illegal trailing comma", "Invalid value."),
    ("Invalid \\escape", "Invalid escape character in string."),
    ("Invalid \\u", "Incorrect hex digit after \\u escape in string."),
    ("Unterminated string", "Missing a closing quotation mark in string."),
    ("Invalid control character", "Invalid encoding in string."),
)
"""RapidJSON's messages for errors of Python's json."""


class Format(Enum):
    """Format of a request: the key that holds its tensors."""

    ROW = "instances"
    COLUMN = "inputs"


class _MisfitError(Exception):
    """A JSON value does not fit the tensor. `level` is the nesting depth, None for all; `index` the
    position there."""

    def __init__(self, index: int, text: str, level: int | None = None) -> None:
        super().__init__(text)
        self.index = index
        self.level = level

    def find_row(self, shape: Sequence[int]) -> int:
        """Return the index in the first dimension."""
        return self.index // max(1, math.prod(shape[1 : self.level]))


def parse_predict(
    body: bytes | bytearray, signature: Signature
) -> tuple[Format, str, dict[str, Array]]:
    """Return the format of a request, its `signature_name` ("" if it gives none) and its inputs by
    name.

    Inputs have the types of `signature` and the shapes that they have in JSON. Strings are of dtype
    object and hold bytes.

    Row format puts the rows' axis in front. Raises ServingError, INVALID_ARGUMENT.
    """
    document = _parse(body)
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise refuse(
            f"JSON Value: {_show(document)} not formatted correctly. 'signature_name' key must be "
            "a string value."
        )
    if name not in ("", DEFAULT_SIGNATURE):
        raise refuse(f'Serving signature name: "{_show_name(name)}" not found in signature def')
    if not signature.inputs:
        raise refuse(f"Failed to get input map for signature: {name or 'DEFAULT'}")
    formats = [format for format in Format if format.value in document]
    if not formats:
        raise refuse("Missing 'inputs' or 'instances' key")
    if len(formats) > 1:
        raise refuse(
            f"JSON Value: {_show(document)} Not formatted correctly expecting only one of 'inputs' "
            "or 'instances' keys to exist "
        )
    if formats[0] is Format.COLUMN:
        return Format.COLUMN, name, _read_columns(document["inputs"], signature)
    instances = document["instances"]
    if not isinstance(instances, list):
        raise refuse(f"JSON Value: {_show(document)} Expecting 'instances' to be an list/array")
    if not instances:
        raise refuse(f"JSON Value: {_show(document)} No values in 'instances' array")
    return Format.ROW, name, _read_rows(instances, signature)


def _show(value: object) -> str:
    """Return the beginning of a value, as JSON."""
    text = ""
    for chunk in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += chunk
        if len(text) > _MAX_SHOWN:
            break
    return text[:_MAX_SHOWN]


def _show_name(name: str) -> str:
    return escape(name, _MAX_SHOWN)


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise refuse(
            f"JSON object: expected every key once, found {_show_name(twice)} twice; leave one out"
        )
    return document


_DECODER = json.JSONDecoder(object_pairs_hook=_make_object, parse_constant=_CONSTANTS.__getitem__)


def _parse(body: bytes | bytearray) -> dict[str, Any]:
    if not body:
        raise refuse("JSON Parse error: The document is empty")
    if body.count(b"[") + body.count(b"{") > MAX_LISTS:
        raise refuse(
            f"JSON: expected at most {MAX_LISTS} lists and objects, found more; send fewer rows "
            "in one request"
        )
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _parse_error("Invalid encoding in string.", error.start) from None
    start = len(text) - len(text.lstrip(_SPACE))
    if start == len(text):
        raise _parse_error("The document is empty.", start)
    # Text after the document is ignored, as with RapidJSON's kParseStopWhenDoneFlag.
    document = _decode(text, start)
    if b"\\ud" in body or b"\\uD" in body:
        _refuse_half_pairs(document)
    if not isinstance(document, dict):
        raise refuse(f"JSON Value: {_show(document)} Is not object")
    return document


def _parse_error(reason: str, offset: int) -> ServingError:
    return refuse(f"JSON Parse error: {reason} at offset: {offset}")


def _decode(text: str, start: int) -> Any:
    try:
        return _DECODER.raw_decode(text, start)[0]
    except json.JSONDecodeError as error:
        if _SHORT_CONSTANT.match(text, error.pos):
            return _decode(_spell_out(text), start)
        reason = next(
            (ours for theirs, ours in _PARSE_ERRORS if error.msg.startswith(theirs)), error.msg
        )
        raise _parse_error(reason, len(text[: error.pos].encode())) from None
    except RecursionError:
        raise refuse(
            f"JSON: lists or objects are nested too deep; expected tensors of at most {_MAX_DIMS} "
            "dimensions"
        ) from None
    except ValueError:  # thousands of digits, which Python rejects
        raise refuse(_TOO_BIG) from None


def _spell_out(text: str) -> str:
    """Replace Inf, -Inf and -NaN, which RapidJSON also reads, by the long names that Python's json
    requires."""
    # As long as `text`, without escaped quotes in strings.
    masked = re.sub(r"\\.", "__", text, flags=re.DOTALL)
    parts = []
    end = 0
    for match in _STRING_OR_CONSTANT.finditer(masked):
        if match[0] in _LONG_NAMES:
            parts += [text[end : match.start()], _LONG_NAMES[match[0]]]
            end = match.end()
    return "".join((*parts, text[end:]))


def _refuse_half_pairs(document: object) -> None:
    """Reject half a surrogate pair, which an escape in JSON can express but no text can hold."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise refuse("JSON Parse error: The surrogate pair in string is invalid.") from None


def _read_columns(value: Any, signature: Signature) -> dict[str, Array]:
    if not isinstance(value, dict) or _is_base64(value):
        if len(signature.inputs) > 1:
            raise refuse(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        value = {next(iter(signature.inputs)): value}
    # Other keys are ignored, as in TensorFlow Serving. But one may be a misspelt optional input.
    unknown = value.keys() - signature.inputs.keys() if signature.optional else ()
    for name in unknown:
        raise refuse(f"JSON object: does not have named input: {_show_name(name)}")
    inputs = {}
    for name, spec in signature.inputs.items():
        if name in value:
            inputs[name] = _read_column(name, value[name], spec.dtype)
        elif name not in signature.optional:
            raise refuse(f"Missing named input: {name} in 'inputs' object.")
    return inputs


def _read_column(name: str, value: Any, dtype: np.dtype[Any]) -> Array:
    shape = _find_shape(value)
    try:
        return _build(value, shape, dtype)
    except _MisfitError as misfit:
        raise refuse(f"{misfit} (input {name!r}, row {misfit.find_row(shape)})") from None


def _read_rows(instances: list[Any], signature: Signature) -> dict[str, Array]:
    if _is_object(instances[0]):
        return _read_objects(instances, signature)
    if len(signature.inputs) > 1:
        raise refuse(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    if dict in set(map(type, instances)):
        for row, instance in enumerate(instances):
            if _is_object(instance):
                raise refuse(f"Expecting value/list but got object at item {row} of input list")
    name, spec = next(iter(signature.inputs.items()))
    return {name: _stack(instances, spec.dtype, "")}


def _read_objects(instances: list[Any], signature: Signature) -> dict[str, Array]:
    first, optional = instances[0], signature.optional
    # Every row has all inputs, without the optional ones that the first row lacks.
    keys = {name for name in signature.inputs if name in first or name not in optional}
    for row, instance in enumerate(instances):
        if type(instance) is not dict:
            raise refuse(f"Expecting object but got list at item {row} of input list")
        if instance.keys() != keys:
            _refuse_keys(row, instance, keys)
    return {
        name: _stack([instance[name] for instance in instances], spec.dtype, f" key: {name}")
        for name, spec in signature.inputs.items()
        if name in keys
    }


def _refuse_keys(row: int, instance: Mapping[str, Any], keys: set[str]) -> None:
    for name in instance:
        if name not in keys:
            shown = _show_name(name)
            raise _fail_row(
                row, f" key: {shown}", f"JSON object: does not have named input: {shown}"
            )
    raise refuse(
        f"Failed to process element: {row} of 'instances' list. JSON object: {_show(instance)} "
        f"keys must be equal to: {','.join(sorted(keys))}"
    )


def _fail_row(row: int, key: str, text: str) -> ServingError:
    return refuse(
        f"Failed to process element: {row}{key} of 'instances' list. Error: INVALID_ARGUMENT: "
        f"{text}"
    )


def _stack(values: list[Any], dtype: np.dtype[Any], key: str) -> Array:
    """Return the rows of an input as one array; all have the shape of the first."""
    shape = (len(values), *_find_shape(values[0]))
    try:
        return _build(values, shape, dtype)
    except _MisfitError as misfit:
        row = misfit.find_row(shape)
        raise _fail_row(row, key, _explain(values[row], shape[1:], misfit)) from None


def _explain(value: Any, shape: tuple[int, ...], misfit: _MisfitError) -> str:
    """Return why a row does not have the shape of the first, or `misfit` if it has."""
    own = _find_shape(value)
    try:
        _flatten(value, own)
    except _MisfitError as ragged:
        return str(ragged)
    if math.prod(own) != math.prod(shape):
        return f"Expecting tensor size: {math.prod(shape)} but got: {math.prod(own)}"
    if own != shape:
        return f"Expecting shape {_show_shape(shape)} but got: {_show_shape(own)}"
    return str(misfit)


def _show_shape(shape: Iterable[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(BASE64), str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _find_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a value, judged by the first element of each list."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _build(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if len(shape) > _MAX_DIMS:
        raise _MisfitError(0, f"expected at most {_MAX_DIMS} dimensions, found {len(shape)}")
    leaves = _flatten(value, shape)
    accepted = _ACCEPTED[dtype.kind]
    wrong = set(map(type, leaves)) - accepted
    if wrong:
        index = next(index for index, leaf in enumerate(leaves) if type(leaf) in wrong)
        raise _MisfitError(index, _say_type(leaves[index], dtype))
    return _CONVERT[dtype.kind](leaves, dtype).reshape(shape)


def _flatten(value: Any, shape: Sequence[int]) -> list[Any]:
    """Return the values inside lists of `shape`, in order."""
    nodes = [value]
    for level, size in enumerate(shape):
        if set(map(type, nodes)) != {list} or set(map(len, nodes)) != {size}:
            index = next(
                i for i, node in enumerate(nodes) if type(node) is not list or len(node) != size
            )
            raise _MisfitError(index, _say_ragged(nodes[index], level, shape), level)
        nodes = list(chain.from_iterable(nodes))
    if list in set(map(type, nodes)):
        index = next(i for i, node in enumerate(nodes) if type(node) is list)
        raise _MisfitError(index, _say_ragged(nodes[index], len(shape), shape))
    return nodes


def _say_ragged(node: Any, level: int, shape: Sequence[int]) -> str:
    if type(node) is not list:
        return (
            f"JSON Value: {_show(node)} found at incorrect level: {level + 1} in the JSON DOM. "
            f"Expected at level: {len(shape)}"
        )
    if level >= len(shape):
        return f"Encountered list at unexpected level: {level} expected < {len(shape)}"
    return (
        f"Encountered list at unexpected size: {len(node)} at level: {level} expected size: "
        f"{shape[level]}"
    )


def _name_type(dtype: np.dtype[Any]) -> str:
    return BY_DTYPE[dtype].name.removeprefix("DT_").lower()


def _say_type(value: Any, dtype: np.dtype[Any]) -> str:
    kind = str(value) if isinstance(value, bool) else _JSON_TYPES[type(value)]
    return f"JSON Value: {_show(value)} Type: {kind} is not of expected type: {_name_type(dtype)}"


def _convert_floats(leaves: list[Any], dtype: np.dtype[Any]) -> Array:
    """Convert numbers, which are read as doubles and rounded once more. A number beyond the type's
    range becomes infinity. TensorFlow Serving does not support half (Conversion of JSON Value to
    type: half); this function does."""
    try:
        doubles = np.array(leaves, np.float64)
    except OverflowError:
        raise refuse(_TOO_BIG) from None
    for index in np.flatnonzero(np.isinf(doubles)).tolist():
        if leaves[index] is not _INFINITY and leaves[index] is not _MINUS_INFINITY:
            raise refuse(_TOO_BIG)
    with np.errstate(over="ignore", under="ignore"):
        return doubles.astype(dtype, copy=False)


def _convert_integers(leaves: list[Any], dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    if leaves and (min(leaves) < least or max(leaves) > most):
        index = next(index for index, leaf in enumerate(leaves) if not least <= leaf <= most)
        raise _MisfitError(
            index,
            f"JSON Value: {_show(leaves[index])} does not fit {_name_type(dtype)}: expected a "
            f"whole number from {least} to {most}",
        )
    return np.array(leaves, dtype)


def _convert_bools(leaves: list[Any], dtype: np.dtype[Any]) -> Array:
    return np.array(leaves, dtype)


def _convert_strings(leaves: list[Any], dtype: np.dtype[Any]) -> Array:
    array = np.empty(len(leaves), dtype)
    array[:] = [
        leaf.encode() if type(leaf) is str else _decode_base64(leaf, index)
        for index, leaf in enumerate(leaves)
    ]
    return array


def _decode_base64(value: dict[str, Any], index: int) -> bytes:
    if not _is_base64(value):
        raise _MisfitError(
            index, f"JSON Value: {_show(value)} not formatted correctly for base64 data"
        )
    text = "".join(value[BASE64].split())
    if "=" not in text:
        text += "=" * (-len(text) % _BASE64_GROUP)
    try:
        if len(text) % _BASE64_GROUP:  # Python before 3.11 accepts this
            raise ValueError
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _MisfitError(index, "Unable to base64 decode") from None


_CONVERT = {
    "f": _convert_floats,
    "i": _convert_integers,
    "u": _convert_integers,
    "b": _convert_bools,
    "O": _convert_strings,
}
