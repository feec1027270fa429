"""The report's plots, as SVG to put into a page. The only file that meets matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from poprt.profile.model import Profile

COLOURS = {"compute": "#2f6db3", "exchange": "#e2902f", "sync": "#8d99a6", "host": "#b5524f", "idle": "#dfe3e8"}
_MEMORY_COLOURS = {"weights": "#4a7f6f", "code": "#a9a9a9", "streams": "#c9b458", "live": "#7fb2e5"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "legend.frameon": False,
}
_MOST_TYPES = 12
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
        axes.annotate(str(rank), (positions[id(step)], step.cycles), ha="center", va="bottom", fontweight="bold")
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
        axes.annotate(f" {total / max(1, profile.estimate.cycles):.1%}", (total, row), va="center")
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
    total = max(1, sum(causes.values()))
    left = 0.0
    for cause, cycles in causes.items():
        share = cycles / total
        if share:
            axes.barh([0], [share], left=left, color=COLOURS.get(cause, "#555555"), label=f"{cause} {share:.1%}")
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
    """The fullest tile at its peak against its size; then at each node: what stays, and what is live."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    bar, axes = figure.subplots(2, 1, height_ratios=(1, 6))
    tile, left = profile.target.bytes_per_tile / 1024, 0.0
    for cause, size in profile.estimate.tile_bytes().items():
        bar.barh([0], [size / 1024], left=left, color=_MEMORY_COLOURS.get(cause, "#555555"))
        left += size / 1024
    bar.axvline(tile, color=COLOURS["host"], linestyle="--", linewidth=1)
    bar.annotate(f"a tile has {tile:,.0f} KiB ", (tile, 0), ha="right", va="center", color=COLOURS["host"])
    bar.set(xlim=(0, 1.02 * max(tile, left)), yticks=[], title="at the peak, KiB")
    _thousands(bar.xaxis)

    steps = profile.steps
    staying = {cause: size for cause, size in profile.estimate.tile_bytes().items() if cause != "live"}
    layers = [(cause, [size / 1024] * len(steps)) for cause, size in staying.items()]
    _stack(axes, [*layers, ("live", [step.live_bytes / 1024 for step in steps])], _MEMORY_COLOURS)
    if left > tile:
        axes.axhline(tile, color=COLOURS["host"], linestyle="--", linewidth=1)
    axes.set(xlabel="node, in order of execution", ylabel="KiB")
    _thousands(axes.yaxis)
    _legend(axes)
    return _svg(figure, "memory")


@mpl.rc_context(_STYLE)
def plot_batches(profiles: Sequence[Profile]) -> str:
    """Latency and throughput by batch size; a cross is a batch that does not fit."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    ordered = sorted(profiles, key=lambda each: each.batch_size)
    sizes = [each.batch_size for each in ordered]
    series = {
        "latency, ms": [each.estimate.latency_seconds * 1e3 for each in ordered],
        "samples/s": [each.estimate.samples_per_second for each in ordered],
    }
    for axes, (label, values) in zip(figure.subplots(1, 2), series.items(), strict=True):
        axes.plot(sizes, values, color=COLOURS["compute"], linewidth=1.5)
        for size, value, each in zip(sizes, values, ordered, strict=True):
            fits = each.estimate.fits
            axes.plot(size, value, marker="o" if fits else "X", color=COLOURS["compute" if fits else "host"])
            axes.annotate(f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", (size, value), xytext=(0, 6), **_ABOVE)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set(xlabel="batch size", ylabel=label, ylim=(0, 1.2 * max(values)))
        axes.margins(x=0.08)
        _thousands(axes.yaxis)
    return _svg(figure, "batches")


_ABOVE: dict[str, Any] = {"textcoords": "offset points", "ha": "center"}


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.subplots()


def _stack(axes: Axes, layers: Sequence[tuple[str, Sequence[float]]], colours: dict[str, str]) -> None:
    """Filled steps on top of each other, one wide for each node; a path for each layer, however many nodes there are."""
    count = len(layers[0][1])
    edges = [i - 0.5 for i in range(count + 1)]
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
    axes.set_xlim(-0.5, max(0.5, count - 0.5))
    axes.set_ylim(bottom=0)


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=6, borderaxespad=0.2)


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(lambda value, position: f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}")


def _svg(figure: Figure, name: str) -> str:
    """The figure without prolog and metadata, its ids its own within a page."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", text)
