"""Executables of hand-made graphs, described as TensorFlow for the IPU does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from poprt import CompilerOptions
from poprt.compile import Executable, compile_unreported
from tensorflow_ipu.files.executable_description import (
    EntryDescription,
    EntryKind,
    ExecutableDescription,
    FeedDescription,
    TensorDescription,
)
from tensorflow_ipu.files.popef_files import StoredExecutable, write_executable

WEIGHT: npt.NDArray[Any] = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
X: npt.NDArray[Any] = np.random.default_rng(2).normal(size=(2, 4)).astype("float32")
BIAS: npt.NDArray[Any] = np.array([1, 2, 3], "float32")


def describe_tensor(name: str, shape: tuple[int, ...], dtype: str = "float32") -> TensorDescription:
    """Return the description of a tensor."""
    return TensorDescription(name, shape, np.dtype(dtype))


def make_model(frozen: bool = False) -> Executable:
    """Return the executable of infeed_1.0 @ net/w + bias."""
    inputs = [
        helper.make_tensor_value_info("infeed_1.0", TensorProto.FLOAT, [2, 4]),
        helper.make_tensor_value_info("bias", TensorProto.FLOAT, [3]),
    ]
    outputs = [helper.make_tensor_value_info("outfeed_2.0", TensorProto.FLOAT, [2, 3])]
    nodes = [
        helper.make_node("MatMul", ["infeed_1.0", "net/w"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["outfeed_2.0"]),
    ]
    weights = [numpy_helper.from_array(WEIGHT, "net/w")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return compile_graph(graph, constant_weights=frozen)


def compile_graph(graph: onnx.GraphProto, **options: Any) -> Executable:
    """Return the executable of a graph."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    chosen = CompilerOptions(
        show_compilation_progress_bar=False, skip_dry_run=True, ipu_version="ipu2", **options
    )
    return compile_unreported(model, None, chosen)


def describe(frozen: bool = False, **changes: Any) -> ExecutableDescription:
    """Return the description of the executable that `make_model` returns."""
    variable = EntryDescription(
        "XLA_Args/net/w", describe_tensor("net/w", (4, 3)), EntryKind.VARIABLE
    )
    values = {
        "infeeds": (FeedDescription((describe_tensor("infeed_1.0", (2, 4)),), 3),),
        "outfeeds": (FeedDescription((describe_tensor("outfeed_2.0", (2, 3)),), get_last=True),),
        "inputs": (
            EntryDescription("XLA_Args/_arg_bias_0_0/_3", describe_tensor("bias", (3,))),
            *([] if frozen else [variable]),
        ),
        "name": "a1b2",
        "options": {"opt.useAutoloader": "true"},
    }
    return ExecutableDescription(**{**values, **changes})


def write_division(path: str | Path) -> None:
    """Write a computation that divides 12 by its infeed, and raises exceptions."""
    graph = helper.make_graph(
        [helper.make_node("Div", ["dividend", "infeed_1.0"], ["outfeed_2.0"])],
        "graph",
        [helper.make_tensor_value_info("infeed_1.0", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("outfeed_2.0", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.array([12], "float32"), "dividend")],
    )
    options = {"debug.floatPointOpException": "true"}
    description = ExecutableDescription(
        (FeedDescription((describe_tensor("infeed_1.0", (1,)),)),),
        (FeedDescription((describe_tensor("outfeed_2.0", (1,)),)),),
    )
    write_executable(
        StoredExecutable(compile_graph(graph, engine_options=options), description), path
    )
