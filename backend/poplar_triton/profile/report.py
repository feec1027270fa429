"""A profile as a page.

The page is one HTML file with everything in it, which loads nothing from elsewhere. It shows a JSON
document in it, which `page/page.js` draws with `page/base.js`, `page/canvas.js` and
`page/charts.js`. The document contains another one, compressed, of the tiles, which `page/tiles.js`
and `page/timeline.js` draw. All text of a model is in these documents and is never parsed
as markup: it is inserted as text, and the page's policy allows only its own scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib import resources
from string import Template
from typing import Any

from poprt.performance import (
    Profile,
    describe_error,
    describe_macs,
    describe_seconds,
    describe_sum,
    describe_warnings,
    list_alive,
)
from simipu.cost import Estimate, OperatorCost

from popef._tools.text import escape as escape_control
from poplar_triton.profile.compare import (
    Difference,
    compare_nodes,
    compare_types,
    describe_sides,
    list_figures,
)
from poplar_triton.profile.search import Suggestion
from poplar_triton.profile.suggest import FRONT, UNCHANGED, Advice, Batches

_MAX_NODES_BYTES = 3 << 20
"""Maximum size of the nodes in the document. With the tiles the file stays below 5 MB for every
graph."""
_MAX_TILES_BYTES = 3 << 19
"""Maximum size of the compressed document of the tiles."""
_MAX_NAME = 160
_NAME_LENGTHS = (_MAX_NAME, 40, 12)
"""Maximum lengths of the names beside the tiles; the first whose document is small enough is
used."""
_SHARED = ("base.js", "canvas.js", "charts.js")
"""Scripts of all pages, loaded in this order: each uses those before it."""
_SCRIPTS = ("timeline.js", "tiles.js", "page.js")
"""Scripts of the report, loaded after the shared ones."""
_MAX_TEXT = 1000
_MODELLED = (
    "All figures are modelled; no chip was used. Products and convolutions are planned over the "
    "tiles like Graphcore's published estimators. The cost of other operators is spread over "
    "the tiles by their elements, and transfers follow measured link rates. Nodes run one after "
    "the other. Memory is that of the fullest tile, with planning figures for code."
)


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a page."""

    profile: Profile
    batches: Batches = field(default_factory=Batches)
    """Profiles to plot by batch size."""
    sweep: Sequence[Profile] = ()
    """Points of a sweep, to list."""
    advice: Advice | None = None
    other: Profile | None = None
    """Profile to compare with."""
    tiles: Mapping[str, Any] | None = None
    """Tiles of the profile: the document of `poprt.performance.tiles_of`."""


def make_report(content: Content) -> str:
    """Return the HTML page, which refers to no other resource."""
    title = f"{cut(content.profile.model)} on {content.profile.chip}"
    return make_page(title, "IPU profile · modelled", _SCRIPTS, describe_page(content))


def make_page(title: str, kicker: str, scripts: Sequence[str], document: Mapping[str, Any]) -> str:
    """Return an HTML page that refers to no other resource, in which scripts of `page/` draw a JSON
    document. The kicker is the line above the heading."""
    scripts = [_page(name) for name in (*_SHARED, *scripts)]
    return Template(_page("page.html")).substitute(
        title=escape(title),
        kicker=escape(kicker),
        policy=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        style=_page("page.css"),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        data=_encode(document),
    )


