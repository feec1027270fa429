"""Graph inputs that are settings rather than data become constants before anything is folded (the option is
ours)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from simipu import CompileError

from poprt.shapes import describe_shape

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def fix_inputs(
    model: onnx.ModelProto, values: Mapping[str, Any], input_shape: Mapping[str, Sequence[int]]
) -> None:
    """Turn inputs of `model` into constants, in place: `values` has numbers, arrays, or texts of numbers with
    commas, by name.

    An input's variable dimensions are those of `input_shape`, or else what the values leave open. Raises
    CompileError for an unknown input, and for values that are not of the input's type and shape.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in weights}
    unknown = sorted(set(values) - set(inputs))
    if unknown:
        raise CompileError(f"fix_inputs names {unknown[0]!r}; the model's inputs are {', '.join(inputs)}")
    for name, given in values.items():
        value = inputs[name]
        array = _shape(value, _parse(value, given), given, input_shape.get(name))
        graph.initializer.append(numpy_helper.from_array(array, name))
        graph.input.remove(value)


def _parse(value: onnx.ValueInfoProto, given: Any) -> npt.NDArray[Any]:
    """The values in the input's type."""
    element = value.type.tensor_type.elem_type
    dtype = (
        helper.tensor_dtype_to_np_dtype(element)
        if element in helper.get_all_tensor_dtypes()
        else np.dtype(object)
    )
    if dtype.kind not in "fiub":
        raise CompileError(
            f"input {value.name!r} cannot be fixed: its type is {_type_name(value)}, and only numbers can "
            "be given"
        )
    if isinstance(given, str):
        words = given.strip().strip("[]").split(",")
        parsed = np.array([_read(value, word.strip(), dtype, given) for word in words if word.strip()], dtype)
        return parsed if len(parsed) != 1 else parsed.reshape(())
    found = np.asarray(given)
    with np.errstate(over="ignore", invalid="ignore"):
        array = found.astype(dtype) if found.dtype.kind in "fiub" else None
    if array is None or not (dtype.kind == "f" or np.array_equal(array, found)):
        raise _wrong(value, f"found {given!r}")
    return array


def _read(value: onnx.ValueInfoProto, word: str, dtype: np.dtype[Any], given: str) -> Any:
    try:
        if dtype.kind == "b":
            return _BOOLEANS[word.lower()]
        number: float = float(word) if dtype.kind == "f" else int(word)
    except (ValueError, KeyError):
        raise _wrong(value, f"found {word!r} in {given!r}") from None
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise _wrong(value, f"found {word}, which is out of its range")
    return number


def _shape(
    value: onnx.ValueInfoProto, array: npt.NDArray[Any], given: Any, wanted: Sequence[int] | None
) -> npt.NDArray[Any]:
    """The values in the input's shape, of which one dimension may be open."""
    if not value.type.tensor_type.HasField("shape"):
        return array if wanted is None else _fit(value, array, given, list(wanted))
    dims = [dim.dim_value if dim.dim_value > 0 else -1 for dim in value.type.tensor_type.shape.dim]
    if wanted is not None:
        if len(wanted) != len(dims) or any(
            dim not in (-1, asked) for dim, asked in zip(dims, wanted, strict=False)
        ):
            raise CompileError(
                f"input {value.name!r} has shape {describe_shape(value)}, input_shape gives it {list(wanted)}"
            )
        dims = list(wanted)
    return _fit(value, array, given, dims)


def _fit(
    value: onnx.ValueInfoProto, array: npt.NDArray[Any], given: Any, dims: list[int]
) -> npt.NDArray[Any]:
    known = math.prod(dim for dim in dims if dim > 0)
    is_open = dims.count(-1) == 1
    # A lone number fills nothing larger than itself: where two are meant, one has been forgotten.
    if dims.count(-1) < 2 and (array.size % known == 0 and array.size if is_open else array.size == known):
        return array.reshape(dims)
    raise _wrong(value, f"found {array.size} value{'s' * (array.size != 1)} in {given!r}")


def _wrong(value: onnx.ValueInfoProto, found: str) -> CompileError:
    return CompileError(
        f"input {value.name!r} cannot be fixed: expected {_type_name(value)} of shape "
        f"{describe_shape(value)}, {found}; give a number, or as many as the shape holds with commas "
        "between (--input_shape fixes open dimensions)"
    )


def _type_name(value: onnx.ValueInfoProto) -> str:
    return str(TensorProto.DataType.Name(value.type.tensor_type.elem_type))
