"""Search for the options with the best figures, within a number of profiles.

First each option is changed alone. Then the combinations follow, the most promising first: the
prediction for a combination is the product of the effects that its parts had. What is profiled
refines the predictions of its neighbours, which differ from it in one option. So the result is
never worse than that of the best single change, and with enough profiles all combinations are
tried. Nothing depends on time or chance: the same command gives the same result on every machine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from poprt.performance import Profile

from poplar_triton.profile.source import ProfileSettings
from poplar_triton.profile.space import (
    FIT,
    LATENCY,
    MEMORY,
    THROUGHPUT,
    Choice,
    Combination,
    Space,
    is_exact,
    make_space,
)
from poplar_triton.trials import Trials

MAX_PROFILES = 64
"""Default limit of the further profiles of a command. It suffices for all single changes and batch
sizes that are tried today, and as many combinations."""
_MIN_PROFILES = 8
"""Least default limit, however large the graph is."""
MAX_NODES = 200_000
"""Maximum number of nodes in all further profiles by default. A node takes about a millisecond, so
that a large graph takes minutes and not an hour."""

Figures: TypeAlias = tuple[float, float, float]
"""Latency, throughput and memory, or ratios of them, so that less is better for each."""
_PRIORITIES = {LATENCY: (0, 1, 2), THROUGHPUT: (1, 0, 2), MEMORY: (2, 1, 0)}
"""Places of the figures by which combinations are ranked, by goal."""


def default_limit(base: Profile) -> int:
    """Return how many further profiles are made if the user does not say: `MAX_PROFILES`, or fewer
    of a large graph."""
    num_nodes = max(1, len(base.estimate.operators))
    return max(_MIN_PROFILES, min(MAX_PROFILES, MAX_NODES // num_nodes))


ProfileTrials: TypeAlias = Trials[ProfileSettings, Profile]
"""Profiles of one model under further settings."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Combination that was tried, and its effect on the figures."""

    combination: Combination
    words: Sequence[str]
    """Words of the command line that make the change; none for the command's own settings."""
    settings: ProfileSettings
    profile: Profile
    latency_ratio: float
    """Ratio to the latency without the change; all ratios are relative to that."""
    throughput_ratio: float
    memory_ratio: float

    @property
    def change(self) -> str:
        """Text of the change, written like the command's options."""
        return " ".join(self.words)

    @property
    def changes_results(self) -> bool:
        """Whether the change alters the model's results, so that their accuracy must be checked."""
        return not is_exact(self.combination)

    @property
    def ratios(self) -> Figures:
        """Ratios of the figures, of which less is better."""
        return self.latency_ratio, 1 / self.throughput_ratio, self.memory_ratio

    @property
    def figures(self) -> Figures:
        """Latency, throughput and memory, of which less is better: the throughput is negative."""
        result = self.profile.estimate
        return result.latency_seconds, -result.samples_per_second, result.peak_tile_bytes

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


@dataclass(order=True, slots=True)
class _Prediction:
    """Combination to try, ordered by its predicted figures, most promising first."""

    key: tuple[float, ...]
    number: int
    """Number of the prediction: of equal ones the first counts."""
    combination: Combination = field(compare=False)


