"""Time that poptorch adds: to compiling BERT-base, and to calling a small module.

Compiling: each round runs two sides, one after the other. One is `inferenceModel(...).compile`; the
other is `torch.onnx.export` to a file and then the command `poprt` on that file. Seconds are those
of the processor, without imports and without making the module on both sides. Weights are random.

Calling: rounds of calls of an executor and of `ModelRunner.execute` on the file that it has saved,
in one process. Goals are those of issue 34.

Run this script with an interpreter that has torch and transformers.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import report
from children import run_child
from rounds import Goal

COMPILE_GOAL = Goal(1.5, at_most=True)
CALL_GOAL = Goal(100, at_most=True)
"""Microseconds of a call beyond those of the runner."""
LIMIT_SECONDS = 1200.0
SEQUENCE = 128
CALLS = 300


def make_bert() -> tuple[Any, tuple[Any, ...]]:
    """Return BERT-base with random weights, and its inputs."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    module = transformers.BertModel(transformers.BertConfig(attn_implementation="eager")).eval()
    words = torch.zeros(1, SEQUENCE, dtype=torch.int64)
    return module, (words, torch.ones_like(words))


def time_compilation() -> float:
    """Return the seconds that poptorch takes to capture and compile BERT-base."""
    poptorch: Any = importlib.import_module("poptorch")
    module, inputs = make_bert()
    start = time.process_time()
    poptorch.inferenceModel(module).compile(*inputs)
    return time.process_time() - start


def time_export(file: Path) -> float:
    """Return the seconds that torch.onnx.export takes to write BERT-base."""
    torch: Any = importlib.import_module("torch")
    module, inputs = make_bert()
    start = time.process_time()
    torch.onnx.export(module, inputs, str(file), dynamo=True, external_data=False)
    return time.process_time() - start


def run_part(*words: str) -> float:
    """Return the seconds that this script prints when it runs with these arguments."""
    run = run_child([sys.executable, __file__, *words], LIMIT_SECONDS)
    if run.status != 0:
        raise SystemExit(f"benchmarks: {words}: status {run.status}: {run.errors[-500:]}")
    return float(run.output.splitlines()[-1])


def run_poprt(model: Path, folder: Path) -> float:
    """Return the seconds of the processor that poprt takes to compile a model."""
    command = [sys.executable, "-m", "poprt", "--input_model", str(model)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = run_child([*command, "--export_popef", "--output_dir", str(folder)], LIMIT_SECONDS)
    if run.status != 0:
        raise SystemExit(f"benchmarks: poprt: status {run.status}: {run.errors[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def compare_compilations(rounds: int) -> list[tuple[float, float]]:
    """Return seconds of poptorch and of torch's exporter with poprt, a pair a round."""
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        model = Path(name, "bert.onnx")
        for _ in range(rounds):
            ours = run_part("--part", "compile")
            theirs = run_part("--part", str(model)) + run_poprt(model, Path(name, "out"))
            pairs.append((ours, theirs))
    return pairs


def compare_calls(rounds: int) -> list[tuple[float, float]]:
    """Return microseconds of a call of the executor and of the runner, a pair a round."""
    torch: Any = importlib.import_module("torch")
    poptorch: Any = importlib.import_module("poptorch")
    runner: Any = importlib.import_module("model_runtime").ModelRunner
    executor = poptorch.inferenceModel(torch.nn.Linear(16, 32).eval())
    data = torch.randn(4, 16)
    executor(data)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "executable.popef")
        executor.save(str(file), export_model=False)
        inputs = {"input": data.numpy()}
        with runner(str(file)) as loaded:
            loaded.execute(inputs)
            return [
                (_time_calls(lambda: executor(data)), _time_calls(lambda: loaded.execute(inputs)))
                for _ in range(rounds)
            ]


def _time_calls(call: Callable[[], object]) -> float:
    start = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - start) / CALLS * 1e6


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--call-rounds", type=int, default=15, help="(default %(default)s)")
    parser.add_argument("--part", metavar="WHAT", help="only compile, or export to this file")
    options, _ = parser.parse_known_args()
    if options.part:
        print(time_compilation() if options.part == "compile" else time_export(Path(options.part)))
        return
    console = report.make_console()
    calls = compare_calls(options.call_rounds)
    table = report.make_table(
        f"Linear(16, 32): processor's us of a call, medians of {options.call_rounds} rounds",
        *("executor", "ModelRunner", "difference", "goal"),
    )
    further = [first - second for first, second in calls]
    table.add_row(
        *(f"{statistics.median(times):.0f}" for times in zip(*calls, strict=True)),
        report.describe_ratio(further, CALL_GOAL),
        report.describe_goal(further, CALL_GOAL),
    )
    console.print(table)
    if not options.rounds:
        return
    pairs = compare_compilations(options.rounds)
    table = report.make_table(
        f"BERT-base: processor's seconds to compile, medians of {options.rounds} rounds",
        *("poptorch", "torch.onnx.export + poprt", "ratio", "goal"),
    )
    ratios = [first / second for first, second in pairs]
    table.add_row(
        *(f"{statistics.median(times):.1f}" for times in zip(*pairs, strict=True)),
        report.describe_ratio(ratios, COMPILE_GOAL),
        report.describe_goal(ratios, COMPILE_GOAL),
    )
    console.print(table)


if __name__ == "__main__":
    main()
