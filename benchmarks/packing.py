"""Overhead of poprt.runtime over model_runtime: a Runner's throughput beside a ModelRunner's, and
the cost of packing a request.

Packing is measured against a device that costs nothing. The runners take turns in every round, so
that the machine's other work affects both alike. The lengths of samples are those of the published
packing example: normal around half of the longest, with the same deviation, cut at 1 and the
longest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from model_runtime import DataDesc, ModelRunner, OutputFutureMemory, OutputMemory
from model_runtime.runner import Promise
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions
from poprt.runtime import PackAlgorithm, PackRunnerConfig, Runner
from poprt.runtime.pack_flow import PackFlow

import popef

ROWS, PLACES, MAX_SAMPLES = 16, 256, 40
NAMES = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
OUTPUTS = ("start_logits", "end_logits")
GOAL_RATIO, GOAL_US = 0.95, 50.0
Arrays = Mapping[str, npt.NDArray[Any]]


class FreeDevice:
    """Looks like a ModelRunner of the published example, and answers at once with zeros."""

    def __init__(self, *, unpacks: bool) -> None:
        self._inputs = [_describe(name, (ROWS, PLACES), popef.DataType.S32) for name in NAMES]
        if unpacks:
            self._inputs.append(_describe("unpack_info", (MAX_SAMPLES, 1), popef.DataType.S32))
        shape = (MAX_SAMPLES if unpacks else ROWS, PLACES)
        self._outputs = [_describe(name, shape, popef.DataType.F16) for name in OUTPUTS]
        self._results: Any = {name: np.zeros(shape, np.float16) for name in OUTPUTS}
        self.runs = 0

    def getExecuteInputs(self) -> list[DataDesc]:
        """Return the inputs of the example."""
        return self._inputs

    def getExecuteOutputs(self) -> list[DataDesc]:
        """Return the outputs of the example."""
        return self._outputs

    def executeAsync(self, _inputs: Arrays) -> OutputFutureMemory:
        """Return zeros."""
        self.runs += 1
        promise = Promise()
        promise.set_result(OutputMemory(self._results))
        return OutputFutureMemory(OUTPUTS, promise, self)

    def close(self) -> None:
        """Do nothing."""


def _describe(name: str, shape: tuple[int, ...], data_type: popef.DataType) -> DataDesc:
    return DataDesc(name, 0, shape, data_type)


def measure_packing(algorithm: PackAlgorithm, requests: int) -> tuple[float, float]:
    """Return the microseconds of CPU time of a request, and the share of places that samples fill.

    The calling thread takes all of that time, because the device answers at once.
    """
    unpacks = algorithm is PackAlgorithm.end_to_end
    config = PackRunnerConfig(1_000_000, MAX_SAMPLES, NAMES[0], algorithm=algorithm)
    if not unpacks:
        config.enable_input_single_row_mode(NAMES[1])
    device = FreeDevice(unpacks=unpacks)
    flow = PackFlow(device, config)  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    lengths = np.clip(random.normal(PLACES // 2, PLACES // 2, requests), 1, PLACES).astype(int)
    samples = [dict.fromkeys(NAMES, np.ones(length, np.int32)) for length in lengths]
    places = [{name: np.zeros(PLACES, np.float16) for name in OUTPUTS} for _ in samples]
    start = time.thread_time()
    futures = [flow.executeAsync(*arguments) for arguments in zip(samples, places, strict=True)]
    seconds = time.thread_time() - start
    sent = device.runs
    flow.close()
    done = sum(future.done() for future in futures)
    assert done == requests
    return seconds / requests * 1e6, int(lengths.sum()) / ((sent + 1) * ROWS * PLACES)


def double_model() -> onnx.ModelProto:
    """Return y = 2x, of rows as small as the serving benchmark's."""
    shape = [16, 256]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure_runners(rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """Return a Runner's throughput over a ModelRunner's, and the ModelRunner's over itself, in each
    round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "executable.popef")
        Compiler.compile_and_export(double_model(), None, path, CompilerOptions())
        inner, outer = ModelRunner(path), Runner(path)
        arrays = {"x": np.ones((16, 256), np.float32)}, {"y": np.zeros((16, 256), np.float32)}
        ratios, chance = [], []
        for _ in range(rounds + 1):
            before = _ask(lambda: inner.execute(*arrays), seconds)
            outer_rate = _ask(lambda: outer.execute(*arrays), seconds)
            after = _ask(lambda: inner.execute(*arrays), seconds)
            ratios.append(outer_rate / (before * after) ** 0.5)
            chance.append(after / before)
        inner.close()
        outer.close()
        return ratios[1:], chance[1:]


def _ask(call: Callable[[], object], seconds: float) -> float:
    """Return the number of calls in a second of CPU time of all threads, which excludes other work
    of the machine."""
    count, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        call()
        count += 1
    return count / (time.process_time() - start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=0.2, metavar="S", help="of each measurement"
    )
    options = parser.parse_args(arguments)
    ratios, chance = measure_runners(options.rounds, options.seconds)
    ratio = statistics.median(ratios)
    print(
        f"Runner over ModelRunner: {ratio:.3f} (rounds {min(ratios):.3f}..{max(ratios):.3f}; the "
        "ModelRunner "
        f"over itself {min(chance):.3f}..{max(chance):.3f}); goal: at least {GOAL_RATIO}"
    )
    costs = []
    for algorithm in PackAlgorithm:
        measurements = [measure_packing(algorithm, options.requests) for _ in range(3)]
        costs.append(statistics.median(cost for cost, _ in measurements))
        print(
            f"{algorithm.name}: {costs[-1]:.1f} us a request "
            f"({min(measurements)[0]:.1f}..{max(measurements)[0]:.1f}; goal: at most "
            f"{GOAL_US:.0f}), "
            f"{measurements[0][1]:.1%} of the places filled"
        )
    return 0 if ratio >= GOAL_RATIO and max(costs) <= GOAL_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
