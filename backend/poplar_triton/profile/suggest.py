"""Results of further profiles of a model: what is advised, and the batch sizes that a report plots.

The cost model tries options on the model, one at a time and together (`search`). The number of
profiles is limited, not their time, so that the same command gives the same result on a slow
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from poprt.performance import Profile, add_row, describe_seconds, make_table
from poprt.terminal import cell
from rich.console import Console

from popef._tools.console import print_line
from poplar_triton.profile.search import ProfileTrials, Search, Suggestion
from poplar_triton.profile.source import ProfileSettings
from poplar_triton.profile.space import FIT, GOALS, LATENCY, MEMORY, THROUGHPUT

_TITLES = {
    FIT: "To make it fit, try",
    LATENCY: "For a lower latency, try",
    THROUGHPUT: "For more throughput, try",
    MEMORY: "For less memory of a tile, try",
}
_FIGURES = {LATENCY: "the latency", THROUGHPUT: "the samples/s", MEMORY: "the memory of a tile"}
_OWN, _EXACT = "the command as it is", "the best that keeps the results"
BATCH_SIZES = (1, 2, 4, 8, 16)
"""Batch sizes that a report plots, besides its own and those advised."""
MAX_SHOWN = 8
"""Maximum number of changes that are listed, and of points of the front that are printed."""
_VALUED = ("available_memory_proportion", "num_io_tiles", "num_ipus", "batch_size", "precision")
"""Axes of which only the best value is listed."""
_MIN_GAIN = 0.02
"""Minimum effect of a change; less is within the error of the estimates."""


@dataclass(frozen=True, slots=True)
class Best:
    """Best combination that was tried, with the command that profiles it."""

    suggestion: Suggestion
    command: str
    lead: str
    """Its lead over the next best combination, in words."""

    def describe(self) -> str:
        """Describe the figures in a line."""
        result = self.suggestion.profile.estimate
        return (
            f"{describe_seconds(result.latency_seconds)} latency, "
            f"{result.samples_per_second:,.0f} samples/s, "
            f"{result.peak_tile_bytes / 1024:,.0f} KiB of the fullest tile; {self.lead}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the command and the figures for `--json --suggest`."""
        return {"command": self.command, "lead": self.lead, **self.suggestion.as_json()}


