"""The report's plots, as SVG to put into a page. The only file that meets matplotlib."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from poprt.profiling.profile import Profile
from poprt.profiling.table import FOUR_DIGITS
from simipu.cost import Estimate

COLOURS = {
    "compute": "#2f6db3",
    "exchange": "#e2902f",
    "sync": "#8d99a6",
    "host": "#b5524f",
    "idle": "#dfe3e8",
}
_MEMORY_COLOURS = {
    "weights": "#4a7f6f",
    "code": "#a9a9a9",
    "streams": "#c9b458",
    "live": "#7fb2e5",
    "copies": "#b9d7f3",
}
_LINE_COLOURS = ("#2f6db3", "#e2902f", "#4a7f6f", "#8d99a6", "#7d5ba6", "#c9b458")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_MOST_TYPES = 12
_WHOLE_FROM = 100
"""On an axis, where three digits are whole numbers."""
_LEAST_LABELLED_SHARE = 0.06
"""Of a bar: less has no room for a number."""


@mpl.rc_context(_STYLE)
def plot_layers(profile: Profile, marked: int = 5) -> str:
    """Cycles of each node in order, by cause; the dearest are numbered as in the table."""
    figure, axes = _figure(3.0)
    steps = profile.steps
    phases = [("compute", [s.work.compute for s in steps]), ("exchange", [s.work.exchange for s in steps])]
    _stack(axes, [*phases, ("sync", [s.sync_cycles for s in steps])], COLOURS)
    positions = {id(step): i for i, step in enumerate(steps)}
    for rank, step in enumerate(profile.dearest(marked), 1):
        axes.annotate(
            str(rank), (positions[id(step)], step.cycles), ha="center", va="bottom", fontweight="bold"
        )
    axes.set(xlabel="node, in order of execution", ylabel="cycles")
    axes.set_ylim(top=1.12 * max((step.cycles for step in steps), default=1))
    _thousands(axes.yaxis)
    _legend(axes)
    return _svg(figure, "layers")


@mpl.rc_context(_STYLE)
def plot_operators(profile: Profile) -> str:
    """Cycles of each operator type, by cause, dearest first."""
    types = [each for each in profile.by_type() if each.cycles][:_MOST_TYPES]
    figure, axes = _figure(0.9 + 0.26 * len(types))
    names = [f"{each.op_type} ({each.count})" for each in types]
    left = [0] * len(types)
    for cause in ("compute", "exchange", "sync"):
        cycles = [int(getattr(each, cause)) for each in types]
        axes.barh(names, cycles, left=left, color=COLOURS[cause], label=cause, height=0.7)
        left = [a + b for a, b in zip(left, cycles, strict=True)]
    for row, total in enumerate(left):
        axes.annotate(f" {total / profile.estimate.cycles:.1%}", (total, row), va="center")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(xlabel="cycles")
    _thousands(axes.xaxis)
    _legend(axes)
    return _svg(figure, "operators")


@mpl.rc_context(_STYLE)
def plot_causes(profile: Profile) -> str:
    """One bar: what the cycles of all tiles were spent on."""
    figure, axes = _figure(1.3)
    causes = profile.estimate.by_cause()
    total = sum(causes.values())
    left = 0.0
    for cause, cycles in causes.items():
        share = cycles / total
        if share:
            axes.barh(
                [0], [share], left=left, color=COLOURS.get(cause, "#555555"), label=f"{cause} {share:.1%}"
            )
        if share > _LEAST_LABELLED_SHARE:
            colour = "black" if cause in ("idle", "exchange") else "white"
            axes.annotate(f"{share:.0%}", (left + share / 2, 0), ha="center", va="center", color=colour)
        left += share
    axes.set(xlim=(0, 1), yticks=[])
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.spines["left"].set_visible(False)
    _legend(axes)
    return _svg(figure, "causes")


@mpl.rc_context(_STYLE)
def plot_memory(profile: Profile) -> str:
    """Over the tiles at the peak, beside what a tile has; then over the nodes: what stays, and what is
    live."""
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    over_tiles, over_nodes = figure.subplots(2, 1)
    tile, peak = profile.target.bytes_per_tile / 1024, profile.estimate.peak_tile_bytes / 1024
    edges, layers = _memory_over_tiles(profile)
    _stack(over_tiles, layers, _MEMORY_COLOURS, edges)
    over_tiles.axhline(tile, color=COLOURS["host"], linestyle="--", linewidth=1)
    over_tiles.annotate(
        f"a tile has {tile:,.0f} KiB", (0, tile), xytext=(4, 3), **_BESIDE, color=COLOURS["host"]
    )
    over_tiles.set(
        xlabel="tile, at the peak of its IPU's memory", ylabel="KiB", ylim=(0, 1.25 * max(tile, peak))
    )
    _legend(over_tiles)

    steps = profile.steps
    staying = {cause: size for cause, size in profile.estimate.by_memory().items() if cause != "live"}
    layers = [(cause, [size / 1024] * len(steps)) for cause, size in staying.items()]
    copies = [step.work.temporary_bytes / 1024 for step in steps]
    live = [step.live_bytes / 1024 - copied for step, copied in zip(steps, copies, strict=True)]
    _stack(over_nodes, [*layers, ("live", live), ("copies", copies)], _MEMORY_COLOURS)
    if peak > tile:
        over_nodes.axhline(tile, color=COLOURS["host"], linestyle="--", linewidth=1)
    over_nodes.set(xlabel="node, in order of execution", ylabel="KiB")
    for axis in (over_tiles.xaxis, over_tiles.yaxis, over_nodes.yaxis):
        _thousands(axis)
    return _svg(figure, "memory")


def _memory_over_tiles(profile: Profile) -> tuple[list[float], list[tuple[str, list[float]]]]:
    """Where the tiles that are alike begin and end, and KiB of a tile there, by what they hold at their IPU's
    peak."""
    result = profile.estimate
    io_tiles = result.options.num_io_tiles
    compute_tiles = profile.target.tiles_per_ipu - io_tiles
    edges, sizes = [0.0], []
    for number, ipu in enumerate(result.ipus):
        fullest = max(
            (each for each in result.operators if each.ipu == number),
            key=lambda each: each.live_bytes,
            default=None,
        )
        held = ipu.by_memory() | {"copies": 0}
        copies, busy = (
            (fullest.work.temporary_bytes, min(fullest.work.tiles, compute_tiles)) if fullest else (0, 0)
        )
        held["live"] -= copies
        kinds = (
            (busy, held | {"copies": copies}),
            (compute_tiles - busy, held),
            (io_tiles, dict.fromkeys(held, 0)),
        )
        for width, each in kinds:
            if width:
                edges.append(edges[-1] + width)
                sizes.append(each)
    return edges, [(cause, [each[cause] / 1024 for each in sizes]) for cause in sizes[0]]


@mpl.rc_context(_STYLE)
def plot_batches(profiles: Sequence[Profile]) -> str:
    """Latency and throughput by batch size, a line for each target and precision; a cross is a batch that
    does not fit."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    ordered = sorted(profiles, key=lambda each: each.batch_size)
    sizes = sorted({each.batch_size for each in ordered})
    lines: dict[str, list[Profile]] = {}
    for each in ordered:
        lines.setdefault(f"{each.target.name} {each.precision}", []).append(each)
    series: dict[str, Callable[[Estimate], float]] = {
        "latency, ms": lambda result: result.latency_seconds * 1e3,
        "samples/s": lambda result: result.samples_per_second,
    }
    for axes, (label, read) in zip(figure.subplots(1, 2), series.items(), strict=True):
        for (name, members), colour in zip(lines.items(), itertools.cycle(_LINE_COLOURS)):
            values = [read(each.estimate) for each in members]
            axes.plot([each.batch_size for each in members], values, color=colour, linewidth=1.5, label=name)
            for value, each in zip(values, members, strict=True):
                fits = each.estimate.fits
                axes.plot(
                    each.batch_size,
                    value,
                    marker="o" if fits else "X",
                    color=colour if fits else COLOURS["host"],
                )
                if len(lines) == 1:
                    text = f"{value:,.3g}" if value < FOUR_DIGITS else f"{value:,.0f}"
                    axes.annotate(text, (each.batch_size, value), xytext=(0, 6), **_ABOVE)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set(
            xlabel="batch size", ylabel=label, ylim=(0, 1.2 * max(read(each.estimate) for each in ordered))
        )
        axes.margins(x=0.08)
        _thousands(axes.yaxis)
        if len(lines) > 1:
            axes.legend(loc="upper left")
    return _svg(figure, "batches")


