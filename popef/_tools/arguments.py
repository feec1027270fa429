"""Argument parsing shared by the commands: the parser and the argparse types that several use."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from ..errors import PopefError, UnsupportedError
from .options import read_integer
from .paths import Kind, check_input, check_output
from .text import did_you_mean, escape, find_near, shorten_words

_MAX_QUOTED = 100
"""Maximum characters of a wrong value in an error."""
# Values of shtab's FILE and DIRECTORY.
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}
_FOLDERS = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/"}


class Parser(argparse.ArgumentParser):
    """ArgumentParser of this project's commands and their sub-commands.

    Options cannot be abbreviated; in their names `-` and `_` mean the same. A wrong call prints one
    line and exits with status 2. The help
    ends with `examples`. With a `version` the parser has --version and --print_completion. The
    parsed namespace holds, as `parser`, the parser that was used (the sub-command's, if there is
    one), and as `given_words` what that parser parsed.
    """

    def __init__(
        self, *, version: str | None = None, examples: Sequence[str] = (), **options: Any
    ) -> None:
        shown = (
            "\n".join(["examples:", *(f"  {example}" for example in examples)]) if examples else ""
        )
        epilog = "\n\n".join(filter(None, (options.pop("epilog", None), shown)))
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(
            **{"allow_abbrev": False, "formatter_class": kind, "epilog": epilog, **options}
        )
        self.path_options: dict[str, str] = {}
        """Option name by attribute of the namespace, for the arguments that are paths; "" for a
        positional argument."""
        self.inputs: dict[str, Kind] = {}
        """What the paths that the command reads must be, by attribute of the namespace."""
        self.outputs: dict[str, Kind] = {}
        """What the paths that the command writes must be, by attribute of the namespace."""
        self.checks_paths_itself = False
        """Whether the command calls `check_paths`, after checks for wrong usage of its own."""
        self.synonyms: dict[str, str] = {}
        """Options by names that users try in their place; they only occur in advice."""
        self.surplus_advice = ""
        """What to do about an argument too many, with {word} for the argument."""
        self._commands: argparse._SubParsersAction[Parser] | None = None
        self._words: list[str] = []
        """What is being parsed."""
        self.set_defaults(parser=self)
        if version is not None:
            self.add_argument("-v", "--version", action="version", version=version)
            self.add_argument(
                "--print_completion",
                action=_PrintCompletion,
                choices=("bash", "zsh"),
                help=f'print the completion script of a shell: eval "$({self.prog} '
                '--print_completion bash)"',
            )

    def add_command(
        self, name: str, run: Callable[[argparse.Namespace], int], text: str, **options: Any
    ) -> Parser:
        """Add a sub-command, which calls `run`; `text` is its help, and its description."""
        if self._commands is None:
            self._commands = self.add_subparsers(required=True, metavar="COMMAND")
        description = f"{text[0].upper()}{text[1:]}."
        command: Parser = self._commands.add_parser(
            name, help=text, description=description, **options
        )
        command.set_defaults(run=run)
        return command

    def add_path(
        self,
        *names: str,
        folder: bool = False,
        reads: Kind | None = None,
        writes: Kind | None = None,
        **options: Any,
    ) -> None:
        """Add an argument that is a path: the shell completes it, and an OSError about the file
        names the option. `check_paths` checks one that the command `reads` or `writes`."""
        action = self.add_argument(*names, **options)
        if reads is not None:
            self.inputs[action.dest] = reads
        if writes is not None:
            self.outputs[action.dest] = writes
        action.complete = _FOLDERS if folder else _FILES  # type: ignore[attr-defined]
        self.path_options[action.dest] = names[-1] if names[0].startswith("-") else ""

    def parse_known_args(  # type: ignore[override]  # it gives each namespace back as it got it
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse words. Report those that the command does not take here, where its options are
        known; argparse leaves that to the parser of all sub-commands."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        words[:end] = map(self._respell, words[:end])
        self._words = words[:end]
        parsed, unparsed = super().parse_known_args(words, namespace)
        if unparsed and self._subparsers is None:
            self.error(self._describe_unknown(unparsed[0]))
        if getattr(parsed, "parser", self) is self:
            parsed.given_words = words
        return parsed, unparsed

    def read_value(self, option: str, text: str) -> Any:
        """Return what an option of one value reads from a text, for an option that names others.

        Raises argparse.ArgumentError, whose `message` does not name the option.
        """
        action = self._option_string_actions[option]
        value = self._get_value(action, text)
        self._check_value(action, value)
        return value

    def drop_options(self, words: Iterable[str], names: Collection[str]) -> list[str]:
        """Return the options in `words` with their values, without those that one of `names` names
        and without positional arguments. This parser must have parsed the words."""
        remaining: list[str] = []
        is_kept, num_values = False, 0.0
        for word in words:
            name, equals, _ = word.partition("=")
            if (action := self._option_string_actions.get(name)) is not None:
                is_kept = not set(action.option_strings) & set(names)
                single = 0 if equals or action.nargs == 0 else 1
                num_values = math.inf if action.nargs in ("+", "*") else single
            elif num_values:
                num_values -= 1
            else:
                continue
            if is_kept:
                remaining.append(word)
        return remaining

    def _respell(self, word: str) -> str:
        """Return a word with the option's own name, if it is an option with `-` for `_`."""
        name, equals, value = word.partition("=")
        if not name.startswith("--") or name in self._option_string_actions:
            return word
        spelling = name.replace("-", "_")
        same = (name for name in self.option_names() if name.replace("-", "_") == spelling)
        return f"{next(same, name)}{equals}{value}"

    def _is_unknown(self, word: str) -> bool:
        return word.startswith("--") and word.partition("=")[0] not in self._option_string_actions

    def _describe_unknown(self, word: str) -> str:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            return f"unexpected argument {word!r}{self._advise_surplus(word, name, value)}"
        option = self.synonyms.get(name) or self._find_choice(name.lstrip("-"))
        hint = f"; did you mean {option}?" if option else did_you_mean(name, self.option_names())
        return f"unknown option {name!r}{hint}"

    def _advise_surplus(self, word: str, name: str, value: str) -> str:
        """Return advice about an argument too many: it may be the value of an option, or an option
        without its dashes."""
        if option := self._find_choice(word):
            return f"; did you mean {option}?"
        names = {option.lstrip("-"): option for option in self.option_names()}
        if value and (near := find_near(name, names)):
            return f"; did you mean {names[near]} {value}?"
        option = next(iter(self.path_options.values()), "") if os.path.exists(word) else ""
        if option:
            return f"; did you mean {option} {word}?"
        return f"; {self.surplus_advice.format(word=word)}" if self.surplus_advice else ""

    def _find_choice(self, word: str) -> str | None:
        """Return the option, with its value, that a word is a value of; None unless there is
        exactly one."""
        takers = [
            f"{action.option_strings[-1]} {word}"
            for action in self._actions
            if action.option_strings and word in map(str, action.choices or ())
        ]
        return takers[0] if len(takers) == 1 else None

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Most likely an unset variable of the shell. An empty path would be the working directory.
        if "" in arg_strings and action.nargs != argparse.PARSER:
            raise argparse.ArgumentError(action, "expected a value, found an empty text")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            raise argparse.ArgumentError(
                action,
                f"expected one of {', '.join(choices)}, found {_quote(value)}"
                f"{did_you_mean(str(value), choices)}",
            )

    def check_paths(self, parsed: argparse.Namespace) -> None:
        """Raise PopefError, which names the option and the path, for an input that does not exist
        or is of the other kind, and for an output that cannot be written."""
        inputs = list(_iter_paths(parsed, self.inputs))
        for name, path in inputs:
            self._check_path(name, path, check_input, self.inputs[name])
        for name, path in _iter_paths(parsed, self.outputs):
            self._check_path(name, path, check_output, self.outputs[name])
            if any(os.path.isfile(path) and os.path.samefile(path, other) for _, other in inputs):
                raise PopefError(
                    f"{self.path_options[name]}: {path}: it is an input of the same command, which "
                    "would be overwritten; name another file"
                )

    def _check_path(
        self, name: str, path: Any, check: Callable[[Any, Kind], None], expected: Kind
    ) -> None:
        """Check a path. An error that is about a folder of it names the path and the option all the
        same: another option may have named the folder."""
        try:
            check(path, expected)
        except OSError as error:
            option, about = self.path_options[name], error.filename
            parts = (option, str(path), "" if about in (None, os.fspath(path)) else str(about))
            where = ": ".join(filter(None, parts))
            raise PopefError(f"{where}: {error.strerror or error}") from None

    def option_names(self) -> set[str]:
        """Return all option strings, such as "--json"."""
        return {name for action in self._actions for name in action.option_strings}

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 and a line on stderr that points to --help."""
        message = message.replace("ignored explicit argument", "expected no value, found")
        if message.startswith("the following arguments are required"):
            # Probably because one of them is misspelt.
            unknown = (word for word in self._words if self._is_unknown(word))
            message = next(map(self._describe_unknown, unknown), message)
        text = escape(shorten_words(message))
        self.exit(2, f"{self.prog}: error: {text}; see {self.prog} --help\n")


def _quote(value: object) -> str:
    return escape(repr(value), _MAX_QUOTED)


def _iter_paths(parsed: argparse.Namespace, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the parsed paths of options with their names, without addresses of remote stores."""
    for name in names:
        value = getattr(parsed, name)
        for path in value if isinstance(value, list) else [value]:
            if path is not None and "://" not in str(path):
                yield name, path


