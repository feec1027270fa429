"""Interleaved rounds: every round measures all models of a comparison, with the baseline before and
after them.

The machine's speed drifts and others use it, so only measurements of the same round are compared. A
ratio is a model's figure over the geometric mean of the two baselines around it. The second
baseline over the first is the effect of chance alone on a ratio, the resolution.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import perf_analyzer
from perf_analyzer import Measurement
from rich.console import Console
from rich.progress import Progress

ROUNDS, SECONDS = 7, 0.1
"""Rounds of a benchmark, and seconds of a window: many rounds of short windows say more than few of
long ones, because the machine's speed drifts."""
QUICK_ROUNDS = 2
WARM_UP_SECONDS = 0.1
MIN_BURSTS, LARGEST_WINDOW_SECONDS = 6, 4.0
"""Answers to as many requests as are in flight, over the windows of a measurement; no window is
lengthened for more than that."""
WINDOW_BURSTS = 1.25
"""A window is never shorter: perf_analyzer fails if one sees no answer, and would be run again."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that a median ratio has to keep."""

    bound: float
    at_most: bool = False

    def is_met(self, ratio: float) -> bool:
        """Return whether `ratio`, unrounded, keeps the bound."""
        return ratio <= self.bound if self.at_most else ratio >= self.bound


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under load, its requests (perf_analyzer's JSON), the goals of its ratios, and its
    server if there are several. `rivals` is the goal of its throughput over the faster rival's."""

    model: str
    input_data: Path
    throughput: Goal | None = None
    p99: Goal | None = None
    server: str = ""
    rivals: Goal | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Models that answer the same requests, at one concurrency; the first is the baseline.
    `num_rivals`: how many of the first ones are alternatives of a user."""

    what: str
    concurrency: int
    subjects: tuple[Subject, ...]
    num_rivals: int = 1

    def label(self, index: int) -> str:
        """Return what distinguishes a subject: its server, or the model's name without that of the
        comparison."""
        return self.subjects[index].server or self.subjects[index].model.removeprefix(
            f"{self.what}_"
        )


@dataclass(frozen=True, slots=True)
class Round:
    """Measurements of a comparison in one round; `runs` are those of the subjects after the
    baseline, in their order."""

    before: Measurement
    runs: tuple[Measurement, ...]
    after: Measurement

    def ratios(self, figure: Callable[[Measurement], float]) -> list[float]:
        """Return a ratio per subject: `figure` over the baseline's.

        The baseline's own ratio is its second figure over its first.
        """
        first, last = figure(self.before), figure(self.after)
        return [last / first, *(figure(run) / math.sqrt(first * last) for run in self.runs)]


def parse_options(
    parser: argparse.ArgumentParser,
    *,
    rounds: int = ROUNDS,
    seconds: float | None = None,
    concurrency: Sequence[int] = (),
    quick_rounds: int = QUICK_ROUNDS,
    quick_seconds: float | None = None,
) -> argparse.Namespace:
    """Parse the command line: the options that all benchmarks have, with these defaults, and those
    of `parser`. A benchmark without windows, requests in flight or tables in a document takes their
    options too, without effect, so that `make bench` gives the same to all."""
    quick_seconds = quick_seconds or seconds
    unused = "no effect here"
    parser.add_argument(
        "--rounds", type=int, help=f"interleaved rounds (default {rounds}, quick {quick_rounds})"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"of a window of measurement (default {seconds}, quick {quick_seconds})"
        if seconds
        else unused,
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=list(concurrency),
        help="requests in flight (default %(default)s)" if concurrency else unused,
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds: shows that it works, resolves little",
    )
    parser.add_argument(
        "--docs", type=Path, metavar="FILE", help="write the tables into this document, too"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (quick_rounds if options.quick else rounds)
    options.seconds = options.seconds or (quick_seconds if options.quick else seconds)
    return options


Measure = Callable[[Subject, int, float], Measurement]
"""Function that loads a subject at a concurrency, in windows of the given seconds."""


def run_rounds(
    url: str, comparisons: Sequence[Comparison], num_rounds: int, seconds: float, console: Console
) -> list[list[Round]]:
    """Run the rounds of each comparison of models of one server.

    Every round measures all comparisons once, in windows of at least `seconds`.
    """

    def measure(subject: Subject, concurrency: int, window: float) -> Measurement:
        return perf_analyzer.measure(url, subject.model, concurrency, subject.input_data, window)

    return run_rounds_by(measure, comparisons, num_rounds, seconds, console)


def run_rounds_by(
    measure: Measure,
    comparisons: Sequence[Comparison],
    num_rounds: int,
    seconds: float,
    console: Console,
) -> list[list[Round]]:
    """Run the rounds of each comparison with `measure`, which knows the servers."""
    perf_analyzer.prepare()
    results: list[list[Round]] = [[] for _ in comparisons]
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(
            "warming up",
            total=num_rounds * sum(1 + len(comparison.subjects) for comparison in comparisons),
        )
        windows = [
            max(seconds, warm_up_seconds) for warm_up_seconds in _warm_up(measure, comparisons)
        ]

        def show(subject: Subject, concurrency: int, window: float) -> Measurement:
            progress.update(task, description=f"{subject.model} at {concurrency} {subject.server}")
            measured = measure(subject, concurrency, window)
            progress.advance(task)
            return measured

        for number in range(num_rounds):
            for rounds, comparison, window in zip(results, comparisons, windows, strict=True):
                rounds.append(
                    _run_round(comparison, partial(show, window=window), backwards=number % 2 == 1)
                )
    return results


def _warm_up(measure: Measure, comparisons: Sequence[Comparison]) -> list[float]:
    """Let every model grow its memory before anything counts; returns the shortest sensible window
    of each comparison.

    Joined requests are answered in bursts, so a window that sees few of them counts one too many or
    too few.
    """
    windows = []
    rates: dict[tuple[str, str], float] = {}
    for comparison in comparisons:
        at_once = comparison.concurrency
        for subject in comparison.subjects:
            rate = rates.get((subject.model, subject.server), math.inf)
            window = max(WARM_UP_SECONDS, WINDOW_BURSTS * at_once / rate)
            rates[subject.model, subject.server] = measure(subject, at_once, window).per_second
        slowest = min(rates[subject.model, subject.server] for subject in comparison.subjects)
        burst = at_once / slowest
        window = min(MIN_BURSTS * burst / perf_analyzer.NUM_WINDOWS, LARGEST_WINDOW_SECONDS)
        windows.append(max(window, WINDOW_BURSTS * burst))
    return windows


def _run_round(
    comparison: Comparison, measure: Callable[[Subject, int], Measurement], *, backwards: bool
) -> Round:
    """Run one round, every other one backwards, so that a subject does not always have the same
    neighbour."""
    baseline, *others = comparison.subjects
    before = measure(baseline, comparison.concurrency)
    runs = [
        measure(subject, comparison.concurrency)
        for subject in (others[::-1] if backwards else others)
    ]
    after = measure(baseline, comparison.concurrency)
    return Round(before, tuple(runs[::-1] if backwards else runs), after)
