"""Write docs/poprt-options.md from the code.

It has the options of `poprt`, the arguments of Converter and the fields of CompilerOptions.

`make docs` runs it; a test compares the file with what it would write.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Iterable
from pathlib import Path

from poprt import CompilerOptions, Converter
from poprt.cli.parser import REFUSED, make_parser
from poprt.options import WITHOUT_EFFECT

FILE = Path(__file__).with_name("poprt-options.md")
HEAD = """\
# Options of poprt

Written by `make docs` from the parser (`backend/poprt/cli/parser.py`) and the options
(`backend/poprt/options.py`); do not edit. Names and meanings are PopRT 1.5.0's; *ours* are those that it
lacks. One default differs: `--convert_version` and `convert_version` keep the model's own opset, where
PopRT's is 11. What is refused is an error that names the option.
"""
OURS = frozenset(
    "--fix_input --fp16_skip_op_names --allow_out_of_memory --only_ipu_operators --skip_dry_run "
    "--custom_ort_library "
    "--triton_model_dir --new_version --overwrite_config --queue_timeout_ms --show_profile --time_limit "
    "--memory_limit "
    "fix_inputs fp16_skip_op_names allow_out_of_memory only_ipu_operators skip_dry_run".split()
)
_REFUSED_ARGUMENTS = {
    "enable_compress_pattern": REFUSED["enable_compress_pattern"],
}
"""Arguments of Converter that are rejected when something is given."""


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
    for action in sorted(make_parser()._actions, key=lambda each: _long_name(each)):  # noqa: SLF001
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        ours = "ours" if _long_name(action) in OURS else ""
        refusal = REFUSED.get(action.dest)
        meaning = f"refused: {refusal}" if refusal else (action.help or "") % vars(action)
        yield _row(names, _describe_form(action), _describe_default(action), ours, meaning)


def _long_name(action: argparse.Action) -> str:
    return action.option_strings[-1]


def _describe_form(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "flag"
    if action.choices is not None:
        return ", ".join(map(str, action.choices))
    metavar = action.metavar or action.dest.upper()
    return f"`{metavar}{' ...' if action.nargs == '+' else ''}`"


def _describe_default(action: argparse.Action) -> str:
    missing = action.default in (None, False, argparse.SUPPRESS) or action.default == []
    return "" if missing else f"`{action.default}`"


def _converter_rows() -> Iterable[str]:
    for name, parameter in inspect.signature(Converter.__init__).parameters.items():
        if name != "self":
            refusal = _REFUSED_ARGUMENTS.get(name)
            note = f"refused: {refusal}" if refusal else ""
            yield _row(f"`{name}`", f"`{parameter.default!r}`", "ours" if name in OURS else "", note)


def _compiler_rows() -> Iterable[str]:
    for entry in dataclasses.fields(CompilerOptions):
        factory = entry.default_factory
        default = entry.default if factory is dataclasses.MISSING else factory()
        effect = WITHOUT_EFFECT.get(entry.name)
        told = f"none: {effect}" if effect else "ours" if entry.name in OURS else "yes"
        yield _row(f"`{entry.name}`", f"`{default!r}`", told)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    FILE.write_text(make_text())
    print(f"wrote {FILE}")
