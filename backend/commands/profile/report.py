"""A profile as a page: one HTML file with everything in it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape

from poprt.profiling.profile import Profile
from poprt.profiling.table import describe_macs, describe_seconds, describe_warnings
from simipu import CompileError

BATCH_SIZES = (1, 2, 4, 8, 16)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .25rem }
.figures { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0 }
.figures div { background: #f3f5f8; border-radius: .4rem; padding: .5rem .9rem }
.figures b { display: block; font-size: 1.25rem }
.bad { color: #a33330 } .note { color: #5a6572; margin: .25rem 0 }
svg { width: 100%; height: auto } svg text { font-family: system-ui, sans-serif !important }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; width: 100% }
th { position: sticky; top: 0; background: #fff; text-align: left }
th, td { padding: .15rem .3rem; border-bottom: 1px solid #e4e8ed }
td.n, th.n { text-align: right; white-space: nowrap } td { overflow-wrap: anywhere }
"""

_MODELLED = (
    "Everything here is modelled; no chip ran. Products and convolutions are planned over the tiles after "
    "Graphcore's published estimators, other operators cost their elements spread over the tiles, "
    "transfers follow measured link rates. Nodes run one after the other; memory is that of the fullest "
    "tile, with planning figures for code."
)

_MEMORY = (
    "Live: activations. Copies: of operands and partial sums, where a node's plan puts them. Tiles that do "
    "the same are modelled alike, as the fullest of them; what I/O tiles hold is not modelled."
)


def require_matplotlib() -> None:
    """Raise CompileError where the plots cannot be made."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CompileError(
            "--html needs matplotlib, which is not installed; get it with: pip install matplotlib"
        )


def make_report(profile: Profile, batches: Sequence[Profile], sweep: Sequence[Profile] = ()) -> str:
    """The page, which refers to nothing outside it.

    `batches` are profiles of other batch sizes, `sweep` further points, which are plotted in their place
    where they have some.
    """
    from commands.profile import plots

    title = f"{profile.model} on {profile.chip}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=note>batch {profile.batch_size}, {escape(profile.precision)}; "
        f"{escape(_describe_options(profile))}</p>",
        _figures(profile),
        *(f"<p class=bad>{escape(warning)}</p>" for warning in describe_warnings(profile)),
        f"<p class=note>{escape(_MODELLED)}</p>",
        _section(
            "Cycles by layer",
            "Of the busiest tile; the numbers mark the dearest nodes.",
            plots.plot_layers(profile),
        ),
        _section("Cycles by operator type", "With the number of nodes.", plots.plot_operators(profile)),
        _section("What all tiles do", "Every cycle of every tile has one cause.", plots.plot_causes(profile)),
        _section("Memory of a tile", _MEMORY, plots.plot_memory(profile)),
    ]
    batches = sweep if len({each.batch_size for each in sweep}) > 1 else batches
    if len(batches) > 1:
        note = "Of queued batches the throughput, of a lone call the latency. A cross: does not fit."
        parts.append(_section("Batch sizes", note, plots.plot_batches(batches)))
    else:
        parts.append(_section("Batch sizes", "The model's batch size is fixed; there is nothing to compare."))
    if sweep:
        parts.append(
            _section("Sweep", "", _table(("target", "precision"), _SWEEP_NUMBERS, map(_sweep_cells, sweep)))
        )
    parts.append(_section("Operators", "In order of execution, without views.", _operators(profile)))
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _describe_options(profile: Profile) -> str:
    return ", ".join(f"{name}={value}" for name, value in asdict(profile.estimate.options).items())


def _figures(profile: Profile) -> str:
    result = profile.estimate
    tile = profile.target.bytes_per_tile / 1024
    macs = sum(operator.work.macs for operator in result.operators)
    fits = "" if result.fits else ' class="bad"'
    found = {
        "cycles": f"<b>{result.cycles:,}</b>",
        "on the chip": f"<b>{describe_seconds(result.compute_seconds)}</b>",
        "latency of a call": f"<b>{describe_seconds(result.latency_seconds)}</b>",
        "samples/s": f"<b>{result.samples_per_second:,.0f}</b>",
        "host transfers": f"<b>{describe_seconds(result.host_seconds)}</b>",
        "of the peak MAC rate": f"<b>{profile.peak_share(macs, result.cycles):.1%}</b>",
        f"of {tile:,.0f} KiB of a tile: {'fits' if result.fits else 'does not fit'}": (
            f"<b{fits}>{result.peak_tile_bytes / 1024:,.0f} KiB</b>"
        ),
    }
    return (
        "<div class=figures>"
        + "".join(f"<div>{value}{label}</div>" for label, value in found.items())
        + "</div>"
    )


def _section(title: str, note: str, content: str = "") -> str:
    return f"<h2>{title}</h2>\n<p class=note>{note}</p>\n{content}"


def _operators(profile: Profile) -> str:
    numbers = (
        "cycles",
        "share",
        "compute",
        "exchange",
        "sync",
        "MACs",
        "of peak",
        "tiles",
        "steps",
        "live KiB",
    )
    rows = []
    for each in profile.steps:
        work = each.work
        peak = f"{profile.peak_share(work.macs, each.cycles):.1%}" if work.macs else ""
        words = (each.name, each.op_type, work.plan or work.kind)
        cells = (
            f"{each.cycles:,}",
            f"{each.cycles / profile.estimate.cycles:.1%}",
            f"{work.compute:,}",
            f"{work.exchange:,}",
        )
        more = (f"{each.sync_cycles:,}", describe_macs(work.macs), peak, str(work.tiles), str(work.steps))
        rows.append((words, (*cells, *more, f"{each.live_bytes / 1024:,.0f}")))
    return _table(("node", "operator", "plan"), numbers, rows)


_SWEEP_NUMBERS = ("batch", "cycles", "latency", "samples/s", "KiB of a tile", "fits")


def _sweep_cells(profile: Profile) -> tuple[Sequence[str], Sequence[str]]:
    result = profile.estimate
    numbers = (str(profile.batch_size), f"{result.cycles:,}", describe_seconds(result.latency_seconds))
    more = (
        f"{result.samples_per_second:,.0f}",
        f"{result.peak_tile_bytes / 1024:,.0f}",
        "yes" if result.fits else "no",
    )
    return (profile.target.name, profile.precision), (*numbers, *more)


def _table(
    words: Sequence[str], numbers: Sequence[str], rows: Iterable[tuple[Sequence[str], Sequence[str]]]
) -> str:
    """A table whose columns of numbers stand to the right, after those of words."""
    head = "".join(f"<th>{escape(word)}</th>" for word in words) + "".join(
        f"<th class=n>{escape(n)}</th>" for n in numbers
    )
    body = "\n".join(
        "<tr>"
        + "".join(f"<td>{escape(w)}</td>" for w in left)
        + "".join(f"<td class=n>{escape(n)}</td>" for n in right)
        + "</tr>"
        for left, right in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
