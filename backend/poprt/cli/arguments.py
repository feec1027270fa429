"""Argument types and options about a model that the commands share."""

from __future__ import annotations

import argparse
import ast
from typing import Any

from simipu import LoadError
from simipu.target import find_target

from popef._tools.arguments import Parser, split_names
from poprt.options import PRECISIONS

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
            f"expected OP=FACTOR[/MODE[/KEEP_PRECISION]] with a whole FACTOR, MODE {', '.join(modes[1:])}, "
            f"KEEP_PRECISION True or False, found {text!r}"
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


def add_names(parser: Parser, option: str, help_text: str, metavar: str = "NAME") -> None:
    """Add an option to `parser` that takes names, separated by commas."""
    parser.add_argument(option, nargs="+", default=[], metavar=metavar, help=f"{help_text} (comma separated)")


def add_precision(parser: Parser, default: str | None, default_text: str) -> None:
    """Add the option for the type of weights and arithmetic to `parser`."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=default,
        help=f"type of weights and arithmetic (default: {default_text})",
    )


def add_pass_options(parser: Parser) -> None:
    """Add to `parser` the converter's options that `profile` has too."""
    add = parser.add_argument
    add_names(parser, "--passes", "further passes, run in that order after the others", "PASS")
    add_names(parser, "--skip_passes", "passes to leave out", "PASS")
    add_names(parser, "--fp16_skip_op_types", "operators that stay fp32 in an fp16 model", "OP")
    add("--enable_erf_gelu", action="store_true", help="put the chip's Gelu for the formula with Erf, too")
    add("--disable_fast_norm", action="store_true", help="leave layer norms GroupNormalization")
    add("--enable_insert_remap", action="store_true", help="lay tensors out anew, see --remap_mode")
    add_names(parser, "--remap_mode", "before_ or after_ and an operator; default: after_matmul", "MODE")
    serialise_help = "cut products into FACTOR pieces, computed one after the other"
    form = "OP=FACTOR[/MODE[/KEEP]]"
    add("--serialize_matmul", type=read_serialised, nargs="+", default=[], metavar=form, help=serialise_help)
    add(
        "--serialize_matmul_add",
        type=read_named,
        nargs="+",
        default=[],
        metavar="MATMUL/ADD=FACTOR",
        help="the same of a product and the addition behind it",
    )
    add("--merge_matmul", metavar="A,B", help="join two products of one input")
    add("--merge_matmul_add", metavar="M1,A1,M2,A2", help="the same with the additions behind them")


def read_pass_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the set options of `add_pass_options` as arguments of Converter."""
    asked = {
        "used_passes": split_names(options.passes),
        "skip_passes": split_names(options.skip_passes),
        "fp16_skip_op_types": split_names(options.fp16_skip_op_types),
        "enable_erf_gelu": options.enable_erf_gelu,
        "disable_fast_norm": options.disable_fast_norm,
        "enable_insert_remap": options.enable_insert_remap,
        "remap_mode": split_names(options.remap_mode),
        "serialize_matmul": dict(options.serialize_matmul),
        "serialize_matmul_add": dict(options.serialize_matmul_add),
        "merge_matmul": options.merge_matmul,
        "merge_matmul_add": options.merge_matmul_add,
    }
    return {name: value for name, value in asked.items() if value}
