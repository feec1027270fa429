"""Options from files and from POPTORCH_DEFAULT_OPTIONS.

A file has one setter a line, as `deviceIterations(4)`. It is parsed, not executed: values are
literals and what `poptorch` offers, so that a file of options cannot run code.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any, Final

import torch

from popef._tools.text import decode_text
from poptorch import enums
from poptorch.errors import ConfigFileError
from poptorch.options import parts as option_parts
from poptorch.options import strategies
from poptorch.options.settings import OptionGroup

VARIABLE: Final = "POPTORCH_DEFAULT_OPTIONS"
_NAMES: Final = {
    name: value
    for module in (enums, strategies, option_parts)
    for name, value in vars(module).items()
    if isinstance(value, type) and value.__module__ == module.__name__ and name[0] != "_"
}
"""What lines may use as `poptorch.NAME`."""
_UNCLOSED: Final = "unexpected EOF while parsing"
"""What the real module's Python says of a bracket that is not closed."""


def load_options(options: Any, path: str) -> None:
    """Set options from a file.

    Args:
        options: The options.
        path: The file.

    Raises:
        ConfigFileError: If a line is not a call of a setter with values that can be read.
    """
    try:
        text = decode_text(Path(path).read_bytes())
    except ValueError as error:
        raise ConfigFileError(f"{path}: {error}") from error
    lines = [line.strip() for line in text.splitlines()]
    commands = [f"options.{line}" for line in lines if line and not line.startswith("#")]
    reader = _Reader(options)
    calls = []
    for number, command in enumerate(commands, 1):
        where = f"at line {number} of {Path(path).name}"
        try:
            calls.append((ast.parse(command, mode="eval").body, command, where))
        except SyntaxError as error:
            detail = _UNCLOSED if "never closed" in str(error.msg) else error.msg
            raise ConfigFileError(f"SyntaxError {where}: {detail}\n> {command}") from error
    for call, command, where in calls:
        try:
            reader.read(call)
        except _UnreadableError as error:
            raise ConfigFileError(f"Error {where}: {error}\n> {command}") from error


class _UnreadableError(Exception):
    """An expression that a file of options may not have."""


class _Reader:
    """Evaluates the expressions of a file of options."""

    def __init__(self, options: Any) -> None:
        self._options = options

    def read(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        match node:
            case ast.Call(func, args, keywords):
                function = self.read(func)
                if not callable(function):
                    raise _UnreadableError(f"{ast.unparse(func)} cannot be called")
                keyword_values = {key.arg or "": self.read(key.value) for key in keywords}
                return function(*(self.read(argument) for argument in args), **keyword_values)
            case ast.Name("options"):
                return self._options
            case ast.Attribute(ast.Name("poptorch"), name):
                if name not in _NAMES:
                    raise _UnreadableError(f"poptorch.{name} is no option's value")
                return _NAMES[name]
            case ast.Attribute(ast.Name("torch"), name):
                value = getattr(torch, name, None)
                if isinstance(value, torch.dtype):
                    return value
                raise _UnreadableError(f"torch.{name} is no type of elements")
            case ast.Attribute(inner, name):
                return self._read_attribute(self.read(inner), name)
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise _UnreadableError(
                f"{ast.unparse(node)}: expected a literal, poptorch.NAME or torch.TYPE"
            ) from None

    def _read_attribute(self, value: Any, name: str) -> Any:
        allowed = isinstance(value, (type, OptionGroup, *_NAMES.values()))
        if not allowed or (name.startswith("_") and name != "_Popart"):
            raise _UnreadableError(f"{name!r} of {type(value).__name__} may not be used here")
        return getattr(value, name)


def load_defaults(options: Any) -> None:
    """Set options from the environment variable POPTORCH_DEFAULT_OPTIONS.

    It is a JSON object from the setters' names to their value, or to the list of their values.

    Args:
        options: The options.

    Raises:
        ConfigFileError: If the variable is no such object.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise ConfigFileError(f"{VARIABLE}: expected a JSON object: {error}") from error
    if not isinstance(entries, dict):
        raise ConfigFileError(f"{VARIABLE}: expected a JSON object, found {text!r}")
    for path, values in entries.items():
        setter = options
        for name in path.split("."):
            if name.startswith("_") and name != "_Popart":
                raise ConfigFileError(f"{VARIABLE}: {path!r} is no option")
            setter = getattr(setter, name, None)
        if not callable(setter):
            raise ConfigFileError(f"{VARIABLE}: {path!r} is no option")
        setter(*map(_read_member, values if isinstance(values, list) else [values]))


def _read_member(value: Any) -> Any:
    """Return the member that a text as "OutputMode.All" names; other values as they are."""
    if not isinstance(value, str) or value.count(".") != 1:
        return value
    enumeration, member = value.split(".")
    kind = getattr(enums, enumeration, None)
    return getattr(kind, member, value) if isinstance(kind, type) else value
