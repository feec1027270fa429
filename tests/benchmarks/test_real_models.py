"""The check of the real models: its table, its inputs, and its tests for wrong answers."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from children import run_child
from model_answers import Difference, Differences, Original, looks_like_classes
from model_clients import find_axes
from model_inputs import KINDS, make_array, make_inputs
from model_results import Result, judge
from model_table import BATCH, Input, Model, read_models
from onnx import TensorProto, helper
from poplar_triton.recipes import PACKAGE, SHA256
from tritonclient.grpc.model_config_pb2 import ModelConfig

NUMBERS = {"range": "-3 5", "integers": "2 9", "constant": "7"}
BOUNDS = {
    "range": (-3, 5),
    "integers": (2, 8),
    "constant": (7, 7),
    "zeros": (0, 0),
    "normal": (-6, 6),
    "signed": (-1, 1),
    "audio": (-1, 1),
    "page": (-1, 1),
}
SHAPE = (3, 2, 30, 40)


def make(kind: str, seed: int = 0) -> np.ndarray:
    return make_array(f"{kind} {NUMBERS.get(kind, '')}", SHAPE, np.random.default_rng(seed))


def model(**fields) -> Model:
    (one,) = read_models(["magika"])
    return Model(**{"name": "some", "recipe": one.recipe, "batch": 4, "inputs": {}, **fields})


def test_the_table_has_more_than_thirty_models_that_compile():
    assert sum(not each.refused for each in read_models()) > 30


@pytest.mark.parametrize("each", read_models(), ids=lambda each: each.name)
def test_a_model_of_the_table_can_be_fetched_and_fed(each):
    assert PACKAGE.fullmatch(each.recipe.package)
    assert SHA256.fullmatch(each.recipe.sha256)
    fed = make_inputs(each.inputs, each.batch, (0,))
    assert {name: array.shape for name, array in fed.items()} == {
        n: i.sizes(each.batch) for n, i in each.inputs.items()
    }


def test_names_that_the_table_lacks_are_refused():
    with pytest.raises(SystemExit, match="no model nonesuch"):
        read_models(["magika", "nonesuch"])


@pytest.mark.parametrize("kind", KINDS)
def test_values_keep_the_bounds_of_their_kind(kind):
    values = make(kind)
    least, greatest = BOUNDS.get(kind, (0, 1))
    assert values.shape == SHAPE
    assert least <= values.min() <= values.max() <= greatest


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"constant", "zeros"}))
def test_values_differ_with_the_seed_alone(kind):
    assert np.array_equal(make(kind), make(kind))
    assert not np.array_equal(make(kind), make(kind, seed=1))


def test_a_mask_is_a_prefix_of_ones_and_padding_what_follows_it():
    mask, padding = make("mask"), make("padding")
    assert (np.diff(mask) <= 0).all()
    assert (mask[..., 0] == 1).all()
    assert np.array_equal(mask + padding, np.ones(SHAPE))


def test_a_difference_is_the_largest_of_all_answers():
    difference = Difference()
    difference.add("y", np.array([1.0, -4.0]), np.array([1.0, -4.5]))
    difference.add("y", np.array([0.5, 2.0]), np.array([0.25, 2.0]))
    assert (difference.error, difference.relative, difference.scaled) == (0.5, 0.125, 0.125)


def test_a_number_where_none_belongs_is_no_small_difference():
    difference = Difference()
    difference.add("y", np.array([1.0, np.nan, np.inf]), np.array([1.0, np.nan, np.inf]))
    assert difference.relative == 0
    difference.add("y", np.array([1.0, np.nan, np.inf]), np.array([np.nan, 0.0, -np.inf]))
    assert difference.misplaced == 3
    assert difference.relative == difference.scaled == np.inf


def test_an_answer_where_all_should_be_zero_is_wrong():
    difference = Difference()
    difference.add("y", np.zeros(2), np.array([0, 1e-9]))
    assert difference.relative == 1


def test_labels_are_counted_where_rows_sum_to_one_or_are_called_classes():
    assert looks_like_classes("y", np.array([[0.25, 0.75], [1.0, 0.0]]))
    assert looks_like_classes("logits", np.array([[-3.0, 8.0]]))
    assert not looks_like_classes("y", np.array([[0.5, 0.75]]))
    assert not looks_like_classes("y", np.array([[1.0], [1.0]]))
    differences = Differences()
    differences.add(
        {"y": np.array([[0.25, 0.75], [1.0, 0.0]])}, {"y": np.array([[0.75, 0.25], [1.0, 0.0]])}
    )
    assert differences.agreement == 0.5


def test_another_shape_is_a_problem_but_for_a_scalar():
    differences = Differences()
    differences.add({"y": np.array(2.0)}, {"y": np.array([2.0])})
    assert not differences.problem
    differences.add({"y": np.zeros((3, 1))}, {"y": np.zeros((4, 1))})
    assert differences.problem == "y has shape [4, 1], expected [3, 1]"


@pytest.mark.parametrize("leading", [2, "n"])
def test_the_original_computes_rows_in_chunks_that_its_file_allows(tmp_path, leading):
    file = tmp_path / "model.onnx"
    spec = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, leading]) for name in "xy"]
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", spec[:1], spec[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file
    )
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert np.array_equal(Original(file, {"x": 1, "y": 1}).run({"x": x}, ["y"])["y"], -x)


def test_an_output_without_rows_is_that_of_any_row(tmp_path):
    file = tmp_path / "model.onnx"
    shapes = {"x": ["n"], "s": [], "y": ["n"], "t": []}
    x, s, y, t = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    nodes = [helper.make_node("Add", ["x", "s"], ["y"]), helper.make_node("Neg", ["s"], ["t"])]
    graph = helper.make_graph(nodes, "g", [x, s], [y, t])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file
    )
    feeds = {"x": np.arange(3, dtype=np.float32), "s": np.array(4, np.float32)}
    right = Original(file, {"x": 0, "y": 0}).run(feeds, ["y", "t"])
    assert (right["y"].tolist(), right["t"].tolist()) == ([4, 5, 6], -4)


def test_a_result_is_judged_by_its_precision():
    wrong = Differences()
    wrong.add({"y": np.array([2.0])}, {"y": np.array([2.1])})
    assert (
        judge(Result(model(), "fp32", differences=wrong))
        == "differs by 0.05 of max(1, largest value)"
    )
    assert judge(Result(model(), "fp32")) == "was never asked"
    assert "no warning" in judge(Result(model(), "fp16", differences=wrong))
    assert judge(Result(model(), "fp16", differences=wrong, warnings=["overflows"])) == ""


def test_a_refusal_is_wrong_where_none_is_expected_and_the_other_way_round():
    assert judge(Result(model(), "fp32", refusal="no such operator")) == "no such operator"
    assert judge(Result(model(refused=("fp32",)), "fp32", refusal="no such operator")) == ""
    assert (
        judge(Result(model(refused=("fp32",)), "fp32")) == "is expected to be refused, and compiles"
    )


def test_rows_lie_where_the_configuration_leaves_a_size_open():
    config = ModelConfig(max_batch_size=0)
    config.input.add(name="x", dims=[2, -1, 4])
    config.input.add(name="h", dims=[-1, 4])
    config.output.add(name="y", dims=[1])
    assert find_axes(config) == {"x": 1, "h": 0}
    config.input[0].dims[1] = config.input[1].dims[0] = 8
    assert find_axes(config) is None
    config.max_batch_size = 8
    assert find_axes(config) == {"x": 0, "h": 0, "y": 0}


def test_poprt_is_told_every_shape_every_setting_and_where_the_batch_lies_if_in_one_place():
    inputs = {
        "x": Input((BATCH, 3), "normal"),
        "h": Input((2, BATCH), "normal"),
        "s": Input((), "constant 1"),
    }
    assert model(inputs=inputs).arguments() == [
        "--input_shape",
        "x=4,3",
        "h=2,4",
        "--fix_input",
        "s=1",
    ]
    inputs = {"x": Input((BATCH, 3), "normal"), "y": Input((BATCH,), "normal")}
    assert model(inputs=inputs).arguments() == [
        "--input_shape",
        "x=4,3",
        "y=4",
        "--batch_size",
        "4",
        "--batch_axis",
        "0",
    ]


def test_a_child_is_measured_and_stopped_when_its_time_is_over():
    done = run_child(
        [
            sys.executable,
            "-c",
            "import time; x = b'1' * 50_000_000; print('done'); time.sleep(0.3)",
        ],
        60,
    )
    assert (done.status, done.output) == (0, "done\n")
    assert done.seconds > 0.3
    assert done.peak_bytes > 50_000_000
    assert run_child([sys.executable, "-c", "import time; time.sleep(60)"], 0.2).status is None
