"""Graphcore's TensorFlow tests on this project's TensorFlow for the IPU.

    tests/conformance/conformance_tensorflow.py TENSORFLOW KERAS ADDONS --files LIST
        [--only PATTERN ...] [--modes hardware model] [--record FILE] [--json FILE]

The arguments are checkouts of graphcore/tensorflow (r2.6/sdk-release-3.4), graphcore/keras and
graphcore/ipu_tensorflow_addons; nothing is downloaded. Each file runs twice in a pytest process of
its own, which is ended when it takes too long: once with simulated IPUs (TF_IPU_COUNT) and once
with an IPU Model (TF_POPLAR_FLAGS). A case passes if it passes in one of both and fails in none.
Cases that train are out of scope and not counted. LIST has a line for each file: the repository,
the path in it, and optionally the number of cases, separated by commas.

--record compares with the results of an earlier run, which --json wrote. --results keeps, for each
file and mode, pytest's output (.log) and a line of JSON for each case (.jsonl). Exits with 1 if
fewer than --goal percent of the cases that do not train pass.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import upstream_tests
from report_stubs import CHECKED, NEUTRALISED
from rich.console import Console
from rich.progress import Progress
from tensorflow_compat import CHECKOUT, RUNS
from upstream_tests import CONTEXT, End, FileResult, ListedFile, Run, Suite, run_process, sum_cases

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from report import make_console, make_table

REPOSITORIES: Final = ("graphcore/tensorflow", "graphcore/keras", "graphcore/ipu_tensorflow_addons")
IPU_MODEL_FLAGS: Final = (
    "--use_ipu_model --max_infeed_threads=8 --max_compilation_threads=1 --ipu_model_tiles=8"
)
"""Flags with which Graphcore runs the tests without hardware."""
MODES: Final = {
    "hardware": {"TF_IPU_COUNT": "16", "TF_POPLAR_FLAGS": ""},
    "model": {"TF_IPU_COUNT": "0", "TF_POPLAR_FLAGS": IPU_MODEL_FLAGS},
}
"""Environment variables of each mode."""
SETTINGS: Final = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_XLA_FLAGS": "--tf_xla_min_cluster_size=1",
}
"""Environment variables of every process; the tests were written for Keras 2."""
FINAL_OUTCOMES: Final = ("failed", "passed", "skipped")
"""Outcomes of a case in its modes: the first of these that occurs is its outcome."""


def find_none(_: Path) -> list[ListedFile]:
    """Return no files: the list names them."""
    return []


SUITE: Final = Suite(
    repository="graphcore/tensorflow",
    title="Graphcore's TensorFlow tests",
    tests=Path(),
    find_all=find_none,
    words=("-p", "tensorflow_compat", "-p", "no:randomly", "--show-capture=no"),
    preloaded=("tensorflow", "tf_keras", "tensorflow.python.framework.test_util"),
)


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """A file of tests: its repository, its path and its number of cases if known."""

    repository: str
    file: ListedFile


@dataclass(frozen=True, slots=True)
class MergedFile:
    """Outcome of a file in all modes."""

    repository: str
    result: FileResult
    unchecked: int
    """Number of cases that passed although all their asserts were about reports."""
    hosted: int
    """Number of cases that passed and ran no program: they test errors, options or other code of the
    host."""
    cases: tuple[dict[str, Any], ...]


def parse_files(text: str, patterns: Sequence[str]) -> list[RepositoryFile]:
    """Parse a list of files, and return those whose paths contain one of the patterns."""
    files = []
    for line in text.splitlines():
        if not line.strip():
            continue
        repository, path, *rest = (word.strip() for word in line.split(","))
        if any(fnmatch(path, f"*{pattern}*") for pattern in patterns):
            count = int(rest[0]) if rest else None
            files.append(RepositoryFile(repository, ListedFile(path, count)))
    return files


def stage_files(
    files: Iterable[RepositoryFile], checkouts: dict[str, Path], folder: Path
) -> dict[str, Path]:
    """Copy files out of their packages, so that no other module of a checkout is imported.

    Returns:
        The folder of each repository's files.

    Raises:
        SystemExit: If a checkout lacks a file.
    """
    stages = {name: folder / name.replace("/", "+") for name in checkouts}
    for stage in stages.values():
        (stage / "tests").mkdir(parents=True, exist_ok=True)  # pytest's rootdir
    for file in files:
        source = checkouts[file.repository] / file.file.path
        if not source.is_file():
            raise SystemExit(f"{checkouts[file.repository]} lacks {file.file.path}")
        target = stages[file.repository] / file.file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return stages


def make_run(mode: str, stage: Path, options: argparse.Namespace, results: Path) -> Run:
    """Return how the files of a repository run in a mode."""
    environment = {**SETTINGS, **MODES[mode], CHECKOUT: str(options.tensorflow.resolve())}
    return Run(SUITE, stage, results, options.seconds, environment, f".{mode}")


def run_merged(file: RepositoryFile, runs: Sequence[Run]) -> MergedFile:
    """Run a file in its modes, and merge the outcomes of its cases."""
    outcomes = {run.label.removeprefix("."): run_process(file.file, run) for run in runs}
    return merge_modes(file, outcomes)


def merge_modes(
    file: RepositoryFile, outcomes: dict[str, tuple[list[dict[str, Any]], End]]
) -> MergedFile:
    """Merge the cases of a file in its modes, and how its processes ended."""
    cases: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for mode, (listed_cases, _) in outcomes.items():
        occurrences: Counter[str] = Counter()
        for case in listed_cases:
            key = case["name"], occurrences[case["name"]]
            occurrences[case["name"]] += 1
            cases.setdefault(key, {})[mode] = case
    merged = [merge_case(modes) for modes in cases.values()]
    statuses = [end.status for _, end in outcomes.values()]
    failed = next((mode for mode, (_, end) in outcomes.items() if end.status not in (0, 1)), None)
    end = outcomes[failed][1] if failed else next(iter(outcomes.values()))[1]
    seconds = sum(end.seconds for _, end in outcomes.values())
    status = end.status if failed else max(status or 0 for status in statuses)
    result = sum_cases(file.file, merged, End(status, end.output, seconds))
    unchecked = sum(
        case["outcome"] == "passed" and case.get(NEUTRALISED, 0) > 0 and not case.get(CHECKED)
        for case in merged
    )
    hosted = sum(
        case["outcome"] == "passed" and not case["training"] and not case.get(RUNS)
        for case in merged
    )
    return MergedFile(file.repository, result, unchecked, hosted, tuple(merged))


def merge_case(modes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the outcome of a case from those in its modes."""
    outcomes = [case["outcome"] for case in modes.values()]
    outcome = next((word for word in FINAL_OUTCOMES if word in outcomes), outcomes[0])
    errors = [f"{mode}: {case['error']}" for mode, case in modes.items() if case["error"]]
    return {
        "name": next(iter(modes.values()))["name"],
        "outcome": outcome,
        "error": errors[0] if errors else "",
        "training": any(case["training"] for case in modes.values()),
        CHECKED: max(case.get(CHECKED, 0) for case in modes.values()),
        NEUTRALISED: max(case.get(NEUTRALISED, 0) for case in modes.values()),
        RUNS: max(case.get(RUNS, 0) for case in modes.values()),
    }


