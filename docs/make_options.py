"""Write docs/poprt-options.md from the code.

It has the options of `poprt`, the arguments of Converter and the fields of CompilerOptions.

`make docs` runs it; a test compares the file with what it would write.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable
from pathlib import Path

from poprt import Converter
from poprt.cli.parser import make_parser
from poprt.option_entry import Option, Use
from poprt.option_table import OPTIONS
from poprt.options import COMPILER_OPTIONS, CompilerOption

_TOLD_DEFAULT = re.compile(r" ?\(default: ((?:[^()]|\([^()]*\))*)\)")
FILE = Path(__file__).with_name("poprt-options.md")
HEAD = """\
<!-- Written by `make docs` from backend/poprt/option_table.py and backend/poprt/options.py; do not edit. -->

# Options of poprt

The options of the command, and the fields of ConverterOptions and CompilerOptions. Names and
meanings are PopRT 1.5.0's; *ours* are those that it lacks. One default differs: `--convert_version` and
`convert_version` keep the model's own opset, where PopRT's is 11. What is refused is an error that names
the option.
"""


def make_text() -> str:
    """Return the complete text of the document."""
    sections = (
        ("The command", "| option | takes | default | | meaning |", _command_rows()),
        ("Converter", "| argument | default | | |", _converter_rows()),
        ("CompilerOptions", "| field | default | effect |", _compiler_rows()),
    )
    lines = [HEAD]
    for title, head, rows in sections:
        lines += [f"## {title}", "", head, "| --- " * (head.count("|") - 1) + "|", *rows, ""]
    return "\n".join(lines)


def _command_rows() -> Iterable[str]:
    entries = {each.attribute: each for each in OPTIONS.values()}
    for action in sorted(make_parser()._actions, key=lambda each: _long_name(each)):  # noqa: SLF001
        entry = entries.get(action.dest, Option(action.dest))
        *cells, meaning = describe_option(action)
        if entry.refused:
            meaning = f"refused: {entry.refused}"
        yield make_row(*cells, "ours" if Use.OURS in entry.use else "", meaning)


def _long_name(action: argparse.Action) -> str:
    return action.option_strings[-1]


def describe_option(action: argparse.Action) -> tuple[str, str, str, str]:
    """Return the names of an option or argument, what it takes, its default and its help."""
    names = action.option_strings or [action.metavar or action.dest.upper()]
    meaning = (action.help or "") % {**vars(action), "prog": ""}
    told = _TOLD_DEFAULT.search(meaning)
    return (
        ", ".join(f"`{name}`" for name in names),
        _describe_form(action),
        _as_code(told[1]) if told else _describe_default(action),
        meaning.replace(told[0], "") if told else meaning,
    )


def _as_code(default: str) -> str:
    """Return a default that the help tells: a value as code, a phrase as text."""
    return default if " " in default else f"`{default}`"


def _describe_form(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "flag"
    if action.choices is not None:
        return ", ".join(map(str, action.choices))
    if not action.option_strings:
        return ""  # the name of an argument says what it takes
    metavar = str(action.metavar or action.dest.upper())
    more = " ..." if action.nargs == "+" else ""
    return " or ".join(f"`{each}{more}`" for each in metavar.split("|"))


def _describe_default(action: argparse.Action) -> str:
    default = action.default
    is_value = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    return f"`{default}`" if is_value and default not in ("", argparse.SUPPRESS) else ""


def _converter_rows() -> Iterable[str]:
    entries = {each.argument: each for each in OPTIONS.values()}
    for name, parameter in inspect.signature(Converter.__init__).parameters.items():
        if name != "self":
            entry = entries.get(name, Option(name))
            note = f"refused: {entry.refused}" if entry.refused else ""
            yield make_row(
                f"`{name}`",
                f"`{parameter.default!r}`",
                "ours" if Use.OURS in entry.use else "",
                note,
            )


def _compiler_rows() -> Iterable[str]:
    for name, entry in COMPILER_OPTIONS.items():
        yield make_row(f"`{name}`", f"`{entry.default!r}`", _describe_effect(entry))


def _describe_effect(entry: CompilerOption) -> str:
    if entry.no_effect:
        return f"none: {entry.no_effect}{': a warning' if entry.warned else ''}"
    return "ours" if entry.ours else "yes"


def make_row(*cells: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    FILE.write_text(make_text())
    print(f"wrote {FILE}")
