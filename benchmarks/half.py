"""Cost of the chip's numbers: the served graphs, in this process, beside ONNX Runtime in fp32 on
the original ONNX file.

    benchmarks/half.py [--models M ...] [--precisions P ...] [--threads N ...]
                       [--instructions native avx2] [--rounds N] [--seconds S] [--profile]

Rounds are interleaved: each measures ONNX Runtime, each precision, and ONNX Runtime again, each for
S seconds. A ratio is of speeds, so that 1 is as fast as ONNX Runtime in fp32. With --profile it
prints the times by operator, and by node, of both instead. Where the processor has AVX-512, the
chip's numbers are measured a second time as on one with AVX2.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import inputs
import instructions
import node_times
import numpy as np
import numpy.typing as npt
import onnxruntime
import report
from compared import NETWORKS, PRECISIONS, Network, compile_network
from poprt.compile.executable import MAIN_PROGRAM, Executable
from rich.console import Console
from rich.table import Table
from rounds import SECONDS, parse_options
from simipu import Direction, GraphOptions, choose_accelerator
from simipu.engines.opening import open_graph

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

SETTLE_SECONDS = 0.12
"""ONNX Runtime's threads spin for some 50 ms after a run, on cores that the next one needs."""
MIN_RUNS = 3
COLUMNS = (
    *("network", "threads", "partials", "ONNX Runtime, ms", "ours, ms", "speed", "goal"),
    "largest difference / largest value",
)
PIXEL, WORD = 256, 30_522
"""Upper bounds of integers in pictures and in sentences."""
OWN_NUMBERS = ("half", "float", "fp8")
"""Precisions that are computed by our kernels."""
LONGEST = ("bert_base_4",)
"""Networks that are measured if they are named: their ratios are those of the smaller batch."""


@dataclass(slots=True)
class Subject:
    """A computation, and the median seconds of its runs in each round."""

    run: Callable[[], Sequence[Array]]
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """A network's figures in one precision: median milliseconds, the ratios of speed of all rounds,
    and the largest difference over the largest value."""

    network: str
    threads: int
    precision: str
    theirs_ms: float
    ours_ms: float
    ratios: Sequence[float]
    error: float

    def row(self) -> tuple[str, ...]:
        """Return the cells of COLUMNS."""
        goal = PRECISIONS[self.precision].goal
        return (
            *(self.network, str(self.threads), self.precision),
            *(f"{self.theirs_ms:.3f}", f"{self.ours_ms:.3f}"),
            *(report.describe_ratio(self.ratios, goal), report.describe_goal(self.ratios, goal)),
            f"{self.error:.1e}",
        )


def open_executable(folder: Path) -> Executable:
    """Open the executable as it is served: mapped from its files."""
    return Executable(sorted((folder / "1").glob("*.popef")))


