"""A profile as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simipu.cost import Peak, count_elements, describe_spread

from popef._tools.text import escape
from poprt.performance.kinds import describe_kind
from poprt.performance.model_profile import Profile
from poprt.terminal import cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FOUR_DIGITS = 1000
"""Numbers from here on are written as integers: three digits would need an exponent."""


_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
_MAX_ALIVE = 5
"""Maximum number of tensors in the table; the report has more."""
_TOLD_SHARE = 0.01
"""Minimum share of the time of an unvalidated kind of layer that is told."""
_TWO_DECIMALS = 100
"""Numbers below this have two decimals, so that two figures can be told apart; larger ones have
one."""


def print_profile(profile: Profile, console: Console, top: int = 10) -> None:
    """Print summary, tables by operator type, cause, memory and node, and warnings.

    A warning lists the operators whose cost is a guess.
    """
    console.print(cell(describe_profile(profile)))
    console.print(cell(describe_error(profile)))
    for table in (_operators(profile), _causes(profile), _memory(profile)):
        console.print(table)
    if profile.estimate.peak is not None:
        console.print(_alive(profile, profile.estimate.peak))
    console.print(_nodes(profile, top))
    if len(profile.estimate.ipus) > 1:
        console.print(_ipus(profile))
    for warning in describe_warnings(profile):
        console.print(cell(warning), style="yellow")


def describe_profile(profile: Profile) -> str:
    """Return the subject of the profile, the sum that makes the latency, throughput and memory."""
    result = profile.estimate
    tile = profile.target.bytes_per_tile
    fits = "fits" if result.fits else "DOES NOT FIT"
    beside = result.fullest.io_tile_bytes
    if profile.close_verdicts:
        fits += f" ({profile.close_verdicts.describe()})"
    if beside > tile:
        fits += f" ({beside / 1024:,.0f} KiB on an I/O tile)"
    return (
        f"{describe_subject(profile)}, modelled: {result.cycles:,} cycles; "
        f"{describe_latency(profile)}; {result.samples_per_second:,.0f} samples/s; "
        f"{result.peak_tile_bytes / 1024:,.0f} of {tile / 1024:,.0f} KiB of the fullest tile: "
        f"{fits}"
    )


def describe_subject(profile: Profile) -> str:
    """Return the model, batch, arithmetic and chip, on which every figure depends."""
    return f"{profile.model}, batch {profile.batch_size}, {profile.arithmetic} on {profile.chip}"


def describe_latency(profile: Profile) -> str:
    """Return the sum that makes the latency."""
    parts, total = describe_sum(profile)
    summands = " + ".join(f"{part} {seconds}" for part, seconds in parts)
    return f"{summands} = latency {total}"


def describe_sum(profile: Profile) -> tuple[list[tuple[str, str]], str]:
    """Return the parts of the latency with their names, and the latency.

    All have the same unit and number of decimals. The printed numbers add up: the largest part is
    the latency minus the other parts.
    """
    parts = profile.latency_parts.name()
    total = profile.estimate.latency_seconds
    unit, scale = next(((u, s) for u, s in _UNITS if total * s >= 1), _UNITS[-1])
    decimals = 2 if total * scale < _TWO_DECIMALS else 1
    shown = {part: round(seconds * scale, decimals) for part, seconds in parts.items()}
    largest = max(parts, key=lambda part: parts[part])
    rounded = round(total * scale, decimals)
    shown[largest] = rounded - sum(value for part, value in shown.items() if part != largest)
    least = 10.0**-decimals
    texts = [
        (p, f"{v:,.{decimals}f} {unit}" if v else f"<{least} {unit}") for p, v in shown.items()
    ]
    return texts, f"{rounded:,.{decimals}f} {unit}"


def describe_error(profile: Profile) -> str:
    """Return the expected error of such figures, and the layers that no validated network has."""
    error = profile.expected_error
    layers = [
        f"{layer} ({share:.0%})"
        for layer, share in profile.unvalidated_layers.items()
        if share >= _TOLD_SHARE
    ]
    missing = f"no validated network has its layers of {', '.join(layers)} of the time"
    if error is not None:
        return f"{error.describe()}; {missing}" if layers else error.describe()
    if profile.is_validated_kind:
        return f"error unknown: {missing}"
    message = (
        f"error unknown: {describe_kind(profile.kind)} were never validated, since nobody "
        "published their times"
    )
    return f"{message}; {missing}" if layers else message


def describe_warnings(profile: Profile) -> list[str]:
    """Return the assumptions, and a warning if there are operators without a formula.

    The warning names these operators.
    """
    assumed = [f"assumed: {assumption}" for assumption in profile.estimate.assumptions]
    counts: Mapping[str, int] = profile.estimate.fallback_operators
    if not counts:
        return assumed
    listed = ", ".join(f"{op_type} ({count})" for op_type, count in sorted(counts.items()))
    return [
        *assumed,
        f"warning: no formula for {listed}: costed by a conservative guess for each element",
    ]


def describe_seconds(seconds: float) -> str:
    """Return a time with about three digits in a suitable unit."""
    for unit, scale in _UNITS:
        if seconds * scale >= 1 or unit == "us":
            return (
                f"{seconds * scale:.3g} {unit}"
                if seconds * scale < FOUR_DIGITS
                else f"{seconds * scale:,.0f} {unit}"
            )
    raise AssertionError("the last unit takes all")


def describe_macs(macs: int) -> str:
    """Return a number of multiply-adds with three digits; an empty text for 0."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if macs >= scale:
            return f"{macs / scale:.3g} {unit}"
    return str(macs) if macs else ""


