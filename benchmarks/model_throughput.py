"""Recurrent models beside a user's alternative: a small Python-backend model on ONNX Runtime."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

import inputs
import report
import repository
import rounds
from model_inputs import make_row
from model_results import Result, judge
from perf_analyzer import Measurement
from rich.console import Console
from rounds import Comparison, Round, Subject
from tritonclient.grpc.model_config_pb2 import ModelConfig

CONCURRENCIES = (1, 16)
WINDOW_SECONDS = 0.3
NUM_ROWS = 8
"""Requests that differ."""


def compare(
    results: Sequence[Result], compiled: Path, folder: Path, num_rounds: int, console: Console
) -> list[tuple[str, ...]]:
    """Compare models with correct answers, in fp32.

    Each model and concurrency gives a row: both sides' requests a second and the ratio.
    """
    chosen = [
        result
        for result in results
        if result.model.recurrent and result.precision == "fp32" and not result.refusal
    ]
    # ONNX Runtime's model would have to be given the settings that are fixed in ours.
    chosen = [result for result in chosen if not result.model.settings and not judge(result)]
    if not chosen:
        return []
    models, requests = folder / "throughput", folder / "requests"
    requests.mkdir(exist_ok=True)
    comparisons, checks = [], []
    for result in chosen:
        configs = _write_pair(result, compiled, models)
        rows = [make_row(result.model, configs[1], number) for number in range(NUM_ROWS)]
        subjects = tuple(
            Subject(config.name, inputs.write_inputs(requests, config, rows)) for config in configs
        )
        comparisons += [
            Comparison(result.model.name, concurrency, subjects) for concurrency in CONCURRENCIES
        ]
        checks.append((rows[0], configs))
    with repository.serve(models, folder / "throughput.log") as server:
        for row, configs in checks:
            inputs.check_answers(server.grpc_url, row, configs)
        all_rounds = rounds.run_rounds(
            server.grpc_url, comparisons, num_rounds, WINDOW_SECONDS, console
        )
    shutil.rmtree(models)
    return [
        _describe(comparison, rounds_of_comparison)
        for comparison, rounds_of_comparison in zip(comparisons, all_rounds, strict=True)
    ]


def _write_pair(result: Result, compiled: Path, models: Path) -> tuple[ModelConfig, ModelConfig]:
    """Write ONNX Runtime's model and the compiled one."""
    name = result.model.name
    served = repository.write_twin(models / f"{name}_poplar", compiled / result.name)
    names = repository.read_names(models / f"{name}_poplar")
    file = result.model.fetch()
    return repository.write_onnxruntime_model(
        models / f"{name}_onnxruntime", served, names, file
    ), served


def _describe(comparison: Comparison, found: Sequence[Round]) -> tuple[str, ...]:
    before = [measurement for one in found for measurement in (one.before, one.after)]
    after = [one.runs[0] for one in found]
    ratios = [one.ratios(_throughput)[1] for one in found]
    speeds = [
        f"{statistics.median(map(_throughput, measurements)):.0f}"
        for measurements in (before, after)
    ]
    return (comparison.what, str(comparison.concurrency), *speeds, report.describe_ratio(ratios))


def _throughput(run: Measurement) -> float:
    return run.per_second
