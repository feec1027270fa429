"""Suggestions that make a model fit, or faster.

The cost model tries options on the model, one at a time. If none alone is enough, it tries the two
together that save most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from poprt.profiling import Profile, add_row, describe_seconds, kind_of, make_table
from poprt.terminal import cell
from rich.console import Console
from simipu import CompileError

from poplar_triton.profile.source import Estimator, Settings

BUDGET_SECONDS = 20.0
"""Time limit for all attempts; no attempt begins after it."""
MAX_SHOWN = 8
MAX_TRIED = 32
"""Maximum number of profiles that are made, for a progress bar."""
_PROPORTIONS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
"""Proportions of tile memory for products to try: PopART's users go from 0.1 to 1."""
_IO_TILES = (0, 32, 64)
_NEXT_PRECISION = {"fp32": ("fp16",), "fp16": ("fp8", "fp8_weight")}
_PASSES = ("fused_attention", "attention_padding", "pre_scale", "matmul_rotary_embedding")
"""Passes of the converter that a user lists for a transformer."""
_VALUED = ("--available_memory_proportion", "--num_io_tiles", "--batch_size", "--precision")
_INEXACT = ("--precision", "--partials_type")
_MIN_GAIN = 0.02
"""Minimum effect of a change; less is within the error of the estimates."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Change that was tried, and its effect on the figures."""

    change: str
    """Text of the change, written like the command's options."""
    settings: Settings
    profile: Profile
    latency_ratio: float
    """Ratio to the latency without the change; all ratios are relative to that."""
    throughput_ratio: float
    memory_ratio: float

    @property
    def changes_results(self) -> bool:
        """Whether the change alters the model's results, so that their accuracy must be checked."""
        return any(name in self.change for name in _INEXACT)

    def as_json(self) -> dict[str, Any]:
        """Return the figures by the names of `--json`."""
        result = self.profile.estimate
        return {
            "change": self.change,
            "changes_results": self.changes_results,
            "fits": result.fits,
            "latency_seconds": result.latency_seconds,
            "samples_per_second": result.samples_per_second,
            "peak_tile_bytes": result.peak_tile_bytes,
            "latency_ratio": self.latency_ratio,
            "throughput_ratio": self.throughput_ratio,
            "memory_ratio": self.memory_ratio,
        }


@dataclass(frozen=True, slots=True)
class Advice:
    """Results of all attempts."""

    goal: str
    """Goal of the advice: "fit" for a model that does not fit, else "faster"."""
    suggestions: Sequence[Suggestion]
    """Changes with an effect, best first."""
    num_tried: int
    num_left: int
    """Number of changes for which there was no time."""

    @property
    def title(self) -> str:
        """Heading of the list."""
        return "To make it fit, try" if self.goal == "fit" else "To make it faster, try"

    def describe(self) -> str:
        """Describe what was tried, and whether anything helps."""
        tried = f"{self.num_tried} changes of one option were tried on this model"
        if self.num_left:
            tried += f", {self.num_left} more were skipped for lack of time"
        if not self.suggestions:
            return f"{tried}; none has an effect of {_MIN_GAIN:.0%} or more."
        if self.goal == "fit" and not any(each.profile.estimate.fits for each in self.suggestions):
            return f"{tried}; none makes it fit. These come closest."
        return f"{tried}; these have an effect. They can be combined: profile again with them."

    def as_json(self) -> dict[str, Any]:
        """Return the advice for `--json --suggest`."""
        return {
            "goal": self.goal,
            "tried": self.num_tried,
            "not_tried": self.num_left,
            "suggestions": [each.as_json() for each in self.suggestions],
        }


