"""Comparison of two profiles (figures, operator types, and the nodes that have the same name in
both), and the table of the profiles of a sweep.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from poprt.performance import Profile, add_row, describe_seconds, describe_subject, make_table
from poprt.terminal import cell
from rich.console import Console

MAX_NODES = 500
"""Maximum number of differing nodes in a report."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Cycles of a node, or of an operator type's nodes, in both profiles; None if a profile has no
    such node."""

    name: str
    op_type: str
    first: int | None
    second: int | None

    @property
    def change(self) -> int:
        """Number of additional cycles in the second profile."""
        return (self.second or 0) - (self.first or 0)


def compare_types(first: Profile, second: Profile) -> list[Difference]:
    """Return the operator types of either profile, the largest difference first."""
    ours, theirs = first.estimate.by_operator(), second.estimate.by_operator()
    names = [*ours, *(name for name in theirs if name not in ours)]
    differences = [Difference(name, name, ours.get(name), theirs.get(name)) for name in names]
    return sorted(differences, key=lambda difference: -abs(difference.change))


def compare_nodes(first: Profile, second: Profile, most: int = MAX_NODES) -> list[Difference]:
    """Return the nodes of either profile that differ, the largest difference first. Nodes with the
    same name count together."""
    sides = []
    for profile in (first, second):
        cycles: Counter[tuple[str, str]] = Counter()
        for step in profile.steps:
            cycles[step.name, step.op_type] += step.cycles
        sides.append(cycles)
    ours, theirs = sides
    keys = [*ours, *(key for key in theirs if key not in ours)]
    differences = [Difference(*key, ours.get(key), theirs.get(key)) for key in keys]
    return sorted(
        (difference for difference in differences if difference.change),
        key=lambda difference: -abs(difference.change),
    )[:most]


def compare_as_json(first: Profile, second: Profile) -> dict[str, Any]:
    """Return the second profile, and the cycles of operator types in both, for `--json
    --compare`."""
    types = {
        difference.op_type: [difference.first, difference.second]
        for difference in compare_types(first, second)
    }
    return {"with": second.as_json(), "by_operator": types}


def describe_sides(first: Profile, second: Profile) -> tuple[str, str]:
    """Describe the subject of each profile, with the options in which they differ."""
    ours, theirs = asdict(first.estimate.options), asdict(second.estimate.options)
    names = [name for name in ours if ours[name] != theirs[name] and name != "partials_type"]
    texts = []
    for profile, options in ((first, ours), (second, theirs)):
        texts.append(
            ", ".join([describe_subject(profile), *(f"{name}={options[name]}" for name in names)])
        )
    return texts[0], texts[1]


def list_figures(first: Profile, second: Profile) -> list[tuple[str, str, str, float]]:
    """Return the name of each figure, its text in both profiles, and the ratio of the second to the
    first."""
    rows: list[tuple[str, str, str, float]] = []
    one, two = first.estimate, second.estimate
    parts = [profile.latency_parts.name() for profile in (first, second)]
    names = {**parts[0], **parts[1]}
    seconds = [(part, parts[0].get(part, 0.0), parts[1].get(part, 0.0)) for part in names]
    for name, before, after in (*seconds, ("latency", one.latency_seconds, two.latency_seconds)):
        rows.append(
            (name, describe_seconds(before), describe_seconds(after), _ratio(after, before))
        )
    for name, before, after in (
        ("samples/s", one.samples_per_second, two.samples_per_second),
        ("cycles", one.cycles, two.cycles),
    ):
        rows.append((name, f"{before:,.0f}", f"{after:,.0f}", _ratio(after, before)))
    sizes = (one.peak_tile_bytes, two.peak_tile_bytes)
    before_text, after_text = (
        f"{estimate.peak_tile_bytes / 1024:,.0f} KiB, {'fits' if estimate.fits else 'does not fit'}"
        for estimate in (one, two)
    )
    rows.append(("fullest tile", before_text, after_text, _ratio(sizes[1], sizes[0])))
    return rows


def print_comparison(first: Profile, second: Profile, console: Console) -> None:
    """Print figures and operator types of both profiles."""
    for side, text in zip("AB", describe_sides(first, second), strict=True):
        console.print(cell(f"{side}: {text}"))
    table = make_table("A and B, modelled", "A|", "B|", "B / A|")
    for name, before, after, ratio in list_figures(first, second):
        add_row(table, [name, before, after, f"{ratio:.3f}"])
    console.print(table)
    table = make_table("operator", "cycles of A|", "of B|", "B - A|")
    for difference in compare_types(first, second):
        counts = [
            "" if side is None else f"{side:,}" for side in (difference.first, difference.second)
        ]
        add_row(table, [difference.op_type, *counts, f"{difference.change:+,}"])
    console.print(table)


def _ratio(after: float, before: float) -> float:
    if not before:
        return math.inf if after else 1.0
    return after / before


def print_sweep(profiles: Iterable[Profile], console: Console) -> None:
    """Print a row for each profile."""
    table = make_table(
        "model, modelled",
        "target",
        "precision",
        "batch|",
        "cycles|",
        "latency|",
        "samples/s|",
        "peak of a tile|",
        "fits",
    )
    for profile in profiles:
        result = profile.estimate
        cells = [profile.model, profile.target.label, profile.arithmetic, str(profile.batch_size)]
        cells += [f"{result.cycles:,}"]
        cells += [describe_seconds(result.latency_seconds), f"{result.samples_per_second:,.0f}"]
        cells += [f"{result.peak_tile_bytes / 1024:,.0f} KiB", "yes" if result.fits else "no"]
        add_row(table, cells)
    console.print(table)
