"""Cost of exact products of 8-bit numbers: time of graphs with unsigned operands over that of the
same graphs as they are written, with ONNX Runtime, and of float products over OpenVINO's own.

    benchmarks/eight_bits.py [--rounds N] [--seconds S] [--threads N]

Where products of uint8 and int8 saturate (`simipu.saturation`) the graphs as written are wrong, and
the others are served; elsewhere those as written are. OpenVINO's part is measured as on a processor
without VNNI, by its own switch. Rounds are interleaved; a ratio is that of the best times.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from simipu import GraphOptions
from simipu.engines.computed import Lowered, make_graph
from simipu.numerics import lower
from simipu.saturation import products_saturate

Array = npt.NDArray[Any]
Run = Callable[[], object]
OPSET = 17
NO_VNNI = "AVX512_CORE"
"""Instructions of processors before VNNI, as oneDNN's limit."""
SIZES = ((1, 768, 768), (16, 768, 768), (128, 768, 3072))
"""Rows, terms and columns: products of BERT-base for a token, a sentence and several."""
FIELD = (64, 56)
"""Channels and width of a picture: those of ResNet-50's first blocks."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and its inputs."""

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]


def make_subjects() -> Iterator[Subject]:
    """Yield products of each form: of integers, dynamically quantized and quantized, with a
    constant right operand and, of integers, with two inputs."""
    rng, node = np.random.default_rng(0), helper.make_node
    scalars = {"s": np.float32(0.02), "z": np.uint8(128), "m": np.int8(0), "t": np.float32(2)}
    quantize = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s", "m"], ["v"]),
    ]
    requantize = [
        node("QuantizeLinear", ["f", "t", "z"], ["r"]),
        node("DequantizeLinear", ["r", "t", "z"], ["y"]),
    ]
    dynamic = [
        node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        node("MatMulInteger", ["q", "w", "qz", "m"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["qs", "s"], ["scale"]),
        node("Mul", ["f", "scale"], ["y"]),
    ]
    scaled = ["x", "s", "z", "w", "s", "m", "t", "z"]
    for rows, terms, columns in SIZES:
        x = rng.standard_normal((rows, terms)).astype(np.float32)
        codes = rng.integers(0, 256, x.shape, np.uint8)
        w = rng.integers(-127, 128, (terms, columns), np.int8)
        size = f"[{rows}, {terms}] x [{terms}, {columns}]"
        product = [node("MatMulInteger", ["x", "w", "z", "m"], ["y"])]
        yield _subject(f"MatMulInteger {size}", product, {"x": codes}, {"w": w, **scalars})
        yield _subject(f"MatMulInteger, two inputs {size}", product, {"x": codes, "w": w}, scalars)
        product = [node("QLinearMatMul", scaled, ["y"])]
        yield _subject(f"QLinearMatMul {size}", product, {"x": codes}, {"w": w, **scalars})
        yield _subject(f"dynamic MatMul {size}", dynamic, {"x": x}, {"w": w, **scalars})
        product = [*quantize, node("MatMul", ["d", "v"], ["f"]), *requantize]
        yield _subject(f"QDQ MatMul {size}", product, {"x": x}, {"w": w, **scalars})
    channels, width = FIELD
    field = rng.standard_normal((1, channels, width, width)).astype(np.float32)
    codes = rng.integers(0, 256, field.shape, np.uint8)
    w = rng.integers(-127, 128, (channels, channels, 3, 3), np.int8)
    constants = {"w": w, **scalars}
    product = [node("QLinearConv", scaled, ["y"], pads=[1] * 4)]
    yield _subject(f"QLinearConv 3x3 {codes.shape}", product, {"x": codes}, constants)
    product = [*quantize, node("Conv", ["d", "v"], ["f"], pads=[1] * 4), *requantize]
    yield _subject(f"QDQ Conv 3x3 {codes.shape}", product, {"x": field}, constants)


def _subject(
    name: str,
    nodes: list[onnx.NodeProto],
    feeds: Mapping[str, Array],
    constants: Mapping[str, npt.ArrayLike],
) -> Subject:
    infos = [
        helper.make_tensor_value_info(
            key, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for key, value in feeds.items()
    ]
    kinds = {"MatMulInteger": TensorProto.INT32, "QLinearMatMul": TensorProto.UINT8}
    kind = kinds.get(nodes[-1].op_type, TensorProto.FLOAT)
    kind = TensorProto.UINT8 if nodes[-1].op_type == "QLinearConv" else kind
    output = helper.make_tensor_value_info("y", kind, None)
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "product", infos, [output], tensors)
    opsets = [helper.make_opsetid("", OPSET)]
    return Subject(name, helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds)


def open_onnxruntime(subject: Subject, num_threads: int) -> tuple[Run, Run]:
    """Return runs of the graph as written, and with unsigned operands."""
    models = subject.model, lower(subject.model, None, saturates=lambda _node: True)
    options = GraphOptions(num_threads)
    graphs = [make_graph(Lowered(model.SerializeToString(), {}), options, "") for model in models]
    first, second = (_bind(graph.run, ["y"], subject.feeds) for graph in graphs)
    return first, second


def open_openvino(subject: Subject, num_threads: int) -> tuple[Run, Run]:
    """Return runs with OpenVINO's products of codes, and with its float products."""
    import openvino

    core, requests = openvino.Core(), []
    for multiplies_codes in (True, False):
        settings = {"INFERENCE_NUM_THREADS": num_threads, "INFERENCE_PRECISION_HINT": "f32"}
        settings["LP_TRANSFORMS_MODE"] = multiplies_codes
        read = core.read_model(subject.model.SerializeToString())
        requests.append(core.compile_model(read, "CPU", settings).create_infer_request())
    first, second = (_bind(request.infer, dict(subject.feeds)) for request in requests)
    return first, second


def _bind(function: Callable[..., object], *arguments: object) -> Run:
    return lambda: function(*arguments)


def measure(run: Run, seconds: float) -> float:
    """Return the best time of runs for so long."""
    best, end = math.inf, time.perf_counter() + seconds
    while math.isinf(best) or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def compare(runs: tuple[Run, Run], rounds: int, seconds: float) -> tuple[float, float]:
    """Return the best time of the first, in seconds, and the ratio of the second's to it."""
    for run in runs:
        run()
    pairs = [[measure(run, seconds) for run in runs] for _ in range(rounds)]
    first, second = (min(times) for times in zip(*pairs, strict=True))
    return first, second / first


def main() -> None:
    """Print one line for each product and engine."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=0.05, help="seconds of a measurement")
    parser.add_argument("--threads", type=int, default=1, help="threads of a product")
    options = parser.parse_args()
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", NO_VNNI)
    print(f"products of uint8 and int8 saturate in ONNX Runtime: {products_saturate()}")
    for subject in make_subjects():
        engines = {"ONNX Runtime, unsigned operands": open_onnxruntime}
        if "QDQ" in subject.name:
            engines["OpenVINO, float products"] = open_openvino
        for words, open_runs in engines.items():
            runs = open_runs(subject, options.threads)
            best, ratio = compare(runs, options.rounds, options.seconds)
            print(f"{subject.name:55} {words:35} {best * 1e3:8.3f} ms x {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