def describe_page(content: Content) -> dict[str, Any]:
    """Return the document that the page draws."""
    profile, result = content.profile, content.profile.estimate
    parts, latency = describe_sum(profile)
    subject = f"batch {profile.batch_size}, {profile.arithmetic}"
    return {
        "title": cut(profile.model),
        "subject": f"{subject} on {profile.chip}",
        "fits": result.fits,
        "latency": parts,
        "latency_text": latency,
        "figures": _figures(profile),
        "error": describe_error(profile),
        "warnings": [escape_control(warning, _MAX_TEXT) for warning in describe_warnings(profile)],
        "modelled": _MODELLED,
        "options": [[name, str(value)] for name, value in asdict(result.options).items()],
        "cycles": result.cycles,
        "clock_hz": profile.target.clock_hz,
        "peak_macs": profile.peak_macs_per_cycle,
        "causes": {cause: cycles for cause, cycles in result.by_cause().items() if cycles},
        "types": [
            [cut(cost.op_type), cost.count, cost.compute, cost.exchange, cost.sync]
            for cost in profile.by_type()
        ],
        "memory": _memory(profile),
        "nodes": _nodes(profile),
        "batches": _batches(content.batches),
        "sweep": [_point(point) for point in content.sweep],
        "advice": _advice(content.advice),
        "comparison": _comparison(profile, content.other),
        "tiles": "" if content.tiles is None else encode_tiles(content.tiles),
    }


def _figures(profile: Profile) -> list[list[str]]:
    result = profile.estimate
    macs = sum(operator.work.macs for operator in result.operators)
    figures = {"samples/s": f"{result.samples_per_second:,.0f}", "cycles": f"{result.cycles:,}"}
    if macs:
        figures |= {
            "MACs": describe_macs(macs),
            "of the peak MAC rate": f"{profile.peak_share(macs, result.cycles):.1%}",
        }
    return [[label, value] for label, value in figures.items()]


def _memory(profile: Profile) -> dict[str, Any]:
    """Return the memory of the fullest tile in bytes: what it holds at its peak by cause, and its
    use while each node runs."""
    result = profile.estimate
    tile_bytes = profile.target.bytes_per_tile
    staying = [
        ipu.peak_tile_bytes - _most_live(result, number) for number, ipu in enumerate(result.ipus)
    ]
    peak = result.peak
    alive = [[cut(name), size] for name, size in list_alive(peak)] if peak else []
    return {
        "peak": result.peak_tile_bytes,
        "tile": tile_bytes,
        "held": {cause: size for cause, size in result.by_memory().items() if size},
        "staying": staying,
        "io_tile": result.fullest.io_tile_bytes,
        "node": cut(peak.node) if peak else "",
        "alive": alive,
        "ipus": [
            [number, ipu.cycles, ipu.peak_tile_bytes, ipu.fullest_tile_bytes <= tile_bytes]
            for number, ipu in enumerate(result.ipus)
        ],
    }


def _most_live(result: Estimate, ipu: int) -> int:
    return max(
        (operator.live_bytes for operator in result.operators if operator.ipu == ipu), default=0
    )


def _nodes(profile: Profile) -> dict[str, Any]:
    """Return columns of the nodes that take time, in order, or of the most expensive ones if there
    are too many."""
    steps = profile.steps
    count = len(steps)
    while len(json.dumps(columns := _columns(steps, profile))) > _MAX_NODES_BYTES:
        count = count * 3 // 4
        kept_nodes = {id(step) for step in profile.dearest(count)}
        steps = [step for step in profile.steps if id(step) in kept_nodes]
    return {**columns, "left_out": len(profile.steps) - len(steps)}


def _columns(steps: Sequence[OperatorCost], profile: Profile) -> dict[str, Any]:
    types = _Words(step.op_type for step in steps)
    plans = _Words(step.work.plan or step.work.kind for step in steps)
    return {
        "name": [cut(step.name) for step in steps],
        "types": types.words,
        "type": types.numbers,
        "plans": plans.words,
        "plan": plans.numbers,
        "compute": [step.work.compute for step in steps],
        "exchange": [step.work.exchange for step in steps],
        "sync": [step.sync_cycles for step in steps],
        "macs": [step.work.macs for step in steps],
        "tiles": [step.work.tiles for step in steps],
        "steps": [step.work.steps for step in steps],
        "live": [step.live_bytes for step in steps],
        "copies": [step.work.temporary_bytes for step in steps],
        "ipu": [step.ipu for step in steps] if profile.target.num_ipus > 1 else [],
    }


