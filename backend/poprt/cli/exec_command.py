"""Runs of compiled models on random data, timed on this machine's CPU: the `poprt_exec` command,
whose only sub-command runs a PopEF file, and the option --run of `poprt`.

Options and figures of `poprt_exec` are the real tool's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from model_runtime import ModelRunner, ModelRunnerConfig, ModelRuntimeError
from simipu import SimIpuError
from simipu.version import describe_poprt

import popef
from popef._tools.arguments import Parser, count, whole_number
from popef._tools.arrays import Array
from popef._tools.console import Progress, print_line, run
from popef._tools.text import did_you_mean, name_some
from poprt.compile.executable import Executable
from poprt.option_entry import COUNT, NUMBER, Form, Option, Takes
from poprt.runtime import (
    DataDesc,
    HostConcatRunner,
    LightRunner,
    PackRunnerConfig,
    Runner,
    RuntimeConfig,
)

_SECONDS, _MAX_RUNS = 1.0, 100
"""Time, and number of runs, after which --run has measured enough for a median."""


def time_runs(executable: Executable) -> list[str]:
    """Run the executable for about a second, one run at a time, after a warm-up run.

    Returns the real tool's three lines: the number of rows of a run, its median time, and rows per
    second.
    """
    with tempfile.TemporaryDirectory(prefix="poprt-") as folder:
        path = Path(folder, "executable.popef")
        executable.export(path)
        with ModelRunner(path, ModelRunnerConfig(index_check="clamp")) as runner:
            # In a fused model the first model is selected.
            fed = {
                source.name: np.zeros(source.shape, source.numpy_data_type())
                if source.name == popef.INDEX
                else _draw(np.random.default_rng(0), source.shape, source.numpy_data_type())
                for source in runner.getExecuteInputs()
            }
            runner.execute(fed)
            run_seconds: list[float] = []
            while len(run_seconds) < _MAX_RUNS and sum(run_seconds) < _SECONDS:
                start = time.perf_counter()
                runner.execute(fed)
                run_seconds.append(time.perf_counter() - start)
    rows = max(1, executable.batch_size)
    return [
        f"Bs: {rows}",
        f"Latency: {statistics.median(run_seconds) * 1e3:.2f}ms",
        f"Tput: {rows * len(run_seconds) / sum(run_seconds):.0f}",
    ]


_WARM_UP = 10
"""Number of requests before the measured ones: the first runs fill caches and start threads."""
_THREADS = Takes(Form.VALUE, "N", whole_number(1, 1024))
_US, _NAME = Takes(Form.VALUE, "US", count), Takes(Form.VALUE, "NAME")
_EXAMPLES = (
    "poprt_exec poprt_run_popef --popef executable.popef --iteration 1000 --numThreads 3",
    "poprt_exec poprt_run_popef --popef packed.popef --runner packRunner --numThreads 12 "
    "--maxValidNum 10 "
    "--packTimeout 2000 --dynamicInputName input_ids --maskName attention_mask --batchSize 1",
)
Arrays = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Feed:
    """Inputs and outputs of one request."""

    inputs: Sequence[DataDesc]
    outputs: Sequence[DataDesc]
    mask: str = ""
    dynamic: Sequence[str] = ()
    """Names of the inputs that have the length of a sample."""

    def make(self, seed: int) -> tuple[Arrays, Arrays]:
        """Return random inputs, and zeros for the outputs."""
        rng = np.random.default_rng(seed)
        places = next(
            (source.shape[-1] for source in self.inputs if source.name in self.dynamic), 1
        )
        length = int(rng.integers(1, places + 1))
        inputs = {
            source.name: _make_up(
                source, rng, length if source.name in self.dynamic else None, self.mask
            )
            for source in self.inputs
        }
        return inputs, {
            result.name: np.zeros(result.shape, result.numpy_data_type()) for result in self.outputs
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 for success, 1 for bad input, 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run(make_parser(), words, (SimIpuError, ModelRuntimeError))


def make_parser() -> Parser:
    """Return the parser of `poprt_exec`."""
    parser = Parser(
        prog="poprt_exec",
        version=describe_poprt(),
        description="Run compiled models on random inputs.",
        examples=_EXAMPLES,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "poprt_run_popef",
        help="run a PopEF file on random inputs",
        description="Run a PopEF file on random inputs and print latency and throughput.",
        examples=_EXAMPLES,
    )
    command.add_path(
        "--popef",
        reads="file",
        type=Path,
        required=True,
        metavar="FILE",
        help="PopEF file to run",
    )
    for option in _OPTIONS:
        option.add_to(command)
    command.set_defaults(run=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    runner, feed = _OPENERS[options.runner](options)
    if options.index is not None:
        feed = _choose(feed, options.index)
    for line in _time(runner, feed, options.iteration, options.numThreads, options.batchSize):
        print_line(line)
    return 0


def _open_model(options: argparse.Namespace) -> tuple[Runner, Feed]:
    config = RuntimeConfig()
    config.validate_io_params = options.index is None
    config.batching_dim = config.batching_dim if options.batchSize is None else 0
    return _feed_all(Runner(options.popef, config), options.batchSize)


def _open_pack(options: argparse.Namespace) -> tuple[Runner, Feed]:
    config = PackRunnerConfig(
        options.packTimeout, options.maxValidNum, options.dynamicInputName or ""
    )
    if options.maskName:
        config.enable_input_single_row_mode(options.maskName)
    runner = Runner(options.popef, config)
    inputs = runner.get_execute_inputs()
    shapes = {described.name: described.shape for described in inputs}
    name = options.dynamicInputName or inputs[0].name
    for option, value in (("dynamicInputName", name), ("maskName", options.maskName or name)):
        if value not in shapes:
            raise ModelRuntimeError(
                f"--{option}: the model has no input {value!r}; its inputs are "
                f"{name_some(list(shapes))}{did_you_mean(value, shapes)}"
            )
    shape = shapes[name]
    dynamic = [source.name for source in inputs if source.shape[:2] == shape[:2]]
    return runner, Feed(inputs, runner.get_execute_outputs(), options.maskName, dynamic)


_OPENERS: Mapping[str, Callable[[argparse.Namespace], tuple[Runner, Feed]]] = {
    "modelRunner": _open_model,
    "lightRunner": lambda options: _feed_all(LightRunner(options.popef), None),
    "hostConcatRunner": lambda options: _feed_all(HostConcatRunner(options.popef), None),
    "packRunner": _open_pack,
}
_OPTIONS = (
    Option(
        "runner",
        "runner to use (default: %(default)s)",
        choices=tuple(_OPENERS),
        default="modelRunner",
    ),
    Option("iteration", "requests per thread (default: %(default)s)", NUMBER, default=100),
    Option("numThreads", "number of threads (default: %(default)s)", _THREADS, default=3),
    Option("index", "index of the model to run, for a fused model", COUNT),
    Option("maxValidNum", "packRunner: maximum number of samples in a run", COUNT, default=0),
    Option("packTimeout", "packRunner: time to wait for more samples, in us", _US, default=0),
    Option("dynamicInputName", "packRunner: input that defines a sample's length", _NAME),
    Option("maskName", "packRunner: mask input that numbers the samples", _NAME),
    Option("batchSize", "rows per request (default: the compiled batch)", NUMBER),
)


def _feed_all(runner: Runner, rows: int | None) -> tuple[Runner, Feed]:
    inputs, outputs = runner.get_execute_inputs(), runner.get_execute_outputs()
    for description in (*inputs, *outputs):
        if rows is not None and description.shape:
            description.shape[0] = rows
    return runner, Feed(inputs, outputs)


def _choose(feed: Feed, index: int) -> Feed:
    """Return the inputs and outputs of one model of a fused one; the runner adds the index."""
    prefix = f"graph{index}/"
    inputs = [source for source in feed.inputs if source.name.startswith(prefix)]
    outputs = [result for result in feed.outputs if result.name.startswith(prefix)]
    if not outputs:
        output_names = ", ".join(result.name for result in feed.outputs)
        raise ModelRuntimeError(
            f"--index {index}: the file has no output {prefix}..., only {output_names}"
        )
    return Feed(inputs, outputs)


def _make_up(described: DataDesc, rng: np.random.Generator, length: int | None, mask: str) -> Array:
    shape = described.shape if length is None else [length, *described.shape[2:]]
    dtype = described.numpy_data_type()
    return np.ones(shape, dtype) if described.name == mask else _draw(rng, shape, dtype)


def _draw(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return random values; integers are 0 and 1, which are valid indices of any table."""
    drawn = rng.random(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
    return np.asarray(drawn).astype(dtype)


def _time(runner: Runner, feed: Feed, iterations: int, threads: int, rows: int | None) -> list[str]:
    """Send `iterations` requests from each of `threads` threads and return the figures.

    Some warm-up requests come first.
    """
    fed = [feed.make(seed) for seed in range(threads)]
    progress = Progress("running", iterations * threads)
    for future in [runner.execute_async(*feed.make(seed)) for seed in range(_WARM_UP)]:
        future.wait()

    def ask(arrays: tuple[Arrays, Arrays]) -> list[float]:
        call_seconds = []
        for _ in range(iterations):
            start = time.perf_counter()
            runner.execute(*arrays)
            call_seconds.append(time.perf_counter() - start)
            progress.add(1)
        return call_seconds

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        call_seconds = np.concatenate(list(pool.map(ask, fed)))
    seconds = time.perf_counter() - start
    progress.finish()
    batch = rows or min((source.shape[0] for source in feed.inputs if source.shape), default=1)
    batch = 1 if feed.dynamic else batch
    return _describe(call_seconds * 1e3, seconds, batch)


def _describe(taken_ms: Array, seconds: float, batch: int) -> list[str]:
    """Return the figures of a runner's published example, in its words where they are known."""
    figures: Mapping[str, str] = {
        "Max latency": f"{taken_ms.max():.3f} ms",
        "Min latency": f"{taken_ms.min():.3f} ms",
        "Average latency": f"{taken_ms.mean():.3f} ms",
        "P99 latency": f"{np.percentile(taken_ms, 99):.3f} ms",
        "Iterations": f"{len(taken_ms)}",
        "Batch size": f"{batch}",
        "Total time": f"{seconds * 1e3:.3f} ms",
        "Throughput": f"{batch * len(taken_ms) / seconds:.1f} samples/s",
    }
    return [f"{name}: {value}" for name, value in figures.items()]