_ABOVE: dict[str, Any] = {"textcoords": "offset points", "ha": "center"}
_BESIDE: dict[str, Any] = {"textcoords": "offset points", "ha": "left"}


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.subplots()


def _stack(
    axes: Axes,
    layers: Sequence[tuple[str, Sequence[float]]],
    colours: dict[str, str],
    edges: Sequence[float] | None = None,
) -> None:
    """Filled steps on top of each other, from edge to edge, or one wide for each node.

    A path for each layer, however many steps there are.
    """
    count = len(layers[0][1])
    edges = edges or [i - 0.5 for i in range(count + 1)]
    bottom = [0.0] * count
    for label, values in layers:
        top = [a + b for a, b in zip(bottom, values, strict=True)]
        axes.fill_between(
            edges,
            [*bottom, *bottom[-1:]],
            [*top, *top[-1:]],
            step="post",
            color=colours.get(label, "#555555"),
            label=label,
            linewidth=0,
        )
        bottom = top
    axes.set_xlim(edges[0], max(edges[0] + 1, edges[-1]))
    axes.set_ylim(bottom=0)


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=6, borderaxespad=0.2)


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(
        lambda value, _: f"{value:,.0f}" if value >= _WHOLE_FROM or value == int(value) else f"{value:.3g}"
    )


def _svg(figure: Figure, name: str) -> str:
    """The figure without prolog and metadata, its ids its own within a page."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", text)
