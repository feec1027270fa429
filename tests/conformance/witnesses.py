"""Check that the witnesses of the chip's numbers agree on real networks, in half with half
partials.

    tests/conformance/witnesses.py [--models M ...]

For each network, the outputs by the kernels, as it is served, are compared with those of ONNX
Runtime's own operators. Every product, sum, difference and quotient by the kernels is compared with
the plain emulation in numpy (tests/support/half_emulation.py), which gets the kernels' earlier
results. Exits with 1 if an element differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from onnxgraph import infer_shapes
from poprt.comparing.sides import Side
from poprt.compile.executable import MAIN_PROGRAM, Executable
from rich.console import Console
from rich.progress import Progress
from simipu import Direction, GraphOptions
from simipu.engines.computed import Lowered, make_graph
from simipu.engines.program_graphs import lower_model, read_graph
from simipu.kernels import find_kernels
from simipu.numerics import KernelUse, Numerics

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import half_emulation as emulation
import report
from compared import NETWORKS, Network, compile_network
from half import make_feeds, open_executable, open_original
from model_inputs import make_inputs
from model_table import Model, read_models

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

EXAMPLES = ("document_orientation", "text_recognition", "magika", "sentence_similarity")
OTHERS = (
    "open_nsfw",
    "minilm_l3",
    "basic_pitch",
    "captcha_crnn",
    "ppocrv2_cls",
    "aecmos_16k",
    "eeg_spindles",
    "dnsmos_p808",
)
"""Models of models.json: a residual network, a transformer, sound, recurrent and transposed
convolutions."""
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
ARITHMETIC = ("Add", "Sub", "Mul", "Div")
THREADS = 1


@dataclass(slots=True)
class Count:
    """Number of compared elements, of operators, and of elements that differ."""

    operators: int = 0
    elements: int = 0
    differ: int = 0

    def add(self, found: Array, expected: Array) -> None:
        """Count an array; both zeros are equal, and so are all NaNs."""
        self.operators += 1
        self.elements += found.size
        self.differ += int(np.sum((found != expected) & ~(np.isnan(found) & np.isnan(expected))))

    def describe(self) -> str:
        """Return the count as text for the report."""
        return f"{self.differ} of {self.elements:,}"


def open_network(name: str, folder: Path) -> tuple[Executable, Arrays]:
    """Return the compiled network, and inputs of it."""
    if name in NETWORKS:
        network = NETWORKS[name](folder)
        executable = open_executable(compile_network(network, "half", folder / "half"))
        return executable, make_feeds(open_original(network, THREADS), executable, network.rows)
    (model,) = read_models([name])
    network = Network(model.fetch(), model.arguments())
    executable = open_executable(compile_network(network, "half", folder / "half"))
    return executable, _make_inputs(model)


def _make_inputs(model: Model) -> Arrays:
    feeds = make_inputs(model.inputs, model.batch, (0,))
    return {name: value for name, value in feeds.items() if name not in model.settings}


def compare(name: str, folder: Path) -> tuple[dict[str, Count], Count, float]:
    """Return the differences of the products and of the arithmetic from the emulation, and of the
    outputs.

    The outputs are compared with those of ONNX Runtime's operators; the last result is their
    largest difference.
    """
    executable, inputs = open_network(name, folder)
    main = executable.executable.program(MAIN_PROGRAM)
    model, numerics = read_graph(main), executable.executable.numerics
    weights = {
        constant.name: constant.array() for constant in executable.executable.constants
    } | executable.weights
    dtypes = {stream.tensor: stream.dtype for stream in main.streams}
    feeds = {name: value.astype(dtypes[name]) for name, value in inputs.items()}
    outputs = [
        stream.tensor for stream in main.streams if stream.direction is Direction.DEVICE_TO_HOST
    ]
    kernels, nodes = (
        _run(model, weights, numerics, use, feeds, outputs)
        for use in (KernelUse.FUSED, KernelUse.NONE)
    )
    apart, largest = Count(), 0.0
    for by_kernels, expected in zip(kernels, nodes, strict=True):
        apart.add(by_kernels, expected)
        largest = max(
            largest, float(np.abs(by_kernels.astype(np.float64) - expected).max(initial=0))
        )
    return _compare_nodes(model, weights, numerics, feeds), apart, largest


def _run(
    model: onnx.ModelProto,
    weights: Arrays,
    numerics: Numerics,
    kernels: KernelUse,
    feeds: Arrays,
    outputs: list[str],
) -> list[Array]:
    lowered, values = lower_model(model, weights, numerics, kernels=kernels)
    graph = make_graph(
        Lowered(lowered.SerializeToString(), values), GraphOptions(num_threads=THREADS), "0 (main)"
    )
    return graph.run(outputs, feeds)


def _compare_nodes(
    model: onnx.ModelProto, weights: Arrays, numerics: Numerics, feeds: Arrays
) -> dict[str, Count]:
    graph, inferred = model.graph, infer_shapes(model).graph
    halves = {
        value.name
        for value in (*inferred.value_info, *graph.output, *graph.input)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16
    }
    halves.update(t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT16)
    node_results = [name for node in graph.node for name in node.output if name in halves]
    (results,) = Side(model, dict(weights), numerics).run([dict(feeds)], node_results)
    values = {**feeds, **dict(zip(node_results, results, strict=True))}
    values |= {t.name: weights.get(t.name, _read(t)) for t in graph.initializer if t.name in halves}
    counts = {"products": Count(), "arithmetic": Count()}
    for node in graph.node:
        if node.op_type in (*PRODUCTS, *ARITHMETIC) and halves.issuperset(
            [*filter(None, node.input), node.output[0]]
        ):
            kind = "products" if node.op_type in PRODUCTS else "arithmetic"
            by_kernels = values[node.output[0]].astype(np.float16)
            counts[kind].add(by_kernels, _emulate(node, values, numerics, model))
    return counts


def _read(tensor: TensorProto) -> Array:
    if tensor.data_location == TensorProto.EXTERNAL:
        return np.zeros(0)  # among the weights
    return np.asarray(onnx.numpy_helper.to_array(tensor))


def _emulate(
    node: onnx.NodeProto, values: Arrays, numerics: Numerics, model: onnx.ModelProto
) -> Array:
    """Return the emulated result of a node, from the kernels' results before it."""
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    del alone.attribute[:]
    alone.attribute.extend(
        attribute for attribute in node.attribute if not attribute.name.startswith("__")
    )  # its place
    feeds = {name: values[name].astype(np.float16) for name in node.input if name}
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT16, v.shape) for n, v in feeds.items()
    ]
    result = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT16, None)]
    graph = helper.make_graph([alone], "alone", infos, result)
    alone_model = helper.make_model(graph, opset_imports=model.opset_import)
    (emulated,) = emulation.run_graph(
        alone_model, feeds, numerics.half_partials, numerics.nan_on_overflow
    )
    return emulated


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    usual = [*EXAMPLES, "resnet50", *OTHERS]
    parser.add_argument(
        "--models", nargs="+", default=usual, metavar="M", help=f"(default: {' '.join(usual)})"
    )
    return parser.parse_args()


def main() -> int:
    """Compare, and print the report."""
    options, console, differ = parse_options(), report.make_console(), 0
    columns = (
        "network",
        "products",
        "differ",
        "sums, ratios",
        "differ",
        "outputs differ",
        "by at most",
    )
    table = report.make_table(
        f"elements that differ, kernels: {find_kernels().instructions}", *columns
    )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name in progress.track(options.models, description="comparing"):
            with tempfile.TemporaryDirectory() as folder:
                counts, apart, largest = compare(name, Path(folder))
            products, arithmetic = counts["products"], counts["arithmetic"]
            table.add_row(
                *(name, str(products.operators), products.describe(), str(arithmetic.operators)),
                *(arithmetic.describe(), apart.describe(), f"{largest:.1e}"),
            )
            differ += products.differ + arithmetic.differ + apart.differ
    console.print(table)
    return int(differ > 0)


if __name__ == "__main__":
    raise SystemExit(main())
