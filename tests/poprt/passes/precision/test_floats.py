"""Tests of floats of other widths: values clipped and raised on the way to half, values that stay
in float, and doubles."""

import logging

import numpy as np
import onnx
import pytest
from exported_graphs import bert_like
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import infer_shapes, iter_nodes
from poprt import Compiler, Converter
from poprt.passes import Stage, find_pass, get_pass, get_registered_passes
from poprt.passes.precision.floats import round_to_half
from poprt.passes.precision.overflowing import find_overflowing
from sample_models import make_model

F, F16, F64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE
SPEC = (F, [4, 8])


def node(op_type, inputs, output="y", **attributes):
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


def model_of(nodes, weights=None, shape=SPEC, output=SPEC):
    held = {name: np.asarray(value) for name, value in (weights or {}).items()}
    return make_model(nodes, {"x": shape}, {"y": output}, held)


def halves_around():
    """Return all halves, the middles between neighbours, and the floats next to both."""
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
    found = np.concatenate([exact, middles])
    beside = [np.nextafter(found, np.float32(end)) for end in (-np.inf, np.inf)]
    found = np.concatenate([found, *beside])
    return np.concatenate([found, -found])


def test_floats_are_rounded_to_the_nearest_half_as_numpy_rounds_them():
    values = halves_around()
    inside = values[np.abs(values) <= 65500]
    assert round_to_half(inside).tobytes() == inside.astype(np.float16).tobytes()


def test_numbers_beyond_half_saturate_and_infinities_stay():
    values = np.float32([1e30, -1e30, np.inf, -np.inf, np.nan, 65520, 1])
    found = round_to_half(values)
    np.testing.assert_array_equal(
        found, np.float16([65504, -65504, np.inf, -np.inf, np.nan, 65504, 1])
    )
    assert round_to_half(np.zeros((0, 3), np.float32)).shape == (0, 3)


def convert(model, caplog, **options):
    with caplog.at_level(logging.WARNING):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return get_pass("float_to_half", **options)(copy)


