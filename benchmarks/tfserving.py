"""TensorFlow Serving's protocol beside Triton's own, over gRPC both, with the same models and
requests: computed in one process and in two, and forwarded to that Triton. A proxy that passes
bytes on and reads none says what Python could reach at best.

The time of processors is that of all processes of a server over the requests that its metrics
count, of a forwarded request also Triton's.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import inputs
import pass_through
import perf_analyzer
import report
import repository
import rounds
import synthetic
from children import read_cpu_seconds
from perf_analyzer import Measurement
from poplar_triton import recipes
from rich.table import Table
from rounds import Comparison, Goal, Round, Subject
from serving import NUM_ROWS, WIDTHS
from tritonclient.grpc.model_config_pb2 import ModelConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from server_processes import HOST, Program, TfServing, choose_ports
from waiting import wait_until

GOALS = {"16B": Goal(0.5), "64KiB": Goal(0.7)}
"""Goals relative to the throughput of Triton's own gRPC, with the computation in the server's own
processes."""
TRITON, FORWARDED, PASSED = "Triton", "forwarded", "passed through"
PROCESSES = {"1 process": 1, "2 processes": 2}
REQUESTS = {TRITON: "nv_inference_request_success"}
"""The metric that counts a server's requests."""
TENSORFLOW_REQUESTS = ":tensorflow:serving:request_count"
ASK_SECONDS = 30
MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Server:
    """Addresses of a server, its processes, and the page that counts its requests under
    `metric`."""

    grpc_url: str
    processes: tuple[int, ...]
    metrics_url: str
    metric: str

    def read_cpu_seconds(self) -> float:
        """Return the processor time used so far by its processes."""
        return sum(map(read_cpu_seconds, self.processes))

    def count_requests(self) -> float:
        """Return the number of requests answered so far."""
        with urllib.request.urlopen(self.metrics_url, timeout=ASK_SECONDS) as answer:
            page = answer.read().decode()
        return sum(
            float(value)
            for value in re.findall(rf"^{self.metric}\{{.*\}} (\S+)$", page, re.MULTILINE)
        )


def write_models(models: Path, names: Sequence[str]) -> dict[str, ModelConfig]:
    """Write a model for each name: one that does nothing with its payload, or an example."""
    return {
        name: repository.write_poplar_model(models / name, synthetic.make_nothing(WIDTHS[name]))
        if name in WIDTHS
        else repository.copy_example(name, models / name)
        for name in names
    }


def start_servers(models: Path, folder: Path, stack: ExitStack) -> dict[str, Server]:
    """Start all servers, by name, until the stack is left."""
    triton = stack.enter_context(repository.serve(models, folder / "log"))
    servers = {TRITON: Server(triton.grpc_url, (triton.pid,), triton.metrics_url, REQUESTS[TRITON])}

    def start(name: str, *arguments: str | Path) -> TfServing:
        log = folder / f"{name}.log"
        return stack.enter_context(TfServing(*arguments, log=log, rest=False))

    for name, count in PROCESSES.items():
        own = start(name, models, "--processes", str(count))
        servers[name] = Server(own.grpc_url, (own.pid,), own.metrics_url, TENSORFLOW_REQUESTS)
    front = start(FORWARDED, "--triton", triton.grpc_url)
    servers[FORWARDED] = Server(
        front.grpc_url, (front.pid, triton.pid), front.metrics_url, TENSORFLOW_REQUESTS
    )
    address, pid = stack.enter_context(pass_on(triton.grpc_url, folder))
    servers[PASSED] = Server(address, (pid, triton.pid), triton.metrics_url, REQUESTS[TRITON])
    return servers


@contextmanager
def pass_on(target: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Run the proxy that only passes bytes on to `target`; yield its address and its process."""
    (port,) = choose_ports(1)
    command = [sys.executable, pass_through.__file__, target, "--port", str(port)]
    with Program("pass_through", command, folder) as proxy:
        wait_until(lambda: pass_through.READY in proxy.read_log(), "the proxy is ready")
        yield f"{HOST}:{port}", proxy.pid


def make_comparisons(
    name: str, config: ModelConfig, folder: Path, at_once: Sequence[int]
) -> list[Comparison]:
    """Return one comparison per concurrency; Triton is the baseline."""
    rows = inputs.make_rows(config, NUM_ROWS)
    data = inputs.write_inputs(folder, config, rows)
    subjects = (
        Subject(name, data, server=TRITON),
        *(Subject(name, data, GOALS.get(name), server=server) for server in PROCESSES),
        *(Subject(name, data, server=server) for server in (FORWARDED, PASSED)),
    )
    return [Comparison(name, concurrency, subjects) for concurrency in at_once]


def make_measure(
    servers: Mapping[str, Server], configs: Mapping[str, ModelConfig]
) -> rounds.Measure:
    """Return a function that loads a subject's server, and reads its processes' figures before and
    after."""

    def measure(subject: Subject, concurrency: int, seconds: float) -> Measurement:
        server = servers[subject.server]
        is_tritons = subject.server in (TRITON, PASSED)
        shapes = None if is_tritons else inputs.whole_shapes(configs[subject.model])
        cpu, requests = server.read_cpu_seconds(), server.count_requests()
        measured = perf_analyzer.measure(
            server.grpc_url, subject.model, concurrency, subject.input_data, seconds, shapes=shapes
        )
        cpu, requests = server.read_cpu_seconds() - cpu, server.count_requests() - requests
        return replace(measured, cpu_us=cpu / requests * MICROSECONDS)

    return measure


def make_cpu_table(comparisons: Sequence[Comparison], found: Sequence[Sequence[Round]]) -> Table:
    """Return a table of the processor time of a request, and its ratio to Triton's."""
    title = (
        f"processor time of a request in the server; medians of {len(found[0])} rounds "
        "(least..greatest)"
    )
    table = report.make_table(title, "requests", "at once", "server", "us", "ratio")
    for comparison, rounds_of_comparison in zip(comparisons, found, strict=True):
        for index in range(len(comparison.subjects)):
            figures = [
                one.before.cpu_us if index == 0 else one.runs[index - 1].cpu_us
                for one in rounds_of_comparison
            ]
            ratios = [one.ratios(_cpu)[index] for one in rounds_of_comparison]
            table.add_row(
                *(comparison.what, str(comparison.concurrency), comparison.label(index)),
                *(f"{statistics.median(figures):.0f}", report.describe_ratio(ratios)),
            )
        table.add_section()
    return table


def _cpu(measurement: Measurement) -> float:
    return measurement.cpu_us


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    names = [
        *WIDTHS,
        *(recipe.directory.name for recipe in recipes.read_recipes(repository.EXAMPLES)),
    ]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=list(WIDTHS),
        help=f"requests of {', '.join(names)} (default: %(default)s)",
    )
    options = rounds.parse_options(parser, seconds=rounds.SECONDS, concurrency=(1, 16))
    console = report.make_console()
    if not WIDTHS.keys() >= set(options.only):
        repository.build_examples()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        configs = write_models(folder / "models", options.only)
        comparisons = [
            comparison
            for name, config in configs.items()
            for comparison in make_comparisons(name, config, folder, options.concurrency)
        ]
        servers = start_servers(folder / "models", folder, stack)
        measure = make_measure(servers, configs)
        results = rounds.run_rounds_by(
            measure, comparisons, options.rounds, options.seconds, console
        )
    title = "TensorFlow Serving's protocol beside Triton's, gRPC, a row per request"
    report.print_report(title, comparisons, results, console)
    console.print(make_cpu_table(comparisons, results))


if __name__ == "__main__":
    main()
