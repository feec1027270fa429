"""Private memory and processor time that each further model of a server takes: at its first load,
and at a later one, which takes its graph from the cache.

Copies of a model share what can be shared. Private memory is what the system gets back when an
instance ends. Processor time is that of the server and all its processes, those that have ended
included, until the server is ready: for each model the difference to a server with one model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import memory
import report
import repository
import synthetic
from children import read_cpu_seconds
from poplar_triton.serving.server import TritonServer
from rounds import Goal, parse_options

MODELS = ("magika", "document_orientation")
MEMORY, SECONDS = Goal(30.0, at_most=True), Goal(0.5, at_most=True)


@dataclass(frozen=True, slots=True)
class Start:
    """A server's start with some copies of a model: private MiB of an instance, processor seconds
    of all processes, and seconds until it was ready."""

    private_mib: float
    processor_seconds: float
    seconds: float


def write_copies(folder: Path, model: str, count: int) -> Path:
    """Write a repository with `count` copies of a model, an example or the one without weights."""
    for number in range(count):
        copy = folder / f"{model}_{number}"
        if model == memory.WEIGHTLESS:
            config = repository.write_poplar_model(copy, synthetic.make_nothing(1))
        else:
            config = repository.copy_example(model, copy)
        repository.set_instances(config, 1)
        repository.write_config(copy, config)
    return folder


def start(models: Path, count: int) -> Start:
    """Start a server with these models."""
    begin = time.monotonic()
    with TritonServer(models, log=models.parent / "log") as server:
        seconds = time.monotonic() - begin
        if failed := server.failed_models():
            raise SystemExit(f"benchmarks: not loaded: {failed}")
        spent = read_cpu_seconds(server.pid, with_ended=True)
        return Start(memory.read_instances(server.pid, count) / memory.MIB, spent, seconds)


def measure(folder: Path, model: str, count: int) -> dict[str, list[float]]:
    """Return for the first and the later load the private MiB and the processor seconds of each
    further model, and the seconds until all were ready."""
    one = write_copies(folder / "one", model, 1)
    copies = write_copies(folder / "copies", model, count)
    # In a file no server can store anything, so that it loads every copy for the first time.
    caches = {"first": folder / "file", "later": folder / "caches"}
    caches["first"].touch()
    starts = {}
    for load, place in caches.items():
        with patch.dict(os.environ, XDG_CACHE_HOME=str(place)):
            if load == "later":
                start(one, 1)
            alone, together = start(one, 1), start(copies, count)
        processor = (together.processor_seconds - alone.processor_seconds) / (count - 1)
        starts[load] = [together.private_mib, processor, together.seconds]
    return starts


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--copies", type=int, default=4, help="models (default %(default)s)")
    parser.add_argument("--models", nargs="+", default=[memory.WEIGHTLESS, *MODELS])
    options = parse_options(parser, quick_rounds=1)
    if options.copies <= 1:
        parser.error(f"--copies: expected at least 2, found {options.copies}")
    console = report.make_console()
    repository.build_examples()
    columns = ("private MiB, first", "later", "goal", "processor s, first", "later", "goal")
    title = f"each further model, medians of {options.rounds} rounds"
    table = report.make_table(title, "model", *columns, f"{options.copies} ready, s", "later")
    for model in options.models:
        rounds = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as name:
                rounds.append(measure(Path(name), model, options.copies))
        first, later = (
            [[measured[load][i] for measured in rounds] for i in range(3)]
            for load in ("first", "later")
        )
        cells = []
        for i, goal in enumerate((MEMORY, SECONDS)):
            cells += [f"{statistics.median(first[i]):.2f}", report.describe_ratio(later[i], goal)]
            cells.append(report.describe_goal(later[i], goal))
        cells += [f"{statistics.median(side[2]):.1f}" for side in (first, later)]
        table.add_row(model, *cells)
    report.show(console, {"many models": table}, options.docs)


if __name__ == "__main__":
    main()
