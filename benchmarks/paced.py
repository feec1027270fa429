"""Check that `sim_timing` paced makes perf_analyzer measure the modelled chip, for models with a
known time a batch.

`steps` are chains of small operators, which the modelled chip does one after the other and the CPU
faster. A request fills a batch, so that the chip does as many batches as requests, and each of `n`
clients waits for `n` of them. `link` is an identity whose time is that of the host's link; its
batch does not fit into requests, so two clients take turns with a row each. `pipeline` is the
middle chain over two IPUs, each of which works on another batch; a request has both. `slow` is a
network that takes the CPU longer than the modelled chip, and tests the count of late batches.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import inputs
import perf_analyzer
import report
import repository
import rounds
import synthetic
from perf_analyzer import Measurement
from poplar_triton.serving.server import TritonServer
from poprt import CompilerOptions
from rich.progress import track
from rich.table import Table

TOLERANCE = 0.05
"""Tolerance of the measured throughput around the modelled one."""
STEPS = (500, 2600, 10000)
"""2, 10 and 40 ms of an ipu2."""
LINK_WIDTH, LINK_BATCH = 4096, 1700
"""32 KiB there and back for each row: 10 ms at 5.5 GB/s."""
STAGES = 2
"""IPUs of the pipeline."""
TURNS = 2
"""Clients of `link`, `pipeline` and `slow`."""
PACED = {"sim_timing": "paced", "sim_threads": "1"}
MODES = {
    "asynchronous": {**PACED, "synchronous_execution": "0", "timeout_ns": "1"},
    "synchronous": {**PACED, "synchronous_execution": "1"},
}
"""Parameters; an incomplete batch, as all of `link` are, waits for no more rows."""
MIN_BATCHES = 15
"""Minimum batches of a window: one too many or too few makes 2 % of the three windows."""
PUBLISHED_SECONDS = 1.2
"""Time after which the metrics, published once a second, include everything before."""


@dataclass(frozen=True, slots=True)
class Load:
    """A model, the rows of each request that it gets, and how many requests at once."""

    model: str
    rows: int
    concurrency: int
    input_data: Path


@dataclass(frozen=True, slots=True)
class Found:
    """One measurement with the server's metrics: batches computed, the number of late ones, and the
    modelled time of one in ms."""

    measured: Measurement
    batches: float
    late: float
    modelled_ms: float

    @property
    def throughput_ratio(self) -> float:
        """Measured over modelled: a request is a batch."""
        return self.measured.per_second * self.modelled_ms / 1e3


def write_models(models: Path, sources: Path) -> dict[str, int]:
    """Write the models in both modes, and return the rows of a request to each."""
    batch = repository.BATCH_SIZE
    one = CompilerOptions()
    several = CompilerOptions(num_ipus=STAGES, enable_pipelining=True, batches_per_step=STAGES)
    step_models = {
        f"steps_{steps}": (synthetic.make_steps(steps), batch, batch, one) for steps in STEPS
    }
    step_models["link"] = synthetic.make_nothing(LINK_WIDTH), LINK_BATCH, 1, one
    step_models["pipeline"] = synthetic.make_steps(STEPS[1]), batch, STAGES * batch, several
    step_models["slow"] = synthetic.make_convnet(), batch, batch, one
    requests = {}
    for name, (model, batch_size, rows, options) in step_models.items():
        repository.write_poplar_model(sources / name, model, batch_size, options)
        for mode, parameters in MODES.items():
            twin = models / f"{name}_{mode}"
            config = repository.write_twin(twin, sources / name, **parameters)
            # No request joins another in Triton's batcher.
            config.max_batch_size = requests[twin.name] = rows
            repository.write_config(twin, config)
    return requests


def make_loads(
    requests: dict[str, int], models: Path, folder: Path, concurrency: Sequence[int]
) -> list[Load]:
    """Return the loads of all models; other numbers of clients would add no information for `link`
    and `slow`."""
    loads = []
    for name, rows in requests.items():
        config = repository.read_config(models / name)
        data = inputs.write_inputs(folder, config, inputs.make_rows(config, 4 * rows))
        at_once = concurrency if name.startswith("steps") else [TURNS]
        loads += [Load(name, rows, concurrency, data) for concurrency in at_once]
    return loads


def measure(server: TritonServer, load: Load, seconds: float) -> Found:
    """Load a model in windows of `seconds`, or of MIN_BATCHES."""
    before = read_counters(server, load.model)
    modelled = before["modelled_seconds"] / before["batches"]
    window = max(seconds, MIN_BATCHES * modelled)
    measured = perf_analyzer.measure(
        server.grpc_url, load.model, load.concurrency, load.input_data, window, load.rows
    )
    time.sleep(PUBLISHED_SECONDS)
    after = read_counters(server, load.model)
    batches, late = (after[name] - before[name] for name in ("batches", "late_batches"))
    return Found(measured, batches, late, modelled * 1e3)


def read_counters(server: TritonServer, model: str) -> dict[str, float]:
    """Return the poplar counters of a model with one instance, without poplar_ and _total."""
    with urllib.request.urlopen(server.metrics_url, timeout=60) as answer:
        text = answer.read().decode()
    series = re.findall(rf'^poplar_(\w+)_total\{{.*model="{model}".*\}} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in series}


def make_report(loads: Sequence[Load], found: Sequence[Sequence[Found]]) -> Table:
    """Return a table with a row per load."""
    title = f"paced models over gRPC: medians of {len(found[0])} rounds (least..greatest)"
    columns = (
        "modelled/s",
        "measured/s",
        "ratio",
        "within 5 %",
        "modelled ms",
        "p50 ms",
        "p99 ms",
        "batches",
        "late",
    )
    table = report.make_table(title, "model", "at once", *columns)
    for load, rounds_found in zip(loads, found, strict=True):
        table.add_row(load.model, str(load.concurrency), *describe(load, rounds_found))
    return table


def make_wide_table(loads: Sequence[Load], found: Sequence[Sequence[Found]]) -> Table:
    """Return a table with a row for each model and number of requests at once: in each mode the
    throughput over the modelled one, and late batches of all."""
    columns = (column for mode in MODES for column in (mode, "late batches"))
    table = report.make_table(
        "measured over modelled throughput", "model", "ms of a batch", "at once", *columns
    )
    rows: dict[tuple[str, int], list[str]] = {}
    for load, measured in zip(loads, found, strict=True):
        model, _, _ = load.model.rpartition("_")
        first = [model, f"{measured[0].modelled_ms:.2f}", str(load.concurrency)]
        batches, late = (
            sum(result.batches for result in measured),
            sum(result.late for result in measured),
        )
        rows.setdefault((model, load.concurrency), first).extend(
            [
                report.describe_ratio([result.throughput_ratio for result in measured]),
                f"{late:.0f} of {batches:.0f}",
            ]
        )
    for row in rows.values():
        table.add_row(*row)
    return table


def describe(load: Load, found: Sequence[Found]) -> tuple[str, ...]:
    """Return the figures of a load. Each of n clients that wait for one another waits for n
    batches."""
    ratios = [result.throughput_ratio for result in found]
    within = abs(statistics.median(ratios) - 1) <= TOLERANCE
    return (
        f"{1e3 / found[0].modelled_ms:.1f}",
        f"{statistics.median(result.measured.per_second for result in found):.1f}",
        report.describe_ratio(ratios),
        "[green]yes[/]" if within else "[red]no[/]",
        f"{load.concurrency * found[0].modelled_ms:.2f}",
        f"{statistics.median(result.measured.p50_us for result in found) / 1e3:.2f}",
        f"{statistics.median(result.measured.p99_us for result in found) / 1e3:.2f}",
        f"{sum(result.batches for result in found):.0f}",
        f"{sum(result.late for result in found):.0f}",
    )


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options = rounds.parse_options(
        parser, seconds=rounds.SECONDS, concurrency=(1, 2), quick_rounds=1
    )
    console = report.make_console()
    perf_analyzer.prepare()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        requests = write_models(folder / "models", folder / "sources")
        loads = make_loads(requests, folder / "models", folder, options.concurrency)
        with repository.serve(folder / "models", folder / "log") as server:
            for load in loads:
                perf_analyzer.measure(
                    server.grpc_url,
                    load.model,
                    2,
                    load.input_data,
                    rounds.WARM_UP_SECONDS,
                    load.rows,
                )
            time.sleep(PUBLISHED_SECONDS)
            turns = [load for _ in range(options.rounds) for load in loads]
            progress = track(
                turns, "measuring", console=console, disable=not console.is_terminal, transient=True
            )
            measured = [measure(server, load, options.seconds) for load in progress]
    by_load = [measured[index :: len(loads)] for index in range(len(loads))]
    console.print(make_report(loads, by_load))
    report.show(console, {"paced": make_wide_table(loads, by_load)}, options.docs)
    console.print(
        "Alone (1 at once) a client's own way to the server and back comes on top of the modelled "
        "time."
    )
    console.print("Synchronous: so does Triton's way from one call to the next.")


if __name__ == "__main__":
    main()
