"""Two profiles side by side: figures, operator types, and the nodes that have the same name in both."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from poprt.profiling.profile import Profile
from poprt.profiling.table import add_row, describe_seconds, describe_subject, make_table
from poprt.terminal import cell
from rich.console import Console

MOST_NODES = 500
"""Of those that differ, in a report."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Cycles of a node, or of an operator type's nodes, in both; None where one has no such thing."""

    name: str
    op_type: str
    first: int | None
    second: int | None

    @property
    def change(self) -> int:
        """Cycles more in the second."""
        return (self.second or 0) - (self.first or 0)


def compare_types(first: Profile, second: Profile) -> list[Difference]:
    """Operator types of either, the largest difference first."""
    ours, theirs = first.estimate.by_operator(), second.estimate.by_operator()
    names = [*ours, *(name for name in theirs if name not in ours)]
    found = [Difference(name, name, ours.get(name), theirs.get(name)) for name in names]
    return sorted(found, key=lambda each: -abs(each.change))


def compare_nodes(first: Profile, second: Profile, most: int = MOST_NODES) -> list[Difference]:
    """Nodes of either that differ, the largest difference first; a name that several have stands for them."""
    sides = []
    for profile in (first, second):
        cycles: Counter[tuple[str, str]] = Counter()
        for step in profile.steps:
            cycles[step.name, step.op_type] += step.cycles
        sides.append(cycles)
    ours, theirs = sides
    keys = [*ours, *(key for key in theirs if key not in ours)]
    found = [Difference(*key, ours.get(key), theirs.get(key)) for key in keys]
    return sorted((each for each in found if each.change), key=lambda each: -abs(each.change))[:most]


def compare_as_json(first: Profile, second: Profile) -> dict[str, Any]:
    """The second profile, and cycles of operator types in both, for `--json --compare`."""
    types = {each.op_type: [each.first, each.second] for each in compare_types(first, second)}
    return {"with": second.as_json(), "by_operator": types}


def list_figures(first: Profile, second: Profile) -> list[tuple[str, str, str, float]]:
    """What each is called, its text in both, and the second's ratio to the first."""
    rows = []
    one, two = first.estimate, second.estimate
    for name, before, after in (
        ("latency", one.latency_seconds, two.latency_seconds),
        ("chip", one.compute_seconds, two.compute_seconds),
        ("transfers", one.host_seconds, two.host_seconds),
    ):
        rows.append((name, describe_seconds(before), describe_seconds(after), _ratio(after, before)))
    for name, before, after in (
        ("samples/s", one.samples_per_second, two.samples_per_second),
        ("cycles", one.cycles, two.cycles),
    ):
        rows.append((name, f"{before:,.0f}", f"{after:,.0f}", _ratio(after, before)))
    sizes = (one.peak_tile_bytes, two.peak_tile_bytes)
    told = [
        f"{size / 1024:,.0f} KiB, {'fits' if each.estimate.fits else 'does not fit'}"
        for size, each in zip(sizes, (first, second), strict=True)
    ]
    rows.append(("fullest tile", *told, _ratio(sizes[1], sizes[0])))
    return rows


def print_comparison(first: Profile, second: Profile, console: Console) -> None:
    """Figures and operator types of both."""
    console.print(cell(f"A: {describe_subject(first)}"))
    console.print(cell(f"B: {describe_subject(second)}"))
    table = make_table("A and B, modelled", "A|", "B|", "B / A|")
    for name, before, after, ratio in list_figures(first, second):
        add_row(table, [name, before, after, f"{ratio:.3f}"])
    console.print(table)
    table = make_table("operator", "cycles of A|", "of B|", "B - A|")
    for each in compare_types(first, second):
        counts = ["" if side is None else f"{side:,}" for side in (each.first, each.second)]
        add_row(table, [each.op_type, *counts, f"{each.change:+,}"])
    console.print(table)


def _ratio(after: float, before: float) -> float:
    if not before:
        return math.inf if after else 1.0
    return after / before
