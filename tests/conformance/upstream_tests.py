"""Machinery that runs another project's own pytest files, and tells their outcomes.

A `Suite` says whose tests they are and how pytest is called. Each file runs in a process of its
own, which is ended when it takes too long. Cases that train are not counted: see case_results.py.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from case_results import CASE_RESULTS
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from report import make_console, make_table

MAX_SECONDS = 600.0
"""Time that a file may take."""
CONTEXT = multiprocessing.get_context("forkserver")
KEPT_STATUSES = (0, 1)
"""Exit statuses of pytest after which every case of a file has its result."""


def runs_always(file: Path) -> bool:
    """Return True for every file."""
    del file
    return True


def no_words(file: Path) -> tuple[str, ...]:
    """Return no arguments for a file."""
    del file
    return ()


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of another project."""

    repository: str
    """Name on GitHub, as `graphcore/popart`."""
    title: str
    """Heading of the table of results."""
    tests: Path
    """Folder of the tests within a checkout."""
    find_all: Callable[[Path], list[ListedFile]]
    """Return all files of a checkout."""
    words: tuple[str, ...]
    """Arguments of pytest."""
    paths: tuple[Path, ...] = ()
    """Folders within a checkout from which its tests import."""
    runs: Callable[[Path], bool] = runs_always
    """Return whether the other project runs the tests of a file."""
    make_words: Callable[[Path], tuple[str, ...]] = no_words
    """Return further arguments of pytest for a file."""
    preloaded: tuple[str, ...] = ()
    """Modules that the processes share: importing them takes longer than most files."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of tests, relative to the checkout, and its number of inference cases if known."""

    path: str
    listed: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A case that failed: its name and the first line of its error."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class FileResult:
    """Outcome of a file. `failures` has an entry for each case that the file did not reach, too."""

    path: str
    passed: int
    failures: tuple[Case, ...]
    training: int
    skipped: int
    seconds: float

    @property
    def inference(self) -> int:
        """Number of cases that count."""
        return self.passed + len(self.failures)


@dataclass(frozen=True, slots=True)
class Run:
    """How files are run."""

    suite: Suite
    checkout: Path
    results: Path
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the processes, beside those of this one."""
    label: str = ""
    """Part of the names of result files, where the same files run more than once."""


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended: its status (negative: the signal that killed it), its output and the
    seconds it took."""

    status: int | None
    output: str
    seconds: float


def find_files(
    suite: Suite, checkout: Path, listed: Path | None, patterns: Sequence[str]
) -> list[ListedFile]:
    """Return the files to run: those of a list, or all of the suite.

    Raises:
        SystemExit: If the checkout has no such tests, or lacks files of the list.
    """
    if not (checkout / suite.tests).is_dir():
        raise SystemExit(
            f"{checkout}: not a checkout of {suite.repository}: it has no {suite.tests}"
        )
    listed_files = parse_list(listed.read_text()) if listed else suite.find_all(checkout)
    if missing := [file.path for file in listed_files if not (checkout / file.path).is_file()]:
        raise SystemExit(f"{checkout} lacks {len(missing)} files of {listed}, first {missing[0]}")
    chosen = [
        file for file in listed_files if any(fnmatch(file.path, f"*{like}*") for like in patterns)
    ]
    return [file for file in chosen if suite.runs(checkout / file.path)]


def parse_list(text: str) -> list[ListedFile]:
    """Parse lines of a path and, optionally, a number of cases."""
    words = [line.split() for line in text.splitlines() if line.strip()]
    return [ListedFile(path, int(rest[0]) if rest else None) for path, *rest in words]


def run_file(file: ListedFile, run: Run) -> FileResult:
    """Run a file in a process of its own, and sort its cases."""
    return sum_cases(file, *run_process(file, run))


def run_process(file: ListedFile, run: Run) -> tuple[list[dict[str, Any]], End]:
    """Run a file in a process of its own; return its cases and how the process ended."""
    name = file.path.replace("/", "+").removesuffix(".py") + run.label
    cases, log = run.results / f"{name}.jsonl", run.results / f"{name}.log"
    cases.unlink(missing_ok=True)
    start = time.monotonic()
    process = CONTEXT.Process(target=run_pytest, args=(run, file.path, cases, log))
    process.start()
    process.join(run.seconds)
    if process.exitcode is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    end = End(process.exitcode, log.read_text(errors="replace"), time.monotonic() - start)
    text = cases.read_text() if cases.exists() else ""
    return [json.loads(line) for line in text.splitlines()], end


def run_pytest(run: Run, path: str, cases: Path, log: Path) -> None:
    """Run a file in this process, and exit with pytest's status."""
    os.setsid()
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    suite, checkout = run.suite, run.checkout
    os.environ.update(run.environment, COLUMNS="200")
    sys.path[:0] = [str(Path(__file__).parent), *(str(checkout / folder) for folder in suite.paths)]
    words = ["-q", "--tb=short", "-p", "no:hypothesispytest", "-p", "case_results"]
    words += ["-p", "no:cacheprovider", "--rootdir", str(checkout / "tests"), *suite.words]
    words += suite.make_words(checkout / path)
    raise SystemExit(pytest.main([*words, CASE_RESULTS, str(cases), str(checkout / path)]))