class _PrintCompletion(argparse.Action):
    """Action that prints the completion script and ends the process, as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, *parsed: Any) -> NoReturn:
        try:
            import shtab
        except ImportError as error:
            raise UnsupportedError(
                "--print_completion: the package shtab is not installed; `pip install shtab`"
            ) from error
        shell = next(value for value in parsed if value in ("bash", "zsh"))
        print(shtab.complete(parser, shell=shell))
        parser.exit()


MAX_NUMBER = (1 << 31) - 1
"""Default maximum of whole numbers: more seconds, rows or MiB make no sense, and would overflow in
computations."""


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for whole numbers of at least `least` and at most `most`, or
    `MAX_NUMBER`."""
    end = MAX_NUMBER if most is None else most

    def read(text: str) -> int:
        value = read_integer(text)
        if value is None or not least <= value <= end:
            far = most is not None or (value or 0) > end
            expected = f"from {least} to {end}" if far else f"of at least {least}"
            raise argparse.ArgumentTypeError(
                f"expected a whole number {expected}, found {_quote(text)}"
            )
        return value

    return read


count, positive = whole_number(0), whole_number(1)
"""Argparse types for whole numbers with and without 0."""


def proportion(text: str) -> float:
    """Parse a number above 0 and at most 1, as an argparse type."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"expected a number above 0 and at most 1, found {_quote(text)}"
        )
    return value


def split_names(texts: Sequence[str]) -> list[str]:
    """Return the names in `texts`, each of which may hold several, separated by commas; strip
    blanks around names."""
    return [name for text in texts for part in text.split(",") if (name := part.strip())]
