"""Arguments of methods: bound to parameters, converted as the real module converts them.

The real module is C++. Its methods take any sequence of ints for a list, a NumPy array too, and
reject other arguments with a TypeError that lists the supported signatures. Methods made from
tables, and methods with several signatures, are called through here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from popart import enums, variables
from popart.debugcontext import get_path_name
from popart.errors import popart_exception
from popart.graphcore import REQUIRED, Parameter
from popart.tensorinfo import TensorInfo, find_type, from_numpy_type, to_onnx_type

Convert = Callable[[Any], Any]
_NO_DATA = ("DOUBLE", "COMPLEX64", "COMPLEX128")
"""Types of arrays that no model can hold."""


class _WrongKindError(Exception):
    """A value of another kind than a parameter has."""


def bind(
    name: str, parameters: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of all parameters of a method that has one signature.

    Args:
        name: Name of the method, for errors.
        parameters: Its parameters in order.
        args: Positional arguments.
        kwargs: Arguments by name.

    Returns:
        Converted values by parameter, defaults included.

    Raises:
        TypeError: If they are not arguments of that method.
    """
    return bind_any(name, [parameters], args, kwargs)[1]


def bind_any(
    name: str,
    signatures: Sequence[Sequence[Parameter]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[int, dict[str, Any]]:
    """Return the index of the first signature that takes the arguments, and the values."""
    for index, parameters in enumerate(signatures):
        try:
            return index, _bind(parameters, args, kwargs)
        except _WrongKindError:
            continue
    shown = "\n".join(
        f"    {number}. {describe(parameters)}" for number, parameters in enumerate(signatures, 1)
    )
    shown_arguments = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    raise TypeError(
        f"{name}(): incompatible function arguments. The following argument types are supported:\n"
        f"{shown}\n\nInvoked with: {', '.join(shown_arguments)}"
    )


def describe(parameters: Sequence[Parameter]) -> str:
    """Return the text of a signature, as `(args: list[str], axis: int = 0)`."""
    texts = []
    for parameter in parameters:
        text = f"{parameter.name}: {annotate(parameter)}"
        if parameter.default is not REQUIRED:
            text += f" = {parameter.default!r}"
        texts.append(text)
    return f"({', '.join(texts)})"


def annotate(parameter: Parameter) -> str:
    """Return the type of a parameter's values."""
    text = _KINDS[parameter.kind][0] if parameter.kind in _KINDS else parameter.kind
    return f"{text} | None" if parameter.default is None else text


def _bind(
    parameters: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    arguments = dict(zip((parameter.name for parameter in parameters), args, strict=False))
    if len(args) > len(parameters) or arguments.keys() & kwargs.keys():
        raise _WrongKindError
    arguments.update(kwargs)
    if arguments.keys() - {parameter.name for parameter in parameters}:
        raise _WrongKindError
    return {parameter.name: _convert(parameter, arguments) for parameter in parameters}


def _convert(parameter: Parameter, given: Mapping[str, Any]) -> Any:
    if parameter.name not in given:
        if parameter.default is REQUIRED:
            raise _WrongKindError
        default = parameter.default
        if isinstance(default, str) and hasattr(enums, parameter.kind):
            return getattr(enums, parameter.kind)[default]
        return default
    value = given[parameter.name]
    if value is None and parameter.default is None:
        return None
    try:
        return _find_converter(parameter.kind)(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _WrongKindError from error


def _find_converter(kind: str) -> Convert:
    if kind in _KINDS:
        return _KINDS[kind][1]
    kind_class = getattr(enums, kind, None) or getattr(variables, kind)

    def check(value: Any) -> Any:
        if not isinstance(value, kind_class):
            raise TypeError
        return value

    return check


def _to_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def _to_float(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _to_char(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1:
        raise TypeError
    return value


def _to_bool(value: Any) -> bool:
    # pybind11 takes whatever has a truth value of its own, numbers too.
    if value is not None and not hasattr(value, "__bool__"):
        raise TypeError
    return bool(value)


def _to_dense(value: Any) -> bool:
    if _to_bool(value):
        raise popart_exception(
            "constant: is_value_sparse=True is not supported; give the values as a dense array"
        )
    return False


def _to_count(value: Any) -> int:
    count = operator.index(value)
    if count < 0:
        raise ValueError
    return count


def _list_of(convert: Convert) -> Convert:
    """Return a converter of sequences; texts, sets and generators are none in the real module."""

    def convert_all(values: Any) -> list[Any]:
        if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, (str, bytes)):
            raise TypeError
        return [convert(value) for value in values]

    return convert_all


def _to_names(values: Any) -> list[str]:
    """Convert names of outputs: a set or a list."""
    return sorted(map(_to_text, values)) if isinstance(values, (set, frozenset)) else _IDS(values)


def _to_tensor(value: Any) -> onnx.TensorProto:
    """Convert an array, or what NumPy makes one of, to a constant."""
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    return make_tensor("", array)


def make_tensor(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    """Return an array as the data of a model."""
    tensor = onnx.TensorProto()
    write_tensor(tensor, name, array)
    return tensor


def write_tensor(tensor: onnx.TensorProto, name: str, array: np.ndarray[Any, Any]) -> None:
    """Write an array into a tensor of a model: in place, because copies of weights take time."""
    check_data_type(array)
    tensor.name = name
    tensor.data_type = to_onnx_type(from_numpy_type(array.dtype))
    tensor.dims[:] = array.shape
    tensor.raw_data = array.tobytes()


def check_data_type(array: np.ndarray[Any, Any]) -> None:
    """Raise popart_exception for an array that no model can hold."""
    data_type = from_numpy_type(array.dtype)
    if data_type.name in _NO_DATA:
        info = TensorInfo(data_type, array.shape)
        raise popart_exception(f"Unsupported data type for initialized data ({info})")


def _to_tensor_info(value: Any) -> TensorInfo:
    if not isinstance(value, TensorInfo):
        raise TypeError
    return value


def _to_location(value: Any) -> Any:
    if not hasattr(value, "shardingDomain"):
        raise TypeError
    return value


def _to_dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _to_graph(value: Any) -> onnx.GraphProto:
    """Convert a subgraph's builder to its graph."""
    graph = getattr(value, "make_graph", None)
    if graph is None:
        raise TypeError
    graph_proto: onnx.GraphProto = graph()
    return graph_proto


def _to_array(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value)


_IDS = _list_of(_to_text)
_KINDS: Mapping[str, tuple[str, Convert]] = {
    "bool": ("bool", _to_bool),
    "int": ("int", operator.index),
    "count": ("int", _to_count),
    "float": ("float", _to_float),
    "str": ("str", _to_text),
    "char": ("str", _to_char),
    "ints": ("Sequence[int]", _list_of(operator.index)),
    "floats": ("Sequence[float]", _list_of(_to_float)),
    "strs": ("Sequence[str]", _list_of(_to_text)),
    "ints2": ("Sequence[Sequence[int]]", _list_of(_list_of(operator.index))),
    "id": ("str", _to_text),
    "ids": ("Sequence[str]", _IDS),
    "names": ("Collection[str]", _to_names),
    "groups": ("Sequence[Sequence[str]]", _list_of(_IDS)),
    "graph": ("Builder", _to_graph),
    "tensor": ("npt.ArrayLike", _to_tensor),
    "array": ("npt.ArrayLike", _to_array),
    "dict": ("dict[str, Any]", _to_dict),
    "TensorLocation": ("TensorLocation", _to_location),
    "TensorInfo": ("TensorInfo", _to_tensor_info),
    "DataTypeName": ("str", _to_text),
    "TypeName": ("str", lambda value: to_onnx_type(find_type(_to_text(value)))),
    "dense": ("bool", _to_dense),
    "debug": ("str | DebugContext", get_path_name),
}
"""Type, and converter, of the values of each kind of parameter; enumerations and settings stand for
themselves."""
