"""Argument types of the options about a model."""

from __future__ import annotations

import argparse
import ast
from typing import Any

from simipu import LoadError, OperatorLibrary
from simipu.target import find_target

_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def read_chip(text: str) -> str:
    """Return Poplar's name of the chip that `text` names. This is an argparse type."""
    try:
        return find_target(text).name
    except LoadError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_shape(text: str) -> tuple[str, list[int]]:
    """Return the name of an input and its sizes, from NAME=d0,d1. This is an argparse type."""
    name, separator, value = text.rpartition("=")
    try:
        sizes = [int(size) for size in value.strip("[]").split(",") if size]
    except ValueError:
        separator = ""
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=d0,d1,..., found {text!r}")
    return name, sizes


def read_named(text: str) -> tuple[str, str]:
    """Split NAME=VALUE at the last =; NAME may contain another =. This is an argparse type."""
    name, separator, value = text.rpartition("=")
    return _check_pair(name, separator, value, text)


def read_option(text: str) -> tuple[str, str]:
    """Split KEY=VALUE at the first =; VALUE may contain another =. This is an argparse type."""
    return _check_pair(*text.partition("="), text)


def _check_pair(name: str, separator: str, value: str, text: str) -> tuple[str, str]:
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value


def read_serialised(text: str) -> tuple[str, str]:
    """Split OP=FACTOR[/MODE[/KEEP]] into the operator's name and the rest. This is an argparse
    type.

    The operator's name may contain = and /.
    """
    name, specification = read_named(text)
    factor, _, rest = specification.partition("/")
    mode, _, keep = rest.partition("/")
    modes = ("", "input_channels", "output_channels", "reducing_dim", "none")
    if not factor.isdecimal() or mode not in modes or keep.lower() not in ("", *_TRUTHS):
        raise argparse.ArgumentTypeError(
            "expected OP=FACTOR[/MODE[/KEEP_PRECISION]] with a whole FACTOR, MODE "
            f"{', '.join(modes[1:])}, KEEP_PRECISION True or False, found {text!r}"
        )
    return name, specification


def read_group(text: str) -> tuple[Any, ...]:
    """Parse a group of inputs of one type and shape: DTYPE,[SHAPE][,NUMBER]. This is an argparse
    type.

    Example: fp32,[512,1],50.
    """
    dtype, separator, rest = text.partition(",")
    try:
        shape, *number = ast.literal_eval(f"({rest},)" if separator else "None")
        fits = all(isinstance(size, int) and size > 0 for size in (*shape, *number))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        fits = False
    if not fits or len(number) > 1:
        raise argparse.ArgumentTypeError(
            f"expected DTYPE,[SHAPE][,NUMBER] such as fp32,[512,1],50, found {text!r}"
        )
    return (dtype.strip(), list(shape), *number)


def read_library(text: str) -> OperatorLibrary:
    """Return the library of DOMAIN=FILE[,CYCLES]. This is an argparse type."""
    try:
        return OperatorLibrary.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {error}") from error
