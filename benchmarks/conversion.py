"""Time and memory of the conversion of a model to fp16.

The models have many nodes, whose time should be proportional to their number, or many bytes.

    benchmarks/conversion.py [--against REVISION] [--rounds N] [--quick]

Each conversion is a separate process that reads the file with `onnx.load`, weights and all, as
scripts do, and runs `poprt.Converter`. With `--against`, the code of another revision converts the
same files, one right after the other; the ratio is ours over theirs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networks
import numpy as np
import onnx
from children import Child, run_child
from onnx import TensorProto, helper, numpy_helper
from report import make_console, make_table
from rich.progress import track

from popef._tools.arrays import Array

LIMIT_SECONDS = 900.0
NODES = (5_000, 10_000, 20_000)
GIGABYTES = 1e9
_WIDTH = 1024
"""Rows of each large weight: with its columns of 4 to 16 MiB."""
_CONVERT = """
import sys, time, onnx, poprt
model = onnx.load(sys.argv[1])
start = time.monotonic()
poprt.Converter(precision="fp16").convert(model)
print(time.monotonic() - start)
"""


@dataclass(slots=True)
class Case:
    """A model in a file, and the resources of its conversions."""

    name: str
    file: Path
    ours: list[Child] = field(default_factory=list)
    theirs: list[Child] = field(default_factory=list)


def make_chain(count: int) -> onnx.ModelProto:
    """Return nodes one after the other, some of which do nothing."""
    weights = {"factor": np.array([[1.5, 2]], np.float32), "shape": np.array([2, 2])}
    read: dict[str, tuple[str, ...]] = {
        "Relu": (),
        "Neg": (),
        "Add": ("factor",),
        "Mul": ("factor",),
        "Identity": (),
        "Cast": (),
        "Reshape": ("shape",),
        "Transpose": (),
    }
    attributes: dict[str, dict[str, Any]] = {"Cast": {"to": TensorProto.FLOAT}}
    operators = list(read)
    ends = ["x", *(f"t{i}" for i in range(count))]
    nodes = []
    for i in range(count):
        op_type = operators[i % len(operators)]
        inputs = [ends[i], *read[op_type]]
        nodes.append(
            helper.make_node(op_type, inputs, [ends[i + 1]], **attributes.get(op_type, {}))
        )
    return _model(nodes, [2, 2], ends[-1], weights)


def make_wide(count: int) -> onnx.ModelProto:
    """Return products of one tensor, each with a separate weight, added up."""
    nodes, weights = [], {}
    for i in range(count // 3):
        weights[f"w{i}"] = np.full((2, 2), i, np.float32)
        nodes += [
            helper.make_node("MatMul", ["x", f"w{i}"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [f"b{i}"]),
            helper.make_node("Identity", [f"b{i}"], [f"c{i}"]),
        ]
    nodes.append(helper.make_node("Sum", [f"c{i}" for i in range(count // 3)], ["y"]))
    return _model(nodes, [2, 2], "y", weights)


def make_resnet() -> onnx.ModelProto:
    """Return ResNet-50 in float with values for its weights, 100 MB."""
    model, random = networks.resnet50(1), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        values = random.normal(0, 0.02, tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    del model.graph.value_info[:]
    return model


def make_large(total_bytes: float) -> onnx.ModelProto:
    """Return layers of weights of 4 to 16 MiB."""
    random = np.random.default_rng(0).normal(0, 0.02, (_WIDTH, 4 * _WIDTH)).astype(np.float32)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, Array] = {}
    end, num_bytes = "x", 0
    while num_bytes < total_bytes:
        i = len(weights)
        there = random[:, : _WIDTH * (1 + i // 2 % 4)] * np.float32(1 + i / 1000)
        weights |= {f"w{i}": there, f"v{i}": np.ascontiguousarray(there.T)}
        nodes += [
            helper.make_node("MatMul", [end, f"w{i}"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [f"b{i}"]),
            helper.make_node("MatMul", [f"b{i}", f"v{i}"], [f"c{i}"]),
        ]
        end, num_bytes = f"c{i}", num_bytes + 2 * there.nbytes
    return _model(nodes, [4, _WIDTH], end, weights)


def _model(
    nodes: Sequence[onnx.NodeProto], shape: Sequence[int], end: str, weights: dict[str, Array]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(end, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """Write the models into a folder."""
    for make in (make_chain, make_wide):
        for count in NODES[:1] if quick else NODES:
            yield _write(
                folder, f"{make.__name__.removeprefix('make_')}, {count} nodes", make(count)
            )
    yield _write(folder, "ResNet-50, 0.1 GB", make_resnet())
    if not quick:
        yield _write(folder, "layers, 1.3 GB in the file", make_large(1.3 * GIGABYTES))
        yield _write(folder, "layers, 1.3 GB beside it", make_large(1.3 * GIGABYTES), beside=True)
        yield _write(folder, "layers, 2.9 GB beside it", make_large(2.9 * GIGABYTES), beside=True)


def _write(folder: Path, name: str, model: onnx.ModelProto, *, beside: bool = False) -> Case:
    file = folder / f"{len(list(folder.iterdir()))}.onnx"
    onnx.save(model, file, save_as_external_data=beside, location=f"{file.name}.data")
    return Case(name, file)


def convert(case: Case, backend: Path) -> Child:
    """Convert with the code in `backend`. Raises RuntimeError if it rejects the model."""
    python_path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(backend)
    try:
        child = run_child([sys.executable, "-c", _CONVERT, str(case.file)], LIMIT_SECONDS)
    finally:
        os.environ.pop("PYTHONPATH")
        if python_path is not None:
            os.environ["PYTHONPATH"] = python_path
    if child.status != 0:
        raise RuntimeError(f"{case.name}: status {child.status}: {child.errors[-500:]}")
    return child


@contextmanager
def check_out(revision: str | None, folder: Path) -> Iterator[Path | None]:
    """Check out the packages of another revision, if one is given, while the with statement
    lasts."""
    if revision is None:
        yield None
        return
    git = shutil.which("git") or "git"
    subprocess.run([git, "worktree", "add", "--quiet", "--detach", folder, revision], check=True)
    try:
        yield folder / "backend"
    finally:
        subprocess.run([git, "worktree", "remove", "--force", folder], check=True)


def print_table(cases: Sequence[Case], rounds: int) -> None:
    """Print medians, and ratios of medians."""
    columns = ("model", "seconds", "of theirs", "peak GB", "of theirs")
    table = make_table(f"conversion to fp16, medians of {rounds}", *columns)
    for case in cases:
        ours, theirs = (
            [float(child.output) for child in side] for side in (case.ours, case.theirs)
        )
        memory, other = ([child.peak_bytes for child in side] for side in (case.ours, case.theirs))
        table.add_row(
            case.name,
            f"{statistics.median(ours):.2f}",
            f"{statistics.median(ours) / statistics.median(theirs):.2f}" if theirs else "-",
            f"{statistics.median(memory) / GIGABYTES:.2f}",
            f"{statistics.median(memory) / statistics.median(other):.2f}" if other else "-",
        )
    make_console().print(table)


def main() -> int:
    """Write the models, convert them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--against", metavar="REVISION", help="convert with another revision's code too"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small models only")
    options = parser.parse_args()
    own = Path(__file__).resolve().parents[1] / "backend"
    with tempfile.TemporaryDirectory(prefix="conversion-") as folder:
        models = Path(folder, "models")
        models.mkdir()
        cases = list(write_cases(models, quick=options.quick))
        listed = [case for _ in range(options.rounds) for case in cases]
        with check_out(options.against, Path(folder, "theirs")) as theirs:
            for case in track(listed, "converting"):
                case.ours.append(convert(case, own))
                if theirs is not None:
                    case.theirs.append(convert(case, theirs))
        print_table(cases, options.rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
