"""Entry of an option: all facts about it, and what the commands and Converter make of them.

An entry adds its option to a parser, and turns the parsed value into an argument of Converter or a
field of CompilerOptions. Its kind reads the value that a script passes to Converter. `option_table`
has the entries. The functions `read_...` are argparse types.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from pathlib import Path
from typing import Any

from simipu import LoadError, OperatorLibrary, find_target

from popef._tools import options
from popef._tools.arguments import (
    MAX_NUMBER,
    Parser,
    count,
    positive,
    split_names,
    whole_number,
)
from popef._tools.options import Kind, MismatchError
from popef._tools.paths import Kind as PathKind

Names = Collection[str] | str | None
"""Names as a text separated by commas, or as a collection."""


class Form(Enum):
    """Form of an option's value on the command line."""

    FLAG = auto()
    """No value: the option is given or not."""
    VALUE = auto()
    VALUES = auto()
    """One or more values, as a list."""
    NAMES = auto()
    """Names, separated by commas or blanks, as a list."""
    PAIRS = auto()
    """One or more keys with values, as a dict."""
    PATH = auto()
    """File or folder, which the shell completes."""
    FOLDER = auto()


_LISTS = frozenset({Form.VALUES, Form.NAMES, Form.PAIRS})
_PATHS = frozenset({Form.PATH, Form.FOLDER})


class Use(Flag):
    """What reads an option, and whose it is."""

    CONVERTER = auto()
    """Converter gets the value as an argument."""
    COMPILER = auto()
    """The field of CompilerOptions of the same name gets the value."""
    PROFILE = auto()
    """`poplar-triton profile` passes the option to Converter, too."""
    RECIPE = auto()
    """A recipe.json, which may be untrusted, can set the option: it only says how to compile."""
    MODEL = auto()
    """Each of several models to fuse may have its own value, as for options of CONVERTER."""
    ONCE = auto()
    """All models to fuse have one value, although Converter gets it."""
    OURS = auto()
    """The real tool lacks the option."""


@dataclass(frozen=True, slots=True)
class Takes:
    """What an option takes: the form of its value, the name of the value in the help, and its type.

    `type` reads a value; it raises ArgumentTypeError. None keeps the text, or the path.
    """

    form: Form
    metavar: str | None = None
    type: Callable[[str], Any] | None = None


def _read_argument(read: Callable[[Any], Any]) -> Kind:
    """Return the kind of an argument of Converter. What `read` cannot use is an error that says
    why."""

    def check(value: Any) -> Any:
        try:
            return read(value)
        except (TypeError, AttributeError) as error:
            shown = f"{type(value).__name__} {options.quote(value)}"
            raise MismatchError(text=f": {shown} cannot be used: {error}") from error

    return Kind("", check)


def _split(names: Names) -> list[str]:
    """Return the user's names without blanks around them."""
    listed = names.split(",") if isinstance(names, str) else names or ()
    return [stripped for name in listed if (stripped := name.strip())]


def _list_groups(
    groups: Mapping[str, Any] | Sequence[Sequence[Any]] | None,
) -> Sequence[Sequence[Any]]:
    """Return groups of inputs as a list: type, shape, and the number of inputs if given.

    A dict has the groups by name, or as the pass's `merged_inputs`.
    """
    if isinstance(groups, Mapping):
        listed: Sequence[Sequence[Any]] = groups.get("merged_inputs", list(groups.values()))
        return listed
    return groups or ()


def _read_packing(arguments: Any) -> Any:
    # Imported here: the parser of the command needs no passes.
    from poprt.passes.packing.packed_transformer import PackArgs

    return PackArgs.read(arguments) if arguments else None


def _read_fp8(parameters: Any) -> Any:
    # Imported here: the parser of the command needs no passes.
    from poprt.passes.precision.eight_bits import Fp8Params

    return Fp8Params.parse(parameters)


def word_argument(*words: str) -> Kind:
    """Return the kind of one of some words; the first one stands for an empty value."""

    def read(word: str | None) -> str:
        if (word or words[0]) not in words:
            raise MismatchError(", ".join(words))
        return word or words[0]

    return Kind("", read)


NAME_LIST = _read_argument(_split)
NAME_SET = _read_argument(lambda names: frozenset(_split(names)))
MAPPING = _read_argument(lambda values: dict(values or {}))
GROUPS, PACKING, FP8 = map(_read_argument, (_list_groups, _read_packing, _read_fp8))
"""Kinds of Converter's arguments that have more forms than one."""
_NO_USE = Use(0)
FLAG, VALUE = Takes(Form.FLAG), Takes(Form.VALUE)
NUMBER, COUNT, INTEGER = (
    Takes(Form.VALUE, "N", kind)
    for kind in (positive, count, whole_number(-MAX_NUMBER, MAX_NUMBER))
)
"""Number of at least 1, of at least 0, and any whole number."""
FILE, FOLDER = Takes(Form.PATH, "FILE"), Takes(Form.FOLDER, "DIR")
NAMES, NODES, PASSES, FILES = (Takes(Form.NAMES, name) for name in ("NAME", "NODE", "PASS", "FILE"))