def print_results(files: Sequence[MergedFile], console: Console) -> None:
    """Print a row for each file, the sums of each repository, and every failure."""
    upstream_tests.print_tables(SUITE, [file.result for file in files], console)
    headings = ("repository", "inference", "passed", "failed", "training", "skipped", "%")
    table = make_table("repositories", *headings, "reports only", "no program")
    for name in REPOSITORIES:
        of_repository = [file for file in files if file.repository == name]
        if not of_repository:
            continue
        results = [file.result for file in of_repository]
        numbers = [
            sum(result.inference for result in results),
            sum(result.passed for result in results),
            sum(len(result.failures) for result in results),
            sum(result.training for result in results),
            sum(result.skipped for result in results),
        ]
        share = f"{upstream_tests.count_share(results):.1f}"
        unchecked = sum(file.unchecked for file in of_repository)
        hosted = sum(file.hosted for file in of_repository)
        table.add_row(name, *map(str, numbers), share, str(unchecked), str(hosted))
    console.print(table)
    for file in files:
        for case, count in Counter(file.result.failures).items():
            name = case.name or f"{count} cases"
            print(f"{file.result.path}::{name}: {case.error[:200]}")


def to_json(files: Sequence[MergedFile]) -> dict[str, Any]:
    """Return the results for --json: the cases of each file with their outcomes."""
    return {
        "files": [
            {"repository": file.repository, "path": file.result.path, "cases": list(file.cases)}
            for file in files
        ]
    }


