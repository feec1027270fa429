"""Values that an attribute of a configuration takes, by the type hint of its first assignment."""

from __future__ import annotations

import ast
import builtins
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from popef._tools.options import Kind, MismatchError


def kind_of_value(value: object) -> Kind:
    """Return the kind of the values of exactly one class, that of a value."""
    return kind_of_hint(type(value), type(value).__name__)


def kind_of_hint(hint: Any, name: str) -> Kind:
    """Return the kind of the values that a type hint allows.

    Args:
        hint: A class, a list, tuple or union of hints, or one of typing's names for them.
        name: What errors call the kind.

    Returns:
        The kind. Its base is the class of the values, or `object` for a union.

    Raises:
        ValueError: For a union of int and an enumeration: a file could not tell them apart.
    """
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    is_enum = any(isinstance(option, type) and issubclass(option, Enum) for option in options)
    if origin is typing.Union and int in options and is_enum:
        raise ValueError(
            "cannot have a Union of int and Enum: deserialising this attribute may be invalid"
        )

    def read(value: Any) -> Any:
        if not allows(hint, value):
            raise MismatchError(name, value)
        return value

    base = origin if isinstance(origin, type) else hint if isinstance(hint, type) else object
    return Kind(name, read, base)


def allows(hint: Any, value: Any) -> bool:
    """Return whether a type hint allows a value; a class allows its own instances only."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Union:
        return any(allows(option, value) for option in options)
    if origin is None or not options:
        return type(value) is (origin or hint or type(None))
    if type(value) is not origin:
        return False
    if origin is tuple and options[-1] is not Ellipsis:
        return len(value) == len(options) and all(map(allows, options, value))
    if origin in (list, tuple):
        return all(allows(options[0], item) for item in value)
    return True


def resolve(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the type hint that an expression of a program's source stands for.

    Args:
        node: A name, an attribute, a subscript, a tuple or a constant.
        names: Global names of the program.

    Returns:
        The hint.

    Raises:
        LookupError: For a name that the program does not have.
        AttributeError: For an attribute that it does not have.
        TypeError: For another expression.
    """
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return names[name] if name in names else vars(builtins)[name]
        case ast.Attribute(value, name):
            return getattr(resolve(value, names), name)
        case ast.Subscript(value, items):
            return resolve(value, names)[resolve(items, names)]
        case ast.Tuple(items):
            return tuple(resolve(item, names) for item in items)
    raise TypeError(f"expected a type hint, found {ast.unparse(node)}")
