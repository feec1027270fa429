"""Overhead of a kernel call: graphs of many tiny nodes of the kernels' domain, beside graphs of
ONNX Runtime's own.

Each graph has the same number of nodes; ONNX Runtime's are a Relu of the same tensor.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import report
from onnx import TensorProto, helper, numpy_helper
from rounds import Goal, parse_options
from simipu.kernels import LIBRARY
from simipu.numerics.convolution import Convolution
from simipu.numerics.kernels import (
    CHAIN,
    KERNELS,
    KernelStep,
    Rounded,
    StepKind,
    make_convolution,
    make_kernel,
    make_product,
)

GOAL = Goal(5.0, at_most=True)
NODES, SIZE, RUNS = 1000, 4, 20
OWN = "Relu of ONNX Runtime"
Make = Callable[[str, str], onnx.NodeProto]


FLAGS = {"nan_on_overflow": 0, "raises": 0}
"""Flags of the kernels: no reaction to overflow."""


def _make_chain(source: str, result: str) -> onnx.NodeProto:
    steps = [KernelStep(StepKind.MULTIPLY, Rounded.ROUNDED, number=1.0)]
    return make_kernel(CHAIN, [source], result, steps, **FLAGS)


def _make_product(source: str, result: str) -> onnx.NodeProto:
    node = helper.make_node("MatMul", [source, "weights"], [result])
    return make_product(node, [source, "weights"], result, 16, FLAGS)


def _make_conv(source: str, result: str) -> onnx.NodeProto:
    conv = Convolution(1, SIZE, SIZE, (1,), (1,), (1,))
    return make_convolution(conv, [0, 0], [source, "filters"], result, 16, FLAGS)


KINDS: dict[str, Make] = {
    OWN: lambda source, result: helper.make_node("Relu", [source], [result]),
    "Chain": _make_chain,
    "Product": _make_product,
    "Conv": _make_conv,
}


def open_graph(make: Make) -> onnxruntime.InferenceSession:
    """Open a graph of NODES nodes one after the other."""
    names = ["x", *(f"t{i}" for i in range(NODES - 1)), "y"]
    nodes = [make(source, result) for source, result in itertools.pairwise(names)]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIZE, SIZE]) for name in "xy"
    ]
    identity = np.eye(SIZE, dtype=np.float16)
    weights = [
        numpy_helper.from_array(identity, "weights"),
        numpy_helper.from_array(identity[..., None], "filters"),
    ]
    read_names = {name for node in nodes for name in node.input}
    used_weights = [tensor for tensor in weights if tensor.name in read_names]
    graph = helper.make_graph(nodes, "calls", values[:1], values[1:], used_weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(KERNELS, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(str(LIBRARY))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def time_node(session: onnxruntime.InferenceSession) -> float:
    """Return the microseconds of a node, the median of RUNS runs."""
    x = {"x": np.ones((1, SIZE, SIZE), np.float32)}
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, x)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times) / NODES


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options = parse_options(parser)
    sessions = {kind: open_graph(make) for kind, make in KINDS.items()}
    rounds = [
        {kind: time_node(session) for kind, session in sessions.items()}
        for _ in range(options.rounds)
    ]
    columns = ("node", "us", "beyond ONNX Runtime's own", "goal")
    table = report.make_table(
        f"a call of {SIZE * SIZE} elements, {options.rounds} rounds", *columns
    )
    for kind in KINDS:
        times = [times_by_kind[kind] for times_by_kind in rounds]
        beyond = [times_by_kind[kind] - times_by_kind[OWN] for times_by_kind in rounds]
        goal = None if kind == OWN else GOAL
        described = (report.describe_ratio(beyond, goal), report.describe_goal(beyond, goal))
        table.add_row(kind, report.describe_ratio(times), *described)
    report.make_console().print(table)


if __name__ == "__main__":
    main()
