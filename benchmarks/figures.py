"""Published figures of real IPUs and of Graphcore's own simulator, each beside the model's
prediction.

`benchmarks/data` has the figures with their sources, and `published_models.py`, which builds
networks as their exporters wrote them. They go through the converter like any user's model.
"""

from __future__ import annotations

import csv
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import networks
import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import graph_values, infer_shapes
from poplar_triton.profile.source import OnnxSource
from poprt.passes.precision.eight_bits import FloatToFp8, Fp8Params
from poprt.performance.model_profile import find_batch_size
from poprt.pipeline import estimate
from published import DATA, converter_options, published_models
from simipu.chip.target import TARGETS, Target
from simipu.cost import CALIBRATION, Calibration, CostOptions, Estimate
from simipu.operators.formulas.narrow import Narrow, plan_narrow
from simipu.operators.formulas.plan import PlanOptions, Product, amp_cycles, plan_product
from simipu.operators.formulas.products import find_sizes, iter_expanded

_BLOCK = 16
"""Input channels of halves that an AMP unit takes at a time."""
MK1, MK2, BOW, C600 = (TARGETS[name] for name in ("ipu1", "ipu2", "bow", "ipu21"))


@dataclass(frozen=True, slots=True)
class Point:
    """One published figure and the model's prediction."""

    network: str
    """Group that is left out together: figures of one network in several precisions are not
    independent."""
    family: str
    name: str
    predicted: float
    measured: float
    modelled: Estimate | None = None
    precision: str = "fp16"
    num_bytes: int = 0
    """Bytes of all tensors of the graph, weights and activations."""

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    @property
    def error(self) -> float:
        """Its distance from 1."""
        return abs(self.ratio - 1)

    @property
    def is_simulated(self) -> bool:
        """True if the figure is from Graphcore's simulator, not from a chip."""
        return self.network.startswith("simulator")


@dataclass(frozen=True, slots=True)
class Answer:
    """Modelled seconds, and the estimate that they are of."""

    seconds: float
    modelled: Estimate | None = None
    num_bytes: int = 0


def _answer(
    model: onnx.ModelProto,
    target: Target,
    options: CostOptions,
    calibration: Calibration,
    seconds: Callable[[Estimate], float],
) -> Answer:
    estimated = estimate(model, target, options, find_batch_size(model), calibration)
    num_bytes = sum(value.bytes for value in graph_values(infer_shapes(model).graph).values())
    return Answer(seconds(estimated), estimated, num_bytes)


Predict = Callable[[dict[str, Any], Calibration], Answer]


def iter_points(
    calibration: Calibration = CALIBRATION,
    networks_wanted: Callable[[str], bool] = lambda _network: True,
) -> Iterator[Point]:
    """Yield all figures that the model can predict, of the wanted networks."""
    yield from _iter_simulator_points(calibration, networks_wanted)
    for row in json.loads((DATA / "ipu-measured-calibration.json").read_text()):
        network, family, predict = _find_predictor(row)
        if predict is None or not networks_wanted(network):
            continue
        measured = _measured_seconds(row)
        if measured is not None:
            prediction = predict(row, calibration)
            precision = row["precision"][:4].strip().lower()
            yield Point(
                network,
                family,
                _name(row),
                prediction.seconds,
                measured,
                prediction.modelled,
                precision,
                prediction.num_bytes,
            )


def _find_predictor(row: dict[str, Any]) -> tuple[str, str, Predict | None]:
    metric = "latency" if row["group"] == "poprt/null-model" else "throughput"
    if row["metric"] != metric:
        return "", "", None
    return _PREDICTORS.get(row["group"], ("", "", None))


def _measured_seconds(row: dict[str, Any]) -> float | None:
    derived = row.get("derived", {})
    if "time_us" in derived:
        return float(derived["time_us"]) * 1e-6
    if "tile_cycles" in derived:
        return BOW.seconds(derived["tile_cycles"])
    if row["unit"] == "tokens/s":
        return float(row["batch_size"] / row["value"])
    if row["metric"] == "latency":
        return float(row["value"]) * 1e-3
    interval = row.get("batch_interval_ms") or row.get("derived", {}).get("batch_interval_ms")
    return None if interval is None else float(interval) * 1e-3


