"""The cost model beside published measurements of real IPUs and beside Graphcore's own simulator.

`benchmarks/data` has the figures with their sources. Prints, for each family, the median of predicted over
measured time, the median absolute error, and how many are within 10 and 25 %. The few fitted constants
(`simipu.cost.Calibration` says which) were chosen on these rows, so a row here is a check of the fit, not a
blind test.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networks
import numpy as np
import onnx
from onnx import TensorProto
from poprt.passes.precision import FloatToFp8, Fp8Params
from poprt.pipeline import estimate
from rich.console import Console
from rich.table import Table
from simipu.cost import CALIBRATION, Calibration, CostOptions
from simipu.operators.formulas.plan import PlanOptions, Product, amp_cycles, plan_product
from simipu.operators.formulas.vertices import TRANSFORM
from simipu.target import TARGETS, Target

_BLOCK = 16
"""Input channels of halves that an AMP unit takes at a time."""
_NEAR = 0.25
"""The error up to which a prediction counts as right."""
_PLANNED_CYCLES = (700, 1_000, 1_150, 1_300, 1_450, 1_600, 1_800, 2_000)
"""Values tried for the constant that is fitted to all families at once."""

DATA = Path(__file__).with_name("data")
MK1, MK2, BOW, C600 = (TARGETS[name] for name in ("ipu1", "ipu2", "bow", "ipu21"))


@dataclass(frozen=True, slots=True)
class Point:
    """One published figure and what the model says."""

    family: str
    name: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


def iter_points(calibration: Calibration = CALIBRATION) -> Iterator[Point]:
    """All figures that the model can be asked for."""
    yield from _iter_simulator_points(calibration)
    for row in json.loads((DATA / "ipu-measured-calibration.json").read_text()):
        predict = _PREDICTORS.get(row["group"])
        metric = "latency" if row["group"] == "poprt/null-model" else "throughput"
        if predict is None or row["metric"] != metric:
            continue
        measured = _measured_seconds(row)
        if measured is not None:
            yield Point(row["group"], _name(row), predict(row, calibration), measured)


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


def _predict(row: dict[str, Any], model: onnx.ModelProto, calibration: Calibration, **options: Any) -> float:
    found = row.get("compile_options", {})
    tiles = found.get("num_io_tiles", found.get("num_iotiles", 0))
    options |= {"num_io_tiles": tiles, "batches_per_step": found.get("batches_per_step", 64)}
    options["available_memory_proportion"] = found.get("available_memory_proportion", 0.6)
    options["use_128bit_conv_unit_load"] = bool(found.get("use_128bit_conv_unit_load"))
    result = estimate(model, C600, CostOptions(**options), calibration=calibration)
    return result.compute_seconds if "synthetic" in row.get("io_mode", "") else result.seconds_per_batch


def _resnet(row: dict[str, Any], calibration: Calibration) -> float:
    model = networks.resnet50(row["batch_size"])
    if row["precision"] == "FP8":
        _to_fp8(model, row.get("variant", ""))
    return _predict(row, model, calibration)


def _to_fp8(model: onnx.ModelProto, variant: str) -> None:
    """The products become fp8 as the converter makes them, but of those that `variant` keeps."""
    names = [node.name for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    # The 13th in order, or the 14th: the one of those that is at the peak of memory.
    kept = {"first conv": names[0], "conv_13": names[12], "last gemm": names[-1]}
    FloatToFp8(Fp8Params(), [name for words, name in kept.items() if words in variant]).run(model)


def _bert(row: dict[str, Any], calibration: Calibration) -> float:
    sequence, variant = row["seq_len"], row.get("variant", "")
    if row["group"] == "poprt/bert-base-128":
        model = networks.bert_base(row["batch_size"], sequence)
        return _predict(
            row,
            model,
            calibration,
        )
    fused = "gelu" in variant or "Original" in variant
    model = networks.bert_base(row["batch_size"], sequence, fused_gelu=fused, fused_norm=False)
    return _predict(row, model, calibration)


def _wide_deep(row: dict[str, Any], calibration: Calibration) -> float:
    return _predict(row, networks.wide_deep(row["batch_size"]), calibration)


def _gpt2(row: dict[str, Any], calibration: Calibration) -> float:
    """A token; the loop over tokens runs on the device, so that the host hardly counts."""
    model = networks.gpt2_step(row["batch_size"], row["max_length"], [0, 6, 7, 7, 7, 7, 7, 7])
    options = CostOptions(num_ipus=row["num_ipus"], virtual_graph_mode="manual")
    return estimate(model, C600, options, calibration=calibration).compute_seconds


def _vertex(row: dict[str, Any], calibration: Calibration) -> float:
    """Cycles of the AMP vertex alone, on one block of weights."""
    rows = int(re.findall(r"\d+", row["shape"])[0])
    channels = 16
    load = channels * channels * 2 / BOW.coefficient_bytes_per_cycle
    one, product = np.ones(1), Product(1, rows, channels, channels)
    found = amp_cycles(product, rows * one, one, one, load, 1, BOW.workers_per_tile, calibration)
    return BOW.seconds(int(found[0]))


def _null(row: dict[str, Any], calibration: Calibration) -> float:
    net = networks.Builder()
    model = net.model(net.add("LeakyRelu", net.input("x", [row["batch_size"], 1], TensorProto.FLOAT)))
    return estimate(model, C600, calibration=calibration).latency_seconds


def _gemm(row: dict[str, Any], calibration: Calibration) -> float:
    size, n = (int(number) for number in re.findall(r"\d+", row["shape"])[:2])
    element = TensorProto.FLOAT if row["precision"] == "FP32" else TensorProto.FLOAT16
    model = networks.matmul(size, size, n, element)
    return estimate(model, BOW, calibration=calibration).compute_seconds


_PREDICTORS: dict[str, Callable[[dict[str, Any], Calibration], float]] = {
    **dict.fromkeys(("poprt/resnet50/FP16", "poprt/resnet50/FP8"), _resnet),
    **dict.fromkeys(("bytemlperf/resnet50-torch-fp32/FP16", "bytemlperf/resnet50-torch-fp32/FP8"), _resnet),
    **dict.fromkeys(
        ("poprt/bert-base-256/FP16", "poprt/bert-base-128", "poprt/packed-bert-256/unpacked"), _bert
    ),
    **dict.fromkeys(("poprt/widedeep", "bytemlperf/widedeep-tf-fp32/FP16"), _wide_deep),
    **dict.fromkeys(("gemm", "gemm-e2e"), _gemm),
    "amp": _vertex,
    "poprt/null-model": _null,
    "poptransformer/gpt2-xl/8x C600": _gpt2,
}
"""By group of rows. Left out are latencies with several clients at once, or of which the table does not say
whether they are a call's (resnet50), and tut6, whose host prepares its data for most of the time."""


