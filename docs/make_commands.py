"""Write docs/commands.md from the parsers of the commands.

`make docs` runs it; a test compares the file with what it would write, and parses every command
that the documents show.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from make_options import describe_option, make_row
from poplar_triton import cli as poplar_triton
from poprt.cli import exec_command
from poprt.cli import parser as poprt

from popef.commands import cli as popef
from popef.commands import dump

FILE = Path(__file__).with_name("commands.md")
PARSERS = {
    "poplar-triton": poplar_triton.make_parser,
    "poprt": poprt.make_parser,
    "poprt_exec": exec_command.make_parser,
    "popef": popef.make_parser,
    "popef_dump": dump.make_parser,
}
"""Functions that return the parser of each command."""
HEAD = """\
<!-- Written by `make docs` from the commands' parsers; do not edit. -->

# Commands

In every option `-` and `_` mean the same, and `COMMAND --help` prints what is here. Exit status: 0
for success, 1 for bad input, 2 for wrong usage, 130 after Ctrl-C or SIGTERM, with nothing on
stderr. `serve` and `tfserving` end with 0 after both once they serve.
"""


def make_text() -> str:
    """Return the complete text of the document."""
    lines = [HEAD]
    for name, make in PARSERS.items():
        lines += _describe(name, make(), 2)
    return "\n".join(lines)


def _describe(name: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    yield f"{_end(parser.description or '')}\n"
    commands = find_commands(parser)
    yield f"```text\n{_make_synopsis(name, parser)}\n```\n"
    actions = sorted(filter(_is_listed, parser._actions), key=lambda a: bool(a.option_strings))  # noqa: SLF001
    if name == "poprt":
        yield "[Options of poprt](poprt-options.md) lists its options.\n"
    elif actions:
        yield "| option | takes | default | meaning |\n| --- | --- | --- | --- |"
        yield "\n".join(make_row(*describe_option(action)) for action in actions) + "\n"
    examples = [] if commands else _find_examples(parser)
    if examples:
        yield "Examples:\n\n<!-- not run: names of the reader's own files -->\n```sh"
        yield "\n".join(examples) + "\n```\n"
    for command, sub in commands.items():
        yield from _describe(f"{name} {command}", sub, level + 1)


def _is_listed(action: argparse.Action) -> bool:
    unlisted = argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction  # noqa: SLF001
    return not isinstance(action, unlisted) and action.dest != "print_completion"


def _make_synopsis(name: str, parser: argparse.ArgumentParser) -> str:
    """Return the arguments of a command in one line; all options together are in its table."""
    if find_commands(parser):
        return f"{name} COMMAND [options]"
    listed = [action for action in parser._actions if _is_listed(action)]  # noqa: SLF001
    words = [_describe_argument(action) for action in listed if not action.option_strings]
    required = [
        f"{action.option_strings[-1]} {action.metavar or action.dest.upper()}"
        for action in listed
        if action.required and action.option_strings
    ]
    return " ".join([name, *required, "[options]", *words])


def _describe_argument(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest.upper())
    name = f"{name} [{name} ...]" if action.nargs in ("+", "*") else name
    return f"[{name}]" if action.nargs in ("?", "*") else name


def _find_examples(parser: argparse.ArgumentParser) -> list[str]:
    """Return the example lines at the end of a command's help."""
    _, found, examples = (parser.epilog or "").partition("examples:\n")
    return [line.strip() for line in examples.splitlines() if line.strip()] if found else []


def _end(text: str) -> str:
    """Return a description as a sentence in one line."""
    line = " ".join(text.split())
    return f"{line[:1].upper()}{line[1:]}{'' if line.endswith(('.', ':')) else '.'}"


def find_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a command's sub-commands by name."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


if __name__ == "__main__":
    FILE.write_text(make_text())
    print(f"wrote {FILE}")