def _name(row: dict[str, Any]) -> str:
    parts = [
        str(row.get("variant") or row.get("shape") or row["model"])[:48],
        f"batch {row.get('batch_size', '-')}",
    ]
    return " ".join([*parts, "synthetic" if "synthetic" in row.get("io_mode", "") else ""]).strip()


_COMPILER_OPTIONS = (
    "partials_type",
    "num_io_tiles",
    "batches_per_step",
    "stream_buffering_depth",
    "available_memory_proportion",
    "use_128bit_conv_unit_load",
)


def _predict(
    row: Mapping[str, Any], model: onnx.ModelProto, calibration: Calibration, **options: Any
) -> Answer:
    compile_options = dict(row.get("compile_options") or {})
    compile_options["num_io_tiles"] = compile_options.get(
        "num_io_tiles", compile_options.get("num_iotiles", 0)
    )
    compile_options["partials_type"] = compile_options.get("partials_type", "half").split()[0]
    options = {
        name: compile_options[name] for name in _COMPILER_OPTIONS if name in compile_options
    } | options
    is_synthetic = "synthetic" in row.get("io_mode", "")
    return _answer(
        model,
        C600,
        CostOptions(**options),
        calibration,
        lambda found: found.compute_seconds if is_synthetic else found.seconds_per_batch,
    )


@lru_cache(maxsize=64)
def _converted(record: str) -> onnx.ModelProto:
    """Return the converted graph of a published run."""
    case = CASES[record]
    with tempfile.TemporaryDirectory() as folder:
        source = OnnxSource(Path(published_models.build(case, folder)["onnx"]), {})
        return source.convert(
            None, case["precision"], lambda _step: None, **converter_options(case["options"])
        )


def _published(row: dict[str, Any], calibration: Calibration) -> Answer:
    options = CASES[row["id"]]["options"]
    return _predict({"compile_options": options}, _converted(row["id"]), calibration)