def _iter_simulator_points(calibration: Calibration) -> Iterator[Point]:
    """Graphcore's own simulator, operator by operator: fp16 with float partials, forward and (but for gemm)
    both gradients."""
    with (DATA / "poplibs-ipumodel-calibration.csv").open() as file:
        rows = list(csv.DictReader(file))
    for target, column in ((MK2, "mk2_cycles"), (MK1, "mk1_cycles")):
        for row in rows:
            if row["tool"] in _MODELS:
                model = _MODELS[row["tool"]](row)
                if model is not None:
                    chip = replace(
                        target, tiles_per_ipu=int(_options(row).get("tiles-per-ipu", target.tiles_per_ipu))
                    )
                    options = CostOptions(partials_type="float")
                    cycles = estimate(model, chip, options, calibration=calibration).cycles
                    yield Point(
                        f"simulator {row['tool']}, {target.name}", row["name"], cycles, float(row[column])
                    )
                continue
            products = _products(row)
            if products and row[column]:
                family = f"simulator {row['tool']}, {target.name}"
                simulated = _simulated_cycles(products, row["tool"], target, calibration)
                yield Point(family, row["name"], simulated, float(row[column]))


def _simulated_cycles(products: list[Product], tool: str, target: Target, calibration: Calibration) -> float:
    plans = [plan_product(product, target, PlanOptions(), calibration) for product in products]
    cycles: float = sum(plan.cycles + plan.steps * target.internal_sync_cycles for plan in plans)
    if tool == "conv" and len(products) > 1:
        # Of the weights' gradient both operands and the result are rearranged (ConvModel.cpp,
        # isConvWeightUpdate), the field with every kernel position beside the others.
        update = products[-1]
        elements = update.rows * update.k + update.k * update.n + update.rows * update.n
        cycles += TRANSFORM.cycles(elements / target.num_tiles, update.element_bytes)
    if tool == "gemm":  # adds its result to a third operand
        cycles += 6 * (26 + math.ceil(products[0].rows * products[0].n / target.num_tiles / 24) * 3)
    return cycles


