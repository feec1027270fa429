"""Rows for bulk inference in Parquet files, a model for them, and its answers by ONNX Runtime
without optimisers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from poprt import Compiler, Converter

FEATURES, WIDTH, BATCH, FILES = 32, 512, 1024, 32
_AT_ONCE = 50_000

Array = npt.NDArray[Any]


def make_mlp() -> onnx.ModelProto:
    """Return a network of two hidden layers: half a million multiply-adds a row."""
    random, weights, nodes, last = np.random.default_rng(0), [], [], "x"
    sizes = (FEATURES, WIDTH, WIDTH, 1)
    for layer, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
        weight = (random.standard_normal((num_inputs, num_outputs)) / np.sqrt(num_inputs)).astype(
            np.float32
        )
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        weights.append(
            numpy_helper.from_array(
                random.standard_normal(num_outputs).astype(np.float32), f"b{layer}"
            )
        )
        is_last = num_outputs == 1
        result = "y" if is_last else f"s{layer}"
        nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [result]))
        if not is_last:
            nodes.append(helper.make_node("Relu", [result], [f"h{layer}"]))
        last = f"h{layer}"
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", FEATURES), ("y", 1))
    )
    graph = helper.make_graph(nodes, "mlp", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_model(folder: Path) -> Path:
    """Write the PopEF file, with the ONNX file beside it, and return its path."""
    model = make_mlp()
    onnx.save(model, folder / "model.onnx")
    Compiler.compile(Converter(batch_size=BATCH).convert(model)).export(folder / "model.popef")
    return folder / "model.popef"


def make_rows(count: int) -> Array:
    """Return the features of `count` rows."""
    return np.random.default_rng(1).standard_normal((count, FEATURES), dtype=np.float32)


def write_rows(folder: Path, rows: Array) -> None:
    """Write Parquet files with a column of numbers, `id`, and one for each feature."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(len(rows)), FILES)):
        columns = {f"x{i:02}": rows[ids, i] for i in range(FEATURES)}
        table = pyarrow.table({"id": ids, **columns})
        pyarrow.parquet.write_table(table, folder / f"{number:03}.parquet")


def read_answers(folder: Path) -> tuple[Array, Array]:
    """Return the numbers and answers that an engine wrote, in order of the numbers."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder, columns=["id", "y"])
    ids, answers = (table[name].to_numpy() for name in ("id", "y"))
    order = np.argsort(ids, kind="stable")
    return ids[order], answers[order]


def compute_expected(model: Path, rows: Array) -> Array:
    """Compute the answers with ONNX Runtime without its optimisers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    parts = [
        session.run(["y"], {"x": rows[first : first + _AT_ONCE]})[0]
        for first in range(0, len(rows), _AT_ONCE)
    ]
    answers: Array = np.concatenate(parts)
    return answers.ravel()
