"""Further profiles of a model: suggestions that make it fit or faster, and the batch sizes that a
report plots.

The cost model tries options on the model, one at a time. If none alone is enough, it tries the two
together that save most. The number of profiles is limited, not their time, so that the same command
gives the same result on a slow machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from poprt.profiling import (
    TRANSFORMERS,
    Profile,
    add_row,
    describe_seconds,
    kind_of,
    make_table,
)
from poprt.terminal import cell
from rich.console import Console
from simipu import CompileError

from poplar_triton.profile.source import Estimator, Settings

LATENCY, THROUGHPUT = "latency", "throughput"
GOALS = (LATENCY, THROUGHPUT)
_FIT = "fit"
_TITLES = {
    _FIT: "To make it fit, try",
    LATENCY: "For a lower latency, try",
    THROUGHPUT: "For more throughput, try",
}
MAX_PROFILES = 32
"""Default limit of the further profiles of a command. It suffices for all changes and batch sizes
that are tried today."""
BATCH_SIZES = (1, 2, 4, 8, 16)
"""Batch sizes that a report plots, besides its own and those advised."""
MAX_SHOWN = 8
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
    """Goal of the advice: "fit" for a model that does not fit, else one of `GOALS`."""
    suggestions: Sequence[Suggestion]
    """Changes with an effect, best first."""
    num_tried: int
    num_left: int
    """Number of changes that were not tried because of the limit."""

    @property
    def title(self) -> str:
        """Heading of the list."""
        return _TITLES[self.goal]

    def describe(self) -> str:
        """Describe what was tried, and whether anything helps."""
        tried = f"{self.num_tried} changes of one option were tried on this model"
        if self.num_left:
            tried += f", {self.num_left} more were not, because of --max_profiles"
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


@dataclass(frozen=True, slots=True)
class Batches:
    """Profiles of several batch sizes, and the batch sizes that are missing among them."""

    profiles: Sequence[Profile] = ()
    impossible: Mapping[int, str] = field(default_factory=dict)
    """Why the model cannot have a batch size, by batch size."""
    left: Sequence[int] = ()
    """Batch sizes that were not profiled because of the limit."""

    def describe_missing(self) -> str:
        """Describe the missing batch sizes and why they are missing; empty if none is."""
        told = []
        if self.left:
            told.append(f"batch {_join(self.left)}, because of --max_profiles")
        if self.impossible:
            size, why = next(iter(self.impossible.items()))
            told.append(f"batch {_join(self.impossible)}, which failed (batch {size}: {why})")
        return f"Not drawn: {'; '.join(told)}." if told else ""


def _join(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


_Attempt: TypeAlias = tuple[Settings, Profile | CompileError]


class Attempts:
    """Profiles of one model under further settings, at most `limit` of them. Equal settings are
    profiled once."""

    def __init__(
        self, estimator: Estimator, limit: int = MAX_PROFILES, known: Sequence[_Attempt] = ()
    ) -> None:
        self._estimator = estimator
        self._num_left = limit
        self._made: list[_Attempt] = list(known)

    def can_try(self, settings: Settings) -> bool:
        """Return whether the limit allows for `settings`, which it does if they are known."""
        return self._num_left > 0 or any(made == settings for made, _ in self._made)

    def profile(self, settings: Settings) -> Profile:
        """Return the profile under `settings`. Raises CompileError if the model cannot have
        them."""
        found = next((profile for made, profile in self._made if made == settings), None)
        if found is None:
            self._num_left -= 1
            try:
                found = self._estimator.profile(settings)
            except CompileError as error:
                found = error
            self._made.append((settings, found))
        if isinstance(found, CompileError):
            raise found
        return found


def try_changes(
    attempts: Attempts, settings: Settings, base: Profile, wish: str = THROUGHPUT
) -> Advice:
    """Profile the model of `base` under other settings, and keep what helps.

    The goal is `wish`, one of `GOALS`, or that the model fits if it does not.
    """
    goal = wish if base.estimate.fits else _FIT
    found: list[Suggestion] = []
    num_tried = num_left = 0
    for change, changed in _iter_changes(settings, base, goal):
        if not attempts.can_try(changed):
            num_left += 1
            continue
        num_tried += 1
        if (made := _try(attempts, change, changed, base)) is not None:
            found.append(made)
    if goal == _FIT and not any(each.profile.estimate.fits for each in found):
        found += _try_together(attempts, settings, found, base)
    kept = sorted(filter(_HELPS[goal], found), key=lambda each: _rank(each, goal, wish))
    return Advice(goal, _drop_worse(kept)[:MAX_SHOWN], num_tried, num_left)


def profile_batches(
    attempts: Attempts, settings: Settings, advice: Advice, sizes: Iterable[int]
) -> Batches:
    """Profile the model under `settings` with the batch sizes to plot: `sizes` and those advised,
    which are known."""
    advised = {
        each.profile.batch_size
        for each in advice.suggestions
        if each.settings == replace(settings, batch_size=each.profile.batch_size)
    }
    profiles, impossible, left = [], {}, []
    for size in sorted({*sizes, *advised}):
        changed = replace(settings, batch_size=size)
        if not attempts.can_try(changed):
            left.append(size)
            continue
        try:
            profiles.append(attempts.profile(changed))
        except CompileError as error:
            impossible[size] = str(error)
    return Batches(profiles, impossible, left)


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


def _iter_changes(settings: Settings, base: Profile, goal: str) -> Iterator[tuple[str, Settings]]:
    """Yield the changes to try. Those that keep the converted graph come first, because they cost
    no conversion."""
    for name, value in _iter_options(base):
        shown = f"--{name}" if value is True else f"--{name} {value}"
        yield shown, replace(settings, options={**settings.options, name: value})
    used = tuple(settings.converter.get("used_passes", ()))
    for name in _PASSES if kind_of(base.estimate) in TRANSFORMERS else ():
        if name not in used:
            passes = {**settings.converter, "used_passes": [*used, name]}
            yield f"--passes {','.join([*used, name])}", replace(settings, converter=passes)
    for size in _batch_sizes(base.batch_size, goal):
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


def _batch_sizes(size: int, goal: str) -> list[int]:
    """Return the batch sizes to try: smaller ones need less time and memory, larger ones have more
    throughput."""
    found = {size // 2, 2 * size, 4 * size} if goal == THROUGHPUT else {1, size // 4, size // 2}
    return sorted(found - {0, size}, reverse=True)


def _try(attempts: Attempts, change: str, settings: Settings, base: Profile) -> Suggestion | None:
    """Return what a change does, or None if the model cannot have it."""
    try:
        profile = attempts.profile(settings)
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
    attempts: Attempts, settings: Settings, found: Sequence[Suggestion], base: Profile
) -> list[Suggestion]:
    """Try the option that saves most memory together with the batch size or the precision that
    saves most."""
    by_memory = sorted(found, key=lambda each: each.memory_ratio)
    same_graph = [each for each in by_memory if each.settings.graph == settings.graph]
    others = [each for each in by_memory if each.settings.graph != settings.graph]
    if not same_graph or not others:
        return []
    both = replace(others[0].settings, options=same_graph[0].settings.options)
    if not attempts.can_try(both):
        return []
    made = _try(attempts, f"{same_graph[0].change} {others[0].change}", both, base)
    return [made] if made else []


def _drop_worse(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Keep only the best value of each option; the best come first."""
    best: dict[str, Suggestion] = {}
    for each in found:
        option, _, _ = each.change.rpartition(" ")
        best.setdefault(option if option in _VALUED else each.change, each)
    return list(best.values())


def _helps_fit(each: Suggestion) -> bool:
    return each.profile.estimate.fits or each.memory_ratio <= 1 - _MIN_GAIN


def _helps_latency(each: Suggestion) -> bool:
    return each.profile.estimate.fits and each.latency_ratio <= 1 - _MIN_GAIN


def _helps_throughput(each: Suggestion) -> bool:
    return each.profile.estimate.fits and each.throughput_ratio >= 1 + _MIN_GAIN


_HELPS: Mapping[str, Callable[[Suggestion], bool]] = {
    _FIT: _helps_fit,
    LATENCY: _helps_latency,
    THROUGHPUT: _helps_throughput,
}


def _rank(each: Suggestion, goal: str, wish: str) -> tuple[float, ...]:
    """Return the key that sorts suggestions, best first.

    If the model is to fit, those that fit come first, by the user's wish, then those that save
    most memory.
    """
    if goal == _FIT and not each.profile.estimate.fits:
        return 1, each.memory_ratio
    ratios = each.latency_ratio, -each.throughput_ratio
    return 0, *(ratios if wish == LATENCY else reversed(ratios))