def open_original(
    network: Network, threads: int, profile: Path | None = None
) -> onnxruntime.InferenceSession:
    """Open ONNX Runtime's session on the unchanged file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    return onnxruntime.InferenceSession(
        str(network.file), options, providers=["CPUExecutionProvider"]
    )


def make_feeds(
    session: onnxruntime.InferenceSession, executable: Executable, rows: int
) -> dict[str, Array]:
    """Return random inputs of the compiled shapes, with `rows` rows where these are independent."""
    generator = np.random.default_rng(0)
    streams = {
        stream.tensor: stream for stream in executable.executable.program(MAIN_PROGRAM).streams
    }
    is_whole = not executable.batch_size or executable.rows.dependence
    feeds = {}
    for value in session.get_inputs():
        compiled = streams[value.name].shape
        shape = compiled if is_whole else (rows, *compiled[1:])
        if "float" in value.type:
            feeds[value.name] = generator.uniform(-1, 1, shape).astype(np.float32)
        else:
            dtype = np.dtype(value.type.removeprefix("tensor(").removesuffix(")"))
            least, most = inputs.INTEGER_RANGES.get(
                value.name, (0, PIXEL if dtype == np.uint8 else 2)
            )
            feeds[value.name] = generator.integers(least, most, shape).astype(dtype)
    return feeds


def open_ours(executable: Executable, threads: int, feeds: Feeds, accelerator: str = "") -> Subject:
    """Open the lowered graph in ONNX Runtime or on the accelerator, as an instance does."""
    main = executable.executable.program(MAIN_PROGRAM)
    weights = {
        constant.name: constant.array() for constant in executable.executable.constants
    } | executable.weights
    chosen = (choose_accelerator(accelerator, {}),) if accelerator else ()
    options = GraphOptions(num_threads=threads, accelerators=chosen)
    graph = open_graph(main, weights, options, executable.executable.numerics)
    names = [
        stream.tensor for stream in main.streams if stream.direction is Direction.DEVICE_TO_HOST
    ]
    dtypes = {stream.tensor: stream.dtype for stream in main.streams}
    typed_feeds = {name: value.astype(dtypes[name]) for name, value in feeds.items()}
    return Subject(partial(graph.run, names, typed_feeds))


def time_runs(run: Callable[[], object], seconds: float) -> float:
    """Return the median seconds of a run, over a window of `seconds`."""
    time.sleep(SETTLE_SECONDS)
    run()  # wakes the threads, and brings the weights into the caches
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < MIN_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(subjects: Sequence[Subject], rounds: int, seconds: float) -> None:
    """Fill in the times: the baseline's, the first's, are the mean of before and after the
    others."""
    baseline, *others = subjects
    for number in range(rounds):
        before = time_runs(baseline.run, seconds)
        for subject in others[:: -1 if number % 2 else 1]:
            subject.seconds.append(time_runs(subject.run, seconds))
        baseline.seconds.append(math.sqrt(before * time_runs(baseline.run, seconds)))


def find_error(subject: Subject, expected: Sequence[Array]) -> float:
    """Return the largest difference over the largest value, of the output where that ratio is
    largest."""
    worst = 0.0
    for ours, theirs in zip(subject.run(), expected, strict=True):
        apart = np.abs(ours.astype(np.float64) - theirs).max(initial=0)
        worst = max(worst, float(apart / (np.abs(theirs.astype(np.float64)).max(initial=0) or 1)))
    return worst


def compare(
    name: str, network: Network, executables: Mapping[str, Executable], options: argparse.Namespace
) -> list[Found]:
    """Return a network's figures."""
    found = []
    for threads in options.threads:
        session = open_original(network, threads)
        some = next(iter(executables.values()))
        feeds = make_feeds(session, some, network.rows)
        streams = some.executable.program(MAIN_PROGRAM).streams
        outputs = [
            stream.tensor for stream in streams if stream.direction is Direction.DEVICE_TO_HOST
        ]
        baseline = Subject(partial(session.run, outputs, feeds))
        subjects = {
            precision: open_ours(executable, threads, feeds, PRECISIONS[precision].accelerator)
            for precision, executable in executables.items()
        }
        measure([baseline, *subjects.values()], options.rounds, options.seconds)
        expected = baseline.run()
        for precision, subject in subjects.items():
            ratios = [
                first / second
                for first, second in zip(baseline.seconds, subject.seconds, strict=True)
            ]
            theirs, ours = (1e3 * statistics.median(run.seconds) for run in (baseline, subject))
            error = find_error(subject, expected)
            found.append(Found(name, threads, precision, theirs, ours, ratios, error))
    return found


def make_tables(found: Sequence[Found], instructions_: str) -> dict[str, Table]:
    """Return a table for each number of threads, with a row for each network, by its section of the
    document."""
    tables = {}
    for threads in dict.fromkeys(figures.threads for figures in found):
        rows: dict[str, list[str]] = {}
        of_threads = [figures for figures in found if figures.threads == threads]
        for figures in of_threads:
            row = rows.setdefault(figures.network, [figures.network, f"{figures.theirs_ms:.3f}"])
            row.append(report.describe_ratio(figures.ratios, PRECISIONS[figures.precision].goal))
        precisions = list(dict.fromkeys(figures.precision for figures in of_threads))
        title = f"speed over ONNX Runtime's in fp32, threads: {threads}, {instructions_}"
        table = report.make_table(title, "network", "ONNX Runtime, ms", *precisions)
        for row in rows.values():
            table.add_row(*row)
        tables[f"half {instructions_} {threads}"] = table
    return tables