class _Words:
    """Numbered texts, each stored once; a graph has few types and plans."""

    def __init__(self, texts: Iterable[str]) -> None:
        indices: dict[str, int] = {}
        self.numbers = [indices.setdefault(cut(text), len(indices)) for text in texts]
        self.words = list(indices)


def _point(profile: Profile) -> dict[str, Any]:
    result = profile.estimate
    return {
        "line": f"{profile.target.title}, {profile.arithmetic}",
        "batch": profile.batch_size,
        "latency": result.latency_seconds,
        "latency_text": describe_seconds(result.latency_seconds),
        "rate": result.samples_per_second,
        "cycles": result.cycles,
        "peak": result.peak_tile_bytes,
        "fits": result.fits,
    }


def _batches(batches: Batches) -> dict[str, Any]:
    points = sorted(batches.profiles, key=lambda profile: profile.batch_size)
    missing = escape_control(batches.describe_missing(), _MAX_TEXT)
    return {"points": [_point(point) for point in points], "missing": missing}


def _advice(advice: Advice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    return {
        "title": advice.title,
        "text": " ".join(filter(None, (advice.describe(), advice.fixed_batch))),
        "rows": [_suggestion(suggestion) for suggestion in advice.suggestions],
        "front_text": f"{FRONT}.",
        "front": [_suggestion(suggestion) for suggestion in advice.front],
        "best": [
            [label, figures, escape_control(command, _MAX_TEXT)]
            for label, figures, command in advice.list_best()
        ],
    }


def _suggestion(suggestion: Suggestion) -> dict[str, Any]:
    return {
        **_point(suggestion.profile),
        "change": suggestion.change or UNCHANGED,
        "latency_ratio": suggestion.latency_ratio,
        "rate_ratio": suggestion.throughput_ratio,
        "memory_ratio": suggestion.memory_ratio,
        "changes_results": suggestion.changes_results,
    }


def _comparison(profile: Profile, other: Profile | None) -> dict[str, Any] | None:
    if other is None:
        return None
    return {
        "subjects": [escape_control(side, _MAX_TEXT) for side in describe_sides(profile, other)],
        "figures": [
            [name, before, after, f"{ratio:.3f}"]
            for name, before, after, ratio in list_figures(profile, other)
        ],
        "types": [_side_by_side(difference) for difference in compare_types(profile, other)],
        "nodes": [_side_by_side(node) for node in compare_nodes(profile, other)],
    }


def _side_by_side(difference: Difference) -> list[str | int | None]:
    return [cut(difference.name), cut(difference.op_type), difference.first, difference.second]


def cut(text: str) -> str:
    """Return a name in a form that can be shown: without control characters and at most `_MAX_NAME`
    long."""
    return escape_control(text, _MAX_NAME)


def encode_tiles(document: Mapping[str, Any]) -> str:
    """Return the tiles of a profile as the page reads them: JSON, deflated, in base64, with names
    that can be shown.

    Args:
        document: document of `poprt.performance.tiles_of`.

    Returns:
        At most `_MAX_TILES_BYTES` characters; `-` if the document would need more.
    """
    for length in _NAME_LENGTHS:
        text = json.dumps(_shorten(document, length), separators=(",", ":"), allow_nan=False)
        encoded = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        if len(encoded) <= _MAX_TILES_BYTES:
            return encoded
    return "-"


def _shorten(value: Any, length: int) -> Any:
    """Return the value with each text in it cut to a length. Notes are sentences and are kept."""
    if isinstance(value, str):
        return escape_control(value, length)
    if isinstance(value, Mapping):
        return {
            key: [escape_control(each, _MAX_TEXT) for each in inner]
            if key == "notes"
            else _shorten(inner, length)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_shorten(item, length) for item in value]
    return value


def _encode(document: Mapping[str, Any]) -> str:
    """Return JSON that can stand in a script element: nothing in it ends the element or starts a
    comment."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _page(name: str) -> str:
    return _read("poplar_triton.profile", "page", name)


def _read(package: str, *names: str) -> str:
    return resources.files(package).joinpath(*names).read_text("utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
