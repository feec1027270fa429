"""Report of the rounds: medians, ratios with their spread, goals, and the parts of the time where a
goal is missed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from perf_analyzer import PARTS, Measurement
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rounds import Comparison, Goal, Round, Subject

FILE_WIDTH = 180
"""Width of a table that goes into a file: the widest row fits."""


def make_console() -> Console:
    """Return a console with a terminal's own width, or FILE_WIDTH elsewhere."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def make_table(title: str, *columns: str) -> Table:
    """Return a table of figures."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def make_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a document."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def as_markdown(table: Table) -> str:
    """Return a table's columns and rows for a document, without its title."""
    cells = [
        [Text.from_markup(str(cell)).plain for cell in column.cells] for column in table.columns
    ]
    return make_markdown(
        [str(column.header) for column in table.columns], list(zip(*cells, strict=True))
    )


def show(console: Console, tables: Mapping[str, Table], document: Path | None) -> None:
    """Print tables, and put each into the section of its name if the document has one."""
    for table in tables.values():
        console.print(table)
    if document is not None:
        template = document.read_text()
        sections = {
            name: as_markdown(table) for name, table in tables.items() if _opening(name) in template
        }
        document.write_text(make_document(template, sections))


def _opening(section: str) -> str:
    return f"<!-- {section} -->\n"


def make_document(template: str, sections: Mapping[str, str]) -> str:
    """Return the document with each section put between its markers `<!-- name -->` and `<!-- end
    -->`."""
    for name, text in sections.items():
        before, marker, rest = template.partition(_opening(name))
        _, end, after = rest.partition("<!-- end -->")
        if not marker or not end:
            raise ValueError(f"expected the markers of section {name!r}")
        template = f"{before}{marker}{text}\n{end}{after}"
    return template


def print_report(
    title: str,
    comparisons: Sequence[Comparison],
    found: Sequence[Sequence[Round]],
    console: Console,
) -> None:
    """Print a row per model and concurrency, and the breakdown of those that missed a goal."""
    console.print(
        _ratio_table(
            f"{title}; medians of {len(found[0])} interleaved rounds (least..greatest)",
            comparisons,
            found,
        )
    )
    console.print(
        "Baseline rows: its second measurement of a round over its first, which is the resolution."
    )
    console.print("Goals: by the median; the fraction is that of the rounds that keep the bound.")
    missed = _missed_table(comparisons, found)
    if missed.row_count:
        console.print(missed)


def make_wide_table(
    title: str, comparisons: Sequence[Comparison], found: Sequence[Sequence[Round]]
) -> Table:
    """Return a table of throughputs: a row for each number of requests at once, a column for each
    model; those with a goal have their spread."""
    baseline, *labels = map(comparisons[0].label, range(len(comparisons[0].subjects)))
    has_rivals = comparisons[0].num_rivals > 1
    columns = (f"{baseline}, requests/s", f"{baseline} again", *labels)
    last = "fp32, of the faster" if has_rivals else "p99"
    table = make_table(title, "requests", "at once", *columns, last)
    for comparison, rounds in zip(comparisons, found, strict=True):
        indices = range(len(comparison.subjects))
        goals = [subject.throughput for subject in comparison.subjects]
        ratios = [_ratios(rounds, index, _throughput) for index in indices]
        if has_rivals:
            others = [
                statistics.median(_rival_ratios(rounds, index, comparison.num_rivals))
                for index in indices
                if comparison.subjects[index].rivals
            ]
        else:
            others = [statistics.median(_ratios(rounds, 1, _p99))]
        table.add_row(
            *(comparison.what, str(comparison.concurrency), _median(_runs(rounds, 0), _throughput)),
            *(
                describe_ratio(ratio, goal)
                if goal or not index
                else f"{statistics.median(ratio):.2f}"
                for index, (ratio, goal) in enumerate(zip(ratios, goals, strict=True))
            ),
            f"{max(others):.2f}",
        )
    return table


def describe_ratio(ratios: Sequence[float], goal: Goal | None = None) -> str:
    """Format the median, then the least and the greatest.

    All are cut towards missing the goal, never rounded to meet it.
    """
    cut = round if goal is None else math.ceil if goal.at_most else math.floor
    # Ten digits first: 0.29 * 100 is 28.999999999999996.
    median, least, greatest = (
        cut(round(ratio * 100, 10)) / 100
        for ratio in (statistics.median(ratios), min(ratios), max(ratios))
    )
    return f"{median:.2f} ({least:.2f}..{greatest:.2f})"