def profile(
    name: str,
    network: Network,
    executables: Mapping[str, Executable],
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Print where the time goes."""
    for threads in options.threads:
        with tempfile.TemporaryDirectory() as folder:
            prefix = Path(folder, "original")
            session = open_original(network, threads, prefix)
            feeds = make_feeds(session, next(iter(executables.values())), network.rows)
            time_runs(partial(session.run, None, feeds), options.seconds)
            del session  # which writes the profile
            node_times.print_tables(
                prefix, f"{name}, ONNX Runtime fp32, {threads} threads", console
            )
            for precision, executable in executables.items():
                prefix = Path(folder, precision)
                with node_times.profiling(prefix):
                    chosen = PRECISIONS[precision].accelerator
                    subject = open_ours(executable, threads, feeds, chosen)
                time_runs(subject.run, options.seconds)
                del subject
                node_times.print_tables(prefix, f"{name}, {precision}, {threads} threads", console)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--models",
        nargs="+",
        choices=NETWORKS,
        default=[name for name in NETWORKS if name not in LONGEST],
        metavar="M",
        help=f"of {', '.join(NETWORKS)} (default: all but {', '.join(LONGEST)})",
    )
    add(
        "--precisions",
        nargs="+",
        choices=PRECISIONS,
        default=list(PRECISIONS),
        help="(default: all)",
    )
    add("--threads", nargs="+", type=int, default=[1, 2], help="of an operator (default: 1 2)")
    both = [instructions.NATIVE, instructions.AVX2]
    add(
        "--instructions",
        nargs="+",
        choices=both,
        default=both if instructions.has_avx512() else both[:1],
        help="of the processor (default: %(default)s)",
    )
    add("--limited", type=Path, help=argparse.SUPPRESS)
    add("--profile", action="store_true", help="where the time goes, by operator and node")
    options = parse_options(parser, seconds=SECONDS)
    if options.limited:
        options.precisions = [name for name in options.precisions if name in OWN_NUMBERS]
    return options


def main() -> None:
    """Measure, and print a table for each network as soon as it is there."""
    options = read_options()
    if options.limited:
        run(options, options.limited, instructions.AVX2)
        return
    with tempfile.TemporaryDirectory() as folder:
        if instructions.NATIVE in options.instructions:
            run(options, Path(folder), instructions.NATIVE)
        if instructions.AVX2 in options.instructions:
            instructions.run_with_avx2([*sys.argv, "--limited", folder])


def find_executable(network: Network, precision: str, folder: Path) -> Executable:
    """Open the executable of a network, compiled into `folder` unless it is there."""
    if not folder.exists():
        compile_network(network, precision, folder)
    return open_executable(folder)


def run(options: argparse.Namespace, folder: Path, instructions_: str) -> None:
    """Measure all networks in this process, whose instructions are those; networks and executables
    are in `folder`, or put there."""
    console = report.make_console()
    found = []
    for name in options.models:
        with console.status(f"measuring {name}"):
            place = folder / name
            place.mkdir(exist_ok=True)
            network = NETWORKS[name](place)
            executables = {
                precision: find_executable(network, precision, place / precision / name)
                for precision in options.precisions
            }
            if options.profile:
                profile(name, network, executables, options, console)
                continue
            table = report.make_table(
                f"beside ONNX Runtime's fp32, medians of {options.rounds} rounds", *COLUMNS
            )
            measured = compare(name, network, executables, options)
            found += measured
            for figures in measured:
                table.add_row(*figures.row())
            console.print(table)
    if not options.profile:
        report.show(console, make_tables(found, instructions_), options.docs)


if __name__ == "__main__":
    main()