def _iter_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the published runs by their record.

    They are those in `published_models`, and those of the same networks with other sizes and
    options.
    """
    for case in published_models.cases():
        yield case["record"], case
    half, squad = published_models.HALF, published_models.SQUAD
    for row in json.loads((DATA / "ipu-measured-calibration.json").read_text()):
        if row["metric"] != "throughput":
            continue
        sizes, options = {"S": row.get("seq_len")}, dict(half)
        if row["group"] == "poprt/bert-base-256/FP16":
            sizes["act"] = "gelu_tanh"
            options |= {**squad, "fuse_gelu": "gelu" in row["variant"]}
        elif row["group"] == "poprt/bert-base-128":
            options |= {**row["compile_options"], "fuse_gelu": True}
            options["custom_ops"] = ["pre_scale", "fused_attention"]
            if "left in fp32" in row["precision"]:
                options["fp32_ops"] = squad["fp32_ops"]
        elif row["group"] != "poprt/packed-bert-256/unpacked":
            continue
        case = {"batch_size": row["batch_size"], "precision": "fp16", "options": options}
        yield row["id"], {**case, "build": (published_models.bert, sizes)}


CASES = dict(_iter_cases())


def _resnet(row: dict[str, Any], calibration: Calibration) -> Answer:
    model = networks.resnet50(row["batch_size"])
    if row["precision"] == "FP8":
        _to_fp8(model, row.get("variant", ""))
    return _predict(row, model, calibration)


def _to_fp8(model: onnx.ModelProto, variant: str) -> None:
    """Convert the products to fp8 as the converter does, except those that `variant` keeps."""
    names = [node.name for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    # The export numbers all nodes: its Conv_13 is the first downsampling.
    float_layers = {"first conv": names[0], "conv_13": names[4], "last gemm": names[-1]}
    FloatToFp8(Fp8Params(), [name for words, name in float_layers.items() if words in variant]).run(
        model
    )


def _wide_deep(row: dict[str, Any], calibration: Calibration) -> Answer:
    return _predict(row, networks.wide_deep(row["batch_size"]), calibration)


def _gpt2(row: dict[str, Any], calibration: Calibration) -> Answer:
    """Predict a token of GPT-2; the loop over tokens runs on the device, so the host hardly
    counts."""
    model = networks.gpt2_step(row["batch_size"], row["max_length"], [0, 6, 7, 7, 7, 7, 7, 7])
    options = CostOptions(num_ipus=row["num_ipus"], virtual_graph_mode="manual")
    return _answer(model, C600, options, calibration, lambda found: found.compute_seconds)


def _vertex(row: dict[str, Any], calibration: Calibration) -> Answer:
    """Predict the cycles of the AMP vertex alone, on one block of weights."""
    rows = int(re.findall(r"\d+", row["shape"])[0])
    channels = 16
    load = channels * channels * 2 / BOW.coefficient_bytes_per_cycle
    one, product = np.ones(1), Product(1, rows, channels, channels)
    num_cycles = amp_cycles(
        product, rows * one, one, one, load, 1, BOW.workers_per_tile, calibration
    )
    return Answer(BOW.seconds(int(num_cycles[0])))


def _null(row: dict[str, Any], calibration: Calibration) -> Answer:
    net = networks.Builder()
    model = net.model(
        net.add("LeakyRelu", net.input("x", [row["batch_size"], 1], TensorProto.FLOAT))
    )
    return _answer(model, C600, CostOptions(), calibration, lambda found: found.latency_seconds)


def _gemm(row: dict[str, Any], calibration: Calibration) -> Answer:
    size, n = (int(number) for number in re.findall(r"\d+", row["shape"])[:2])
    element = TensorProto.FLOAT if row["precision"] == "FP32" else TensorProto.FLOAT16
    model = networks.matmul(size, size, n, element)
    return _answer(model, BOW, CostOptions(), calibration, lambda found: found.compute_seconds)


_PREDICTORS: dict[str, tuple[str, str, Predict]] = {
    "poprt/resnet50/FP32": ("ResNet-50", "ResNet-50 fp32 (C600)", _published),
    **dict.fromkeys(
        ("poprt/resnet50/FP16", "bytemlperf/resnet50-torch-fp32/FP16"),
        ("ResNet-50", "ResNet-50 fp16 (C600)", _resnet),
    ),
    **dict.fromkeys(
        ("poprt/resnet50/FP8", "bytemlperf/resnet50-torch-fp32/FP8"),
        ("ResNet-50", "ResNet-50 fp8 (C600)", _resnet),
    ),
    "poprt/bert-base-256/FP32": ("BERT", "BERT-base 256 fp32 (C600)", _published),
    **dict.fromkeys(
        ("poprt/bert-base-256/FP16", "poprt/packed-bert-256/unpacked"),
        ("BERT", "BERT-base 256 fp16 (C600)", _published),
    ),
    "poprt/bert-base-256/FP8": ("BERT", "BERT-base 256 fp8 (C600)", _published),
    **dict.fromkeys(
        ("poprt/bert-base-128", "poprt/bert-base-pack", "poprt/bert-large-128"),
        ("BERT", "BERT-base and -large 128 fp16 (C600)", _published),
    ),
    "poprt/roformer_v2_chinese_char_small": (
        "RoFormer",
        "RoFormer-v2-small fp16 (C600)",
        _published,
    ),
    "poprt/vit-base-patch16-224": ("ViT", "ViT-B/16 fp16 (C600)", _published),
    **dict.fromkeys(
        ("poprt/widedeep", "bytemlperf/widedeep-tf-fp32/FP16"),
        ("Wide&Deep", "Wide&Deep fp16 (C600)", _wide_deep),
    ),
    **dict.fromkeys(("gemm", "gemm-e2e"), ("dense products", "dense products (Bow)", _gemm)),
    "amp": ("one AMP vertex", "one AMP vertex (Bow)", _vertex),
    "poprt/null-model": ("an empty graph", "an empty graph (C600)", _null),
    "poptransformer/gpt2-xl/8x C600": ("GPT-2 XL", "GPT-2 XL, a token at a time (8 C600)", _gpt2),
}
"""Predictors by group of rows: network, family, and function.

