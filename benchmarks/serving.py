"""Serving against the floor: the leanest Python-backend model with the same input, measured side by side in one run.

Three models in one server: `floor`, an identity model of the python backend; `nothing`, an executable that does next to
nothing on the poplar backend (what the backend itself costs); and an example model (what its arithmetic costs).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import perf_analyzer
from onnx import TensorProto, helper
from poprt import Compiler, Converter
from poprt.triton_model import write_triton_model
from rich.console import Console
from rich.table import Table
from triton_poplar.server import TritonServer

EXAMPLES = Path(__file__).parents[1] / "model_repository"
EXAMPLE = "magika"
WIDTH = 2048
FLOOR = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        Response, Tensor = pb_utils.InferenceResponse, pb_utils.Tensor
        return [Response([Tensor("output", request.inputs()[0].as_numpy())]) for request in requests]
"""
FLOOR_CONFIG = """
backend: "python"
max_batch_size: 16000
dynamic_batching {{}}
input [{{ name: "input" data_type: TYPE_INT32 dims: [ {width} ] }}]
output [{{ name: "output" data_type: TYPE_INT32 dims: [ {width} ] }}]
instance_group [{{ kind: KIND_CPU }}]
"""


def write_repository(repository: Path) -> None:
    """The three models; all take INT32 rows of WIDTH elements."""
    floor = repository / "floor" / "1"
    floor.mkdir(parents=True)
    (floor / "model.py").write_text(FLOOR)
    (repository / "floor" / "config.pbtxt").write_text(FLOOR_CONFIG.format(width=WIDTH))
    shape = (TensorProto.INT32, ["n", WIDTH])
    graph = helper.make_graph(
        [helper.make_node("Neg", ["input"], ["output"])],
        "nothing",
        [helper.make_tensor_value_info("input", *shape)],
        [helper.make_tensor_value_info("output", *shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    write_triton_model(Compiler.compile(Converter(batch_size=16).convert(model)), repository / "nothing")
    shutil.copytree(EXAMPLES / EXAMPLE, repository / EXAMPLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    models = ("floor", "nothing", EXAMPLE)
    seen: dict[tuple[str, int], list[perf_analyzer.Measurement]] = {}
    perf_analyzer.prepare()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        write_repository(repository)
        with TritonServer(repository, log=Path(folder, "log")) as server:
            for _ in range(options.rounds):
                for concurrency in options.concurrency:
                    for model in models:
                        found = perf_analyzer.measure(server.grpc_url, model, concurrency, seconds=options.seconds)
                        seen.setdefault((model, concurrency), []).append(found)
    table = Table(title=f"gRPC, 1 row of {WIDTH * 4} bytes per request; medians of {options.rounds} interleaved rounds")
    for column in ("concurrency", "model", "requests/s", "p50 us", "p99 us", "throughput / floor", "p99 / floor"):
        table.add_column(column, justify="right")
    for concurrency in options.concurrency:
        for model in models:
            runs, floor = seen[model, concurrency], seen["floor", concurrency]
            pairs = list(zip(runs, floor, strict=True))
            table.add_row(
                str(concurrency),
                model,
                f"{statistics.median(run.per_second for run in runs):.0f}",
                f"{statistics.median(run.p50_us for run in runs):.0f}",
                f"{statistics.median(run.p99_us for run in runs):.0f}",
                f"{statistics.median(run.per_second / base.per_second for run, base in pairs):.2f}",
                f"{statistics.median(run.p99_us / base.p99_us for run, base in pairs):.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
