"""Cost of the backend itself: an executable that does almost nothing, beside the leanest
Python-backend model.

Per payload some identities run in one server. `floor`, of the python backend, is the baseline;
`nothing` is compiled for the poplar backend. Without a goal there are `nothing` in asynchronous
mode, the same with batches that wait, and `nothing` with the engine in a child process; and more
models of the python backend: `onnxruntime` runs the same graph, `senders` and `threaded` answer
through response senders, inside `execute` or from a thread.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import inputs
import onnx
import report
import repository
import rounds
import synthetic
from rounds import Comparison, Goal, Subject
from tritonclient.grpc.model_config_pb2 import ModelConfig

WIDTHS = {"16B": 4, "64KiB": 16384, "1MiB": 262144}
"""INT32 elements of a row, by payload."""
THROUGHPUT_GOALS = {"16B": Goal(0.92), "64KiB": Goal(0.95), "1MiB": Goal(1.0)}
P99_GOAL = Goal(1.15, at_most=True)
TWINS = {
    "asynchronous": {"synchronous_execution": "0"},
    "waiting": {"synchronous_execution": "0", "timeout_ns": "500000"},
    "isolated": {"sim_isolation": "process"},
}
"""Parameters of the poplar models without a goal."""
PYTHON_MODELS = {
    "floor": repository.FLOOR,
    "senders": repository.SENDERS,
    "threaded": repository.THREADED,
}
"""Sources of the identities of the python backend; the first is the baseline."""
NUM_ROWS = 4
"""Requests that differ; perf_analyzer sends them in turn."""


def write_models(models: Path, payload: str) -> list[ModelConfig]:
    """Write the floor and the models compared with it."""
    folder, graph = models / f"{payload}_nothing", synthetic.make_nothing(WIDTHS[payload])
    nothing = repository.write_poplar_model(folder, graph)
    floor, *others = (
        repository.write_python_model(models / f"{payload}_{name}", nothing, source)
        for name, source in PYTHON_MODELS.items()
    )
    file = models.parent / f"{payload}.onnx"
    onnx.save(graph, file)
    names = repository.read_names(folder)
    onnxruntime = repository.write_onnxruntime_model(
        models / f"{payload}_onnxruntime", nothing, names, file
    )
    twins = [
        repository.write_twin(models / f"{payload}_{name}", folder, **parameters)
        for name, parameters in TWINS.items()
    ]
    return [floor, nothing, onnxruntime, *twins, *others]


def make_comparisons(
    payload: str, configs: Sequence[ModelConfig], data: Path, at_once: Sequence[int]
) -> list[Comparison]:
    """Return one comparison per concurrency."""
    floor, nothing, *others = (config.name for config in configs)
    subjects = (
        Subject(floor, data),
        Subject(nothing, data, THROUGHPUT_GOALS[payload], P99_GOAL),
        *(Subject(other, data) for other in others),
    )
    return [Comparison(payload, concurrency, subjects) for concurrency in at_once]


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--payloads",
        nargs="+",
        choices=WIDTHS,
        default=list(WIDTHS),
        help="bytes of a row (default all)",
    )
    options = rounds.parse_options(parser, seconds=rounds.SECONDS, concurrency=(1, 4, 16))
    console = report.make_console()
    with tempfile.TemporaryDirectory() as name:
        folder, comparisons, checks = Path(name), [], []
        for payload in options.payloads:
            configs = write_models(folder / "models", payload)
            rows = inputs.make_rows(configs[0], NUM_ROWS)
            data = inputs.write_inputs(folder, configs[0], rows)
            comparisons += make_comparisons(payload, configs, data, options.concurrency)
            checks.append((rows[0], configs))
        with repository.serve(folder / "models", folder / "log") as server:
            for row, configs in checks:
                inputs.check_answers(server.grpc_url, row, configs)
            results = rounds.run_rounds(
                server.grpc_url, comparisons, options.rounds, options.seconds, console
            )
    title = "the backend beside the floor, gRPC, a row per request"
    report.print_report(title, comparisons, results, console)
    wide = report.make_wide_table(f"{title}: throughput", comparisons, results)
    report.show(console, {"serving": wide}, options.docs)


if __name__ == "__main__":
    main()
