"""What the commands' arguments have in common: one parser, and the kinds of values that several commands
read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, NoReturn

from .errors import UnsupportedError
from .text import escape

# What shtab takes for its FILE and DIRECTORY.
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}
_FOLDERS = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser of this project's commands, and its sub-commands'.

    Options are written out, a wrong call is one line and status 2, `examples` end the help, and with a
    `version` there are --version and --print_completion. What it has parsed has the parser itself, the
    sub-command's if any, as `parser`.
    """

    def __init__(self, *, version: str | None = None, examples: Sequence[str] = (), **options: Any) -> None:
        shown = ["examples:\n" + "\n".join(f"  {example}" for example in examples)] if examples else []
        epilog = "\n\n".join([*filter(None, (options.pop("epilog", None),)), *shown])
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"allow_abbrev": False, "formatter_class": kind, "epilog": epilog, **options})
        self.path_options: dict[str, str] = {}
        """Where the paths are in what was parsed, and the options that give them; arguments without an option
        have ""."""
        self.set_defaults(parser=self)
        if version is not None:
            self.add_argument("-v", "--version", action="version", version=version)
            self.add_argument(
                "--print_completion",
                action=_PrintCompletion,
                choices=("bash", "zsh"),
                help=f'print the completion script of a shell: eval "$({self.prog} --print_completion bash)"',
            )

    def add_path(self, *names: str, folder: bool = False, **options: Any) -> None:
        """Add an argument that is a path: the shell completes it, and an OSError about the file names the
        option."""
        action = self.add_argument(*names, **options)
        action.complete = _FOLDERS if folder else _FILES  # type: ignore[attr-defined]
        self.path_options[action.dest] = names[-1] if names[0].startswith("-") else ""

    def option_names(self) -> set[str]:
        """All options, as they are written."""
        return {name for action in self._actions for name in action.option_strings}

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 and a line on stderr that points to --help."""
        self.exit(2, f"{self.prog}: error: {escape(message)}; see {self.prog} --help\n")


class _PrintCompletion(argparse.Action):
    """Prints the script and ends the process, as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, *parsed: Any) -> NoReturn:
        try:
            import shtab
        except ImportError as error:
            raise UnsupportedError(
                "--print_completion: the package shtab is not there; `pip install shtab`"
            ) from error
        shell = next(value for value in parsed if value in ("bash", "zsh"))
        print(shtab.complete(parser, shell=shell))
        parser.exit()


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: whole numbers of at least `least`, and at most `most`."""
    expected = (
        f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
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
"""Argparse types: whole numbers with and without 0."""


def proportion(text: str) -> float:
    """An argparse type: numbers above 0, and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and at most 1, found {text!r}")
    return value


def find_version() -> str:
    """The version of this package, which all commands of the project share."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("popef")
    return "of an unknown version: it is not installed"
