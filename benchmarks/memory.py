"""Private memory of a second instance of a model, in units of its weights.

Private memory is what the system gets back when a process ends: Private_Dirty and Private_Clean of
the instances' stub processes. It is read while two of them share what can be shared (alone, a
process has even its mapped files to itself). A model without weights in the same place shows the
part that is not the weights': interpreter, libraries and the server's own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import inputs
import perf_analyzer
import report
import repository
import rounds
import synthetic
from children import find_children
from compared import NETWORKS, compile_network
from rich.table import Table
from rounds import Goal

STUB = "triton_python_backend_stub"
SETTLE_SECONDS = 10
GOALS = (Goal(0.4, at_most=True), Goal(0.1, at_most=True), Goal(0.05, at_most=True))
"""Goals of the example as it is, with sim_prepack off, which computes more slowly, and in fp16 with
half partials."""
NUM_ROWS = 8
WEIGHTLESS, UNPACKED, HALF = "weightless", "unpacked", "half"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Visit:
    """Private bytes of an instance, the mean over a server's instances: when they were loaded, when
    they had served."""

    loaded: float
    served: float


def find_stubs(server: int) -> list[int]:
    """Return the process ids of a server's instances."""
    return [child for child in find_children(server) if STUB in _read_command(child)]


def _read_command(process: int) -> str:
    """Return the command line of a process; "" if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text()
    return ""


def read_private_bytes(process: int) -> int:
    """Return the present private memory of a process and its descendants."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    own = (kilobytes["Private_Dirty"] + kilobytes["Private_Clean"]) * 1024
    return own + sum(map(read_private_bytes, find_children(process)))


def wait_for_stubs(server: int, count: int, seconds: float = SETTLE_SECONDS) -> list[int]:
    """Return the process ids of a server's `count` instances.

    It waits until the stub that completed the configuration has ended.
    """
    deadline = time.monotonic() + seconds
    while len(stubs := find_stubs(server)) != count:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"benchmarks: expected {count} processes {STUB} below {server}, found {len(stubs)}"
            )
        time.sleep(0.1)
    return stubs


def read_instances(server: int, count: int) -> float:
    """Return the mean private memory of a server's `count` instances."""
    return statistics.mean(map(read_private_bytes, wait_for_stubs(server, count)))


def visit(folder: Path, instances: int, options: argparse.Namespace) -> Visit:
    """Serve the model in `folder`, alone, from `instances` instances."""
    config = repository.read_config(folder)
    repository.set_instances(config, instances)
    repository.write_config(folder, config)
    data = inputs.write_inputs(folder.parents[1], config, inputs.make_rows(config, NUM_ROWS))
    with repository.serve(folder.parent, folder.parents[1] / "log") as server:
        loaded = read_instances(server.pid, instances)
        for concurrency in options.concurrency:
            perf_analyzer.measure(server.grpc_url, config.name, concurrency, data, options.seconds)
        return Visit(loaded, read_instances(server.pid, instances))


def weights_bytes(folder: Path) -> int:
    """Return the size of a model's weights.popef, of which all but a few kilobytes are weights; 0
    without one."""
    file = folder / "1" / "weights.popef"
    return file.stat().st_size if file.is_file() else 0


def write_models(folder: Path, model: str) -> list[Path]:
    """Write the model without weights, the example, and its variants, each in a separate
    repository."""
    weightless, example, unpacked, half = (
        folder / name / name
        for name in (WEIGHTLESS, model, f"{model}_{UNPACKED}", f"{model}_{HALF}")
    )
    repository.write_poplar_model(weightless, synthetic.make_nothing(1))
    repository.copy_example(model, example)
    config = repository.copy_example(model, unpacked)
    config.parameters["sim_prepack"].string_value = "false"
    repository.write_config(unpacked, config)
    compile_network(NETWORKS[model](folder), "half", half)
    return [weightless, example, unpacked, half]


def make_size_table(seen: dict[tuple[str, int], list[Visit]]) -> Table:
    """Return the table of the measured sizes."""
    table = report.make_table(
        "private memory of an instance, MiB (least..greatest)",
        "model",
        "instances",
        "loaded",
        "served",
    )
    for (model, instances), visits in seen.items():
        sizes = ([visit.loaded / MIB for visit in visits], [visit.served / MIB for visit in visits])
        table.add_row(model, str(instances), *map(report.describe_ratio, sizes))
    return table


def make_ratio_table(examples: dict[Path, list[Visit]], weightless: list[Visit]) -> Table:
    """Return the table of what a second instance of each example adds: in total, and beyond a model
    without weights."""
    columns = (
        "weights, MiB",
        "all of it",
        "beyond a model without weights",
        "goal",
        "the same, served",
    )
    table = report.make_table(
        "what a second instance adds, in units of its weights", "model", *columns
    )
    for (folder, visits), goal in zip(examples.items(), GOALS, strict=True):
        weights = weights_bytes(folder)
        pairs = list(zip(visits, weightless, strict=True))
        first_ratios = [visit.loaded / weights for visit in visits]
        loaded = [(visit.loaded - other.loaded) / weights for visit, other in pairs]
        served = [(visit.served - other.served) / weights for visit, other in pairs]
        beyond = (report.describe_ratio(loaded, goal), report.describe_goal(loaded, goal))
        table.add_row(
            *(folder.name, f"{weights / MIB:.1f}", report.describe_ratio(first_ratios)),
            *(*beyond, report.describe_ratio(served)),
        )
    return table


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--model", help="example model with a weights.popef (default: that with the largest)"
    )
    options = rounds.parse_options(
        parser, seconds=rounds.SECONDS, concurrency=(16,), quick_rounds=1
    )
    console = report.make_console()
    perf_analyzer.prepare()
    sizes = {
        recipe.model: weights_bytes(repository.EXAMPLES / recipe.model)
        for recipe in repository.build_examples()
    }
    model = options.model or max(sizes, key=lambda name: sizes[name])
    if not sizes.get(model):
        parser.error(
            f"{model} has no weights.popef; choose one of "
            f"{', '.join(name for name, size in sizes.items() if size) or 'none'}"
        )
    seen: dict[tuple[str, int], list[Visit]] = {}
    with tempfile.TemporaryDirectory() as name:
        weightless, example, *variants = write_models(Path(name), model)
        visited = [
            (weightless, 2),
            (example, 1),
            (example, 2),
            *((variant, 2) for variant in variants),
        ]
        for _ in range(options.rounds):
            for folder, instances in visited:
                seen.setdefault((folder.name, instances), []).append(
                    visit(folder, instances, options)
                )
        console.print(make_size_table(seen))
        examples = {folder: seen[folder.name, 2] for folder in (example, *variants)}
        ratios = make_ratio_table(examples, seen[WEIGHTLESS, 2])
        report.show(console, {"memory": ratios}, options.docs)
    console.print(
        f"Medians of {options.rounds} rounds (least..greatest). Served: with the working memory of "
        "the runs, which"
    )
    console.print("grows with the compiled batch and not with the weights.")


if __name__ == "__main__":
    main()
