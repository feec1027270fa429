"""Write docs/popart-reference.md from popart's tables of options and of PopART's own operators.

`make docs` runs it; a test compares the file with what it would write.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from make_options import make_row
from popart import SessionOptions
from popart.graphcore import METHODS, REQUIRED, UNBOUNDED, Method, Parameter
from popart.options.settings import Settings

from popef._tools.options import Option

FILE = Path(__file__).with_name("popart-reference.md")
HEAD = """\
<!-- Written by `make docs` from the tables `backend/popart/options/session_options.py` and `backend/popart/graphcore.py`; do not edit. -->

# Options and operators of popart

Names and defaults are PopART 3.4's. [PopART](popart.md) says what runs and what differs.
"""
OPERATORS = """\
Methods of `builder.aiGraphcore`. Each takes a list of inputs first, unless its row says otherwise, and
`debugContext`. The methods of `aiOnnx`, `aiOnnxOpset6` to `aiOnnxOpset11` are those of the standard: the operator's
name in lower case, `args`, the number of outputs where it is optional, then the attributes.
"""


def make_text() -> str:
    """Return the complete text of the document."""
    with_effect = {name: field for name, field in SessionOptions.OPTIONS.items() if field.effect}
    without = {name: field for name, field in SessionOptions.OPTIONS.items() if not field.effect}
    lines = [HEAD, "## SessionOptions", ""]
    lines += ["| option | type | default | effect |", "| --- | --- | --- | --- |"]
    lines += [*_option_rows(with_effect), "", "## SessionOptions without effect", ""]
    lines += ["These are accepted, checked for their type, and change nothing.", ""]
    lines += ["| option | type | default |", "| --- | --- | --- |", *_option_rows(without), ""]
    lines += ["## Operators of ai.graphcore", "", OPERATORS]
    lines += ["| method | inputs | operator |", "| --- | --- | --- |"]
    lines += [_describe_method(METHODS[name]) for name in sorted(METHODS)]
    return "\n".join(lines) + "\n"


def _option_rows(options: dict[str, Option]) -> Iterable[str]:
    for name, field in options.items():
        cells = (f"`{name}`", f"`{field.kind.name}`", _describe_default(field.make_default()))
        yield make_row(*cells, *([field.effect] if field.effect else []))


def _describe_default(value: Any) -> str:
    if isinstance(value, Settings):
        return "its own defaults"
    if isinstance(value, set):
        return f"`{{{', '.join(map(_describe_value, value))}}}`" if value else "`set()`"
    return f"`{_describe_value(value)}`"


def _describe_value(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def _describe_method(method: Method) -> str:
    parameters = ", ".join(map(_describe_parameter, method.parameters))
    low, high = method.min_inputs, method.max_inputs
    span = f"{low} or more" if high == UNBOUNDED else f"{low} to {high}"
    count = "none" if method.args == "none" else str(low) if low == high else span
    return make_row(f"`{method.name}({parameters})`", count, f"`{method.op_type}`")


def _describe_parameter(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return parameter.name
    is_member = isinstance(parameter.default, str) and parameter.kind[:1].isupper()
    default = parameter.default if is_member else repr(parameter.default)
    return (
        f"{parameter.name}={parameter.kind}.{default}"
        if is_member
        else f"{parameter.name}={default}"
    )


if __name__ == "__main__":
    FILE.write_text(make_text())
    print(f"wrote {FILE}")
