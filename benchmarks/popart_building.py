"""Time to build and compile BERT-base with PopART's Builder, over that of poprt for the same file.

Each round runs two processes, one after the other: one builds the network with `popart.Builder`,
compiles it with `popart.InferenceSession` and exports PopEF; the other is `poprt` on the ONNX file
that the Builder wrote. Weights are random, in float.
"""

from __future__ import annotations

import argparse
import importlib
import math
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import report
from children import run_child
from rounds import Goal, parse_options

GOAL = Goal(1.3, at_most=True)
LIMIT_SECONDS = 600.0
LAYERS, HIDDEN, HEADS, WORDS, SEQUENCE = 12, 768, 12, 30522, 128


class Bert:
    """BERT's encoder for one sentence, built by PopART's Builder."""

    def __init__(self, popart: Any) -> None:
        self.builder = popart.Builder()
        self.standard = self.builder.aiOnnx
        self.words = self.builder.addInputTensor(popart.TensorInfo("INT32", [1, SEQUENCE]))
        self._values = np.random.default_rng(0).random(WORDS * HIDDEN, np.float32) - np.float32(0.5)

    def build(self) -> str:
        """Add all layers, and return the output."""
        table = self.weight(WORDS, HIDDEN)
        x = self.standard.gather([table, self.words], axis=0)
        x = self.norm(self.standard.add([x, self.weight(1, SEQUENCE, HIDDEN)]))
        for layer in range(LAYERS):
            with self.builder.nameScope(f"layer{layer}"):
                x = self.norm(self.standard.add([x, self.attend(x)]))
                x = self.norm(self.standard.add([x, self.feed(x)]))
        self.builder.addOutputTensor(x)
        return str(x)

    def weight(self, *shape: int) -> str:
        """Add a random weight, scaled so that products neither grow nor vanish."""
        values = self._values[: math.prod(shape)].reshape(shape)
        scaled = values / np.float32(math.sqrt(shape[0]))
        return str(self.builder.addInitializedInputTensor(scaled))

    def linear(self, x: str, source: int, target: int) -> str:
        """Add a product with a weight, and a bias."""
        y = self.standard.matmul([x, self.weight(source, target)])
        return str(self.standard.add([y, self.weight(target)]))

    def norm(self, x: str) -> str:
        """Normalise each word's vector."""
        rows = self.builder.reshape_const(self.standard, [x], [SEQUENCE, HIDDEN])
        scales = [self.weight(HIDDEN), self.weight(HIDDEN)]
        y = self.builder.aiGraphcore.groupnormalization([rows, *scales], 1)[0]
        return str(self.builder.reshape_const(self.standard, [y], [1, SEQUENCE, HIDDEN]))

    def attend(self, x: str) -> str:
        """Add self-attention."""
        shape, width = [1, SEQUENCE, HEADS, HIDDEN // HEADS], HIDDEN // HEADS
        query, key, value = (
            self.builder.reshape_const(self.standard, [self.linear(x, HIDDEN, HIDDEN)], shape)
            for _ in range(3)
        )
        query = self.standard.transpose([query], perm=[0, 2, 1, 3])
        key = self.standard.transpose([key], perm=[0, 2, 3, 1])
        value = self.standard.transpose([value], perm=[0, 2, 1, 3])
        scores = self.standard.matmul([query, key])
        root = self.standard.constant(np.array(math.sqrt(width), np.float32))
        scores = self.standard.div([scores, root])
        mixed = self.standard.matmul([self.standard.softmax([scores], axis=3), value])
        mixed = self.standard.transpose([mixed], perm=[0, 2, 1, 3])
        mixed = self.builder.reshape_const(self.standard, [mixed], [1, SEQUENCE, HIDDEN])
        return self.linear(mixed, HIDDEN, HIDDEN)

    def feed(self, x: str) -> str:
        """Add the two layers behind the attention."""
        y = self.builder.aiGraphcore.gelu([self.linear(x, HIDDEN, 4 * HIDDEN)])
        return self.linear(y, 4 * HIDDEN, HIDDEN)


def write_model(file: Path) -> None:
    """Build BERT and write its ONNX file."""
    bert = Bert(importlib.import_module("popart"))
    bert.build()
    file.write_bytes(bert.builder.getModelProto())


def build_and_export(file: Path) -> None:
    """Build, compile and export BERT."""
    popart: Any = importlib.import_module("popart")
    bert = Bert(popart)
    output = bert.build()
    device = popart.DeviceManager().createOfflineIPUDevice({"numIPUs": 1, "tilesPerIPU": 1472})
    flow = popart.DataFlow(1, {output: popart.AnchorReturnType("All")})
    session = popart.InferenceSession(bert.builder.getModelProto(), flow, device)
    session.compileAndExport(str(file))


def measure(command: list[str]) -> tuple[float, float]:
    """Return the seconds that a command takes, and those of the processor."""
    before = _processor_seconds()
    run = run_child([sys.executable, *command], LIMIT_SECONDS)
    if run.status != 0:
        raise SystemExit(f"benchmarks: {command}: status {run.status}: {run.errors[-500:]}")
    return run.seconds, _processor_seconds() - before


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--build", type=Path, metavar="FILE", help="only build this PopEF file")
    options = parse_options(parser, quick_rounds=1)
    if options.build:
        build_and_export(options.build)
        return
    table = report.make_table(
        f"BERT-base: popart.Builder beside poprt, medians of {options.rounds}",
        *("seconds", "popart", "poprt", "ratio", "goal"),
    )
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name, "bert.onnx"))
        poprt = ["-m", "poprt", "--input_model", f"{name}/bert.onnx"]
        poprt += ["--export_popef", "--output_dir", f"{name}/out"]
        pairs = [
            (measure([__file__, "--build", f"{name}/builder.popef"]), measure(poprt))
            for _ in range(options.rounds)
        ]
    for index, what in enumerate(("elapsed", "processor's")):
        ours = [first[index] for first, _ in pairs]
        theirs = [second[index] for _, second in pairs]
        ratios = [first / second for first, second in zip(ours, theirs, strict=True)]
        medians = [f"{statistics.median(times):.1f}" for times in (ours, theirs)]
        goal = report.describe_goal(ratios, GOAL)
        table.add_row(what, *medians, report.describe_ratio(ratios, GOAL), goal)
    report.make_console().print(table)


if __name__ == "__main__":
    main()
