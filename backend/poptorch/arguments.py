"""Arguments of a call: binding, flattening into tensors, and comparison with those compiled for.

A value is a tree: tensors at the leaves, in tuples, lists, dicts, dataclasses and types with a
registered parser. Everything else is a constant of the compilation.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from poptorch.errors import Error

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_HINT = (
    "The inputs differ from those that the model was compiled for. Call destroy() on the model "
    "to compile it again for other inputs."
)


class ICustomArgParser:
    """Parser of a type of argument: subclass it and register it for the type."""

    def yieldTensors(self, struct: Any) -> Iterator[Any]:
        """Yield the tensors of a value.

        Args:
            struct: The value.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__}.yieldTensors")

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Any]) -> Any:
        """Return a value like another with other tensors.

        Args:
            original_structure: The value.
            tensor_iterator: The other tensors, in the order of yieldTensors.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__}.reconstruct")


_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_type: type, parser: ICustomArgParser) -> None:
    """Register the parser of a type and of its subclasses.

    Args:
        arg_type: The type.
        parser: Its parser.

    Raises:
        Error: If the parser is no ICustomArgParser.
    """
    if not isinstance(parser, ICustomArgParser):
        raise Error(
            f"the parser of {arg_type} must be a poptorch.ICustomArgParser, found {type(parser)}"
        )
    _parsers[arg_type] = parser


@dataclass(frozen=True, slots=True)
class Arguments:
    """Bound arguments of a forward function.

    Attributes:
        positional: Arguments passed by position, by parameter name.
        variadic: Further positional arguments, and the name of their parameter.
        keywords: Arguments passed by keyword.
    """

    positional: dict[str, Any]
    variadic: tuple[Any, ...]
    variadic_name: str
    keywords: dict[str, Any]

    @property
    def args(self) -> tuple[Any, ...]:
        """Values of the parameters that can be passed by position, as the real class has them."""
        return (*self.positional.values(), *self.variadic)

    def iter_tensors(self) -> Iterator[tuple[str, Any]]:
        """Return the names and tensors, flattened in the order of the parameters."""
        for name, value in self._iter_values():
            yield from iter_tensors(value, name)

    def iter_matching(self, other: Arguments) -> Iterator[Any]:
        """Return the tensors of a later call in the order of these arguments.

        Args:
            other: Arguments of the later call.

        Raises:
            Error: If they differ from these in anything but the values of tensors.
        """
        expected, count = self._count_positional(), other._count_positional()
        if expected != count:
            raise Error(
                f"Number of positional arguments mismatch: expected {expected} arguments but got "
                f"{count}. {_HINT}"
            )
        other_values = dict(other._iter_values())
        _check_keys(dict(self._iter_values()), other_values)
        for name, value in self._iter_values():
            yield from _iter_matching(value, other_values[name], name)

    def replace(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments for a call with other tensors.

        Args:
            tensors: The other tensors, flattened.
        """
        rest = iter(tensors)
        positional = [rebuild(value, rest) for value in self.positional.values()]
        variadic = [rebuild(value, rest) for value in self.variadic]
        keywords = {name: rebuild(value, rest) for name, value in self.keywords.items()}
        return (*positional, *variadic), keywords

    def _count_positional(self) -> int:
        return len(self.positional) + len(self.variadic)

    def _iter_values(self) -> Iterator[tuple[str, Any]]:
        yield from self.positional.items()
        for index, value in enumerate(self.variadic):
            yield f"*{self.variadic_name}[{index}]", value
        yield from self.keywords.items()


