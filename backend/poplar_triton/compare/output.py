"""A comparison as text for a terminal, and as a page with its curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poprt.performance import add_row, describe_seconds, make_table
from poprt.terminal import cell
from rich.console import Console

from popef._tools.text import escape
from poplar_triton.compare.systems import (
    MODELLED,
    Energy,
    Point,
    System,
    SystemComparison,
    describe_watts,
)
from poplar_triton.profile.report import cut, make_page

_UNITS = (("J", 1.0), ("mJ", 1e3), ("uJ", 1e6))
_MAX_TEXT = 1000
_HUNDRED = 100
"""Numbers from here on have three digits before the point."""
_OF_TEN = "for nine of ten calls "
_METHOD = (
    "Chips are modelled: no chip was used, and their figures are those of `poplar-triton "
    "profile`, with the error that validation found for similar networks. Their throughput is "
    "that of queued batches. This machine is measured with ONNX Runtime, one call after another, "
    "on random inputs; its latency is the median, and a latency limit must hold for nine of ten "
    "calls."
)
_ENERGY = (
    "The energy of a chip is the published power of its board over the modelled throughput, "
    "without the host: the power of typical workloads and, in brackets, that of an idle board "
    "and the board's maximum, as far as they are published. It is modelled and does not depend "
    "on what the model computes; the true figure lies between the bounds."
)


def print_systems(comparison: SystemComparison, console: Console) -> None:
    """Print a row for each system, and below the table why something is missing."""
    columns, rows = _tabulate(comparison)
    console.print(cell(f"{comparison.model}: {_describe_subject(comparison)}"))
    table = make_table(*columns)
    for row in rows:
        add_row(table, row)
    console.print(table)
    for names, note in list_notes(comparison):
        console.print(cell(f"{names}: {note}"))


def _describe_subject(comparison: SystemComparison) -> str:
    """Return what all rows have in common."""
    limit = comparison.limit_seconds
    wish = "" if limit is None else f", within {describe_seconds(limit)}"
    return f"chips modelled in {comparison.precision}, this machine measured{wish}"


def _tabulate(comparison: SystemComparison) -> tuple[list[str], list[list[str]]]:
    limit, has_prices = comparison.limit_seconds, bool(comparison.prices)
    columns = ["system", "figures", "batch 1|", "best batch|", "latency|", "samples/s|"]
    if limit is not None:
        columns += [f"batch within {describe_seconds(limit)}|", "latency|", "samples/s|"]
    columns += ["energy of a sample|", *(["a million cost|"] if has_prices else [])]
    rows = []
    for system in comparison.systems:
        row = [f"{system.name}: {system.title}"]
        if not system.usable:
            rows.append([*row, "none", *["-"] * (len(columns) - len(row) - 1)])
            continue
        row, single = [*row, system.kind], system.single
        row += [describe_seconds(single.latency_seconds) if single else "-"]
        row += _describe_point(system.find_best())
        if limit is not None:
            row += _describe_point(comparison.choose(system))
        rows.append([*row, *_list_costs(comparison, system, has_prices=has_prices)])
    return columns, rows


def _describe_point(point: Point | None) -> list[str]:
    if point is None:
        return ["none", "-", "-"]
    return [
        str(point.batch_size),
        describe_seconds(point.latency_seconds),
        describe_number(point.samples_per_second),
    ]


def _list_costs(comparison: SystemComparison, system: System, *, has_prices: bool) -> list[str]:
    point, cost = comparison.choose(system), comparison.find_cost(system)
    energy = describe_energy(system.find_energy(point)) if point else "-"
    return [energy, *(["-" if cost is None else describe_number(cost)] if has_prices else [])]


def describe_number(value: float) -> str:
    """Return a number with about three digits."""
    return f"{value:,.0f}" if value >= _HUNDRED else f"{value:.3g}"


def describe_energy(energy: Energy) -> str:
    """Return the energy of a sample with its bounds, as far as they are known."""
    least, typical, most = (
        None if joules is None else _describe_joules(joules)
        for joules in (energy.least, energy.typical, energy.most)
    )
    if least and most:
        bounds = f"{least} to {most}"
    elif most:
        bounds = f"at most {most}"
    else:
        bounds = f"at least {least}" if least else ""
    if typical and bounds:
        return f"{typical} ({bounds})"
    return typical or bounds or "unknown"


def _describe_joules(value: float) -> str:
    unit, scale = next(((u, s) for u, s in _UNITS if value * s >= 1), _UNITS[-1])
    return f"{describe_number(value * scale)} {unit}"


def list_notes(comparison: SystemComparison) -> list[tuple[str, str]]:
    """Return what has to be known about the rows: conditions, errors, and why something is
    missing, each after the names of the systems that share it."""
    lines: dict[str, list[str]] = {}
    for system in comparison.systems:
        for note in _iter_notes(comparison, system):
            lines.setdefault(note, []).append(system.name)
    return [(", ".join(names), escape(note, _MAX_TEXT)) for note, names in lines.items()]


def _iter_notes(comparison: SystemComparison, system: System) -> list[str]:
    notes = [system.reason] if system.reason else []
    chosen, best = comparison.choose(system), system.find_best()
    shown = chosen or best
    if shown is not None and shown.error:
        notes.append(shown.error)
    if best is not None and chosen is None:
        fastest = min(point.bounding_seconds for point in system.usable)
        notes.append(
            f"no batch size is within the limit: {_OF_TEN if best.spread else ''}the fastest takes "
            f"{describe_seconds(fastest)}"
        )
    if chosen is not None:
        if chosen.how:
            notes.append(chosen.how)
        notes.append(f"energy {system.find_energy(chosen).how}")
    notes += system.notes
    if not system.reason:
        unfit = [str(point.batch_size) for point in system.points if not point.fits]
        notes += [f"batch {', '.join(unfit)} does not fit"] if unfit else []
    return [*notes, *_list_missing(system)]


def _list_missing(system: System) -> list[str]:
    sizes: dict[str, list[str]] = {}
    for size, why in system.missing.items():
        if why != system.reason:
            sizes.setdefault(why, []).append(str(size))
    return [f"batch {', '.join(batches)}: {why}" for why, batches in sizes.items()]


def make_report(comparison: SystemComparison) -> str:
    """Return the HTML page of a comparison."""
    title = f"{cut(comparison.model)}: chips and this machine"
    document = describe_page(comparison)
    return make_page(title, "Comparison · modelled and measured", ["compare.js"], document)


def describe_page(comparison: SystemComparison) -> dict[str, Any]:
    """Return the document that the page draws."""
    columns, rows = _tabulate(comparison)
    return {
        "title": cut(comparison.model),
        "subject": _describe_subject(comparison),
        "columns": columns,
        "rows": rows,
        "notes": list_notes(comparison),
        "limit": comparison.limit_seconds,
        "systems": [_describe_system(comparison, system) for system in comparison.systems],
        "method": _METHOD,
        "energy": _ENERGY,
        "powers": _list_powers(comparison.systems),
        "links": _list_sources(comparison.systems),
    }


def _describe_system(comparison: SystemComparison, system: System) -> dict[str, Any]:
    chosen = comparison.choose(system)
    return {
        "name": system.name,
        "title": escape(system.title, _MAX_TEXT),
        "modelled": system.kind == MODELLED,
        "chosen": chosen and chosen.batch_size,
        "points": [_describe_figures(system, point) for point in system.points],
    }


def _describe_figures(system: System, point: Point) -> dict[str, Any]:
    spread = point.spread
    calls = (
        f"{spread.calls:,} {'call' if spread.calls == 1 else 'calls'}, "
        f"{describe_seconds(spread.p10_seconds)} to {describe_seconds(spread.p90_seconds)}"
        if spread
        else ""
    )
    return {
        "batch": point.batch_size,
        "latency": point.latency_seconds,
        "latency_text": describe_seconds(point.latency_seconds),
        "rate": point.samples_per_second,
        "rate_text": describe_number(point.samples_per_second),
        "fits": point.fits,
        "spread": [spread.p10_seconds, spread.p90_seconds] if spread else None,
        "calls": calls,
        "how": point.how,
        "energy": describe_energy(system.find_energy(point)),
    }


def _list_sources(systems: Sequence[System]) -> list[str]:
    """Return the addresses that this program names, which the page may link."""
    sources = (source for system in systems if system.power for source in system.power.sources)
    return list(dict.fromkeys(sources))


def _list_powers(systems: Sequence[System]) -> list[list[str]]:
    """Return the published power of each board, with its sources."""
    powers = dict.fromkeys(system.power for system in systems if system.power)
    return [
        [
            power.board,
            *map(describe_watts, (power.idle_watts, power.typical_watts, power.max_watts)),
            " ".join(power.sources),
        ]
        for power in powers
    ]
