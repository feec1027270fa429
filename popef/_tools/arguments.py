"""Argument parsing shared by the commands: the parser and the argparse types that several use."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

from ..errors import UnsupportedError
from .text import did_you_mean, escape

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
        shown = "\n".join(["examples:", *(f"  {each}" for each in examples)]) if examples else ""
        epilog = "\n\n".join(filter(None, (options.pop("epilog", None), shown)))
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(
            **{"allow_abbrev": False, "formatter_class": kind, "epilog": epilog, **options}
        )
        self.path_options: dict[str, str] = {}
        """Option name by attribute of the namespace, for the arguments that are paths; "" for a
        positional argument."""
        self._commands: argparse._SubParsersAction[Parser] | None = None
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

    def add_path(self, *names: str, folder: bool = False, **options: Any) -> None:
        """Add an argument that is a path: the shell completes it, and an OSError about the file
        names the option."""
        action = self.add_argument(*names, **options)
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
        parsed, left = super().parse_known_args(words, namespace)
        if left and self._subparsers is None:
            self.error(self._describe_unknown(left[0]))
        if getattr(parsed, "parser", self) is self:
            parsed.given_words = words
        return parsed, left

    def drop_options(self, words: Iterable[str], names: Collection[str]) -> list[str]:
        """Return the options in `words` with their values, without those that one of `names` names
        and without positional arguments. This parser must have parsed the words."""
        kept: list[str] = []
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
                kept.append(word)
        return kept

    def _respell(self, word: str) -> str:
        """Return a word with the option's own name, if it is an option with `-` for `_`."""
        name, equals, value = word.partition("=")
        if not name.startswith("--") or name in self._option_string_actions:
            return word
        spelling = name.replace("-", "_")
        same = (each for each in self.option_names() if each.replace("-", "_") == spelling)
        return f"{next(same, name)}{equals}{value}"

    def _describe_unknown(self, word: str) -> str:
        if not word.startswith("-"):
            option = next(iter(self.path_options.values()), "") if os.path.exists(word) else ""
            hint = f"; did you mean {option} {word}?" if option else ""
            return f"unexpected argument {word!r}{hint}"
        name = word.partition("=")[0]
        return f"unknown option {name!r}{did_you_mean(name, self.option_names())}"

    def option_names(self) -> set[str]:
        """Return all option strings, such as "--json"."""
        return {name for action in self._actions for name in action.option_strings}

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 and a line on stderr that points to --help."""
        self.exit(2, f"{self.prog}: error: {escape(message)}; see {self.prog} --help\n")


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


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for whole numbers of at least `least` and at most `most`."""
    expected = (
        f"a whole number of at least {least}"
        if most is None
        else f"a whole number from {least} to {most}"
    )

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}")
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
        raise argparse.ArgumentTypeError(f"expected a number above 0 and at most 1, found {text!r}")
    return value


def split_names(texts: Sequence[str]) -> list[str]:
    """Return the names in `texts`, each of which may hold several, separated by commas; strip
    blanks around names."""
    return [name for text in texts for part in text.split(",") if (name := part.strip())]
