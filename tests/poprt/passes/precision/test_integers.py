"""Tests of 64-bit integers: their conversion inside a model, and that ONNX Runtime computes the
remaining ones."""

import logging

import numpy as np
import onnx
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import iter_graphs, iter_nodes
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.passes import get_pass
from sample_models import make_model

B, F, I32, I64, U64 = (
    TensorProto.BOOL,
    TensorProto.FLOAT,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT64,
)
IDS = {"x": (I64, [2, 3])}


def node(op_type, inputs, outputs="y", **attributes):
    return helper.make_node(
        op_type, inputs.split(), outputs.split(), name=outputs.split()[0], **attributes
    )


def answer(model, feeds):
    session = unoptimised_session(model)
    kinds = {"tensor(int32)": np.int32, "tensor(uint32)": np.uint32}
    fed = {
        v.name: feeds[v.name].astype(kinds.get(v.type, feeds[v.name].dtype))
        for v in session.get_inputs()
    }
    return session.run(None, fed)


def narrow(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    changed = get_pass("int64_to_int32")(copy)
    onnx.checker.check_model(changed, full_check=True)
    assert get_pass("int64_to_int32")(changed) == changed
    return changed


def assert_answers(model, feeds):
    expected, found = answer(model, feeds), answer(narrow(model), feeds)
    for before, after in zip(expected, found, strict=True):
        assert after.dtype == (np.int32 if before.dtype == np.int64 else before.dtype)
        np.testing.assert_array_equal(after, before)


def feed(*names):
    return {name: np.arange(6, dtype=np.int64).reshape(2, 3) - i for i, name in enumerate(names)}


UNARY = [
    "Abs",
    "Neg",
    "Sign",
    "Identity",
    "Transpose",
    "Flatten",
    "NonZero",
    "Shape",
    "Size",
    "ArgMax",
    "ArgMin",
]
BINARY = ["Add", "Sub", "Mul", "Mod", "Equal", "Greater", "Less", "Max", "Min", "Pow"]
REDUCING = [
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "ReduceProd",
    "ReduceMean",
    "ReduceL1",
    "ReduceSumSquare",
]


@pytest.mark.parametrize("opset", [12, 13, 17, 21])
@pytest.mark.parametrize("op_type", [*UNARY, *REDUCING])
def test_onnx_runtime_computes_what_is_narrowed_of_one_operand(op_type, opset):
    model = make_model([node(op_type, "x")], IDS, {"y": (I64, None)}, {}, opset)
    made = onnx.shape_inference.infer_shapes(model)
    model.graph.output[0].CopyFrom(made.graph.output[0])
    assert_answers(model, feed("x"))


@pytest.mark.parametrize("opset", [12, 13, 17, 21])
@pytest.mark.parametrize("op_type", BINARY)
def test_onnx_runtime_computes_what_is_narrowed_of_two_operands(op_type, opset):
    kind = B if op_type in ("Equal", "Greater", "Less") else I64
    made = node(op_type, "x z")
    model = make_model([made], {**IDS, "z": (I64, [2, 3])}, {"y": (kind, [2, 3])}, {}, opset)
    feeds = feed("x", "z")
    assert_answers(model, {"x": feeds["x"], "z": np.abs(feeds["z"]) % 4 + 1})


@pytest.mark.parametrize(
    ("nodes", "held", "output"),
    [
        ([node("Gather", "x i")], {"i": [1, 0]}, (I64, [2, 3])),
        ([node("GatherElements", "x i", axis=1)], {"i": [[1, 0], [2, 2]]}, (I64, [2, 2])),
        ([node("GatherND", "x i")], {"i": [[1, 0], [0, 2]]}, (I64, [2])),
        ([node("ScatterElements", "x i u", axis=1)], {"i": [[1], [2]], "u": [[7], [8]]}, (I64, [2, 3])),
        ([node("ScatterND", "x i u")], {"i": [[1, 0]], "u": [7]}, (I64, [2, 3])),
        ([node("Where", "c x z"), node("Greater", "x z", "c")][::-1], {"z": [[2]]}, (I64, [2, 3])),
        ([node("Concat", "x z", axis=0)], {"z": [[7, 8, 9]]}, (I64, [3, 3])),
        ([node("Expand", "x s")], {"s": [2, 2, 3]}, (I64, [2, 2, 3])),
        ([node("Tile", "x s")], {"s": [1, 2]}, (I64, [2, 6])),
        ([node("Pad", "x p v")], {"p": [0, 1, 0, 0], "v": 5}, (I64, [2, 4])),
        ([node("Slice", "x a e")], {"a": [1], "e": [2**63 - 1]}, (I64, [1, 3])),
        ([node("TopK", "x k", "y where")], {"k": [2]}, (I64, [2, 2])),
        ([node("OneHot", "x d v")], {"d": 6, "v": [0, 1]}, (I64, [2, 3, 6])),
        ([node("CumSum", "x a")], {"a": 1}, (I64, [2, 3])),
        ([node("Unsqueeze", "x a")], {"a": [0]}, (I64, [1, 2, 3])),
        ([node("Split", "x s", "y z", axis=1)], {"s": [2, 1]}, (I64, [2, 2])),
        ([node("ReduceSum", "x a")], {"a": [1]}, (I64, [2, 1])),
        ([node("Range", "a b c", "r"), node("Add", "r x")], {"a": 0, "b": 3, "c": 1}, (I64, [2, 3])),
        ([node("Unique", "x", axis=0)], {}, (I64, [2, 3])),
        ([node("Cast", "x", to=F)], {}, (F, [2, 3])),
        ([node("Cast", "x", "f", to=F), node("Cast", "f", to=I64)], {}, (I64, [2, 3])),
        ([node("ConstantOfShape", "s", "c", value=helper.make_tensor("", I64, [1], [4])), node("Add", "c x")],
         {"s": [2, 3]}, (I64, [2, 3])),
        ([node("Constant", "", "c", value_ints=[4, 5, 6]), node("Add", "c x")], {}, (I64, [2, 3])),
        ([node("Shape", "x", "s"), node("Gather", "s i", "n"), node("Add", "n x")], {"i": 1}, (I64, [2, 3])),
    ],
    ids=lambda each: each[0].op_type if isinstance(each, list) else None,
)  # fmt: skip
def test_onnx_runtime_computes_what_is_narrowed_of_operators_with_places_for_64_bits(
    nodes, held, output
):
    weights = {name: np.asarray(value, np.int64) for name, value in held.items()}
    assert_answers(make_model(nodes, IDS, {"y": output}, weights), feed("x"))


def test_a_chain_that_computes_a_shape_stays_of_64_bits_without_casts():
    nodes = [
        node("Shape", "f", "size"),
        node("Gather", "size i", "n"),
        node("Concat", "n rest", "shape", axis=0),
        node("Reshape", "f shape"),
    ]
    held = {"i": np.int64([0]), "rest": np.int64([-1])}
    model = make_model(nodes, {"f": (F, ["n", 2, 2])}, {"y": (F, None)}, held)
    changed = get_pass("int64_to_int32")(model)
    assert [each.op_type for each in changed.graph.node] == ["Shape", "Gather", "Concat", "Reshape"]
    assert {t.name: t.data_type for t in changed.graph.initializer} == {"i": I32, "rest": I64}


def test_the_sizes_of_a_crop_stay_of_64_bits():
    """By the standard's definition, 64-bit integers are combined with these sizes."""
    borders = {"x": (F, [4, 2])}, {"y": (F, [2, 3])}
    model = make_model(
        [node("CenterCropPad", "x sizes")], *borders, {"sizes": np.array([2, 3])}, 18
    )
    assert_answers(model, {"x": np.ones((4, 2), np.float32)})


def test_a_constant_that_a_cast_and_a_shape_read_is_narrowed_by_the_cast():
    nodes = [node("Cast", "shape", "whole", to=I64), node("Reshape", "x shape")]
    shapes = {"x": (F, [4])}, {"whole": (I64, [2]), "y": (F, [2, 2])}
    model = make_model(nodes, *shapes, {"shape": np.array([2, 2])})
    assert_answers(model, {"x": np.ones(4, np.float32)})


def test_a_constant_that_is_read_both_ways_is_there_twice():
    nodes = [node("Reshape", "x s", "flat"), node("Add", "x s")]
    held = {"s": np.int64([1, 2, 3])}
    model = make_model(
        nodes, {"x": (I64, [2, 3])}, {"y": (I64, [2, 3]), "flat": (I64, [1, 2, 3])}, held
    )
    assert {t.name: t.data_type for t in narrow(model).graph.initializer} == {
        "s": I32,
        "s/int64": I64,
    }
    assert_answers(model, feed("x"))


def test_operands_that_have_to_be_of_one_type_are():
    """Other nodes read one end of a Slice in 64 bits, and only there."""
    nodes = [node("Reshape", "x s", "flat"), node("Slice", "flat a s"), node("Neg", "flat", "z")]
    held = {"s": np.int64([6]), "a": np.int64([1])}
    model = make_model(nodes, {"x": (I64, [2, 3])}, {"y": (I64, [5]), "z": (I64, [6])}, held)
    assert_answers(model, feed("x"))


@pytest.mark.parametrize(("end", "warned"), [(2**63 - 1, False), (2**40, True)])
def test_constants_beyond_32_bits_are_clipped_and_warned_of_unless_they_mean_the_end(
    end, warned, caplog
):
    held = {"a": np.int64([1]), "e": np.int64([end])}
    model = make_model([node("Slice", "x a e")], IDS, {"y": (I64, [1, 3])}, held)
    with caplog.at_level(logging.WARNING):
        changed = narrow(model)
    ends = {t.name: numpy_helper.to_array(t) for t in changed.graph.initializer}
    assert ends["e"].tolist() == [2**31 - 1]
    assert ("Clip e to range (-2147483648, 2147483647)" in caplog.text) == warned
    assert "Clip a " not in caplog.text


def loop():
    """Return a loop that adds the number of the iteration, three times."""
    body = helper.make_graph(
        [node("Add", "v i", "w"), node("Identity", "go", "on"), node("Mul", "w i", "seen")],
        "turn",
        [
            helper.make_tensor_value_info(*each)
            for each in (("i", I64, []), ("go", B, []), ("v", I64, [2, 3]))
        ],
        [
            helper.make_tensor_value_info(*each)
            for each in (("on", B, []), ("w", I64, [2, 3]), ("seen", I64, [2, 3]))
        ],
    )
    held = {"three": np.int64(3), "yes": np.bool_(True)}
    nodes = [helper.make_node("Loop", ["three", "yes", "x"], ["y", "all"], "loop", body=body)]
    return make_model(nodes, IDS, {"y": (I64, [2, 3]), "all": (I64, [3, 2, 3])}, held)


def test_a_loop_counts_in_64_bits_and_carries_32():
    assert_answers(loop(), feed("x"))
    changed = narrow(loop())
    (body,) = list(iter_graphs(changed.graph))[1:]
    assert [value.type.tensor_type.elem_type for value in body.input] == [I64, B, I32]
    assert {t.name: t.data_type for t in changed.graph.initializer} == {"three": I64, "yes": B}


def test_branches_read_what_is_narrowed_around_them_in_either_width():
    branches = {
        kind: helper.make_graph(
            nodes, kind, [], [helper.make_tensor_value_info(f"{kind}y", I64, [2, 3])]
        )
        for kind, nodes in {
            "then_branch": [node("Reshape", "x s", "then_branchy")],
            "else_branch": [node("Add", "x one", "else_branchy")],
        }.items()
    }
    held = {"one": np.int64(1)}
    nodes = [
        node("Identity", "shape", "s"),
        helper.make_node("If", ["which"], ["y"], "if", **branches),
        node("Add", "s s", "z"),
    ]
    inputs = {**IDS, "shape": (I64, [2]), "which": (B, [])}
    model = make_model(nodes, inputs, {"y": (I64, [2, 3]), "z": (I64, [2])}, held)
    for which in (True, False):
        assert_answers(model, {**feed("x"), "shape": np.int64([2, 3]), "which": np.array(which)})


def test_unsigned_ones_are_narrowed_at_the_borders():
    model = make_model([node("Cast", "x", to=U64)], {"x": (U64, [2])}, {"y": (U64, [2])}, {})
    found = answer(narrow(model), {"x": np.uint64([1, 2])})
    assert found[0].dtype == np.uint32
    assert found[0].tolist() == [1, 2]


def test_a_cast_of_what_is_narrow_already_computes_nothing():
    nodes = [node("Cast", "x", "wide", to=I64), node("Gather", "table wide")]
    held = {"table": np.arange(8, dtype=np.float32)}
    model = make_model(nodes, {"x": (I32, [3])}, {"y": (F, [3])}, held)
    assert [each.op_type for each in iter_nodes(narrow(model).graph)] == ["Identity", "Gather"]


def test_a_model_of_whole_numbers_compiles_and_answers_in_32_bits():
    compiled = Compiler.compile(Converter().convert(loop()))
    assert compiled.cycles > 0


@st.composite
def chains(draw):
    """Return a graph of integers whose operators require one width, the other, or either."""
    held = {
        "shape": np.int64([3, 2]),
        "one": np.int64([1]),
        "axis": np.int64([1]),
        "zero": np.int64([0]),
    }
    nodes, whole = [], ["x"]
    for i in range(draw(st.integers(1, 6))):
        kind, name = (
            draw(st.sampled_from("add reshape shape best gather slice cast".split())),
            f"t{i}",
        )
        taken = draw(st.sampled_from(whole))
        flat = f"{name}/flat"
        nodes.append(node("Reshape", f"{taken} shape", flat))
        made = {
            "add": node("Add", f"{flat} {flat}", name),
            "reshape": node("Reshape", f"{flat} shape", name),
            "shape": node("Expand", f"one {name}/size", name),
            "best": node("ArgMax", flat, f"{name}/best", axis=0, keepdims=1),
            "gather": node("Gather", f"{flat} zero", f"{name}/row", axis=1),
            "slice": node("Slice", f"{flat} zero one axis", f"{name}/part"),
            "cast": node("Cast", flat, name, to=I64),
        }[kind]
        if kind == "shape":
            nodes.append(node("Shape", flat, f"{name}/size"))
        nodes.append(made)
        if made.output[0] != name:
            nodes.append(node("Expand", f"{made.output[0]} shape", name))
        whole.append(name)
    outputs = draw(st.lists(st.sampled_from(whole[1:]), min_size=1, unique=True))
    return make_model(nodes, {"x": (I64, [2, 3])}, {name: (I64, [3, 2]) for name in outputs}, held)


@settings(max_examples=examples(60), deadline=None)
@given(model=chains())
def test_graphs_of_all_kinds_answer_the_same(model):
    assert_answers(model, feed("x"))