def bind(
    forward: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Arguments:
    """Bind arguments to the parameters of a forward function, and fill in its defaults.

    Args:
        forward: The function.
        args: Positional arguments.
        keywords: Keyword arguments.

    Returns:
        The bound arguments.

    Raises:
        Error: If a mandatory parameter is missing.
        AssertionError: If there are too many arguments, or a keyword that is no parameter.
    """
    parameters = _read_parameters(forward)
    kinds = {parameter.kind: parameter.name for parameter in parameters}
    positionals = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    variadic = tuple(args[len(positionals) :])
    if variadic and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise AssertionError(
            f"Too many arguments provided: expected at most {len(positionals)} positional "
            f"arguments but got {len(args)}"
        )
    rest = dict(keywords)
    positional = {
        target.name: _take(target, args[index] if index < len(args) else _ABSENT, rest)
        for index, target in enumerate(positionals)
    }
    by_keyword = {
        parameter.name: _take(parameter, _ABSENT, rest)
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for name in rest:
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            raise AssertionError(f"{name} is not a valid parameter")
    variadic_name = kinds.get(inspect.Parameter.VAR_POSITIONAL, "args")
    return Arguments(positional, variadic, variadic_name, {**by_keyword, **rest})


_ABSENT = object()


_known_parameters: WeakKeyDictionary[Any, list[inspect.Parameter]] = WeakKeyDictionary()
"""Parameters of methods, without the object's, by their functions: each call binds arguments."""


def _read_parameters(forward: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function; builtins without a signature take any."""
    if not isinstance(forward, MethodType) or not isinstance(forward.__func__, FunctionType):
        return _inspect_parameters(forward)
    parameters = _known_parameters.get(forward.__func__)
    if parameters is None:
        parameters = _known_parameters[forward.__func__] = _inspect_parameters(forward)
    return parameters


def _inspect_parameters(forward: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(forward).parameters.values())
    except ValueError:
        kind = inspect.Parameter
        return [kind("args", kind.VAR_POSITIONAL), kind("kwargs", kind.VAR_KEYWORD)]


def _take(parameter: inspect.Parameter, given: Any, keywords: dict[str, Any]) -> Any:
    """Return the argument of a parameter and take it out of the keywords."""
    name = parameter.name
    if given is not _ABSENT:
        if name in keywords:
            raise AssertionError(f"parameter {name} is given by position and by keyword")
        return given
    if name in keywords:
        return keywords.pop(name)
    if parameter.default is inspect.Parameter.empty:
        raise Error(f"Mandatory parameter {name} missing")
    return parameter.default


def iter_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Return the names and tensors of a value, depth first.

    Args:
        value: Any value.
        name: Its name.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
    elif parser := _find_parser(value):
        for index, tensor in enumerate(parser.yieldTensors(value)):
            yield f"{name}[{index}]", tensor
    else:
        for key, child in _iter_children(value):
            yield from iter_tensors(child, f"{name}[{key}]")


def rebuild(value: Any, tensors: Iterator[Any]) -> Any:
    """Return a value of the same types with other tensors.

    Args:
        value: A value.
        tensors: The other tensors, flattened as by iter_tensors.
    """
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if parser := _find_parser(value):
        return parser.reconstruct(value, tensors)
    if isinstance(value, (tuple, list)):
        children = [rebuild(child, tensors) for child in value]
        return type(value)(*children) if hasattr(value, "_fields") else type(value)(children)
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, child in value.items():
            copied[key] = rebuild(child, tensors)
        return copied
    if _is_dataclass(value):
        copied = copy.copy(value)
        for key, child in _iter_children(value):
            object.__setattr__(copied, key, rebuild(child, tensors))
        return copied
    return value


def _iter_matching(expected: Any, found: Any, name: str) -> Iterator[Any]:
    """Return the tensors of a value in the order of another; raise Error where they differ."""
    if isinstance(expected, torch.Tensor):
        _check_tensor(expected, found, name)
        yield found
        return
    if type(expected) is not type(found):
        raise _mismatch("Type", name, type(expected), type(found))
    if _find_parser(expected):
        yield from _iter_parsed(expected, found, name)
        return
    children, others = dict(_iter_children(expected)), dict(_iter_children(found))
    if isinstance(expected, dict):
        _check_keys(children, others)
    elif len(children) != len(others):
        raise _mismatch("Length", name, len(children), len(others))
    elif not _is_tree(expected) and not _are_equal(expected, found):
        raise _mismatch("Value", name, expected, found)
    for key, child in children.items():
        yield from _iter_matching(child, others[key], f"{name}[{key}]")


def _iter_parsed(expected: Any, found: Any, name: str) -> Iterator[Any]:
    before = [tensor for _, tensor in iter_tensors(expected)]
    after = [tensor for _, tensor in iter_tensors(found)]
    if len(before) != len(after):
        raise _mismatch("Length", name, len(before), len(after))
    for index, pair in enumerate(zip(before, after, strict=True)):
        yield from _iter_matching(*pair, f"{name}[{index}]")


def _check_tensor(expected: Any, found: Any, name: str) -> None:
    if not isinstance(found, torch.Tensor):
        raise _mismatch("Type", name, type(expected), type(found))
    if expected.dtype is not found.dtype:
        raise _mismatch("Data type", name, expected.dtype, found.dtype)
    if expected.shape != found.shape:
        raise _mismatch("Shape", name, expected.shape, found.shape)


def _check_keys(expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> None:
    missing = [str(key) for key in expected if key not in found]
    further = [str(key) for key in found if key not in expected]
    if missing:
        raise Error(f"Missing arguments: {', '.join(missing)}. {_HINT}")
    if further:
        raise Error(f"Unexpected arguments: {', '.join(further)}. {_HINT}")


def _mismatch(what: str, name: str, expected: Any, found: Any) -> Error:
    return Error(f"{what} mismatch for {name}: expected {expected} but got {found}. {_HINT}")


def _are_equal(expected: Any, found: Any) -> bool:
    """Return whether two constants are equal; objects that cannot be compared are not."""
    try:
        return expected is found or bool(expected == found)
    except (TypeError, ValueError, RuntimeError):
        return False


def _iter_children(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, (tuple, list)):
        yield from enumerate(value)
    elif isinstance(value, dict):
        yield from value.items()
    elif _is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)


def _is_tree(value: Any) -> bool:
    return isinstance(value, (tuple, list, dict)) or _is_dataclass(value)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _find_parser(value: Any) -> ICustomArgParser | None:
    """Return the parser of a value's type or of the nearest base that has one."""
    if not _parsers:
        return None
    return next((_parsers[kind] for kind in type(value).__mro__ if kind in _parsers), None)