Latencies with several clients at once are left out, and those of which the table does not say
whether they are a call's (resnet50). So is tut6, whose host prepares its data for most of the time.
"""


def _iter_simulator_points(
    calibration: Calibration, networks_wanted: Callable[[str], bool]
) -> Iterator[Point]:
    """Yield the figures of Graphcore's own simulator, operator by operator.

    They are fp16 with float partials, forward and (but for gemm) both gradients.
    """
    with (DATA / "poplibs-ipumodel-calibration.csv").open() as file:
        rows = list(csv.DictReader(file))
    for chip, column in ((MK2, "mk2_cycles"), (MK1, "mk1_cycles")):
        target = replace(chip, is_ipu_model=True)
        for row in rows:
            network, family = (
                f"simulator: {row['tool']}",
                f"simulator: {row['tool']} ({target.description})",
            )
            if not networks_wanted(network):
                continue
            if row["tool"] in _MODELS:
                model = _MODELS[row["tool"]](row)
                if model is not None:
                    tiles = int(_options(row).get("tiles-per-ipu", target.tiles_per_ipu))
                    cut = replace(target, tiles_per_ipu=tiles)
                    options = CostOptions(partials_type="float")
                    cycles = estimate(model, cut, options, calibration=calibration).cycles
                    yield Point(network, family, row["name"], cycles, float(row[column]))
                continue
            passes = _passes(row, target)
            if passes and row[column]:
                simulated = _simulated_cycles(
                    passes, row["tool"], target, calibration.of(target).planning
                )
                yield Point(network, family, row["name"], simulated, float(row[column]))


Way = Product | Narrow
"""One of the ways in which the planner can compute a pass."""


def _simulated_cycles(
    passes: list[list[Way]], tool: str, target: Target, calibration: Calibration
) -> float:
    """Return the cycles of all passes, each computed in its cheapest way."""

    def cycles(way: Way) -> int:
        if isinstance(way, Narrow):
            narrow = plan_narrow(way, target, calibration)
            assert narrow is not None
            return narrow.cycles(calibration, target)
        plan = plan_product(way, target, PlanOptions(), calibration)
        return plan.cycles + plan.steps * calibration.step_cycles(target)

    num_cycles: float = sum(min(map(cycles, ways)) for ways in passes)
    if tool == "gemm":  # adds its result to a third operand
        first = passes[0][0]
        assert isinstance(first, Product)
        num_cycles += 6 * (26 + math.ceil(first.rows * first.n / target.num_tiles / 24) * 3)
    return num_cycles


def _options(row: dict[str, str]) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+)[ =](\{[^}]*\}|[^\s-]\S*)", row["params"]))


def _recurrent(row: dict[str, str]) -> onnx.ModelProto | None:
    """Forward only; another order of the gates is the same row again."""
    options = _options(row)
    if options.get("phase") == "all" or "cell-order" in options:
        return None
    element = TensorProto.FLOAT if options["data-type"] == "float" else TensorProto.FLOAT16
    length, batch, width = (
        int(options[name]) for name in ("sequence-size", "batch-size", "input-size")
    )
    return networks.recurrent(row["tool"].upper(), length, batch, width, element)


def _reduction(row: dict[str, str]) -> onnx.ModelProto:
    shape, axes = (list(map(int, _options(row)[name].split(","))) for name in ("shape", "dims"))
    return networks.reduction(shape, axes)


_MODELS: dict[str, Callable[[dict[str, str]], onnx.ModelProto | None]] = {
    **dict.fromkeys(("lstm", "gru"), _recurrent),
    "reduction": _reduction,
}
"""Tools whose rows are single operators of inference. Left out are those that time gradients with
them (pooling, depthwise convolutions, embeddings) or have no operator in ONNX (CTC loss, solvers,
octave convolutions)."""


def _passes(row: dict[str, str], target: Target) -> list[list[Way]]:
    """Return the passes of a row, forward first, each with the ways to compute it."""
    options = _options(row)
    if row["tool"] == "gemm":
        m, k, n = (int(options[name]) for name in ("m", "k", "n"))
        return [[Product(1, m, k, n, 2, 4)]]
    if row["tool"] == "fc":
        batch, source, out = (
            int(options[name]) for name in ("batch-size", "input-size", "output-size")
        )
        element = 4 if options.get("data-type") == "float" else 2
        base = Product(int(options.get("num-groups", 1)), batch, source, out, element, 4)
        gradients = [replace(base, k=out, n=source), replace(base, rows=source, k=batch)]
        fully: list[list[Way]] = [[way] for way in (base, *gradients)]
        return fully[:1] if _is_forward(row) else fully
    if row["tool"] != "conv":
        return []
    field = _Field.of(options)
    if field.groups == 1:
        depthwise = _convolution(field, target)
    elif field.channels == (1, 1):
        depthwise = _depthwise(field)
    else:
        return []
    return depthwise[:1] if _is_forward(row) else depthwise


def _is_forward(row: dict[str, str]) -> bool:
    return "inference-only" in row["params"]


@dataclass(frozen=True, slots=True)
class _Field:
    """Sizes of a convolution of poplibs' tool."""

    groups: int
    channels: tuple[int, int]
    """Input and output channels of a group."""
    batch: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    result: tuple[int, int]

    @staticmethod
    def of(options: dict[str, str]) -> _Field:
        size, kernel = _pair(options["field"]), _pair(options["kernel-size"])
        stride, both = _pair(options.get("stride", "1")), options.get("padding", "0")
        lower, upper = (_pair(options.get(f"padding-{side}", both)) for side in ("lower", "upper"))
        height, width = (
            (size[i] + lower[i] + upper[i] - kernel[i]) // stride[i] + 1 for i in range(2)
        )
        channels = int(options["input-channels"]), int(options["output-channels"])
        return _Field(
            int(options.get("conv-groups", 1)),
            channels,
            int(options["batch-size"]),
            size,
            kernel,
            stride,
            (height, width),
        )