def _options(row: dict[str, str]) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+)[ =](\{[^}]*\}|[^\s-]\S*)", row["params"]))


def _recurrent(row: dict[str, str]) -> onnx.ModelProto | None:
    """Forward only; another order of the gates is the same row again."""
    options = _options(row)
    if options.get("phase") == "all" or "cell-order" in options:
        return None
    element = TensorProto.FLOAT if options["data-type"] == "float" else TensorProto.FLOAT16
    length, batch, width = (int(options[name]) for name in ("sequence-size", "batch-size", "input-size"))
    return networks.recurrent(row["tool"].upper(), length, batch, width, element)


def _reduction(row: dict[str, str]) -> onnx.ModelProto:
    shape, axes = (list(map(int, _options(row)[name].split(","))) for name in ("shape", "dims"))
    return networks.reduction(shape, axes)


_MODELS: dict[str, Callable[[dict[str, str]], onnx.ModelProto | None]] = {
    **dict.fromkeys(("lstm", "gru"), _recurrent),
    "reduction": _reduction,
}
"""Tools whose rows are single operators of inference. Left out are those that time gradients with them
(pooling, depthwise convolutions, embeddings) or have no operator in ONNX (CTC loss, solvers, octave
convolutions)."""


def _products(row: dict[str, str]) -> list[Product]:
    options = _options(row)
    if row["tool"] == "gemm":
        return [Product(1, int(options["m"]), int(options["k"]), int(options["n"]), 2, 4, stored=True)]
    if row["tool"] == "fc":
        batch, source, target = (int(options[name]) for name in ("batch-size", "input-size", "output-size"))
        element = 4 if options.get("data-type") == "float" else 2
        base = Product(int(options.get("num-groups", 1)), batch, source, target, element, 4, stored=True)
        gradients = [replace(base, k=target, n=source), replace(base, rows=source, k=batch)]
        return [base] if "inference-only" in row["params"] else [base, *gradients]
    if row["tool"] == "conv" and "conv-groups" not in options:
        return _convolution(row["params"], options)
    return []