@dataclass(frozen=True, slots=True)
class Advice:
    """Results of all trials."""

    goal: str
    """Goal of the advice: "fit" for a model that does not fit, else one of `GOALS`."""
    suggestions: Sequence[Suggestion]
    """Single changes with an effect, best first."""
    num_tried: int
    num_left: int
    """Number of single changes that were not tried because of the limit."""
    num_combinations: int = 0
    num_combinations_left: int = 0
    best: Best | None = None
    """Best of all that was tried; None if nothing that fits is better than the command's own
    settings by at least `_MIN_GAIN`. It changes the results only if it is better by as much than
    everything that keeps them."""
    best_exact: Best | None = None
    """Best of those that keep the results, if `best` does not."""
    front: Sequence[Suggestion] = ()
    """Pareto front of what fits, by latency."""
    fixed_batch: str = ""
    """Why no other batch size was compared, and what allows it; empty if some were."""

    @property
    def title(self) -> str:
        """Heading of the list."""
        return _TITLES[self.goal]

    def describe(self) -> str:
        """Describe what was tried, and whether anything helps."""
        tried = self._describe_tried()
        if not self.suggestions:
            neither = "" if self.best else ", nor has a combination"
            return f"{tried}; no single change has an effect of {_MIN_GAIN:.0%} or more{neither}."
        if self.goal != FIT or any(
            suggestion.profile.estimate.fits for suggestion in self.suggestions
        ):
            return f"{tried}; these single changes have an effect."
        if self.best is None:
            return f"{tried}; none makes it fit. These single changes come closest."
        return (
            f"{tried}; no single change makes it fit, but a combination does. These come closest."
        )

    def _describe_tried(self) -> str:
        omitted = [
            f"{count:,} more {what}"
            for count, what in (
                (self.num_left, "changes"),
                (self.num_combinations_left, "combinations"),
            )
            if count
        ]
        message = (
            f"{self.num_tried:,} changes of one option and {self.num_combinations:,} combinations "
            "of them were tried on this model"
        )
        return (
            f"{message} ({' and '.join(omitted)} were not, because of --max_profiles)"
            if omitted
            else message
        )

    def list_best(self) -> list[tuple[str, str, str]]:
        """Return what the best combinations are best for, their figures and their commands."""
        lines = []
        for label, best in (("Best", self.best), ("Best that keeps the results", self.best_exact)):
            if best is not None:
                note = ", changes the results" if best.suggestion.changes_results else ""
                lines.append((f"{label}{note}", best.describe(), best.command))
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the advice for `--json --suggest`."""
        return {
            "goal": self.goal,
            "tried": self.num_tried,
            "not_tried": self.num_left,
            "combinations_tried": self.num_combinations,
            "combinations_not_tried": self.num_combinations_left,
            "suggestions": [suggestion.as_json() for suggestion in self.suggestions],
            "best": self.best and self.best.as_json(),
            "best_exact": self.best_exact and self.best_exact.as_json(),
            "front": [suggestion.as_json() for suggestion in self.front],
            "fixed_batch": self.fixed_batch or None,
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
        reasons = []
        if self.left:
            reasons.append(f"batch {_join(self.left)}, because of --max_profiles")
        if self.impossible:
            size, why = next(iter(self.impossible.items()))
            reasons.append(f"batch {_join(self.impossible)}, which failed (batch {size}: {why})")
        return f"Not drawn: {'; '.join(reasons)}." if reasons else ""


def _join(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


def advise(search: Search, tell_command: Callable[[Suggestion], str]) -> Advice:
    """Return what a search found. `tell_command` returns the command that profiles a suggestion."""

    def describe(best: Suggestion | None) -> Best | None:
        return (
            None if best is None else Best(best, tell_command(best), _describe_lead(search, best))
        )

    fault = search.find_fault("batch_size")
    best, exact = _find_best(search)
    return Advice(
        search.goal,
        list_changes(search),
        search.num_changes,
        search.num_changes_left,
        search.num_combinations,
        search.num_combinations_left,
        describe(best),
        describe(exact),
        search.find_front(_MIN_GAIN),
        fixed_batch=f"Other batch sizes were not compared: {fault}." if fault else "",
    )


def _find_best(search: Search) -> tuple[Suggestion | None, Suggestion | None]:
    """Return the best that was tried, and if it changes the results the best that keeps them. None
    stands for the command as it is, if that fits, and else for nothing.

    A smaller gain than `_MIN_GAIN` is none: it is within the error of the estimates.
    """
    best, exact = search.find_best(), search.find_best(exact=True)
    if best is not None and exact is not None and not _wins(search, best, exact):
        best = exact
    if best is not None and search.base.profile.estimate.fits:
        best = best if _wins(search, best, search.base) else None
        exact = exact if exact and _wins(search, exact, search.base) else None
    return best, None if best is None or not best.changes_results else exact


def _wins(search: Search, suggestion: Suggestion, other: Suggestion) -> bool:
    return search.gain(suggestion, other) >= 1 + _MIN_GAIN


def _describe_lead(search: Search, suggestion: Suggestion) -> str:
    """Return by how much a best suggestion is better than what the user can have without it."""
    rival, name = search.base, _OWN
    exact = search.find_best(exact=True)
    if suggestion.changes_results and exact is not None and exact.words:
        rival, name = exact, _EXACT
    if not rival.profile.estimate.fits:
        return (
            "nothing that keeps the results fits"
            if suggestion.changes_results
            else f"{_OWN} does not fit"
        )
    place = GOALS.index(search.wish)
    ratio = suggestion.ratios[place] / rival.ratios[place]
    factor = 1 / ratio if search.wish == THROUGHPUT else ratio
    return f"{factor:.2f} times {_FIGURES[search.wish]} of {name}"


def list_changes(search: Search) -> list[Suggestion]:
    """Return the single changes that help, best first, each option with its best value."""
    helping = sorted(filter(_HELPS[search.goal], search.changes), key=search.rank)
    best: dict[str, Suggestion] = {}
    for suggestion in helping:
        ((axis, _),) = suggestion.combination
        best.setdefault(axis if axis in _VALUED else suggestion.change, suggestion)
    return list(best.values())[:MAX_SHOWN]


def profile_batches(
    trials: ProfileTrials,
    settings: ProfileSettings,
    suggestions: Iterable[Suggestion],
    sizes: Iterable[int],
) -> Batches:
    """Profile the model under `settings` with the batch sizes to plot: `sizes` and those advised,
    which are known."""
    advised = {
        suggestion.profile.batch_size
        for suggestion in suggestions
        if suggestion.settings == replace(settings, batch_size=suggestion.profile.batch_size)
    }
    profiles, impossible, skipped = [], {}, []
    for size in sorted({*sizes, *advised}):
        trial = trials.run(replace(settings, batch_size=size))
        if trial is None:
            skipped.append(size)
        elif trial.result is None:
            impossible[size] = trial.reason
        else:
            profiles.append(trial.result)
    return Batches(profiles, impossible, skipped)


def print_advice(advice: Advice, console: Console) -> None:
    """Print what was tried, the changes that help, the front, and last the best command."""
    console.print(cell(f"{advice.title}: {advice.describe()}"))
    if advice.suggestions:
        _print_table("option", advice.suggestions, console)
    if len(advice.front) > 1:
        console.print(cell(f"{FRONT}{_describe_omitted(len(advice.front))}:"))
        _print_table("options", advice.front[:MAX_SHOWN], console)
    if advice.fixed_batch:
        console.print(cell(advice.fixed_batch))
    for label, figures, command in advice.list_best():
        console.print(cell(f"{label}: {figures}"))
        print_line(f"  {command}")


FRONT = (
    "Pareto front of what fits: nothing else that was tried is as good in latency, throughput and "
    "memory"
)
UNCHANGED = "(none: the command as it is)"


def _describe_omitted(count: int) -> str:
    return f" (the first {MAX_SHOWN} of {count}; --json lists all)" if count > MAX_SHOWN else ""


def _print_table(heading: str, rows: Iterable[Suggestion], console: Console) -> None:
    table = make_table(heading, "latency|", "", "samples/s|", "", "peak of a tile|", "", "fits")
    for row in rows:
        result = row.profile.estimate
        note = " (changes the results)" if row.changes_results else ""
        change = row.change or UNCHANGED
        cells = [f"{change}{note}", describe_seconds(result.latency_seconds)]
        cells += [f"{row.latency_ratio - 1:+.1%}"]
        cells += [f"{result.samples_per_second:,.0f}", f"{row.throughput_ratio - 1:+.1%}"]
        cells += [f"{result.peak_tile_bytes / 1024:,.0f} KiB", f"{row.memory_ratio - 1:+.1%}"]
        add_row(table, [*cells, "yes" if result.fits else "no"])
    console.print(table)


_HELPS: Mapping[str, Callable[[Suggestion], bool]] = {
    FIT: lambda tried: tried.profile.estimate.fits or tried.memory_ratio <= 1 - _MIN_GAIN,
    LATENCY: lambda tried: tried.profile.estimate.fits and tried.latency_ratio <= 1 - _MIN_GAIN,
    THROUGHPUT: lambda tried: (
        tried.profile.estimate.fits and tried.throughput_ratio >= 1 + _MIN_GAIN
    ),
    MEMORY: lambda tried: tried.profile.estimate.fits and tried.memory_ratio <= 1 - _MIN_GAIN,
}
"""Whether a change helps, by goal."""
