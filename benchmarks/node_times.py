"""Where a graph's time goes, by ONNX Runtime's own profiler: by operator and by node.

A node that runs a graph of its own has the time of that graph taken off: it counts by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnxruntime
import report
from rich.console import Console

MOST_NODES = 40
"""That are listed."""
_SUFFIX = "_kernel_time"
_RUN = "model_run"


@dataclass(slots=True)
class Spent:
    """Calls of all runs, and their microseconds; `result` is the first one's shape."""

    result: str = ""
    calls: int = 0
    microseconds: float = 0.0


@contextmanager
def profiling(prefix: Path) -> Iterator[None]:
    """Sessions made meanwhile write what they do to a file of this name, when they go."""
    make = onnxruntime.SessionOptions

    def make_profiled() -> Any:
        options = make()
        options.enable_profiling, options.profile_file_prefix = True, str(prefix)
        return options

    with patch("onnxruntime.SessionOptions", make_profiled):
        yield


def print_tables(prefix: Path, title: str, console: Console) -> None:
    """What the profile called `prefix` says of a run."""
    # What is computed once, to make a graph ready, has sessions of its own.
    file = max(prefix.parent.glob(f"{prefix.name}_*.json"), key=lambda each: each.stat().st_size)
    events = json.loads(file.read_text())
    runs = [each for each in events if each["name"] == _RUN]
    total = sum(each["dur"] for each in runs) / len(runs)
    nodes = _collect(events)
    by_operator: dict[str, Spent] = {}
    for (_, operator), spent in nodes.items():
        found = by_operator.setdefault(operator, Spent())
        found.calls += spent.calls
        found.microseconds += spent.microseconds
    between = total - sum(each.microseconds for each in nodes.values()) / len(runs)
    table = report.make_table(
        f"{title}: {total:.0f} us a run, {between:.0f} of them between nodes", "operator", "calls", "us", "%"
    )
    for operator, spent in _sort(by_operator.items()):
        table.add_row(operator, *_describe(spent, len(runs), total))
    console.print(table)
    columns = ("node", "operator", "result", "calls", "us", "%")
    table = report.make_table(f"{title}: the longest", *columns)
    for (node, operator), spent in _sort(nodes.items())[:MOST_NODES]:
        table.add_row(node, operator, spent.result, *_describe(spent, len(runs), total))
    console.print(table)


def _sort(items: Any) -> list[Any]:
    return sorted(items, key=lambda item: -item[1].microseconds)


def _describe(spent: Spent, runs: int, total: float) -> tuple[str, str, str]:
    each = spent.microseconds / runs
    return f"{spent.calls / runs:g}", f"{each:.1f}", f"{100 * each / total:.1f}"


def _describe_shape(arguments: dict[str, Any]) -> str:
    """Of the first result: 1x64x56x56."""
    shapes = [shape for each in arguments.get("output_type_shape", ()) for shape in each.values()]
    return "x".join(map(str, shapes[0])) if shapes else ""


def _collect(events: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Spent]:
    """By name and operator; calls of nodes lie inside those of the nodes whose bodies they are in."""
    calls = [each for each in events if each["cat"] == "Node" and each["name"].endswith(_SUFFIX)]
    found: dict[tuple[str, str], Spent] = {}
    around: list[tuple[float, Spent]] = []
    for call in sorted(calls, key=lambda each: (each["ts"], -each["dur"])):
        name = call["name"].removesuffix(_SUFFIX)
        spent = found.setdefault((name, call["args"]["op_name"]), Spent(_describe_shape(call["args"])))
        while around and around[-1][0] <= call["ts"]:
            around.pop()
        if around:
            around[-1][1].microseconds -= call["dur"]
        spent.calls += 1
        spent.microseconds += call["dur"]
        around.append((call["ts"] + call["dur"], spent))
    return found
