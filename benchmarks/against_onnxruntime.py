"""What a user would write instead: a Python-backend model of a few lines that calls ONNX Runtime, request by
request.

Both sides get the same requests, the same batching and as many threads. The examples run from their original
ONNX files, in fp32; one that is served in fp16 is compiled in fp32 as well, and that is the one held to the
goal. The small models compute for less than 0.2 ms a row, so that joining rows can show; both sides give them
one thread, there being nothing to share out among more.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import inputs
import onnx
import onnxruntime
import report
import repository
import rounds
import synthetic
from commands.recipes import Recipe, fetch, read_recipes
from inputs import Row
from rounds import Comparison, Goal, Subject
from tritonclient.grpc.model_config_pb2 import ModelConfig

EXAMPLE_GOAL = Goal(1.0)
SMALL_GOALS = {16: Goal(1.3)}
"""By concurrency: alone, a request has no others to share a run with."""
SMALL_MODELS = {"mlp": synthetic.make_mlp, "convnet": synthetic.make_convnet}
NUM_ROWS = 8
"""Requests that differ; perf_analyzer sends them in turn."""
TIMED_RUNS = 300


@dataclass(frozen=True, slots=True)
class Case:
    """Models that answer the same: ONNX Runtime's first, the one that has a goal last."""

    name: str
    configs: tuple[ModelConfig, ...]
    goals: dict[int, Goal]
    rows: list[Row]


def write_example(models: Path, recipe: Recipe, options: argparse.Namespace) -> Case:
    """An example model as it is served, in fp32 if that is another, and from its ONNX file."""
    folder = models / f"{recipe.model}_poplar"
    served = [repository.copy_example(recipe.model, folder)]
    if "fp16" in recipe.poprt:
        served.append(repository.write_float_twin(models / f"{recipe.model}_poplar_fp32", recipe))
    goals = dict.fromkeys(options.concurrency, EXAMPLE_GOAL)
    return _make_case(recipe.model, folder, served, fetch(recipe, repository.CACHE), goals, options.instances)


def write_small(models: Path, name: str, options: argparse.Namespace) -> Case:
    """A small model on both sides."""
    file = models.parent / f"{name}.onnx"
    onnx.save(SMALL_MODELS[name](), file)
    folder = models / f"{name}_poplar"
    config = repository.write_poplar_model(folder, onnx.load(file))
    config.parameters["sim_threads"].string_value = "1"
    served = [config]
    return _make_case(name, folder, served, file, SMALL_GOALS, options.instances)


def _make_case(
    name: str, folder: Path, served: list[ModelConfig], file: Path, goals: dict[int, Goal], instances: int
) -> Case:
    for config in served:
        repository.set_instances(config, instances)
        repository.write_config(folder.parent / config.name, config)
    twin = folder.parent / f"{name}_onnxruntime"
    rival = repository.write_onnxruntime_model(twin, served[0], repository.read_names(folder), file)
    return Case(name, (rival, *served), goals, inputs.make_rows(served[0], NUM_ROWS))


def make_comparison(case: Case, concurrency: int, folder: Path) -> Comparison:
    """The models of a case under the same requests."""
    data = [inputs.write_inputs(folder, config, case.rows) for config in case.configs]
    subjects = [Subject(config.name, file) for config, file in zip(case.configs, data, strict=True)]
    subjects[-1] = Subject(subjects[-1].model, data[-1], case.goals.get(concurrency))
    return Comparison(case.name, concurrency, tuple(subjects))


def time_row(file: Path, rows: list[Row]) -> float:
    """Milliseconds that ONNX Runtime computes for a row of a model with one input, the median of
    TIMED_RUNS."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (tensor,) = session.get_inputs()
    times_ns = []
    for number in range(TIMED_RUNS):
        feeds = {tensor.name: rows[number % len(rows)][0][None]}
        start_ns = time.perf_counter_ns()
        session.run(None, feeds)
        times_ns.append(time.perf_counter_ns() - start_ns)
    return statistics.median(times_ns) / 1e6


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--instances", type=int, default=1, help="of every model; they share the cores (default 1)"
    )
    examples = {recipe.model: recipe for recipe in read_recipes(repository.EXAMPLES)}
    names = [*examples, *SMALL_MODELS]
    parser.add_argument(
        "--models", nargs="+", choices=names, default=names, metavar="MODEL", help=f"of {', '.join(names)}"
    )
    options = rounds.parse_options(parser, rounds=5, seconds=0.5, concurrency=(1, 16))
    console = report.make_console()
    repository.build_examples()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [
            write_example(folder / "models", examples[each], options)
            for each in options.models
            if each in examples
        ]
        small = [
            write_small(folder / "models", each, options) for each in options.models if each in SMALL_MODELS
        ]
        for case in small:
            computed = time_row(folder / f"{case.name}.onnx", case.rows)
            console.print(f"{case.name}: ONNX Runtime alone computes a row in {computed:.3f} ms")
        cases += small
        comparisons = [make_comparison(case, each, folder) for case in cases for each in options.concurrency]
        with repository.serve(folder / "models", folder / "log") as server:
            for case in cases:
                inputs.check_answers(server.grpc_url, case.rows[0], case.configs)
            found = rounds.run_rounds(server.grpc_url, comparisons, options.rounds, options.seconds, console)
    title = f"beside ONNX Runtime in a Python model, gRPC, a row per request, {options.instances} instance(s)"
    report.print_report(title, comparisons, found, console)


if __name__ == "__main__":
    main()
