"""Time of a graph by operator and by node, from ONNX Runtime's own profiler.

The time of a node that runs an inner graph excludes that graph, which counts by itself.
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

MAX_NODES = 40
"""Maximum number of nodes in the list."""
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
    """Make sessions created in the block write their profile to a file of this name, when they are
    deleted."""
    make = onnxruntime.SessionOptions

    def make_profiled() -> Any:
        options = make()
        options.enable_profiling, options.profile_file_prefix = True, str(prefix)
        return options

    with patch("onnxruntime.SessionOptions", make_profiled):
        yield


def print_tables(prefix: Path, title: str, console: Console) -> None:
    """Print the times of a run from the profile called `prefix`."""
    # Constants that are computed once, to prepare a graph, have separate sessions.
    file = max(prefix.parent.glob(f"{prefix.name}_*.json"), key=lambda each: each.stat().st_size)
    events = json.loads(file.read_text())
    runs = [event for event in events if event["name"] == _RUN]
    total = sum(event["dur"] for event in runs) / len(runs)
    nodes = _collect(events)
    by_operator: dict[str, Spent] = {}
    for (_, operator), spent in nodes.items():
        operator_spent = by_operator.setdefault(operator, Spent())
        operator_spent.calls += spent.calls
        operator_spent.microseconds += spent.microseconds
    between = total - sum(spent.microseconds for spent in nodes.values()) / len(runs)
    table = report.make_table(
        f"{title}: {total:.0f} us a run, {between:.0f} of them between nodes",
        "operator",
        "calls",
        "us",
        "%",
    )
    for operator, spent in _sort(by_operator.items()):
        table.add_row(operator, *_describe(spent, len(runs), total))
    console.print(table)
    columns = ("node", "operator", "result", "calls", "us", "%")
    table = report.make_table(f"{title}: the longest", *columns)
    for (node, operator), spent in _sort(nodes.items())[:MAX_NODES]:
        table.add_row(node, operator, spent.result, *_describe(spent, len(runs), total))
    console.print(table)


def _sort(items: Any) -> list[Any]:
    return sorted(items, key=lambda item: -item[1].microseconds)


def _describe(spent: Spent, runs: int, total: float) -> tuple[str, str, str]:
    per_run = spent.microseconds / runs
    return f"{spent.calls / runs:g}", f"{per_run:.1f}", f"{100 * per_run / total:.1f}"


def _describe_shape(arguments: dict[str, Any]) -> str:
    """Return the shape of the first result, such as 1x64x56x56."""
    shapes = [
        shape for tensor in arguments.get("output_type_shape", ()) for shape in tensor.values()
    ]
    return "x".join(map(str, shapes[0])) if shapes else ""


def _collect(events: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Spent]:
    """Return the times by name and operator; calls of nodes in a body lie inside those of its
    node."""
    calls = [
        event for event in events if event["cat"] == "Node" and event["name"].endswith(_SUFFIX)
    ]
    times: dict[tuple[str, str], Spent] = {}
    around: list[tuple[float, Spent]] = []
    for call in sorted(calls, key=lambda each: (each["ts"], -each["dur"])):
        name = call["name"].removesuffix(_SUFFIX)
        spent = times.setdefault(
            (name, call["args"]["op_name"]), Spent(_describe_shape(call["args"]))
        )
        while around and around[-1][0] <= call["ts"]:
            around.pop()
        if around:
            around[-1][1].microseconds -= call["dur"]
        spent.calls += 1
        spent.microseconds += call["dur"]
        around.append((call["ts"] + call["dur"], spent))
    return times
