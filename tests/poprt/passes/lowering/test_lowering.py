"""Tests of the placed graph: 8-bit operands, the IPU of each node, and copies between IPUs. Nothing
changes a value."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import attribute, graph_values, infer_shapes
from poprt import Compiler, CompilerOptions, Converter
from poprt.passes.lowering.placed import _crossing_bytes, _place_by_share
from poprt.pipeline import estimate, place
from sample_models import make_model
from simipu import TARGETS, CompileError
from simipu.cost import CostOptions

F = TensorProto.FLOAT
C600, M2000 = TARGETS["ipu21"], TARGETS["ipu2"]


def chain(layers=4, size=32):
    """Return a chain of products, each with its own weight."""
    random = np.random.default_rng(0)
    weights = {
        f"w{i}": random.standard_normal((size, size)).astype(np.float32) for i in range(layers)
    }
    nodes = [
        helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"n{i}")
        for i in range(layers)
    ]
    return make_model(nodes, {"x0": (F, [8, size])}, {f"x{layers}": (F, [8, size])}, weights)


def ipus(placed):
    return [attribute(node, "__ipu_number") for node in placed.graph.node]


def set_ipus(model, numbers):
    for node, number in zip(model.graph.node, numbers, strict=True):
        if number is not None:
            node.attribute.append(helper.make_attribute("__ipu_number", number))
    return model


def test_each_node_says_its_ipu_and_a_copy_stands_before_its_first_reader():
    placed = place(chain(), M2000, CostOptions(num_ipus=2))
    assert [node.op_type for node in placed.graph.node] == ["MatMul"] * 2 + ["IpuCopy"] + [
        "MatMul"
    ] * 2
    assert ipus(placed) == [0, 0, 1, 1, 1]
    copy, reader = placed.graph.node[2:4]
    assert (copy.domain, list(copy.input), list(reader.input)) == (
        "ai.graphcore",
        ["x2"],
        [copy.output[0], "w2"],
    )


def test_the_shapes_of_copies_are_declared_and_can_be_inferred_anew():
    placed = place(chain(), M2000, CostOptions(num_ipus=4))
    copies = [node.output[0] for node in placed.graph.node if node.op_type == "IpuCopy"]
    declared = graph_values(placed.graph)
    assert [declared[name].shape for name in copies] == [(8, 32)] * 3
    del placed.graph.value_info[:]
    assert graph_values(infer_shapes(placed).graph) == declared


def test_a_tensor_is_copied_once_to_each_ipu_that_reads_it():
    nodes = [helper.make_node("Neg", ["x"], ["a"])]
    nodes += [helper.make_node("Abs", ["a"], [f"b{i}"]) for i in range(4)]
    nodes.append(helper.make_node("Sum", [f"b{i}" for i in range(4)], ["y"]))
    model = make_model(nodes, {"x": (F, [2])}, {"y": (F, [2])}, {})
    set_ipus(model, [0, 1, 1, 2, 2, 0])
    placed = place(model, M2000, CostOptions(num_ipus=3, virtual_graph_mode="manual"))
    copies = [
        (node.input[0], attribute(node, "__ipu_number"))
        for node in placed.graph.node
        if node.op_type == "IpuCopy"
    ]
    assert copies == [("a", 1), ("a", 2), ("b0", 0), ("b1", 0), ("b2", 0), ("b3", 0)]


def test_a_copy_has_a_name_that_the_model_does_not_use():
    model = chain(2)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "x1@1"))
    placed = place(model, M2000, CostOptions(num_ipus=2))
    assert placed.graph.node[1].output[0] == "x1@1_"


def test_a_node_without_an_ipu_is_on_that_of_the_node_before():
    model = set_ipus(chain(), [None, 1, None, 0])
    assert ipus(place(model, M2000, CostOptions(num_ipus=2, virtual_graph_mode="manual"))) == [
        0,
        1,
        1,
        1,
        0,
        0,
    ]


@pytest.mark.parametrize("number", [-1, 2])
def test_an_ipu_number_out_of_range_is_rejected(number):
    model = set_ipus(chain(1), [number])
    with pytest.raises(
        CompileError, match=rf"node 'n0': __ipu_number .* below num_ipus=2, found {number}"
    ):
        place(model, M2000, CostOptions(num_ipus=2, virtual_graph_mode="manual"))


def test_numbers_of_ipus_that_a_model_brings_mean_nothing_unless_they_are_asked_for():
    model = set_ipus(chain(), [7, 5, 3, 1])
    assert estimate(model, M2000).cycles == estimate(chain(), M2000).cycles
    assert ipus(place(model, M2000, CostOptions(num_ipus=2))) == [0, 0, 1, 1, 1]


def converted(precision):
    model = chain(2)
    model.graph.node.insert(1, helper.make_node("Relu", ["x1"], ["r"], name="relu"))
    model.graph.node[2].input[0] = "r"
    return Converter(precision=precision).convert(model)


@pytest.mark.parametrize(("precision", "casts"), [("fp8", 0), ("fp8_weight", 2)])
def test_products_take_8_bits_where_both_operands_have_them(precision, casts):
    model = converted(precision)
    op_types = [node.op_type for node in place(model, C600, CostOptions()).graph.node]
    assert op_types.count("Cast") == casts
    if precision == "fp8":
        first = next(node for node in place(model, C600, CostOptions()).graph.node)
        assert list(first.input) == ["x0", "w0/fp8"]
    assert place(model, M2000, CostOptions()).graph.node == model.graph.node


def test_placing_leaves_the_converted_graph_as_it_is():
    model = converted("fp8")
    before = model.SerializeToString(deterministic=True)
    place(model, C600, CostOptions(num_ipus=2))
    assert model.SerializeToString(deterministic=True) == before


def test_an_executable_holds_the_graph_from_before_lowering():
    one, two = (
        Compiler.compile(
            converted("fp8"), None, CompilerOptions(ipu_version="ipu21", num_ipus=number)
        )
        for number in (1, 2)
    )
    graphs = [
        onnx.load_model_from_string(each.executable.program(5).graph).graph for each in (one, two)
    ]
    assert graphs[0] == graphs[1]
    assert "IpuCopy" not in {node.op_type for node in graphs[1].node}
    assert one.cycles < two.cycles


def test_tensors_made_before_a_cut_and_read_behind_it_cross_it():
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Concat", ["a", "a"], ["b"], axis=0),
        helper.make_node("Abs", ["w"], ["c"]),
        helper.make_node("MatMul", ["b", "c"], ["d"]),
        helper.make_node("Concat", ["d", "a"], ["y"], axis=0),
    ]
    model = make_model(
        nodes, {"x": (F, [2, 4])}, {"y": (F, [6, 4])}, {"w": np.zeros((4, 4), np.float32)}
    )
    values = graph_values(infer_shapes(model).graph)
    a, b, c, d = (values[name].bytes for name in "abcd")
    assert [a, b, c, d] == [32, 64, 64, 64]
    assert _crossing_bytes(model.graph, values) == [32, a, a + b, a + b + c, a + d]


@pytest.mark.parametrize(
    ("sizes", "crossing", "shares", "slack", "expected"),
    [
        ([1, 1, 1, 1], [0, 9, 9, 9], [0.5, 0.5], 0.1, [0, 0, 1, 1]),
        ([10, 10, 10, 10], [0, 5, 9, 9], [0.5, 0.5], 0.5, [0, 1, 1, 1]),
        ([10, 10, 10, 10], [0, 5, 9, 9], [0.5, 0.5], 0.4, [0, 0, 1, 1]),
        ([10, 10, 10, 10], [0, 9, 9, 9], [0.5, 0.5], 0.5, [0, 0, 1, 1]),
        ([1, 1, 1, 1], [0, 9, 9, 9], [0.75, 0.25], 0.1, [0, 0, 0, 1]),
        ([6, 1, 1, 1], [10, 9, 9, 9], [1 / 3] * 3, 0.1, [0, 2, 2, 2]),
        ([5, 5], [0, 1], [1], 0.1, [0, 0]),
        ([], [], [0.5, 0.5], 0.1, []),
    ],
)
def test_the_cheapest_cut_near_an_ipus_share_is_taken(sizes, crossing, shares, slack, expected):
    assert _place_by_share(sizes, crossing, shares, slack) == expected