def _operators(profile: Profile) -> Table:
    table = make_table("operator", "nodes|", "cycles|", "share|", "MACs|", "of peak|", "bound by")
    types = profile.by_type()
    for cost in types:
        share = cost.cycles / max(1, profile.estimate.cycles)
        peak = f"{profile.peak_share(cost.macs, cost.cycles):.1%}" if cost.macs else ""
        cells = [cost.op_type, str(cost.count), f"{cost.cycles:,}", f"{share:.1%}"]
        add_row(table, [*cells, describe_macs(cost.macs), peak, cost.bound])
    cycles, macs = profile.estimate.cycles, sum(cost.macs for cost in types)
    table.add_section()
    cells = ["all", str(sum(cost.count for cost in types)), f"{cycles:,}", "", describe_macs(macs)]
    add_row(table, [*cells, f"{profile.peak_share(macs, cycles):.1%}", ""])
    return table


def _causes(profile: Profile) -> Table:
    table = make_table("cause", "cycles of all tiles|", "share|")
    causes = profile.estimate.by_cause()
    total = max(1, sum(causes.values()))
    for cause, cycles in causes.items():
        add_row(table, [cause, f"{cycles:,}", f"{cycles / total:.1%}"])
    return table


def _memory(profile: Profile) -> Table:
    table = make_table("fullest tile", "bytes|", "of the tile|")
    tile = profile.target.bytes_per_tile
    for cause, size in profile.estimate.by_memory().items():
        if size:
            add_row(table, [cause, f"{size:,}", f"{size / tile:.1%}"])
    table.add_section()
    peak, beside = profile.estimate.peak_tile_bytes, profile.estimate.fullest.io_tile_bytes
    for name, size in (("peak", peak), ("an I/O tile", beside)):
        if size or name == "peak":
            add_row(table, [f"{name}, {_fits(size, tile)}", f"{size:,}", f"{size / tile:.1%}"])
    return table


def list_alive(peak: Peak) -> list[tuple[str, int]]:
    """Return the live tensors and the node's copies at the peak, largest first.

    Sizes are bytes of a tile.
    """
    alive = list(peak.tensors)
    if peak.temporary_bytes:
        alive.append((f"copies of {peak.op_type} {peak.node}", peak.temporary_bytes))
    return sorted(alive, key=lambda each: -each[1])


def _alive(profile: Profile, peak: Peak) -> Table:
    table = make_table(f"live while {escape(peak.node)} runs", "bytes|", "of the tile|")
    for name, size in list_alive(peak)[:_MAX_ALIVE]:
        add_row(table, [name, f"{size:,}", f"{size / profile.target.bytes_per_tile:.1%}"])
    return table


def _fits(size: int, tile: int) -> str:
    return "fits" if size <= tile else "does not fit"


def _ipus(profile: Profile) -> Table:
    table = make_table(
        "IPU|", "cycles|", "weights|", "live|", "handed on|", "code|", "peak of a tile|", "fits"
    )
    for number, ipu in enumerate(profile.estimate.ipus):
        parts = ipu.weight_bytes, ipu.live_bytes, ipu.handed_bytes, ipu.code_bytes
        fits = "yes" if ipu.fullest_tile_bytes <= profile.target.bytes_per_tile else "no"
        cells = [f"{size:,}" for size in (ipu.cycles, *parts, ipu.peak_tile_bytes)]
        add_row(table, [str(number), *cells, fits])
    return table


def _nodes(profile: Profile, top: int) -> Table:
    table = make_table(
        "dearest nodes",
        "operator",
        "cycles|",
        "share|",
        "of peak|",
        "tiles|",
        "supersteps|",
        "plan",
    )
    for operator in profile.dearest(top):
        work = operator.work
        peak = f"{profile.peak_share(work.macs, operator.cycles):.1%}" if work.macs else ""
        share = operator.cycles / profile.estimate.cycles
        cells = [operator.name, operator.op_type, f"{operator.cycles:,}", f"{share:.1%}", peak]
        add_row(table, [*cells, str(work.tiles), str(work.steps), work.plan or work.kind])
    return table


def print_tile_mapping(profile: Profile, console: Console) -> None:
    """Print how many elements of a tensor each tile has.

    The tensors are those that PrintTileMapping operators read; without such operators, all.
    """
    variables = profile.estimate.variables
    chosen = [variable for variable in variables if variable.is_printed] or variables
    table = make_table(
        "tile mapping", "kind", "IPU|", "bytes|", "elements|", "tiles|", "tiles x elements", "by"
    )
    for variable in chosen:
        counts = count_elements(variable.spread)
        names = variable.name or "computed constants", variable.kind.value
        sizes = variable.num_bytes, int(counts.sum()), int((counts > 0).sum())
        cells = [*names, str(variable.ipu), *(f"{size:,}" for size in sizes)]
        add_row(table, [*cells, describe_spread(variable.spread), variable.source.value])
    console.print(table)
    console.print(
        cell(
            "modelled. plan: the split of a product, tiles counted from 0; scaled: the fullest "
            "tile of such a split; linear: an average, spread evenly in vectors of 8 bytes"
        )
    )


def make_table(*columns: str) -> Table:
    """Return a table; columns whose names end in | are numbers and aligned to the right."""
    # Imported here: it takes 15 ms, and most compilations print no table.
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(
            column.rstrip("|"), justify="right" if column.endswith("|") else "left", overflow="fold"
        )
    return table


def add_row(table: Table, cells: Sequence[str]) -> None:
    """Add a row of texts, which may come from a model."""
    table.add_row(*map(cell, cells))
