"""Tests of merge_moe: nodes that are joined, nodes left alone with a warning, and invalid
arguments."""

import numpy as np
import pytest
from exported_graphs import Exporter
from onnxgraph import collect_values
from pass_cases.patterns import two_experts
from poprt import Converter, pipeline
from poprt.passes import get_pass
from simipu import TARGETS, CompileError

NAMES = "MatMul_0,Add_5,MatMul_6,Add_11"


def test_two_experts_are_products_of_a_leading_axis():
    merged = Converter(merge_moe=NAMES, precision="fp16", disable_progress_bar=True).convert(
        two_experts()
    )
    shapes = collect_values(merged)
    joint = [node for node in merged.graph.node if node.op_type == "MatMul"]
    assert [shapes[node.output[0]].shape for node in joint][:2] == [(2, 2, 6, 16), (2, 2, 6, 8)]
    assert len(joint) == 3, "the gate's is the third"


def test_experts_at_once_take_less_than_one_after_the_other():
    plain = Converter(precision="fp16", disable_progress_bar=True)
    both = Converter(precision="fp16", disable_progress_bar=True, merge_moe=NAMES)
    cycles = [
        pipeline.estimate(each.convert(two_experts()), TARGETS["ipu2"]).cycles
        for each in (plain, both)
    ]
    assert cycles[1] < cycles[0]


def of_two_tensors(reads_first=False, read_twice=False):
    net = Exporter()
    x, y = net.input("x", [4, 8]), net.input("y", [4, 8])
    one = net.linear(x, 8, 8)
    two = net.linear(net.add("Add", y, one) if reads_first else y, 8, 8)
    inner = net.nodes[0].output[0]
    results = [one, two, *([net.add("Neg", inner)] if read_twice else [])]
    return net.model({name: [4, 8] for name in results})


def test_experts_of_different_tensors_are_joined():
    model = get_pass("merge_moe", merge_str=["MatMul_0", "Add_1", "MatMul_2", "Add_3"])(
        of_two_tensors()
    )
    assert [node.op_type for node in model.graph.node].count("MatMul") == 1
    assert "Concat" in [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (two_experts(), "MatMul_0,Add_5,MatMul_6,nobody"),
        (two_experts((16, 8)), NAMES),
        (two_experts(), "MatMul_0,Mul_3,MatMul_6,Add_11"),
        (of_two_tensors(reads_first=True), "MatMul_0,Add_1,MatMul_3,Add_4"),
        (of_two_tensors(read_twice=True), "MatMul_0,Add_1,MatMul_2,Add_3"),
    ],
)
def test_others_are_left_alone_with_a_warning(model, names, caplog):
    before = model.SerializeToString()
    assert get_pass("merge_moe", merge_str=names)(model).SerializeToString() == before
    assert "merge_moe: there are no two experts" in caplog.text


@pytest.mark.parametrize("names", ["a", "a,b,c", "a,b,a,d", ["a", "", "c", "d"]])
def test_names_that_are_no_two_experts_are_refused(names):
    with pytest.raises(CompileError, match="expected B1,E1,B2,E2"):
        get_pass("merge_moe", merge_str=names)


def test_shared_numbers_stay_one():
    """A scalar factor of both products is not stacked with itself."""
    net = Exporter()
    x, half = net.input("x", [4, 8]), net.constant(0.5)
    ends = [net.add("Mul", net.add("MatMul", x, net.weight(8, 8)), half) for _ in range(2)]
    model = get_pass("merge_moe", merge_str="MatMul_0,Mul_1,MatMul_2,Mul_3")(
        net.model({name: [4, 8] for name in ends})
    )
    (product,) = [node for node in model.graph.node if node.op_type == "Mul"]
    assert product.input[1] == half
    assert np.prod(collect_values(model)[product.output[0]].shape) == 2 * 4 * 8