def _convolution(field: _Field, target: Target) -> list[list[Way]]:
    """Return the passes of a convolution, forward and the gradients of input and weights."""
    (height, width), (out_h, out_w), (source, out) = field.size, field.result, field.channels
    taps, rows = math.prod(field.kernel), field.batch * out_h * out_w
    halo = (
        1.0
        if taps == 1
        else height * width / (out_h * out_w) * (1 + 4 * (field.kernel[0] - 1) / height)
    )
    forward = Product(1, rows, source, out, 2, 4, taps, out_w, halo, convolution=True)
    gradient = forward
    if source < _BLOCK and field.kernel[0] > 1:
        packed = min(4 if source <= _BLOCK // 4 else 2, field.kernel[0])
        forward = replace(
            forward,
            k=source * packed,
            taps=math.ceil(field.kernel[0] / packed) * field.kernel[1],
        )
    sizes = find_sizes(field.size, field.result, field.kernel)
    ways = [forward, *iter_expanded(gradient, source, sizes, target)]
    in_rows = rows if taps == 1 else field.batch * height * width
    # Most positions of a kernel that is hardly smaller than its field, and not padded, meet only
    # padding of the gradient, which poplin truncates.
    met = math.prod(
        math.ceil(tap * min(1, result * stride / size))
        for size, result, tap, stride in zip(
            field.size, field.result, field.kernel, field.stride, strict=True
        )
    )
    backward = replace(
        forward,
        rows=in_rows,
        k=out,
        n=source,
        taps=math.ceil(met / math.prod(field.stride)),
        width=width,
        inputs_per_row=out_h * out_w / (height * width),
    )
    weights = Product(1, source * taps, rows, out, 2, 4, 1, 1, 1 / taps**0.5)
    passes: list[list[Way]] = [[*ways], [backward], [weights]]
    return passes


def _depthwise(field: _Field) -> list[list[Way]]:
    """Return the passes of a depthwise convolution. With a stride the gradients' input or kernel
    has gaps, so that no SLIC vertex can compute them; images are further rows of the kernel of
    weight gradients."""
    (height, width), (out_h, out_w), (rows, taps) = field.size, field.result, field.kernel
    stride, has_gaps = field.stride[0], field.stride[0] > 1
    forward = Narrow(
        field.groups, 1, field.batch * out_h, out_w, rows, taps, stride, stride, 2, 4, True
    )
    backward = replace(
        forward,
        rows=field.batch * height,
        width=width,
        kernel_rows=math.ceil(rows / stride),
        kernel_width=math.ceil(taps / stride),
        row_stride=1,
        stride=1,
        is_dilated=has_gaps,
    )
    weights = replace(
        backward,
        rows=rows,
        width=taps,
        kernel_rows=field.batch * out_h,
        kernel_width=out_w,
        is_dilated=True,
    )
    return [[forward], [backward], [weights]]


def _pair(text: str) -> tuple[int, int]:
    numbers = [int(number) for number in text.strip("{}").split(",")]
    return numbers[0], numbers[-1]