def describe_goal(ratios: Sequence[float], goal: Goal | None) -> str:
    """Format the bound, whether the median of `ratios` meets it, and how many of them do, in rich's
    markup.

    The result is empty without a goal.
    """
    if goal is None:
        return ""
    verdict = "[green]met[/]" if goal.is_met(statistics.median(ratios)) else "[red]missed[/]"
    return (
        f"{'≤' if goal.at_most else '≥'} {goal.bound:.2f} {verdict} "
        f"{sum(map(goal.is_met, ratios))}/{len(ratios)}"
    )


def _ratio_table(
    title: str, comparisons: Sequence[Comparison], found: Sequence[Sequence[Round]]
) -> Table:
    has_rivals = any(comparison.num_rivals > 1 for comparison in comparisons)
    compared = "over the faster rival" if has_rivals else "p99 ratio"
    figures = ("requests/s", "p50 us", "p99 us", "throughput ratio", "goal", compared, "goal")
    table = make_table(title, "requests", "at once", "model", *figures)
    for comparison, rounds in zip(comparisons, found, strict=True):
        for index, subject in enumerate(comparison.subjects):
            runs = _runs(rounds, index)
            throughputs = _ratios(rounds, index, _throughput)
            if has_rivals:
                others, goal = _rival_ratios(rounds, index, comparison.num_rivals), subject.rivals
            else:
                others, goal = _ratios(rounds, index, _p99), subject.p99
            table.add_row(
                *(comparison.what, str(comparison.concurrency), comparison.label(index)),
                *(_median(runs, figure) for figure in (_throughput, _p50, _p99)),
                *(
                    describe_ratio(throughputs, subject.throughput),
                    describe_goal(throughputs, subject.throughput),
                ),
                *(describe_ratio(others, goal), describe_goal(others, goal)),
            )
        table.add_section()
    return table


def _missed_table(comparisons: Sequence[Comparison], found: Sequence[Sequence[Round]]) -> Table:
    """Return a table of each model that missed a goal, beside its baseline."""
    title = (
        "goals missed: where a request's time goes, us (perf_analyzer's means, medians over "
        "the rounds)"
    )
    table = make_table(title, "requests", "at once", "model", *PARTS.values())
    for comparison, rounds in zip(comparisons, found, strict=True):
        missed = [
            index
            for index, subject in enumerate(comparison.subjects)
            if _has_missed(subject, rounds, index)
        ]
        for index in [0, *missed] if missed else []:
            runs = _runs(rounds, index)
            parts = (_median_part(runs, part) for part in PARTS.values())
            table.add_row(
                comparison.what, str(comparison.concurrency), comparison.label(index), *parts
            )
        table.add_section()
    return table


def _median_part(runs: Sequence[Measurement], part: str) -> str:
    """Format the median of a part; "" if the protocol does not report it."""
    values = [run.parts_us[part] for run in runs if part in run.parts_us]
    return f"{statistics.median(values):.0f}" if values else ""


def _has_missed(subject: Subject, rounds: Sequence[Round], index: int) -> bool:
    pairs = ((subject.throughput, _throughput), (subject.p99, _p99))
    return any(
        goal and not goal.is_met(statistics.median(_ratios(rounds, index, figure)))
        for goal, figure in pairs
    )


def _ratios(
    rounds: Sequence[Round], index: int, figure: Callable[[Measurement], float]
) -> list[float]:
    return [result.ratios(figure)[index] for result in rounds]


def _rival_ratios(rounds: Sequence[Round], index: int, num_rivals: int) -> list[float]:
    """Return a subject's throughputs over those of the faster rival: the one whose median over all
    rounds is higher. The faster of each round would be that of chance."""
    baselines = [[1.0] * len(rounds)]
    baselines += [_ratios(rounds, rival, _throughput) for rival in range(1, num_rivals)]
    faster = max(baselines, key=statistics.median)
    own = baselines[index] if index < num_rivals else _ratios(rounds, index, _throughput)
    return [ratio / rival for ratio, rival in zip(own, faster, strict=True)]


def _runs(rounds: Sequence[Round], index: int) -> list[Measurement]:
    """Return all measurements of a subject; the baseline has two a round."""
    if index == 0:
        return [run for result in rounds for run in (result.before, result.after)]
    return [result.runs[index - 1] for result in rounds]


def _median(runs: Sequence[Measurement], figure: Callable[[Measurement], float]) -> str:
    return f"{statistics.median(map(figure, runs)):.0f}"


def _throughput(run: Measurement) -> float:
    return run.per_second


def _p50(run: Measurement) -> float:
    return run.p50_us


def _p99(run: Measurement) -> float:
    return run.p99_us