def sum_cases(file: ListedFile, cases: Sequence[dict[str, Any]], end: End) -> FileResult:
    """Sort the cases of a file that ended."""
    training = [case for case in cases if case["training"]]
    counted = [case for case in cases if not case["training"]]
    outcomes = Counter(case["outcome"] for case in counted)
    failures = [
        Case(case["name"], case["error"]) for case in counted if case["outcome"] == "failed"
    ]
    # A process that fails before pytest begins ends with 1, too.
    if end.status not in KEPT_STATUSES or (end.status and not cases):
        collected = [case["error"] for case in counted if case["outcome"] == "not collected"]
        reason = (collected or [describe_end(end)])[0]
        reached = outcomes["passed"] + len(failures)
        failures += [Case("", reason)] * max(1, (file.listed or 0) - reached)
    return FileResult(
        file.path,
        outcomes["passed"],
        tuple(failures),
        len(training),
        outcomes["skipped"],
        end.seconds,
    )


def describe_end(end: End) -> str:
    """Say why a process ended before its last case."""
    if end.status == -signal.SIGKILL:
        return f"killed after {end.seconds:.0f} s"
    lines = [line for line in end.output.splitlines() if line.strip()]
    return f"pytest ended with status {end.status}: {lines[-1] if lines else ''}"


def run_files(files: Sequence[ListedFile], run: Run, jobs: int) -> list[FileResult]:
    """Run files, as many at once as requested, in the order of their names."""
    with (
        Progress(console=Console(stderr=True), transient=True) as progress,
        ThreadPoolExecutor(jobs) as pool,
    ):
        results = pool.map(lambda file: run_file(file, run), files)
        return list(progress.track(results, total=len(files), description="files"))


def list_causes(results: Iterable[FileResult]) -> list[tuple[str, int, list[str]]]:
    """Return each cause with its number of cases and its files, most frequent first.

    Errors that differ in numbers and quoted names only are one cause, shown by its first error.
    """
    counts: Counter[str] = Counter()
    shown: dict[str, str] = {}
    files: dict[str, dict[str, None]] = {}
    for result in results:
        for case in result.failures:
            key = re.sub(r"\d+|'[^']*'|\[[^\]]*\]", "_", case.error)
            counts[key] += 1
            shown.setdefault(key, case.error)
            files.setdefault(key, {})[Path(result.path).name] = None
    return [(shown[key], count, list(files[key])) for key, count in counts.most_common()]


def count_share(results: Sequence[FileResult]) -> float:
    """Return the percentage of inference cases that passed."""
    cases = sum(result.inference for result in results)
    return 100 * sum(result.passed for result in results) / cases if cases else 0.0


def print_tables(suite: Suite, results: Sequence[FileResult], console: Console) -> None:
    """Print a row for each file, the sums, and the causes of failures."""
    headings = ("file", "inference", "passed", "failed", "training", "skipped", "s")
    table = make_table(suite.title, *headings)
    for result in results:
        table.add_row(result.path.removeprefix(f"{suite.tests}/"), *map(str, _count(result)))
    table.add_section()
    sums = [sum(column) for column in zip(*map(_count, results), strict=True)]
    table.add_row("all", *map(str, sums))
    console.print(table)
    causes = make_table("why cases failed", "cases", "error", "files")
    for error, count, files in list_causes(results):
        causes.add_row(str(count), _escape(error[:200]), ", ".join(files[:3]))
    console.print(causes)
    console.print(f"{count_share(results):.1f} % of the inference cases passed")


def _count(result: FileResult) -> tuple[int, ...]:
    numbers = (result.inference, result.passed, len(result.failures))
    return (*numbers, result.training, result.skipped, round(result.seconds))


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def to_json(results: Sequence[FileResult]) -> dict[str, Any]:
    """Return the results for --json."""
    files = [
        {
            "path": result.path,
            "inference": result.inference,
            "passed": result.passed,
            "failed": [{"name": case.name, "error": case.error} for case in result.failures],
            "training": result.training,
            "skipped": result.skipped,
            "seconds": round(result.seconds, 1),
        }
        for result in results
    ]
    return {"files": files, "percent_passed": round(count_share(results), 2)}


def parse_options(suite: Suite, description: str | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("checkout", type=Path, help=f"checkout of {suite.repository}")
    files_help = "files to run, a path a line (default: all)"
    parser.add_argument("--files", type=Path, metavar="LIST", help=files_help)
    only_help = "run only files whose path contains one of these patterns"
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help=only_help)
    parser.add_argument("--results", type=Path, metavar="DIR", help="keep outputs and results here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="files at once (default: 1)")
    seconds_help = "time that a file may take (default: %(default)g)"
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help=seconds_help)
    goal_help = "percentage of inference cases that must pass (default: %(default)g)"
    parser.add_argument("--goal", type=float, default=95.0, metavar="PERCENT", help=goal_help)
    return parser.parse_args()


def main(suite: Suite, description: str | None) -> int:
    """Run the files, print the tables, and write the requested file."""
    options = parse_options(suite, description)
    checkout = options.checkout.resolve()
    CONTEXT.set_forkserver_preload(["pytest", "rich.progress", *suite.preloaded])
    files = find_files(suite, checkout, options.files, options.only)
    with tempfile.TemporaryDirectory() as name:
        folder = (options.results or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(suite, checkout, folder, options.seconds)
        results = run_files(files, run, options.jobs)
    if options.json:
        options.json.write_text(json.dumps(to_json(results), indent=1) + "\n")
    print_tables(suite, results, make_console())
    return int(count_share(results) < options.goal)