def try_changes(
    estimator: Estimator,
    settings: Settings,
    base: Profile,
    seconds: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Advice:
    """Profile the model of `base` under other settings within the time limit, and keep what
    helps."""
    goal = "faster" if base.estimate.fits else "fit"
    deadline = clock() + seconds
    found: list[Suggestion] = []
    num_tried = num_left = 0
    for change, changed in _iter_changes(settings, base):
        if clock() >= deadline:
            num_left += 1
            continue
        num_tried += 1
        if (made := _try(estimator, change, changed, base)) is not None:
            found.append(made)
    fits = any(each.profile.estimate.fits for each in found)
    if goal == "fit" and not fits and clock() < deadline:
        found += _try_together(estimator, settings, found, base)
    kept = sorted(filter(_HELPS[goal], found), key=_ORDER[goal])
    return Advice(goal, _drop_worse(kept)[:MAX_SHOWN], num_tried, num_left)


def print_advice(advice: Advice, console: Console) -> None:
    """Print a row for each change that helps, and what was tried."""
    console.print(cell(f"{advice.title}: {advice.describe()}"))
    if not advice.suggestions:
        return
    table = make_table("option", "latency|", "", "samples/s|", "", "peak of a tile|", "", "fits")
    for each in advice.suggestions:
        result = each.profile.estimate
        note = " (changes the results)" if each.changes_results else ""
        cells = [f"{each.change}{note}", describe_seconds(result.latency_seconds)]
        cells += [f"{each.latency_ratio - 1:+.1%}"]
        cells += [f"{result.samples_per_second:,.0f}", f"{each.throughput_ratio - 1:+.1%}"]
        cells += [f"{result.peak_tile_bytes / 1024:,.0f} KiB", f"{each.memory_ratio - 1:+.1%}"]
        add_row(table, [*cells, "yes" if result.fits else "no"])
    console.print(table)


def _iter_changes(settings: Settings, base: Profile) -> Iterator[tuple[str, Settings]]:
    """Yield the changes to try. Those that keep the converted graph come first, because they cost
    no conversion."""
    for name, value in _iter_options(base):
        shown = f"--{name}" if value is True else f"--{name} {value}"
        yield shown, replace(settings, options={**settings.options, name: value})
    used = tuple(settings.converter.get("used_passes", ()))
    for name in _PASSES if kind_of(base.estimate) == "transformer" else ():
        if name not in used:
            passes = {**settings.converter, "used_passes": [*used, name]}
            yield f"--passes {','.join([*used, name])}", replace(settings, converter=passes)
    for size in _batch_sizes(base):
        yield f"--batch_size {size}", replace(settings, batch_size=size)
    for precision in _NEXT_PRECISION.get(base.precision, ()):
        if base.target.quarter_macs or not precision.startswith("fp8"):
            yield f"--precision {precision}", replace(settings, precision=precision)


def _iter_options(base: Profile) -> Iterator[tuple[str, Any]]:
    options = base.estimate.options
    if options.partials_type == "float":
        yield "partials_type", "half"
    for proportion in _PROPORTIONS:
        if proportion != options.available_memory_proportion:
            yield "available_memory_proportion", proportion
    for tiles in _IO_TILES:
        if tiles != options.num_io_tiles:
            yield "num_io_tiles", tiles
    if not options.use_128bit_conv_unit_load:
        yield "use_128bit_conv_unit_load", True
    if not base.estimate.fits:
        yield "num_ipus", 2 * options.num_ipus


def _batch_sizes(base: Profile) -> list[int]:
    """Return the batch sizes to try: smaller ones need less memory, larger ones have more
    throughput."""
    size = base.batch_size
    found = {1, size // 4, size // 2} if not base.estimate.fits else {size // 2, 2 * size, 4 * size}
    return sorted(found - {0, size}, reverse=True)


def _try(estimator: Estimator, change: str, settings: Settings, base: Profile) -> Suggestion | None:
    """Return what a change does, or None if the model cannot have it."""
    try:
        profile = estimator.profile(settings)
    except CompileError:
        return None
    before, after = base.estimate, profile.estimate
    return Suggestion(
        change,
        settings,
        profile,
        after.latency_seconds / before.latency_seconds,
        after.samples_per_second / before.samples_per_second,
        after.peak_tile_bytes / before.peak_tile_bytes,
    )


def _try_together(
    estimator: Estimator, settings: Settings, found: Sequence[Suggestion], base: Profile
) -> list[Suggestion]:
    """Try the option that saves most memory together with the batch size or the precision that
    saves most."""
    by_memory = sorted(found, key=lambda each: each.memory_ratio)
    same_graph = [each for each in by_memory if each.settings.graph == settings.graph]
    others = [each for each in by_memory if each.settings.graph != settings.graph]
    if not same_graph or not others:
        return []
    both = replace(others[0].settings, options=same_graph[0].settings.options)
    made = _try(estimator, f"{same_graph[0].change} {others[0].change}", both, base)
    return [made] if made else []


def _drop_worse(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Keep only the best value of each option; the best come first."""
    best: dict[str, Suggestion] = {}
    for each in found:
        option, _, _ = each.change.rpartition(" ")
        best.setdefault(option if option in _VALUED else each.change, each)
    return list(best.values())


def _is_faster(each: Suggestion) -> bool:
    gains = each.throughput_ratio >= 1 + _MIN_GAIN or each.latency_ratio <= 1 - _MIN_GAIN
    return each.profile.estimate.fits and gains


def _fits_better(each: Suggestion) -> bool:
    return each.profile.estimate.fits or each.memory_ratio <= 1 - _MIN_GAIN


_HELPS: Mapping[str, Callable[[Suggestion], bool]] = {"faster": _is_faster, "fit": _fits_better}
_ORDER: Mapping[str, Callable[[Suggestion], Any]] = {
    "faster": lambda each: (-each.throughput_ratio, each.latency_ratio),
    "fit": lambda each: (
        not each.profile.estimate.fits,
        -each.throughput_ratio if each.profile.estimate.fits else each.memory_ratio,
    ),
}
