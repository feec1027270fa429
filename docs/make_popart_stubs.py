"""Write backend/popart/builder/operators.pyi from the tables of popart's operators.

`make docs` runs it; a test compares the file with what it would write.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping
from pathlib import Path

from popart import graphcore
from popart.builder.calls import annotate
from popart.builder.opsets import VERSIONS, find_methods, list_parameters

FILE = Path(__file__).parents[1] / "backend" / "popart" / "builder" / "operators.pyi"
HEAD = '''\
"""Written by `make docs` from popart's tables of operators; do not edit."""

from collections.abc import Sequence

import numpy.typing as npt

from popart.builder.builder import Builder
from popart.builder.opsets import Opset
from popart.debugcontext import DebugContext
from popart.enums import CollectiveOperator, ReductionType, ScatterReduction
from popart.variables import CommGroup
'''
_RESULTS = {"id": "str", "first": "str", "ids": "list[str]", "none": "None"}
_INDENT = " " * 4
_WIDTH = 100
"""Maximum number of characters of a line: how ruff formats the file."""


def make_text() -> str:
    """Return the complete text of the stubs."""
    lines = [HEAD]
    for version in VERSIONS:
        lines += _make_class(f"AiOnnxOpset{version}", find_methods(version))
    lines += _make_class("AiGraphcoreOpset1", graphcore.METHODS)
    return "\n".join(lines)


def _make_class(name: str, methods: Mapping[str, graphcore.Method]) -> Iterator[str]:
    yield f"class {name}(Opset):"
    for method in methods.values():
        parameters = ["self", *_list_parameters(method)]
        result = f") -> {_RESULTS[method.returns]}: ..."
        line = f"{_INDENT}def {method.name}({', '.join(parameters)}{result}"
        middle = f"{_INDENT * 2}{', '.join(parameters)}"
        if len(line) <= _WIDTH:
            yield line
            continue
        yield f"{_INDENT}def {method.name}("
        if len(middle) <= _WIDTH:
            yield middle
        else:
            yield from (f"{_INDENT * 2}{text}," for text in parameters)
        yield f"{_INDENT}{result}"
    yield ""


def _list_parameters(method: graphcore.Method) -> list[str]:
    texts: list[str] = []
    required = False
    for each in reversed(list_parameters(method)):
        required = required or each.default is graphcore.REQUIRED
        name = f"{each.name}_" if keyword.iskeyword(each.name) else each.name
        texts.append(f"{name}: {annotate(each)}{'' if required else ' = ...'}")
    return texts[::-1]


if __name__ == "__main__":
    FILE.write_text(make_text(), encoding="utf-8")
