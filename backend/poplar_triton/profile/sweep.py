"""Table of the profiles of a sweep."""

from __future__ import annotations

from collections.abc import Iterable

from poprt.profiling.model_profile import Profile
from poprt.profiling.table import add_row, describe_seconds, make_table
from rich.console import Console


def print_sweep(profiles: Iterable[Profile], console: Console) -> None:
    """Print a row for each profile."""
    table = make_table(
        "model, modelled",
        "target",
        "precision",
        "partials",
        "batch|",
        "cycles|",
        "latency|",
        "samples/s|",
        "peak of a tile|",
        "fits",
    )
    for each in profiles:
        result = each.estimate
        cells = [each.model, each.target.name, each.precision]
        cells += [result.options.partials_type, str(each.batch_size), f"{result.cycles:,}"]
        cells += [describe_seconds(result.latency_seconds), f"{result.samples_per_second:,.0f}"]
        cells += [f"{result.peak_tile_bytes / 1024:,.0f} KiB", "yes" if result.fits else "no"]
        add_row(table, cells)
    console.print(table)