def compare_record(files: Sequence[MergedFile], record: dict[str, Any]) -> list[str]:
    """Return a line for each case whose outcome is not that of an earlier run."""
    earlier = {
        (file["path"], case["name"]): case["outcome"]
        for file in record["files"]
        for case in file["cases"]
    }
    return [
        f"{file.result.path}::{case['name']}: {before}, now {case['outcome']} {case['error'][:150]}"
        for file in files
        for case in file.cases
        if (before := earlier.get((file.result.path, case["name"]))) not in (None, case["outcome"])
    ]


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, repository in zip(("tensorflow", "keras", "addons"), REPOSITORIES, strict=True):
        parser.add_argument(name, type=Path, help=f"checkout of {repository}")
    files_help = "repository, path and count of each file, separated by commas"
    parser.add_argument("--files", type=Path, metavar="LIST", required=True, help=files_help)
    only_help = "run only files whose path contains one of these patterns"
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help=only_help)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES], help="default: both")
    parser.add_argument("--results", type=Path, metavar="DIR", help="keep outputs and results here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    record_help = "print the cases whose outcome is not that of this file, which --json wrote"
    parser.add_argument("--record", type=Path, metavar="FILE", help=record_help)
    parser.add_argument("-j", "--jobs", type=int, default=1, help="files at once (default: 1)")
    seconds_help = "time that a file may take in a mode (default: %(default)g)"
    parser.add_argument("--seconds", type=float, default=300.0, help=seconds_help)
    goal_help = "percentage of cases that must pass (default: %(default)g)"
    parser.add_argument("--goal", type=float, default=90.0, metavar="PERCENT", help=goal_help)
    return parser.parse_args()


def run_all(options: argparse.Namespace, folder: Path) -> list[MergedFile]:
    """Run the requested files in the requested modes."""
    files = parse_files(options.files.read_text(), options.only)
    checkouts = dict(
        zip(REPOSITORIES, (options.tensorflow, options.keras, options.addons), strict=True)
    )
    stages = stage_files(files, checkouts, folder)
    results = (options.results or folder / "results").resolve()
    results.mkdir(parents=True, exist_ok=True)
    runs = {
        name: [make_run(mode, stage, options, results) for mode in options.modes]
        for name, stage in stages.items()
    }
    with (
        Progress(console=Console(stderr=True), transient=True) as progress,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        merged = pool.map(lambda file: run_merged(file, runs[file.repository]), files)
        return list(progress.track(merged, total=len(files), description="files"))


def main() -> int:
    """Run the files, print the tables, and write the requested file."""
    options = parse_options()
    os.environ.update(SETTINGS)  # the processes share modules that read them when imported
    CONTEXT.set_forkserver_preload(["pytest", "rich.progress", *SUITE.preloaded])
    with tempfile.TemporaryDirectory() as name:
        files = run_all(options, Path(name))
    console = make_console()
    print_results(files, console)
    if options.json:
        options.json.write_text(json.dumps(to_json(files), indent=1) + "\n")
    if options.record:
        for line in compare_record(files, json.loads(options.record.read_text())):
            print(line)
    share = upstream_tests.count_share([file.result for file in files])
    return int(share < options.goal)


if __name__ == "__main__":
    raise SystemExit(main())
