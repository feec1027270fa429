"""Tests of ONNX Runtime's optimisers that change answers: they are left out of graphs in which they
are wrong, and of no others. `make fusions` tries hundreds of graphs of each family."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from random_graphs.fusions import (
    FAMILIES,
    NOT_TRIED,
    OPTIMISERS,
    draw_pattern,
    find_changes,
    judge_family,
    judge_pattern,
)
from random_graphs.judging import DIFFERS, EQUAL, FAILS, WRONG
from simipu.numerics import find_unsafe_optimisers, optimisers

GRAPHS, MAX_SEEDS = 12, 160
WRONG_IN_ONNXRUNTIME = {
    "layer norm": (41, 57, 70),
    "simplified layer norm": (5, 8, 53),
    "skip norm": (21, 37),
    "biased norm": (0, 10, 24),
    "encoder": (53,),
    "embedding": (14, 18, 26),
    "matmul scale": (7, 37, 50),
    "matmul norm": (32, 72),
    "quotient": (5, 17, 39),
    "clipped": (27, 32),
    "quantised": (18, 88, 97),
    "quantised moves": (12, 27, 219),
    "pair": (3, 5),
    "moved product": (1, 4, 12),
}
"""Seeds of graphs that ONNX Runtime 1.32 alone computes wrongly or does not load."""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_around_the_pattern_of_an_optimiser_answer_as_without(family):
    judged = list(judge_family(family, range(GRAPHS)))
    assert [each for each in judged if each.word in WRONG] == []
    assert any(each.word == EQUAL for each in judged)


@pytest.mark.parametrize("family", WRONG_IN_ONNXRUNTIME)
def test_graphs_that_an_optimiser_computes_wrongly_are_right_here(family):
    for seed in WRONG_IN_ONNXRUNTIME[family]:
        assert judge_pattern(draw_pattern(family, seed)).word == EQUAL, seed


@pytest.mark.slow
@pytest.mark.parametrize("family", WRONG_IN_ONNXRUNTIME)
def test_the_comparison_finds_what_onnxruntime_alone_computes_wrongly(family):
    words = {
        judge_pattern(draw_pattern(family, seed), bare=True).word
        for seed in WRONG_IN_ONNXRUNTIME[family]
    }
    assert not words.isdisjoint((DIFFERS, FAILS))


def test_every_optimiser_of_onnxruntime_has_a_family_or_a_reason():
    registered = find_changes(draw_pattern("denied", 0)).keys()
    assert registered <= OPTIMISERS.keys() | NOT_TRIED.keys()
    assert OPTIMISERS.keys().isdisjoint(NOT_TRIED)
    assert set(OPTIMISERS.values()) <= FAMILIES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPTIMISERS))
def test_the_graphs_of_a_family_have_the_pattern_of_its_optimiser(name):
    registered = find_changes(draw_pattern("denied", 0))
    if name not in registered:
        pytest.skip(f"this version of ONNX Runtime, or this processor, has no {name}")
    graphs = (draw_pattern(OPTIMISERS[name], seed) for seed in range(MAX_SEEDS))
    assert any(find_changes(drawn).get(name) for drawn in graphs)


def norm_model(*, exponent=2.0, keepdims=1, scale=(8,), shape=(2, 3, 8), swapped=False):
    """Return a layer norm that is written as operators, or what looks like one."""
    values = {
        "two": np.float32(exponent),
        "epsilon": np.float32(1e-5),
        "scale": np.ones(scale, np.float32),
        "bias": np.ones(8, np.float32),
    }
    difference = ["mean", "x"] if swapped else ["x", "mean"]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1], keepdims=keepdims),
        helper.make_node("Sub", difference, ["centred"]),
        helper.make_node("Pow", ["centred", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["variance"], axes=[-1], keepdims=keepdims),
        helper.make_node("Add", ["variance", "epsilon"], ["safe"]),
        helper.make_node("Sqrt", ["safe"], ["root"]),
        helper.make_node("Div", ["centred", "root"], ["normal"]),
        helper.make_node("Mul", ["normal", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "norm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_true_norm_keeps_the_optimisers_that_make_it_fast():
    assert find_unsafe_optimisers(norm_model(), {}) == optimisers.ALWAYS


def test_a_scale_without_data_is_known_by_its_shape():
    model = norm_model()
    scale = next(each for each in model.graph.initializer if each.name == "scale")
    scale.ClearField("raw_data")
    scale.data_location = onnx.TensorProto.EXTERNAL
    weights = {"scale": np.ones(8, np.float32)}
    assert find_unsafe_optimisers(model, weights) == optimisers.ALWAYS


@pytest.mark.parametrize(
    "change",
    [
        {"exponent": 3.0},
        {"keepdims": 0, "shape": (8, 8)},
        {"scale": (1,)},
        {"scale": (4, 1, 1, 8)},
        {"shape": (8,)},
        {"swapped": True},
    ],
    ids=str,
)
def test_a_pattern_that_only_looks_like_a_norm_disables_the_optimiser(change):
    assert set(optimisers.NORMS) <= set(find_unsafe_optimisers(norm_model(**change), {}))


def test_an_optimiser_of_pairs_stays_where_all_scales_are_common():
    for scale, is_safe in ((0.5, True), (-(2.0**-60), True), (1e37, False), (0.0, False)):
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["a"]),
            helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["y"]),
        ]
        constants = {"scale": np.float32(scale), "zero": np.uint8(3)}
        graph = helper.make_graph(
            nodes,
            "pair",
            [helper.make_tensor_value_info("x", TensorProto.UINT8, (2,))],
            [helper.make_tensor_value_info("y", TensorProto.UINT8, (2,))],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        left_out = find_unsafe_optimisers(model, {})
        assert ("QDQFinalCleanupTransformer" in left_out) == (not is_safe)
        assert left_out.count("TransposeOptimizer") == (not is_safe)
