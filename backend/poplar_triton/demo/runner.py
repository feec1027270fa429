"""Demonstrations against a running server: every case over HTTP and gRPC, compared with ONNX
Runtime.

The reference runs the original ONNX file, which the compiler has not changed, on the same prepared
inputs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from poprt.terminal import cell
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from popef._tools.arrays import Array
from popef.name_map import read_names

from .. import recipes
from ..errors import RecipeError
from . import examples
from .example import HALF_TOLERANCE, Case, Example, Tensors, together

# Single precision: only the order of additions differs from ONNX Runtime's own.
FP32_TOLERANCE = 1e-4
# Number of timed requests per case and protocol, after one that is not timed.
TIMED = 3
# Maximum number of answers that are shown of a case with many rows.
SHOWN = 6

IpuSeconds = Callable[[str, int], float]
Send = Callable[[Case], Tensors]


@dataclass(frozen=True, slots=True)
class Server:
    """Tensors that a running server declares for one model, and the clients that send requests to
    it."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    http: Any
    grpc: Any

    @property
    def half(self) -> bool:
        """Whether any output is in half precision."""
        return "FP16" in self.outputs.values()

    def ask_http(self, case: Case) -> Tensors:
        """Return the answer over HTTP."""
        return self._ask(self.http, httpclient, case)

    def ask_grpc(self, case: Case) -> Tensors:
        """Return the answer over gRPC."""
        return self._ask(self.grpc, grpcclient, case)

    def _ask(self, client: Any, protocol: Any, case: Case) -> Tensors:
        inputs = []
        for name, array in case.inputs.items():
            tensor = protocol.InferInput(name, list(array.shape), self.inputs[name])
            tensor.set_data_from_numpy(array.astype(triton_to_np_dtype(self.inputs[name])))
            inputs.append(tensor)
        answer = client.infer(self.model, inputs)
        return {name: answer.as_numpy(name) for name in self.outputs}


@dataclass(frozen=True, slots=True)
class OriginalModel:
    """Original model under ONNX Runtime, by the friendly names."""

    session: Any
    names: dict[str, str]

    def run(self, case: Case) -> Tensors:
        """Return the reference's answer."""
        outputs = [
            result.name for result in self.session.get_outputs() if result.name in self.names
        ]
        onnx_names = {friendly: name for name, friendly in self.names.items()}
        inputs = {onnx_names[name]: array for name, array in case.inputs.items()}
        arrays = self.session.run(outputs, inputs)
        return {self.names[name]: array for name, array in zip(outputs, arrays, strict=True)}


@dataclass(slots=True)
class ComparisonResult:
    """Result of comparing a model's outputs with the reference so far."""

    relative: float
    scaled_from_one: bool
    worst: float = 0.0
    allowed_there: float = 0.0
    failures: list[str] | None = None

    def fail(self, text: str) -> None:
        """Record a difference from the reference."""
        self.failures = [*(self.failures or []), text]

    def tolerance(self, reference: Array) -> float:
        """Return the largest error allowed for an output with this reference."""
        size = float(np.abs(reference).max(initial=0))
        return self.relative * (max(1.0, size) if self.scaled_from_one else size)

    def compare(self, where: str, name: str, got: Array | None, reference: Array) -> bool:
        """Return whether an output is close enough. Otherwise record a failure."""
        if got is None or got.shape != reference.shape:
            shape = "nothing" if got is None else list(got.shape)
            expected = f"expected shape {list(reference.shape)}"
            self.fail(f"{where}, output {name}: {expected}, got {shape}")
            return False
        # A NaN in the answer must fail, although every comparison with NaN is false.
        error = float(np.abs(got.astype(np.float64) - reference).max(initial=0))
        allowed = self.tolerance(reference)
        if not (error <= self.worst or math.isnan(self.worst)):
            self.worst, self.allowed_there = error, allowed
        if not error <= allowed:
            self.fail(f"{where}, output {name}: error {error:.3g}, tolerance {allowed:.3g}")
            return False
        return True


def verdict_for(half: bool, half_tolerance: float = HALF_TOLERANCE) -> ComparisonResult:
    """Return an empty verdict with the tolerance of a precision."""
    return (
        ComparisonResult(half_tolerance, False) if half else ComparisonResult(FP32_TOLERANCE, True)
    )


def run(
    http_url: str,
    grpc_url: str,
    repository: Path,
    console: Console,
    *,
    ipu_seconds: IpuSeconds,
    cache: Path | None = None,
) -> bool:
    """Run every example model of a repository. Return True if every output equals ONNX Runtime's
    within tolerance.

    `ipu_seconds(model, rows)` is the modelled time of the chip for a request.
    """
    equal, cache = True, cache or recipes.default_cache(repository)
    with (
        httpclient.InferenceServerClient(http_url) as http,
        grpcclient.InferenceServerClient(grpc_url) as grpc,
    ):
        for example in examples(repository):
            try:
                reference = load_reference(example.model, repository, cache)
                server = ask_metadata(example.model, http, grpc)
            except (InferenceServerException, OSError, RecipeError) as error:
                text = cell(f"{example.model}: cannot be shown: {error}")
                console.print(text, style="red", soft_wrap=True)
                equal = False
                continue
            equal &= show(example, server, reference, console, ipu_seconds)
    return equal