def _convolution(params: str, options: dict[str, str]) -> list[Product]:
    (height, width), (kernel_h, kernel_w) = _pair(options["field"]), _pair(options["kernel-size"])
    stride, padding = _pair(options.get("stride", "1")), _pair(options.get("padding", "0"))
    source, target, batch = (
        int(options[name]) for name in ("input-channels", "output-channels", "batch-size")
    )
    out_h = (height + 2 * padding[0] - kernel_h) // stride[0] + 1
    out_w = (width + 2 * padding[1] - kernel_w) // stride[1] + 1
    taps, rows = kernel_h * kernel_w, batch * out_h * out_w
    halo = 1.0 if taps == 1 else height * width / (out_h * out_w) * (1 + 4 * (kernel_h - 1) / height)
    forward = Product(1, rows, source, target, 2, 4, taps, out_w, halo, convolution=taps > 1)
    if source < _BLOCK and kernel_h > 1:
        packed = min(4 if source <= _BLOCK // 4 else 2, kernel_h)
        copied = batch * out_h * width * _BLOCK * 2
        rows_of_kernel = math.ceil(kernel_h / packed)
        forward = replace(forward, k=source * packed, taps=rows_of_kernel * kernel_w, packed_bytes=copied)
    strides = stride[0] * stride[1]
    in_rows = rows if taps == 1 else batch * height * width
    backward = replace(forward, rows=in_rows, k=target, n=source, width=width, packed_bytes=0)
    backward = replace(backward, taps=math.ceil(kernel_h * kernel_w / strides))
    if taps > 1:
        backward = replace(backward, inputs_per_row=out_h * out_w / (height * width))
    weights = Product(1, source * taps, rows, target, 2, 4, 1, 1, 1 / taps**0.5)
    return [forward] if "inference-only" in params else [forward, backward, weights]


def _pair(text: str) -> tuple[int, int]:
    numbers = [int(number) for number in text.strip("{}").split(",")]
    return numbers[0], numbers[-1]


def refit_without_each_family() -> list[Point]:
    """Every figure as predicted with the fitted constant chosen on all other families: what generalises."""
    tried = {
        cycles: list(iter_points(replace(CALIBRATION, planned_cycles=cycles))) for cycles in _PLANNED_CYCLES
    }
    points = []
    for family in dict.fromkeys(point.family for point in tried[_PLANNED_CYCLES[0]]):
        others = {value: _loss(p for p in found if p.family != family) for value, found in tried.items()}
        chosen = min(others, key=others.__getitem__)
        points += [point for point in tried[chosen] if point.family == family]
    return points


def _loss(points: Iterable[Point]) -> float:
    """The median absolute error plus the share that misses by more than 25 %, which are the two things wanted
    small.

    The mean over families, so that no family counts by its number of rows.
    """
    families: dict[str, list[float]] = {}
    for point in points:
        families.setdefault(point.family, []).append(abs(point.ratio - 1))
    return statistics.mean(
        statistics.median(errors) + statistics.mean(error > _NEAR for error in errors)
        for errors in families.values()
    )


def iter_verdicts() -> Iterator[tuple[str, bool, bool]]:
    """Name, whether the model says that it fits, and whether it did."""
    for row in json.loads((DATA / "ipu-measured-calibration.json").read_text()):
        if not row["group"].startswith("poprt/") or row["metric"] not in ("throughput", "fits_in_memory"):
            continue
        if row["model"] == "resnet50":
            model, tiles = networks.resnet50(row["batch_size"]), 32
            if row["precision"] == "FP8":
                _to_fp8(model, row.get("variant", ""))
        elif row["group"] == "poprt/bert-base-256/FP16":
            fused = "gelu" in row["variant"]
            model, tiles = networks.bert_base(row["batch_size"], 256, fused_gelu=fused, fused_norm=False), 0
        else:
            continue
        fits = row["metric"] == "throughput" or bool(row["value"])
        yield (
            f"{row['group']}: {_name(row)}",
            estimate(model, C600, CostOptions(num_io_tiles=tiles)).fits,
            fits,
        )


def plot(points: Iterable[Point], file: str) -> None:
    """Draw predicted over published seconds of real IPUs, with the lines of 25 % either way."""
    from matplotlib import pyplot

    real = [point for point in points if not point.family.startswith("simulator")]
    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for marker, family in zip(
        "osv^Dp*Xh<>P8d1234", dict.fromkeys(point.family for point in real), strict=False
    ):
        members = [point for point in real if point.family == family]
        measured, predicted = (
            [1e3 * point.measured for point in members],
            [1e3 * point.predicted for point in members],
        )
        axes.loglog(measured, predicted, marker, alpha=0.7, label=f"{family} ({len(members)})")
    ends = [1e3 * bound(point.measured for point in real) for bound in (min, max)]
    for factor, style in ((1, "k-"), (0.75, "k:"), (1.25, "k:")):
        axes.loglog(ends, [factor * end for end in ends], style, linewidth=0.8)
    axes.set(
        xlabel="published, ms per batch",
        ylabel="modelled, ms per batch",
        title="Modelled and published times (dotted: 25 %)",
    )
    axes.legend(fontsize="x-small")
    figure.savefig(file, metadata={"Date": None} if file.endswith(".svg") else None)


def main() -> int:
    """Print the tables; with --points every figure too."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--points", action="store_true", help="print every figure too")
    parser.add_argument(
        "--held_out", action="store_true", help="fit without each family in turn, and print that"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw predicted over published times (matplotlib)")
    options = parser.parse_args()
    console = Console()
    points = refit_without_each_family() if options.held_out else list(iter_points())
    if options.plot:
        plot(points, options.plot)
    if options.points:
        for point in points:
            console.print(
                f"{point.ratio:6.2f}  {point.predicted:12.6g}  {point.measured:12.6g}  {point.family}: "
                f"{point.name}"
            )
    table = Table(
        "family",
        "n",
        "median ratio",
        "median error",
        "within 10 %",
        "within 25 %",
        title="predicted over published, modelled",
    )
    for family in dict.fromkeys(point.family for point in points):
        ratios = [point.ratio for point in points if point.family == family]
        errors = [abs(ratio - 1) for ratio in ratios]
        shares = (sum(error <= limit for error in errors) / len(errors) for limit in (0.1, 0.25))
        table.add_row(
            family,
            str(len(ratios)),
            f"{statistics.median(ratios):.2f}",
            f"{statistics.median(errors):.1%}",
            *(f"{s:.0%}" for s in shares),
        )
    console.print(table)
    verdicts = list(iter_verdicts())
    wrong = [name for name, said, was in verdicts if said != was]
    console.print(
        f"fits or not: {len(verdicts) - len(wrong)} of {len(verdicts)} right; wrong: "
        f"{'; '.join(wrong) or 'none'}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