@dataclass(frozen=True, slots=True)
class Option(options.Option):
    """One option of a command.

    `name` is its long name without dashes, which is also the key in a YAML file. `default` is its
    value if it is not given; flags are False and lists are empty without it. `kind` reads the
    argument of Converter.
    """

    takes: Takes = VALUE
    use: Use = _NO_USE
    choices: Sequence[str] | None = None
    aliases: Sequence[str] = ()
    """Further spellings, with their dashes."""
    synonyms: Sequence[str] = ()
    """Names of other commands or tools for the same, with their dashes; they only occur in
    advice."""
    reads: PathKind | None = None
    """What a path that the command reads must be; None for other options."""
    writes: PathKind | None = None
    """What a path that the command writes must be; None for other options."""
    dest: str = ""
    """Attribute of the parsed options; "" means `name`."""
    passed_as: str = ""
    """Argument of Converter that gets the value; "" means `name`."""
    converter_default: Any = options.UNSET
    """Default of that argument, if it is another than the command's."""
    turns_off: str = ""
    """Field of CompilerOptions that the flag sets to False."""
    refused: str = ""
    """Reason for which the option is parsed but rejected when it is given."""

    @property
    def long_name(self) -> str:
        """Long name as it is written on the command line."""
        return f"--{self.name}"

    @property
    def attribute(self) -> str:
        """Attribute of the parsed options that holds the value."""
        return self.dest or self.name

    @property
    def argument(self) -> str:
        """Argument of Converter that gets the value, or "" if there is none."""
        return (self.passed_as or self.name) if Use.CONVERTER in self.use else ""

    def make_argument(self) -> options.Option:
        """Return the option of Converter that gets the value."""
        is_flag = self.takes.form is Form.FLAG
        default = self.converter_default
        if default is options.UNSET:
            default = False if is_flag else self.default
        return options.Option(self.argument, self.help, kind=self.kind, default=default)

    @property
    def belongs_to_a_model(self) -> bool:
        """Whether each of several models to fuse may have its own value."""
        return bool(self.use & (Use.CONVERTER | Use.MODEL)) and Use.ONCE not in self.use

    def add_to(self, parser: Parser) -> None:
        """Add the option to a parser."""
        short = [alias for alias in self.aliases if not alias.startswith("--")]
        names = [*short, self.long_name, *(alias for alias in self.aliases if alias not in short)]
        facts: dict[str, Any] = {"dest": self.attribute, "help": self._help()}
        parser.synonyms.update(dict.fromkeys(self.synonyms, self.long_name))
        if self.takes.form is Form.FLAG:
            parser.add_argument(*names, action="store_true", **facts)
            return
        facts |= {"type": self.takes.type, "metavar": self.takes.metavar, "default": self.default}
        if self.takes.form in _PATHS:
            facts["type"] = self.takes.type or Path
            is_folder = self.takes.form is Form.FOLDER
            parser.add_path(*names, folder=is_folder, reads=self.reads, writes=self.writes, **facts)
            return
        if self.takes.form in _LISTS:
            facts |= {"nargs": "+", "default": [] if self.default is None else self.default}
        parser.add_argument(*names, choices=self.choices, **facts)

    def _help(self) -> str:
        if self.refused:
            return "refused"
        notes = "; ".join(
            note
            for note, holds in (
                ("comma separated", self.takes.form is Form.NAMES),
                ("not in the real tool", Use.OURS in self.use),
            )
            if holds
        )
        return f"{self.help} ({notes})" if notes else self.help

    def read(self, parsed: argparse.Namespace) -> Any:
        """Return the value in parsed options, or None if it is empty: a flag or a list that is not
        given, or no text."""
        value = getattr(parsed, self.attribute)
        if self.takes.form is Form.NAMES:
            value = split_names(value)
        elif self.takes.form is Form.PAIRS:
            value = dict(value)
        is_number = isinstance(value, (int, float)) and value is not False
        return value if value or is_number else None


def read_converter_arguments(
    entries: Iterable[Option], parsed: argparse.Namespace
) -> dict[str, Any]:
    """Return the arguments of Converter that parsed options set."""
    arguments = {
        entry.argument: entry.read(parsed)
        for entry in entries
        if entry.argument and not entry.refused
    }
    return {name: value for name, value in arguments.items() if value is not None}


def read_compiler_fields(entries: Collection[Option], parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of CompilerOptions that parsed options set."""
    entries_set = [
        entry for entry in entries if Use.COMPILER in entry.use and entry.read(parsed) is not None
    ]
    off = [entry for entry in entries if entry.turns_off and entry.read(parsed)]
    return {entry.name: entry.read(parsed) for entry in entries_set} | {
        entry.turns_off: False for entry in off
    }


_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def read_chip(text: str) -> str:
    """Return the name of a chip as it is given, if it is known. This is an argparse type."""
    try:
        return find_target(text).given_name
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
