"""Entry of an option: all facts about it, and what the commands make of them.

An entry adds its option to a parser, and turns the parsed value into an argument of Converter or a
field of CompilerOptions. `option_table` has the entries.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from popef._tools.arguments import Parser, split_names


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


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command."""

    name: str
    """Long name without dashes, which is also the key in a YAML file."""
    help: str = ""
    form: Form = Form.VALUE
    type: Callable[[str], Any] | None = None
    """Function that reads a value; it raises ArgumentTypeError. None keeps the text, or the
    path."""
    metavar: str | None = None
    choices: Sequence[str] | None = None
    default: Any = None
    """Value if the option is not given. Flags are False and lists are empty without it."""
    aliases: Sequence[str] = ()
    """Further spellings, with their dashes."""
    dest: str = ""
    """Attribute of the parsed options; "" means `name`."""
    converter: bool | str = False
    """Argument of Converter that gets the value: True for the one of the same name."""
    compiler: bool = False
    """Whether the field of CompilerOptions of the same name gets the value."""
    turns_off: str = ""
    """Field of CompilerOptions that the flag sets to False."""
    per_model: bool | None = None
    """Whether each of several models to fuse may have its own value. None: if Converter gets it."""
    in_profile: bool = False
    """Whether `poplar-triton profile` passes the option to Converter, too."""
    in_recipe: bool = False
    """Whether a recipe.json, which may be untrusted, can set the option: it only says how to
    compile."""
    ours: bool = False
    """Whether the real tool lacks the option."""
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
        return self.name if self.converter is True else self.converter or ""

    @property
    def belongs_to_a_model(self) -> bool:
        """Whether each of several models to fuse may have its own value."""
        return bool(self.converter) if self.per_model is None else self.per_model

    def add_to(self, parser: Parser) -> None:
        """Add the option to a parser."""
        short = [alias for alias in self.aliases if not alias.startswith("--")]
        names = [*short, self.long_name, *(alias for alias in self.aliases if alias not in short)]
        facts: dict[str, Any] = {"dest": self.attribute, "help": self._help()}
        if self.form is Form.FLAG:
            parser.add_argument(*names, action="store_true", **facts)
            return
        facts |= {"type": self.type, "metavar": self.metavar, "default": self.default}
        if self.form in _PATHS:
            facts["type"] = self.type or Path
            parser.add_path(*names, folder=self.form is Form.FOLDER, **facts)
            return
        if self.form in _LISTS:
            facts |= {"nargs": "+", "default": [] if self.default is None else self.default}
        parser.add_argument(*names, choices=self.choices, **facts)

    def _help(self) -> str:
        if self.refused:
            return "refused"
        notes = "; ".join(
            note
            for note, holds in (
                ("comma separated", self.form is Form.NAMES),
                ("not in the real tool", self.ours),
            )
            if holds
        )
        return f"{self.help} ({notes})" if notes else self.help

    def read(self, options: argparse.Namespace) -> Any:
        """Return the value in parsed options, or None if it is empty: a flag or a list that is not
        given, or no text."""
        value = getattr(options, self.attribute)
        if self.form is Form.NAMES:
            value = split_names(value)
        elif self.form is Form.PAIRS:
            value = dict(value)
        is_number = isinstance(value, (int, float)) and value is not False
        return value if value or is_number else None


def read_converter_arguments(
    entries: Iterable[Option], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the arguments of Converter that parsed options set."""
    found = {
        each.argument: each.read(options) for each in entries if each.argument and not each.refused
    }
    return {name: value for name, value in found.items() if value is not None}


def read_compiler_fields(
    entries: Collection[Option], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the fields of CompilerOptions that parsed options set."""
    given = [each for each in entries if each.compiler and each.read(options) is not None]
    off = [each for each in entries if each.turns_off and each.read(options)]
    return {each.name: each.read(options) for each in given} | {
        each.turns_off: False for each in off
    }
