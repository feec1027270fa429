"""Tests of max_tensor_size: only values above it stay computed at run time."""

import numpy as np
from exported_graphs import I64, Exporter
from poprt.passes import get_pass

BOUND = 1000


def expanded():
    """Return a model that looks scores up by positions repeated for each row, to a size that nodes
    compute from sizes."""
    net = Exporter(13)
    x = net.input("x", [4, 16, 16])
    given = net.integers(4, 16, 16)
    part = [net.add("Gather", given, net.constant(place, np.int64), axis=0) for place in range(3)]
    sizes = net.add("Concat", *(net.unsqueeze(each, 0) for each in part), axis=0)
    is_any = net.add("Equal", sizes, net.integers(-1, -1, -1))
    sizes = net.add("Where", is_any, net.integers(1, 1, 1), sizes)
    places = net.add("Expand", net.constant(np.arange(16)[None, None], np.int64), sizes)
    return net.model({net.add("GatherElements", x, places, axis=2): [4, 16, 16]})


def fold(bound):
    model = get_pass("constant_folding", max_tensor_size=bound)(expanded())
    return [node.op_type for node in model.graph.node], model


def test_inputs_of_a_result_that_is_too_large_are_folded():
    operators, model = fold(BOUND)
    assert operators == ["Expand", "GatherElements"]
    held = {tensor.name for tensor in model.graph.initializer}
    assert held >= set(model.graph.node[0].input), "its shape is known"
    assert max(np.prod(tensor.dims) * 8 for tensor in model.graph.initializer) <= BOUND


def test_without_a_bound_nothing_is_left():
    assert fold(-1)[0] == ["GatherElements"]


def test_where_nothing_is_small_enough_all_stays():
    net = Exporter(13)
    x, big = net.input("x", [300], I64), net.constant(np.arange(300), np.int64)
    for _ in range(20):
        big = net.add("Add", big, net.constant(1, np.int64))
    model = net.model({net.add("Mul", x, big): [300]}, I64)
    folded = get_pass("constant_folding", max_tensor_size=BOUND)(model)
    assert [node.op_type for node in folded.graph.node] == ["Add"] * 20 + ["Mul"]
    before = folded.SerializeToString()
    assert get_pass("constant_folding", max_tensor_size=BOUND)(folded).SerializeToString() == before