def load_reference(model: str, repository: Path, cache: Path) -> OriginalModel:
    """Load the original of a model, and fetch it first if it is not in the cache."""
    (recipe,) = recipes.read_recipes(repository, [model])
    names = read_names(recipe.directory / "1" / "name_map.json")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    path = recipes.fetch(recipe, cache)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return OriginalModel(session, names)


def ask_metadata(model: str, http: Any, grpc: Any) -> Server:
    """Return the model's tensors as the server declares them."""
    metadata = http.get_model_metadata(model)
    inputs, outputs = (
        {tensor["name"]: tensor["datatype"] for tensor in metadata[key]}
        for key in ("inputs", "outputs")
    )
    return Server(model, inputs, outputs, http, grpc)


def show(
    example: Example,
    server: Server,
    reference: OriginalModel,
    console: Console,
    ipu_seconds: IpuSeconds,
) -> bool:
    """Print one model's table and its verdict. Return False if anything differs or fails."""
    table = Table(title=cell(example.model), title_justify="left")
    table.add_column("case")
    table.add_column("answer")
    for name in ("rows", "HTTP", "gRPC", "IPU time (modelled)"):
        table.add_column(name, justify="right")
    verdict = verdict_for(server.half, example.half_tolerance)
    cases = example.cases()
    if missing := cases[0].inputs.keys() - server.inputs.keys():
        verdict.fail(
            f"{example.model}: the server's model has no input {', '.join(sorted(missing))}; see "
            "config.pbtxt"
        )
        return report(example.model, verdict, console)
    with console.status(cell(f"{example.model}: sending requests")):
        for case in [*cases, together(cases)]:
            for row in _iter_rows(example, server, reference, verdict, case, ipu_seconds):
                table.add_row(*(Text("\n").join(map(cell, text.split("\n"))) for text in row))
    console.print(table)
    return report(example.model, verdict, console)


def _iter_rows(
    example: Example,
    server: Server,
    reference: OriginalModel,
    verdict: ComparisonResult,
    case: Case,
    ipu_seconds: IpuSeconds,
) -> Iterator[Sequence[str]]:
    expected = reference.run(case)
    answer: list[str] = []
    latencies = []
    asks: dict[str, Send] = {"HTTP": server.ask_http, "gRPC": server.ask_grpc}
    for protocol, ask in asks.items():
        where = f"{example.model}, {case.title}, {protocol}"
        try:
            outputs, seconds = timed(ask, case)
        except (InferenceServerException, OSError) as error:
            verdict.fail(f"{where}: {error}")
            latencies.append("failed")
            continue
        latencies.append(f"{1e3 * seconds:.1f} ms")
        references = expected.items()
        near = [
            verdict.compare(where, name, outputs.get(name), reference)
            for name, reference in references
        ]
        if all(near):
            compare_decisions(example, outputs, expected, verdict, where)
            answer = example.describe(outputs, case)
    if len(answer) > SHOWN:
        answer = [*answer[: SHOWN - 1], f"... and {len(answer) - SHOWN + 1} more"]
    modelled = f"{1e6 * ipu_seconds(example.model, case.rows):.0f} us"
    yield case.title, "\n".join(answer) or "none", str(case.rows), *latencies, modelled


def timed(ask: Send, case: Case) -> tuple[Tensors, float]:
    """Return the first answer, and the median duration in seconds of the requests after it."""
    outputs = ask(case)
    durations = []
    for _ in range(TIMED):
        start = time.perf_counter()
        ask(case)
        durations.append(time.perf_counter() - start)
    return outputs, statistics.median(durations)


def compare_decisions(
    example: Example, outputs: Tensors, expected: Tensors, verdict: ComparisonResult, where: str
) -> None:
    """Record a failure if the answers in words differ."""
    got, expected_decision = example.decide(outputs), example.decide(expected)
    if got != expected_decision:
        verdict.fail(f"{where}: answers {got}, ONNX Runtime answers {expected_decision}")


def report(model: str, verdict: ComparisonResult, console: Console) -> bool:
    """Print the verdict in words, with every failure, and return whether all outputs are equal."""
    equal = not verdict.failures
    kind = "max(1, largest value)" if verdict.scaled_from_one else "the largest value"
    text = (
        f"{model}: equal to ONNX Runtime within {verdict.relative:g} of {kind}: "
        f"{'yes' if equal else 'no'}"
        f" (max error {verdict.worst:.2g}, allowed there {verdict.allowed_there:.2g})"
    )
    console.print(cell(text), style="green" if equal else "red", soft_wrap=True)
    for failure in verdict.failures or ():
        console.print(cell(f"  {failure}"), style="red", soft_wrap=True)
    return equal
