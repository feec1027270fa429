"""Tests of activations that are looked up: the number of tables in a graph, and operators without
one."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from simipu.kernels import LIBRARY, find_kernels
from simipu.numerics import KernelUse, Numerics, lower
from simipu.numerics.functions import MAX_TABLES, _tabulate, is_hard_swish
from simipu.numerics.kernels import KnownFunction, read_steps


def branches(count: int):
    """Return a model of y<i> = sigmoid(x * c<i>), each with its own constant."""
    nodes, constants, outputs = [], [], []
    for i in range(count):
        constants.append(numpy_helper.from_array(np.float16(1 + i / 64), f"c{i}"))
        nodes.append(helper.make_node("Mul", ["x", f"c{i}"], [f"t{i}"]))
        nodes.append(helper.make_node("Sigmoid", [f"t{i}"], [f"y{i}"]))
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT16, [4, 8]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [4, 8])]
    graph = helper.make_graph(nodes, "branches", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def tables_of(model) -> int:
    lowered = lower(model, Numerics(), kernels=KernelUse.FUSED)
    return sum(tensor.name.startswith("simipu/table/") for tensor in lowered.graph.initializer)


def run(model, kernels: KernelUse, x: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    if kernels is not KernelUse.NONE:
        options.register_custom_ops_library(str(LIBRARY))
    lowered = lower(model, Numerics(), kernels=kernels).SerializeToString()
    return onnxruntime.InferenceSession(lowered, options, providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )


@pytest.mark.slow
@pytest.mark.skipif(not find_kernels().are_there, reason="there are no kernels")
def test_a_graph_of_many_functions_has_so_many_tables_and_no_more():
    assert tables_of(branches(3)) == 3
    model = branches(MAX_TABLES + 5)
    assert tables_of(model) == MAX_TABLES
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float16)
    both = (run(model, kernels, x) for kernels in (KernelUse.FUSED, KernelUse.NONE))
    for found, expected in zip(*both, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_function_that_comes_twice_has_one_table():
    model = branches(4)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.float16(2), tensor.name))
    assert tables_of(model) == 1


def function(op_type: str):
    """Return a model of y = function(x)."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [65536]) for name in "xy"]
    node = helper.make_node(op_type, ["x"], ["y"])
    graph = helper.make_graph([node], "function", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.skipif(not find_kernels().are_there, reason="there are no kernels")
@pytest.mark.parametrize(
    ("op_type", "known"), [("HardSwish", KnownFunction.HARD_SWISH), ("Sigmoid", KnownFunction.ANY)]
)
def test_a_hard_swish_is_known_and_computed_as_its_table(op_type, known):
    lowered = lower(function(op_type), Numerics(), kernels=KernelUse.FUSED)
    (table,) = lowered.graph.initializer
    (step,) = (
        step for node in lowered.graph.node if node.op_type == "Chain" for step in read_steps(node)
    )
    assert step.number == known
    values = numpy_helper.to_array(table)
    halves = np.arange(65536, dtype=np.uint16)
    found = run(function(op_type), KernelUse.FUSED, halves.view(np.float16))[0]
    np.testing.assert_array_equal(found.view(np.uint16), values.view(np.uint16))


@pytest.mark.parametrize("half", [0, 2.0**-24, -(2.0**-24), 1.5, -3, 65504])
def test_a_function_that_differs_from_a_hard_swish_is_none(half):
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    model = lower(function("HardSwish"), Numerics(), kernels=KernelUse.NONE).SerializeToString()
    values = _tabulate(model)
    assert values is not None
    assert is_hard_swish(values)
    changed = values.view(np.uint16).copy()
    changed[x == np.float16(half)] ^= 1
    assert not is_hard_swish(changed.view(np.float16))


def test_a_damaged_graph_has_no_table():
    assert _tabulate(b"damaged") is None
