"""ONNX's backend test-suite through Converter, Compiler and ModelRunner.

    tests/conformance/conformance.py [--docs FILE] [--cases PATTERN ...]

Every case runs in fp32, and every third in fp16, in a worker process that is ended when it takes
too long. A case passes, is refused with a reason, differs, fails or crashes. Exits with 1 where a
case fails, crashes, or differs for no reason that tests/support/suite_findings.py names. With
--docs the tables are written into that document.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import onnx
import onnxruntime
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from report import make_console, make_document, make_markdown, make_table
from suite_cases import KINDS, Case, find_operator, load_cases
from suite_findings import classify_refusal, find_reason, find_unnamed
from suite_runs import MAX_SECONDS, Outcome, Status, Worker

STEPS = {"fp32": 1, "fp16": 3}
"""Step between the cases that run in each precision: one of so many cases runs."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a case in a precision."""

    case: Case
    precision: str
    outcome: Outcome


def run_suite(patterns: Sequence[str], seconds: float) -> list[Result]:
    """Run the cases whose names are like one of the patterns, in both precisions."""
    results = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for precision, step in STEPS.items():
            chosen = load_cases()[::step]
            cases = [
                case for case in chosen if any(fnmatch(case.name, pattern) for pattern in patterns)
            ]
            with Worker(cases, precision, seconds) as worker:
                for case, outcome in progress.track(
                    worker.run(), total=len(cases), description=f"cases in {precision}"
                ):
                    results.append(Result(case, precision, outcome))
    return results


def count_outcomes(results: Sequence[Result]) -> list[list[str]]:
    """Return a row for each kind and precision, and one for all of a precision."""
    rows = []
    for precision in STEPS:
        of_precision = [result for result in results if result.precision == precision]
        for kind in (*KINDS, "all"):
            counts = Counter(
                result.outcome.status
                for result in of_precision
                if kind in ("all", result.case.kind)
            )
            numbers = [counts.total(), *(counts[status] for status in Status)]
            rows.append([precision, kind, *map(str, numbers)])
    return rows


def list_differences(results: Iterable[Result]) -> list[list[str]]:
    """Return a row for each reason for which cases differ."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.outcome.status is Status.DIFFERS:
            reason = find_reason(result.case.name, result.precision, result.outcome) or "not known"
            reasons.setdefault(reason, {}).setdefault(result.case.name, []).append(result.precision)
    return [
        [
            reason,
            str(len(cases)),
            ", ".join(f"`{name}` ({', '.join(which)})" for name, which in cases.items()),
        ]
        for reason, cases in reasons.items()
    ]


def list_refusals(results: Iterable[Result]) -> list[list[str]]:
    """Return a row for each reason for which cases are refused in fp32, most frequent first."""
    messages: dict[str, Counter[str]] = {}
    for result in results:
        if result.outcome.status is Status.REFUSED and result.precision == "fp32":
            operators = messages.setdefault(classify_refusal(result.outcome.found), Counter())
            operators[find_operator(result.case)] += 1
    ordered = sorted(messages.items(), key=lambda item: (-item[1].total(), item[0]))
    return [
        [
            reason,
            str(operators.total()),
            ", ".join(f"{name} {count}" for name, count in sorted(operators.items())),
        ]
        for reason, operators in ordered
    ]


def count_operators(results: Iterable[Result]) -> list[list[str]]:
    """Return a row for each operator, or kind of models of several, with its outcomes in both
    precisions."""
    statuses: dict[str, Counter[tuple[str, Status]]] = {}
    for result in results:
        outcomes = statuses.setdefault(find_operator(result.case), Counter())
        outcomes[result.precision, result.outcome.status] += 1
    return [
        [name, *(_describe(counts, precision) for precision in STEPS)]
        for name, counts in sorted(statuses.items())
    ]


def _describe(counts: Counter[tuple[str, Status]], precision: str) -> str:
    return ", ".join(
        f"{counts[precision, status]} {status.value}"
        for status in Status
        if counts[precision, status]
    )


def make_sections(results: Sequence[Result]) -> dict[str, str]:
    """Return the tables of docs/conformance.md."""
    statuses = [status.value for status in Status]
    fixed = sum(
        bool(result.outcome.fixed) and result.outcome.status is Status.PASSED for result in results
    )
    versions = f"Of onnx {onnx.__version__}, with ONNX Runtime {onnxruntime.__version__}. "
    return {
        "versions": f"{versions}{fixed} cases passed with inputs that had to become constants.",
        "outcomes": make_markdown(
            ["precision", "kind", "cases", *statuses], count_outcomes(results)
        ),
        "differences": make_markdown(["reason", "cases", "which"], list_differences(results)),
        "refusals": make_markdown(["reason", "cases", "operators"], list_refusals(results)),
        "operators": make_markdown(["operator", *STEPS], count_operators(results)),
    }


def main() -> int:
    """Run, print the counts, and write the requested files."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--docs", type=Path, metavar="FILE", help="put the tables into this document"
    )
    parser.add_argument(
        "--cases", nargs="+", default=["*"], metavar="PATTERN", help="names of cases (default: all)"
    )
    seconds_help = "that a case may take (default: %(default)g)"
    parser.add_argument(
        "--seconds", type=float, default=MAX_SECONDS, metavar="SECONDS", help=seconds_help
    )
    options = parser.parse_args()
    results = run_suite(options.cases, options.seconds)
    console = make_console()
    table = make_table("cases", "precision", "kind", "cases", *(status.value for status in Status))
    for row in count_outcomes(results):
        table.add_row(*row)
    console.print(table)
    wrong = find_unnamed((result.case.name, result.precision, result.outcome) for result in results)
    for line in wrong:
        console.print(line, markup=False)
    if options.docs:
        options.docs.write_text(make_document(options.docs.read_text(), make_sections(results)))
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
