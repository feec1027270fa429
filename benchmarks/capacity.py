"""Capacity of a core: requests of the example models per second of processor time of the server and
its instances.

Processor time stays meaningful on a shared machine if an instance has one thread: several spin
while they wait for each other. The requests per second beside it are those of this moment. Requests
have a row each, which the server joins, or a compiled batch each; they use gRPC. Every round
measures each load once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import inputs
import perf_analyzer
import report
import repository
import rounds
from children import read_cpu_seconds
from poplar_triton.serving.server import TritonServer
from poprt.triton.config import BATCHES_PER_REQUEST
from rich.progress import Progress
from rich.table import Table
from tritonclient.grpc import InferenceServerClient

BATCHES_AT_ONCE = 4
"""Requests of a compiled batch each in flight."""
NUM_ROWS = 32
"""Rows that differ; perf_analyzer sends them in turn."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of `rows` rows to a model, `at_once` at once."""

    model: str
    rows: int
    at_once: int
    data: Path


@dataclass(frozen=True, slots=True)
class Capacity:
    """Result of a load: requests a second, the 99th percentile of their latency, and requests for
    each second of processor time."""

    per_second: float
    p99_us: float
    per_core_second: float


def read_counters(server: TritonServer, model: str) -> tuple[int, float]:
    """Return the number of requests that the model has answered, and the processor time of the
    server."""
    with InferenceServerClient(server.grpc_url) as client:
        (statistics_,) = client.get_inference_statistics(model).model_stats
    return statistics_.inference_stats.success.count, read_cpu_seconds(server.pid)


def measure(server: TritonServer, load: Load, seconds: float) -> Capacity:
    """Put the load on."""
    requests, cpu_seconds = read_counters(server, load.model)
    measured = perf_analyzer.measure(
        server.grpc_url, load.model, load.at_once, load.data, seconds, load.rows
    )
    all_requests, all_taken = read_counters(server, load.model)
    per_core_second = (all_requests - requests) / (all_taken - cpu_seconds)
    return Capacity(measured.per_second, measured.p99_us, per_core_second)


def write_loads(models: Path, rows_at_once: Sequence[int]) -> list[Load]:
    """Write the example models, and return their loads."""
    loads = []
    for recipe in repository.build_examples():
        config = repository.copy_example(recipe.model, models / recipe.model)
        config.parameters["sim_threads"].string_value = "1"
        repository.write_config(models / recipe.model, config)
        data = inputs.write_inputs(models.parent, config, inputs.make_rows(config, NUM_ROWS))
        loads += [Load(recipe.model, 1, at_once, data) for at_once in rows_at_once]
        batch = config.max_batch_size // BATCHES_PER_REQUEST
        loads.append(Load(recipe.model, batch, BATCHES_AT_ONCE, data))
    return loads


def make_table(found: dict[Load, list[Capacity]]) -> Table:
    """Return a table with a row for each load."""
    title = "requests that a core serves; medians (least..greatest)"
    columns = ("rows", "at once", "requests/s", "p99 ms", "requests/s per core", "rows/s per core")
    table = report.make_table(title, "model", *columns)
    for load, measured in found.items():
        median = statistics.median(capacity.per_core_second for capacity in measured)
        table.add_row(
            *(load.model, str(load.rows), str(load.at_once)),
            f"{statistics.median(capacity.per_second for capacity in measured):.3g}",
            f"{statistics.median(capacity.p99_us for capacity in measured) / 1000:.1f}",
            describe([capacity.per_core_second for capacity in measured]),
            f"{median * load.rows:.0f}",
        )
    return table


def describe(figures: Sequence[float]) -> str:
    """Format the median, then the least and the greatest."""
    return f"{statistics.median(figures):.3g} ({min(figures):.3g}..{max(figures):.3g})"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options = rounds.parse_options(parser, seconds=rounds.SECONDS, concurrency=(16,))
    console = report.make_console()
    perf_analyzer.prepare()
    with tempfile.TemporaryDirectory() as name:
        loads = write_loads(Path(name) / "models", options.concurrency)
        capacities: dict[Load, list[Capacity]] = {load: [] for load in loads}
        with (
            repository.serve(Path(name) / "models", Path(name) / "log") as server,
            Progress(console=console, disable=not console.is_terminal, transient=True) as progress,
        ):
            for load in loads:  # until memory has grown and caches are warm
                perf_analyzer.measure(
                    server.grpc_url, load.model, load.at_once, load.data, 0.2, load.rows
                )
            for load in progress.track(loads * options.rounds):
                capacities[load].append(measure(server, load, options.seconds))
    console.print(make_table(capacities))
    console.print(
        f"{options.rounds} rounds on {len(os.sched_getaffinity(0))} cores, which the client "
        "shares; the last "
        "two columns count the processor time of the server and its instances alone."
    )


if __name__ == "__main__":
    main()
