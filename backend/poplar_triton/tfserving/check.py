"""Signatures of models: their description in TensorFlow's messages, checks of requests against them
(names, shapes and types) for gRPC and REST alike, and the path of a request to its answer.

Types are the model's. Whole numbers of 64 bits, which numpy makes by default, become the model's 32
bits if every one fits. Nothing else is converted. A batch of single values may have or lack the
axis of size 1 that Triton gives it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from popef._tools.arrays import Array
from popef._tools.text import escape
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.models import (
    BY_DTYPE,
    DEFAULT_SIGNATURE,
    Call,
    Code,
    Servable,
    ServingError,
    Signature,
    TensorSpec,
    refuse,
)

_T = TypeVar("_T")
_ROWS_OF_ONE = (-1, 1)
MAX_NAME = 200
"""Maximum number of characters of a client's name in an error."""
_MAX_NAMES = 50
"""Maximum number of inputs or outputs that an error names."""


class Given(NamedTuple):
    """Input as received: `read` returns its values, with the shape that they have."""

    dtype: np.dtype[Any]
    shape: Sequence[int]
    read: Callable[[Sequence[int]], Array]


def describe_array(_: str, array: Array) -> Given:
    """Describe an input whose values are already read."""
    return Given(array.dtype, array.shape, lambda _: array)


def answer(
    servable: Servable,
    signature_name: str,
    inputs: Mapping[str, _T],
    describe: Callable[[str, _T], Given],
    output_filter: Sequence[str],
    call: Call,
) -> dict[str, Array]:
    """Return the outputs of a request: those in `output_filter`, or all if it is empty.

    `describe` describes each input once its name is checked. Raises ServingError for a request that
    the model rejects, and for errors of the model.
    """
    signature = _find_signature(servable, signature_name)
    _check_inputs(signature, inputs)
    check_outputs(signature, output_filter)
    fitting = {
        name: fit(name, signature.inputs[name], *describe(name, value))
        for name, value in inputs.items()
    }
    return servable.predict(fitting, output_filter, call)


def _find_signature(servable: Servable, name: str) -> Signature:
    """Return the signature that a request names. Raises ServingError for any but the default
    one."""
    if name not in ("", DEFAULT_SIGNATURE):
        raise ServingError(
            Code.FAILED_PRECONDITION,
            f'Serving signature key "{escape(name, MAX_NAME)}" not found. Model {servable.name!r} '
            f'has "{DEFAULT_SIGNATURE}" only.',
        )
    return servable.signature


def _check_inputs(signature: Signature, names: Collection[str]) -> None:
    """Raise ServingError unless the request has the model's inputs and no others; optional ones may
    be missing."""
    given_names, input_names = set(names), set(signature.inputs)
    extra, missing = given_names - input_names, input_names - given_names - signature.optional
    if extra or missing:
        raise refuse(
            f"input size does not match signature: {len(given_names)}!={len(input_names)} "
            f"len({_show(given_names)}) "
            f"!= len({_show(input_names)}). Sent extra: {_show(extra)}. Missing but required: "
            f"{_show(missing)}."
        )


def check_outputs(signature: Signature, names: Sequence[str]) -> None:
    """Raise ServingError for outputs that the model does not have, or that are requested twice."""
    for place, name in enumerate(names):
        if name not in signature.outputs:
            raise refuse(
                f"output tensor alias not found in signature: {escape(name, MAX_NAME)} Outputs "
                f"expected to be in the set {_show(signature.outputs)}."
            )
        if name in names[:place]:
            raise refuse(f"duplicate output tensor alias: {name}")


def fit(
    name: str,
    spec: TensorSpec,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    read: Callable[[Sequence[int]], Array],
) -> Array:
    """Return an input in the model's type and shape.

    Its values are read, with the shape that they have, only after type and shape are checked. An
    input that claims to be huge costs nothing.
    """
    fitting = _fit_shape(name, spec, shape)
    may_narrow = dtype == np.int64 and spec.dtype == np.int32
    if dtype != spec.dtype and not may_narrow:
        raise refuse(
            f"input {name!r}: expected {_name(spec.dtype)}, found {_name(dtype)}; convert it to "
            f"{_name(spec.dtype)} before sending it"
        )
    array = read(shape)
    if dtype != spec.dtype:
        array = _narrow(name, array, spec.dtype)
    return array.reshape(fitting) if array.shape != fitting else array


def _fit_shape(name: str, spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape)
    if len(sizes) == len(spec.shape) and all(
        size in (-1, given_size) for size, given_size in zip(spec.shape, sizes, strict=True)
    ):
        return sizes
    if spec.shape == _ROWS_OF_ONE and len(sizes) == 1:
        return (*sizes, 1)
    if spec.num_ones and sizes[1:] == (1,) * spec.num_ones:
        return sizes[:1]
    raise refuse(
        f"input {name!r}: expected shape {list(spec.shape)}"
        f"{' (-1: any size)' if -1 in spec.shape else ''}, found {list(sizes)}"
    )


def _narrow(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert whole numbers to 32 bits. Raises ServingError for a number that does not fit."""
    narrow = array.astype(dtype)
    if not np.array_equal(narrow, array):
        place = tuple(int(index) for index in np.argwhere(narrow != array)[0])
        where = f"row {place[0]}" if place else "the value"
        raise refuse(
            f"input {name!r}, {where}: expected numbers that fit {_name(dtype)}, the model's "
            f"type; found {int(array[place])}"
        )
    return narrow


def _name(dtype: np.dtype[Any]) -> str:
    known_type = BY_DTYPE.get(dtype)
    return known_type.name if known_type else dtype.name


def _show(names: Collection[str]) -> str:
    shown = ",".join(escape(name, MAX_NAME) for name in heapq.nsmallest(_MAX_NAMES, names))
    rest = len(names) - _MAX_NAMES
    return f"{{{shown}{f' and {rest} more' if rest > 0 else ''}}}"


PREDICT_METHOD = "tensorflow/serving/predict"


def describe_signature(signature: Signature) -> messages.SignatureDefMap:
    """Return the map of signatures, which has one entry. The graph tensors have the friendly names
    with `:0`, because there is no TensorFlow graph."""
    described = messages.SignatureDefMap()
    definition = described.signature_def[DEFAULT_SIGNATURE]
    definition.method_name = PREDICT_METHOD
    _describe(definition.inputs, signature.inputs)
    _describe(definition.outputs, signature.outputs)
    return described


def _describe(infos: Any, tensors: Mapping[str, TensorSpec]) -> None:
    for name, tensor in tensors.items():
        info = infos[name]
        info.name = f"{name}:0"
        info.dtype = BY_DTYPE[tensor.dtype].number
        info.tensor_shape.SetInParent()  # also for a scalar, which has a shape without axes
        for size in tensor.shape:
            info.tensor_shape.dim.add(size=size)