def constants(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_constants_beyond_half_are_clipped_and_tiny_ones_raised_each_with_a_warning(caplog):
    nodes = [
        node("Add", "x mask", "a"),
        node("Add", "a epsilon", "b"),
        node("Add", "b infinite", "c"),
        node("Add", "c weights", "d"),
        node("Sub", "d minus"),
    ]
    weights = {
        "mask": np.full(8, np.finfo(np.float32).min, np.float32),
        "epsilon": np.float32(1e-12),
        "infinite": np.full(8, -np.inf, np.float32),
        "weights": np.full(8, 1e-12, np.float32),
        "minus": np.float32([-1e-9]),
    }
    found = constants(convert(model_of(nodes, weights), caplog))
    assert found["mask"].tolist() == [-65504] * 8
    assert found["epsilon"] == np.float16(1e-7) > 0
    assert found["minus"] == np.float16(-1e-7) < 0
    assert np.isinf(found["infinite"]).all()
    assert not found["weights"].any(), "of a weight what is lost is nothing"
    messages = [record.getMessage() for record in caplog.records]
    assert sorted(messages) == [
        "Clip mask to range (-65500.0, 65500.0)",
        "Raise epsilon from 1e-12 to 1e-07",
        "Raise minus from -1e-09 to -1e-07",
    ]


def test_constants_that_only_nodes_in_float_read_stay_as_they_are(caplog):
    model = model_of([node("Add", "x tiny")], {"tiny": np.float32(1e-12)})
    changed = convert(model, caplog, skip_op_types=["Add"])
    assert list(constants(changed).values()) == [np.float32(1e-12)]
    assert not caplog.records


def test_constants_of_nodes_become_half_however_they_are_written(caplog):
    nodes = [
        helper.make_node("Constant", [], ["c"], name="c", value_floats=[1.0, 1e9]),
        helper.make_node("Constant", [], ["d"], name="d", value_float=1e-9),
        node("Sum", "c d"),
    ]
    changed = convert(model_of(nodes, output=(F, [2])), caplog)
    onnx.checker.check_model(changed, full_check=True)
    held = [numpy_helper.to_array(each.attribute[0].t) for each in changed.graph.node[:2]]
    assert [each.dtype for each in held] == [np.float16] * 2
    assert [record.getMessage().split(" from ")[0] for record in caplog.records] == [
        "Clip c to range (-65500.0, 65500.0)",
        "Raise d",
    ]


def test_the_chips_own_operators_are_half_throughout():
    nodes = [
        helper.make_node("Mine", ["x"], ["a"], name="a", domain="ai.graphcore"),
        helper.make_node("Other", ["x"], ["y"], name="y", domain="ai.graphcore", dataType="FLOAT"),
    ]
    model = model_of(nodes)
    model.opset_import.append(helper.make_opsetid("ai.graphcore", 1))
    changed = get_pass("float_to_half")(model)
    assert [each.domain for each in changed.graph.node] == ["ai.graphcore"] * 2
    assert changed.graph.node[1].attribute[0].s == b"FLOAT16"


def norm(scale):
    """Return a layer norm of large numbers as exporters write it."""
    nodes = [
        node("Mul", "x scale", "l"),
        node("ReduceMean", "l", "mean", axes=[1]),
        node("Sub", "l mean", "d"),
        node("Pow", "d two", "square"),
        node("ReduceMean", "square", "variance", axes=[1]),
        node("Add", "variance epsilon", "safe"),
        node("Sqrt", "safe", "deviation"),
        node("Div", "d deviation"),
    ]
    held = {"scale": np.float32(scale), "two": np.float32(2), "epsilon": np.float32(1e-5)}
    return model_of(nodes, held)


def softplus():
    """Return a model of log(1 + exp(20 x))."""
    nodes = [
        node("Mul", "x k", "l"),
        node("Exp", "l", "e"),
        node("Add", "e one", "s"),
        node("Log", "s"),
    ]
    return model_of(nodes, {"k": np.float32(20), "one": np.float32(1)})


def own_softmax():
    nodes = [
        node("Mul", "x k", "l"),
        node("Exp", "l", "e"),
        node("ReduceSum", "e axes", "s"),
        node("Div", "e s"),
    ]
    return model_of(nodes, {"k": np.float32(20), "axes": np.int64([1])})


@pytest.mark.parametrize("make", [lambda: norm(1000), softplus, own_softmax])
def test_patterns_that_overflow_do_so_no_longer_where_they_are_kept_in_float(make):
    found = {}
    for avoids in (False, True):
        converter = Converter(
            precision="fp16", enable_avoid_overflow_patterns=avoids, skip_passes=patterns()
        )
        half, whole = converter.convert_beside_float(make())
        found[avoids] = Compiler.compile(half, float_model=whole).findings
    assert found[False].overflows
    assert not found[True].overflows
    assert found[True].comparison.error < 0.05 < found[False].comparison.error


def patterns():
    """Return the names of the passes that would replace patterns by one operator, except our
    own."""
    names = (name for name, found in get_registered_passes().items() if not found.info.is_ours)
    return [name for name in names if find_pass(name).info.stage is Stage.PATTERNS]


def overflowing(nodes, weights=None, shape=SPEC):
    model = model_of(nodes, weights, shape, (F, None))
    return find_overflowing(infer_shapes(model).graph)


def test_overflow_is_predicted_up_to_where_numbers_are_small_again():
    assert overflowing(
        list(norm(1).graph.node), {"two": np.float32(2), "epsilon": 1.0, "scale": 1.0}
    ) == {
        "square",
        "variance",
        "safe",
        "deviation",
    }


def test_long_sums_are_known_to_overflow_and_short_ones_are_not():
    long = overflowing([node("ReduceMean", "x", axes=[1])], shape=(F, [4, 1024]))
    short = overflowing([node("ReduceMean", "x", axes=[0])], shape=(F, [4, 1024]))
    assert (long, short) == ({"y"}, set())


@pytest.mark.parametrize(("value", "kept"), [(-65504, {"y", "a"}), (-1, set())])
def test_the_addition_of_a_mask_before_a_softmax_is_known_to_overflow(value, kept):
    nodes = [node("Add", "x mask", "a"), node("Softmax", "a")]
    assert overflowing(nodes, {"mask": np.full(8, value, np.float32)}) == kept
    nodes = [node("Mul", "x scale", "mask"), node("Add", "x mask", "a"), node("Softmax", "a")]
    assert overflowing(nodes, {"scale": np.float32(value)}) == kept | ({"mask"} if kept else set())


def test_products_and_what_is_not_read_on_end_a_pattern():
    nodes = [node("Exp", "x", "e"), node("MatMul", "e w", "p"), node("Relu", "e")]
    assert overflowing(nodes, {"w": np.ones((8, 8), np.float32)}) == {"e"}


def test_patterns_are_kept_in_float_inside_bodies(caplog):
    inner = [node("Exp", "x", "e"), node("Log", "e", "i")]
    body = helper.make_graph(inner, "b", [], [helper.make_tensor_value_info("i", *SPEC)])
    branch = helper.make_node("If", ["c"], ["y"], "if", then_branch=body, else_branch=body)
    model = model_of([branch])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    changed = convert(model, caplog, enable_avoid_overflow_patterns=True)
    inside = [each.op_type for each in iter_nodes(changed.graph)]
    assert inside == ["If", *["Cast", "Exp", "Log", "Cast"] * 2]


def test_a_model_in_doubles_is_compiled_in_floats():
    held = {"w": np.full((8, 8), 1e300), "k": np.float64(2)}
    nodes = [
        node("MatMul", "x w", "p"),
        node("Cast", "p", "f", to=F),
        node("Cast", "f", "d", to=F64),
        node("Mul", "d k"),
    ]
    model = model_of(nodes, held, (F64, [4, 8]), (F64, [4, 8]))
    converted = Converter().convert(model)
    assert {
        v.type.tensor_type.elem_type for v in (*converted.graph.input, *converted.graph.output)
    } == {F}
    assert {tensor.data_type for tensor in converted.graph.initializer} == {F}
    assert constants(converted)["w"].max() == np.finfo(np.float32).max
    assert Compiler.compile(converted).cycles > 0


def test_nodes_kept_in_float_stay_so_in_a_second_conversion():
    nodes = [
        node("Cast", "ids", "f", to=F),
        node("Mul", "f k", "a"),
        node("Mul", "x a", "b"),
        node("Exp", "b", "c"),
        node("Log", "c"),
    ]
    model = model_of(nodes, {"k": np.float32(1e-9)})
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT32, [8]))
    once = get_pass("float_to_half", ["Mul", "Exp"])(model)
    assert [each.op_type for each in once.graph.node] == "Cast Mul Cast Mul Exp Cast Log".split()
    assert constants(once) == {"k": np.float32(1e-9)}
    again = onnx.ModelProto()
    again.CopyFrom(once)
    assert get_pass("float_to_half", ["Mul", "Exp"])(again) == once
    onnx.checker.check_model(once, full_check=True)


@pytest.mark.parametrize("name", ["LayerNormalization", "GroupNormalization"])
def test_layer_norms_stay_in_float_under_both_their_names(name, caplog):
    converted = Converter(precision="fp16", fp16_skip_op_types=name).convert(bert_like())
    assert not caplog.records
    assert {node.op_type for node in converted.graph.node} & {"FastNorm", "GroupNormalization"} == {
        "GroupNormalization"
    }
    readers = {name: node for node in converted.graph.node for name in node.input}
    norms = [node for node in converted.graph.node if node.op_type == "GroupNormalization"]
    assert {readers[node.output[0]].op_type for node in norms} == {"Cast"}


def test_operators_that_stay_in_float_and_are_not_there_are_warned_of(caplog):
    Converter(precision="fp16", fp16_skip_op_types="Gelu, MatMul").convert(bert_like())
    assert "the model has no operator Gelu; it has " in caplog.text
    assert "Erf" in caplog.text
    assert len(caplog.records) == 1