class Search:
    """Search among the combinations of a space, for one goal.

    `wish` is the user's goal, one of `GOALS`. The goal is that the model fits if it does not; among
    what fits the wish decides.
    """

    def __init__(
        self,
        trials: ProfileTrials,
        settings: ProfileSettings,
        base: Profile,
        wish: str = THROUGHPUT,
        max_ipus: int | None = None,
    ) -> None:
        self.goal = wish if base.estimate.fits else FIT
        self.wish = wish
        self.space: Space = make_space(settings, base, self.goal, max_ipus)
        self._trials = trials
        self.base = Suggestion((), (), settings, base, 1.0, 1.0, 1.0)
        """The command's own settings, which change nothing."""
        self._tried: dict[Combination, Suggestion | None] = {(): self.base}
        self._faults: dict[Combination, str] = {}
        """Why the model cannot have a combination."""
        self._effects: dict[Choice, Figures] = {}
        self._queues: tuple[list[_Prediction], list[_Prediction]] = ([], [])
        """Candidates of all kinds, and those that keep the results."""
        self._num_predicted = 0

    @property
    def changes(self) -> list[Suggestion]:
        """Single changes that the model can have, in the order of the space."""
        return [suggestion for suggestion in self._iter_made() if len(suggestion.combination) == 1]

    @property
    def num_changes(self) -> int:
        """Number of single changes that were tried."""
        return sum(len(combination) == 1 for combination in self._tried)

    @property
    def num_changes_left(self) -> int:
        """Number of single changes that were not tried because of the limit."""
        return len(list(self.space.iter_choices())) - self.num_changes

    @property
    def num_combinations(self) -> int:
        """Number of combinations of several changes that were tried."""
        return sum(len(combination) > 1 for combination in self._tried)

    @property
    def num_combinations_left(self) -> int:
        """Number of combinations that were not tried because of the limit. Those with a change that
        the model cannot have alone do not count."""
        if not self._trials.is_spent:
            return 0
        numbers = list(self._count_possible())
        total = math.prod(number + 1 for number in numbers) - 1 - sum(numbers)
        return total - self.num_combinations

    def try_changes(self) -> None:
        """Profile the model with each single change.

        One batch size comes first: with a low limit the advice would not tell that a model can have
        no other one, although batches gain most.
        """
        choices = list(self.space.iter_choices())
        first = [choice for choice in choices if choice[0] == "batch_size"][:1]
        for choice in dict.fromkeys([*first, *choices]):
            suggestion = self._try((choice,))
            if suggestion is not None:
                self._effects[choice] = suggestion.ratios

    def try_combinations(self) -> None:
        """Profile combinations, as long as the limit allows.

        Every second one keeps the model's results: those of a narrower precision promise most, but
        not every user can have them.
        """
        for change in self.changes:
            self._predict_neighbours(change)
        turn = 0
        while (candidate := self._take(turn)) is not None and not self._trials.is_spent:
            suggestion = self._try(candidate.combination)
            if suggestion is not None:
                self._predict_neighbours(suggestion)
            turn = 1 - turn

    def find_best(self, *, exact: bool = False) -> Suggestion | None:
        """Return the best of what fits, or None if nothing does; the one that changes nothing
        competes. `exact` is for the best that keeps the model's results. Of equally good ones that
        with the fewest changes is the best."""
        fitting = [
            suggestion
            for suggestion in self._iter_made()
            if suggestion.profile.estimate.fits and not (exact and suggestion.changes_results)
        ]
        return min(fitting, key=self._order, default=None)

    def find_front(self, min_gain: float = 0.0) -> list[Suggestion]:
        """Return the Pareto front of what fits, by latency.

        Nothing that was tried is as good as one of them in latency, throughput and memory of a
        tile, and better in one. Of those with equal figures the one with the fewest changes counts.
        What changes the results must be better by `min_gain` in one figure than each that keeps
        them.
        """
        fitting = [
            suggestion for suggestion in self._iter_made() if suggestion.profile.estimate.fits
        ]
        exact = [suggestion for suggestion in fitting if not suggestion.changes_results]
        fitting = [
            suggestion
            for suggestion in fitting
            if not suggestion.changes_results
            or not any(_is_as_good(other.ratios, suggestion.ratios, min_gain) for other in exact)
        ]
        front: list[Suggestion] = []
        for suggestion in sorted(
            fitting, key=lambda suggestion: (suggestion.figures, len(suggestion.combination))
        ):
            # Only what comes before it in this order can be as good in all figures.
            if not any(_is_as_good(other.figures, suggestion.figures) for other in front):
                front.append(suggestion)
        return front

    def gain(self, suggestion: Suggestion, other: Suggestion) -> float:
        """Return how many times better than another one a suggestion is in the figure that the user
        wishes to improve: above 1 if it is better."""
        place = _PRIORITIES[self.wish][0]
        return other.ratios[place] / suggestion.ratios[place]

    def find_fault(self, axis: str) -> str:
        """Return why the model can have none of the values of an axis that were tried; empty if it
        can have one, or if none was tried."""
        choices = [(axis, value) for value in self.space.axes.get(axis, ())]
        if any(self._tried.get((choice,)) for choice in choices):
            return ""
        return next((self._faults[choice,] for choice in choices if (choice,) in self._faults), "")

    def rank(self, suggestion: Suggestion) -> tuple[float, ...]:
        """Return the key that sorts suggestions, best first."""
        return self._rank(suggestion.profile.estimate.fits, suggestion.figures)

    def _rank(self, fits: bool, figures: Figures) -> tuple[float, ...]:
        """Return the key of figures. What fits comes first, by the user's wish, then what needs
        least memory."""
        if not fits:
            return 1, figures[2]
        return 0, *(figures[place] for place in _PRIORITIES[self.wish])

    def _order(self, suggestion: Suggestion) -> tuple[tuple[float, ...], int]:
        return self.rank(suggestion), len(suggestion.combination)

    def _iter_made(self) -> Iterator[Suggestion]:
        return (suggestion for suggestion in self._tried.values() if suggestion is not None)

    def _count_possible(self) -> Iterator[int]:
        """Yield for each axis how many of its values the model can have, as far as known."""
        for axis, values in self.space.axes.items():
            failed = [v for v in values if self._tried.get(((axis, v),), self.base) is None]
            yield len(values) - len(failed)

    def _try(self, combination: Combination) -> Suggestion | None:
        """Return what a combination does, or None if the model cannot have it or the limit is
        reached."""
        settings = self.space.make_settings(combination)
        trial = self._trials.run(settings)
        if trial is None:
            return None
        self._tried[combination] = None
        profile = trial.result
        if profile is None:
            self._faults[combination] = trial.reason
            return None
        before, after = self.base.profile.estimate, profile.estimate
        suggestion = Suggestion(
            combination,
            self.space.make_words(combination),
            settings,
            profile,
            after.latency_seconds / before.latency_seconds,
            after.samples_per_second / before.samples_per_second,
            after.peak_tile_bytes / before.peak_tile_bytes,
        )
        self._tried[combination] = suggestion
        return suggestion

    def _predict_neighbours(self, parent: Suggestion) -> None:
        """Queue the combinations with one more change than `parent`, or another value of one."""
        replaced = dict(parent.combination)
        for choice, effect in self._effects.items():
            combination = self.space.change(parent.combination, choice)
            if combination in self._tried:
                continue
            axis = choice[0]
            before = self._effects[axis, replaced[axis]] if axis in replaced else (1.0, 1.0, 1.0)
            latency, interval, memory = (
                ratio * new / old
                for ratio, new, old in zip(parent.ratios, effect, before, strict=True)
            )
            self._queue(combination, (latency, interval, memory))

    def _queue(self, combination: Combination, ratios: Figures) -> None:
        estimate = self.base.profile.estimate
        fits = ratios[2] * estimate.peak_tile_bytes <= estimate.target.bytes_per_tile
        self._num_predicted += 1
        candidate = _Prediction(self._rank(fits, ratios), self._num_predicted, combination)
        for queue in self._queues[: 1 + is_exact(combination)]:
            heapq.heappush(queue, candidate)

    def _take(self, turn: int) -> _Prediction | None:
        """Return the most promising candidate of the queue whose turn it is, else of the other one;
        None if both are empty."""
        for queue in (self._queues[turn], self._queues[1 - turn]):
            while queue:
                candidate = heapq.heappop(queue)
                if candidate.combination not in self._tried:
                    return candidate
        return None


def _is_as_good(one: Figures, other: Figures, min_gain: float = 0.0) -> bool:
    """Return whether no figure of the other is better, or is better by less than `min_gain`."""
    if min_gain:
        return all(mine < theirs * (1 + min_gain) for mine, theirs in zip(one, other, strict=True))
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
