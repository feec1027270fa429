"""Tests of patterns in every form that exporters write, of whole transformers, and of passes
requested by name."""

import functools
import json
import logging

import numpy as np
import onnx
import pytest
from example_counts import examples
from exported_graphs import I32, TENSORFLOW, TORCH, Exporter, F, H, bert_like, deberta_like
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxgraph import infer_shapes, iter_nodes
from oracles import unoptimised_session
from pass_cases import make_feeds
from poprt import Converter, pipeline
from poprt.comparing.ranges import find_range
from poprt.passes import PatternMatcher, get_pass
from simipu import TARGETS, CompileError
from simipu.numerics.lowering import lower
from simipu.rows import make_row_independent

ATTENTION = ("pre_scale", "matmul_rotary_embedding", "fused_attention")


def run(model, feeds):
    lowered = lower(model, None)
    session = unoptimised_session(lowered)
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})


def count(model, op_type):
    return sum(node.op_type == op_type for node in iter_nodes(model.graph))


def cycles(model):
    return pipeline.estimate(model, TARGETS["ipu2"]).cycles


def copied(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def narrowed(feeds):
    """Return the feeds with the input types that int64_to_int32 and float_to_half leave."""
    return {
        name: value.astype(np.int32) if value.dtype == np.int64 else value
        for name, value in feeds.items()
    }


def norm_model(form, opset, shape=(2, 3, 8), **options):
    net = Exporter(opset, **options)
    return net.model({net.layer_norm(net.input("x", shape), shape[-1], form): shape})


FORMS = (
    *(
        TORCH,
        TENSORFLOW,
        "twice",
        "cast",
        "mul",
        "inverse",
        "quotient",
        "bare",
        "root",
        "power",
        "wide",
    ),
    "jax",
)


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 18])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("constants_are_nodes", [False, True])
def test_a_layer_norm_is_found_in_every_form(form, opset, constants_are_nodes):
    model = norm_model(form, opset, constants_are_nodes=constants_are_nodes)
    changed = get_pass("layer_norm_pattern")(copied(model))
    assert count(changed, "GroupNormalization") == 1
    assert not count(changed, "ReduceMean") + count(changed, "Sqrt")
    feeds = make_feeds(model)
    np.testing.assert_allclose(run(changed, feeds)[0], run(model, feeds)[0], atol=2e-6)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (2, 8, 6)])
def test_a_group_norm_is_found_as_torch_writes_it(shape, groups, weights):
    net = Exporter()
    model = net.model(
        {net.group_norm(net.input("x", shape), shape, groups, weights=weights): shape}
    )
    changed = get_pass("layer_norm_pattern")(copied(model))
    assert [node.op_type for node in changed.graph.node] == ["GroupNormalization"]
    assert helper.get_node_attr_value(changed.graph.node[0], "num_groups") == groups
    feeds = make_feeds(model)
    np.testing.assert_allclose(run(changed, feeds)[0], run(model, feeds)[0], atol=2e-6)


def test_groups_that_are_shifted_are_left_alone():
    net, shape = Exporter(), (2, 8, 6)
    apart = net.add("Reshape", net.input("x", shape), net.integers(0, 4, -1))
    normed = net.add("InstanceNormalization", apart, net.weight(4), net.weight(4))
    model = net.model({net.add("Reshape", normed, net.integers(*shape)): shape})
    assert get_pass("layer_norm_pattern")(copied(model)) == model


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("opset", [18, 21])
def test_the_standards_group_norm_is_not_taken_apart(opset, given):
    net, width = Exporter(opset), 8 if opset == 21 else 4
    x, shape = net.input("x", [2, 8, 3, 5]), [2, 8, 3, 5]
    scale = net.input("scale", [width]) if given else net.weight(width)
    model = net.model(
        {net.add("GroupNormalization", x, scale, net.weight(width), num_groups=4): shape}
    )
    converted = Converter().convert(model)
    norm = converted.graph.node[-1]
    assert (norm.domain, norm.op_type) == ("ai.graphcore", "GroupNormalization")
    feeds = make_feeds(model)
    weights = [onnx.numpy_helper.to_array(each) for each in model.graph.initializer]
    scale, bias = ([feeds["scale"]] if given else []) + weights
    grouped = feeds["x"].reshape(2, 4, -1)
    deviation = np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    normed = ((grouped - grouped.mean(-1, keepdims=True)) / deviation).reshape(shape)
    scale, bias = (np.repeat(each, 8 // width).reshape(8, 1, 1) for each in (scale, bias))
    np.testing.assert_allclose(run(converted, feeds)[0], normed * scale + bias, atol=2e-6)


def test_the_operator_of_opset_17_becomes_the_same():
    changed = get_pass("layer_norm_pattern")(norm_model("operator", 17))
    assert [node.op_type for node in changed.graph.node] == [
        "Reshape",
        "GroupNormalization",
        "Reshape",
    ]


@pytest.mark.parametrize("shape", [(8,), (4, 8), (2, 2, 3, 8)])
def test_norms_of_any_rank_are_found(shape):
    model = norm_model(TORCH, 13, shape)
    changed = get_pass("layer_norm_pattern")(copied(model))
    assert count(changed, "Reshape") == (0 if len(shape) == 2 else 2)
    feeds = make_feeds(model)
    np.testing.assert_allclose(run(changed, feeds)[0], run(model, feeds)[0], atol=2e-6)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_same_network_costs_the_same_in_every_opset(precision):
    """From opset 17 on, one operator replaces a chain of nodes."""
    found = {
        cycles(Converter(precision=precision).convert(bert_like(tokens=32, norm=norm, opset=opset)))
        for norm, opset in ((TORCH, 13), (TORCH, 16), (TORCH, 17), ("operator", 17))
    }
    assert len(found) == 1


def test_a_norm_whose_mean_is_read_elsewhere_keeps_it():
    net = Exporter()
    x = net.input("x", [2, 8])
    made = net.layer_norm(x, 8)
    mean = next(node.output[0] for node in net.nodes if node.op_type == "ReduceMean")
    model = net.model({made: [2, 8], mean: [2, 1]})
    changed = get_pass("layer_norm_pattern")(copied(model))
    assert count(changed, "GroupNormalization") == count(changed, "ReduceMean") == 1
    feeds = make_feeds(model)
    for expected, found in zip(run(model, feeds), run(changed, feeds), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("broken", ["epsilon", "exponent", "source", "axis"])
def test_a_pattern_that_is_nearly_a_norm_is_left_alone(broken):
    net = Exporter()
    x, other = net.input("x", [2, 8]), net.input("other", [2, 8])
    off = net.add("Sub", x, net.mean(other if broken == "source" else x))
    square = net.add("Pow", off, net.constant(3.0 if broken == "exponent" else 2.0))
    mean = net.mean(square, (0,) if broken == "axis" else (-1,))
    epsilon = other if broken == "epsilon" else net.constant(1e-5)
    model = net.model({net.add("Div", off, net.add("Sqrt", net.add("Add", mean, epsilon))): [2, 8]})
    assert get_pass("layer_norm_pattern")(copied(model)) == model


def gelu_model(make, element=F):
    net = Exporter(13, element)
    return net.model({make(net, net.input("x", [3, 8])): [3, 8]})


@pytest.mark.parametrize("end", ["first", "last", "sum"])
@pytest.mark.parametrize("form", ["pow", "mul", "out"])
def test_a_tanh_gelu_is_found_in_every_form(form, end):
    model = gelu_model(lambda net, x: net.tanh_gelu(x, form, end))
    changed = get_pass("gelu_pattern")(copied(model))
    assert [node.op_type for node in changed.graph.node] == ["Gelu"]
    feeds = make_feeds(model)
    np.testing.assert_allclose(run(changed, feeds)[0], run(model, feeds)[0], atol=2e-6)


@pytest.mark.parametrize("end", ["first", "last", "sum"])
@pytest.mark.parametrize("form", ["div", "mul"])
def test_an_erf_gelu_is_found_in_every_form_and_stays_exact(form, end):
    model = gelu_model(lambda net, x: net.erf_gelu(x, form, end))
    changed = get_pass("erf_gelu_pattern")(copied(model))
    assert [node.op_type for node in changed.graph.node] == ["Gelu"]
    feeds = make_feeds(model)
    np.testing.assert_allclose(run(changed, feeds)[0], run(model, feeds)[0], atol=1e-6)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 20, reason="this onnx has no Gelu")
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_the_standards_gelu_becomes_the_chips(approximate):
    net = Exporter(20)
    model = net.model({net.add("Gelu", net.input("x", [3, 8]), approximate=approximate): [3, 8]})
    converted = Converter(enable_erf_gelu=True).convert(model)
    assert [(node.domain, node.op_type) for node in converted.graph.node] == [
        ("ai.graphcore", "Gelu")
    ]
    feeds = make_feeds(model)
    np.testing.assert_allclose(run(converted, feeds)[0], run(model, feeds)[0], atol=1e-6)
    assert cycles(converted) <= cycles(model)


def test_a_gelu_of_another_constant_is_not_replaced():
    net = Exporter()
    x = net.input("x", [3, 8])
    inner = net.add("Mul", x, net.constant(0.8))
    added = net.add("Add", net.add("Tanh", inner), net.constant(1.0))
    model = net.model({net.add("Mul", net.add("Mul", x, net.constant(0.5)), added): [3, 8]})
    assert get_pass("gelu_pattern")(copied(model)) == model


@pytest.mark.parametrize("rotary", ["", "half", "interleaved"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_transformer_answers_the_same_after_all_passes_of_attention(rotary, precision):
    model = bert_like(rotary=rotary)
    options = {"precision": precision, "enable_erf_gelu": True}
    plain = Converter(**options).convert(model)
    changed = Converter(**options, used_passes=ATTENTION).convert(model)
    feeds = narrowed(make_feeds(model))
    expected, found = run(plain, feeds)[0], run(changed, feeds)[0]
    scale = 1e-5 if precision == "fp32" else 4e-3
    np.testing.assert_allclose(found, expected, atol=scale * float(np.abs(expected).max()))
    assert count(changed, "Slice") == count(changed, "Neg") == 0
    assert count(changed, "FastNorm" if precision == "fp16" else "GroupNormalization") == 3


@pytest.mark.parametrize("rotary", ["half", "interleaved"])
def test_a_rotary_embedding_is_found_in_every_form(rotary):
    net, shape = Exporter(), [1, 2, 5, 8]
    x = net.input("x", shape)
    model = net.model({net.rotary(x, shape, interleaved=rotary == "interleaved"): shape})
    changed = get_pass("matmul_rotary_embedding")(copied(model))
    assert sorted(node.op_type for node in changed.graph.node) == ["Add", "MatMul", "Mul", "Mul"]
    feeds = make_feeds(model)
    np.testing.assert_array_equal(run(changed, feeds)[0], run(model, feeds)[0])


def test_a_factor_behind_scores_goes_into_the_weights_of_queries_or_onto_them():
    model = bert_like()
    changed = get_pass("pre_scale")(copied(model))
    assert count(changed, "Div") == count(model, "Div") - 1
    assert count(changed, "Mul") == count(model, "Mul")
    turned = get_pass("pre_scale")(bert_like(rotary="half"))
    assert count(turned, "Mul") == count(bert_like(rotary="half"), "Mul") + 1


def test_layers_that_share_weights_share_what_becomes_of_them():
    net, shape = Exporter(), [2, 8, 2, 8]
    x = net.input("x", [2, 8, 16])
    weights, bias = [net.weight(16, 16) for _ in range(3)], net.weight(16)
    for _ in range(3):
        projected = [net.add("Add", net.add("MatMul", x, weight), bias) for weight in weights]
        query, value = net.heads(projected[0], shape), net.heads(projected[2], shape)
        scores = net.add("MatMul", query, net.heads(projected[1], shape, key=True))
        shares = net.add("Softmax", net.add("Mul", scores, net.constant(0.25)), axis=3)
        made = net.add("Transpose", net.add("MatMul", shares, value), perm=[0, 2, 1, 3])
        x = net.add("Reshape", made, net.integers(2, 8, 16))
    model = net.model({x: [2, 8, 16]})
    changed = get_pass("fused_attention")(get_pass("pre_scale")(copied(model)))
    assert not count(changed, "Mul")
    assert count(changed, "MatMul") == 9
    floats = [tensor for tensor in changed.graph.initializer if tensor.data_type == F]
    assert sorted(tuple(tensor.dims) for tensor in floats) == [(16, 48), (48,)]
    feeds = make_feeds(model)
    np.testing.assert_allclose(run(changed, feeds)[0], run(model, feeds)[0], atol=1e-5)


def packed_mask(net):
    """Add the mask of segments, made of the standard's operators, and return its name."""
    given = net.input("mask", [2, 6], I32)
    same = net.add("Equal", net.unsqueeze(given, 1), net.unsqueeze(given, 2))
    left = net.add("Sub", net.constant(1.0), net.add("Cast", same, to=F))
    return net.add("Mul", net.unsqueeze(left, 1), net.constant(-1e4))


def masked_scores(reshaped=False, newer=False):
    """Return masked scores as different exporters write them."""
    net = Exporter()
    scores = net.input("x", [2, 3, 6, 6])
    if newer:
        wide = net.add("Cast", net.unsqueeze(net.input("mask", [2, 6], I32), 1, 2), to=F)
        spread = net.add("Expand", wide, net.integers(2, 1, 6, 6))
        left = net.add("Sub", net.constant(1.0), spread)
        lowest = net.constant(float(np.finfo(np.float32).min))
        mask = net.add("Where", net.add("Cast", left, to=TensorProto.BOOL), lowest, left)
    else:
        mask = net.mask("mask", 2, 6, reshaped=reshaped)
    return net.model({net.add("Softmax", net.add("Add", scores, mask), axis=3): [2, 3, 6, 6]})


@pytest.mark.parametrize("form", [{}, {"reshaped": True}, {"newer": True}])
def test_tokens_see_what_they_saw_and_segments_themselves(form):
    model = masked_scores(**form)
    changed = get_pass("insert_attention_mask")(copied(model))
    assert count(changed, "AttentionMask") == 1
    assert not count(changed, "Sub")
    feeds = make_feeds(model)
    feeds["mask"] = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]], feeds["mask"].dtype)
    expected, found = run(model, feeds)[0], run(changed, feeds)[0]
    shown = feeds["mask"].astype(bool)
    for row in range(2):
        np.testing.assert_allclose(
            found[row][:, shown[row]], expected[row][:, shown[row]], atol=1e-6
        )
        assert not found[row][:, ~shown[row]][:, :, shown[row]].any()
    feeds["mask"] = np.array([[1, 1, 2, 2, 2, 0]] * 2, feeds["mask"].dtype)
    seen = run(changed, feeds)[0] > 0
    assert (seen == (feeds["mask"][:, None, :, None] == feeds["mask"][:, None, None, :])).all()


def test_the_mask_of_a_packed_model_is_that_of_its_segments():
    net = Exporter()
    mask = packed_mask(net)
    scores = net.input("x", [2, 3, 6, 6])
    model = net.model({net.add("Softmax", net.add("Add", scores, mask), axis=3): [2, 3, 6, 6]})
    changed = get_pass("insert_attention_mask")(copied(model))
    assert {node.op_type for node in changed.graph.node} == {"AttentionMask", "Add", "Softmax"}
    feeds = make_feeds(model)
    feeds["mask"] = np.array([[1, 1, 2, 2, 2, 0], [1, 2, 3, 0, 0, 0]], np.int32)
    np.testing.assert_allclose(run(changed, feeds)[0], run(model, feeds)[0], atol=1e-6)


def test_a_published_pass_for_deberta_finds_its_patterns_after_conversion():
    converted = Converter(precision="fp16").convert(deberta_like())
    mask = [
        "s:0->Reshape:Reshape->Squeeze:Squeeze->Unsqueeze:Unsqueeze->Mul:Mul->Cast:Cast->Not:Not->e:1",
        "     Reshape:Reshape                                      ->Mul:Mul",
    ]
    scores = [
        "s:0         ->WhereV2:WhereV2_1->Softmax:Softmax->WhereV2:WhereV2_2->MatMul:MatMul->e:1",
        "s:2->Add:Add->WhereV2:WhereV2_1",
    ]
    for paths in (mask, scores):
        assert PatternMatcher(paths).next_pattern(converted.graph), paths


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("used", [(), ATTENTION, ("replace_where_mask",)])
@pytest.mark.parametrize("make", [bert_like, deberta_like])
def test_rows_stay_provable(make, used, precision):
    batch = 4
    model = make(batch)
    converted = Converter(precision=precision, enable_erf_gelu=True, used_passes=used).convert(
        model
    )
    proven = make_row_independent(converted, batch)
    feeds = narrowed(make_feeds(model))
    types = {value.name: value.type.tensor_type.elem_type for value in converted.graph.input}
    feeds = {
        name: value.astype(np.float16) if types[name] == H else value
        for name, value in feeds.items()
    }
    (expected,) = run(converted, feeds)
    (found,) = run(proven, {name: value[:2] for name, value in feeds.items()})
    np.testing.assert_allclose(found, expected[:2], atol=2e-3)


def test_a_mask_keeps_rows_apart():
    model = get_pass("insert_attention_mask")(masked_scores())
    proven = make_row_independent(model, 2)
    feeds = make_feeds(masked_scores())
    (found,) = run(proven, {name: value[:1] for name, value in feeds.items()})
    np.testing.assert_allclose(found, run(model, feeds)[0][:1], atol=1e-6)


@pytest.mark.parametrize("used", [(), ("insert_attention_mask",)])
@pytest.mark.parametrize("make", [bert_like, deberta_like])
def test_a_mask_is_still_known_for_one_when_inputs_are_made_up(make, used):
    converted = Converter(precision="fp16", used_passes=used).convert(make())
    assert find_range(converted, "mask").is_truth


@functools.cache
def large_product():
    net = Exporter(13, H)
    made = net.add("MatMul", net.input("x", [256, 1024]), net.weight(1024, 8192))
    return net.model({net.add("Relu", made): [256, 8192]})


@pytest.mark.parametrize(
    "order", ["4", 4, "4/input_channels", "4/output_channels/False", (4, "reducing_dim", True)]
)
def test_a_product_in_parts_takes_more_time(order):
    whole = large_product()
    parts = get_pass("serialize_matmul", {"MatMul_0": order})(copied(whole))
    assert count(parts, "MatMul") == 4
    before, after = (pipeline.estimate(each, TARGETS["ipu2"]) for each in (whole, parts))
    assert after.cycles > before.cycles
    largest = [
        max(each.work.temporary_bytes for each in found.operators if each.op_type == "MatMul")
        for found in (before, after)
    ]
    assert largest[1] < largest[0]


@pytest.mark.parametrize(
    "order", ["", "0", "x", "4/rows", "4/none/maybe", "4/none/True/1", "9" * 40, None]
)
def test_an_invalid_order_is_rejected(order):
    with pytest.raises(
        CompileError, match=r"serialize_matmul of 'a': expected FACTOR\[/MODE\[/KEEP\]\]"
    ):
        get_pass("serialize_matmul", {"a": order})


def test_a_factor_has_to_divide():
    with pytest.raises(
        CompileError, match="'MatMul_0' has 8192 columns in its right operand, which 3 parts"
    ):
        get_pass("serialize_matmul", {"MatMul_0": 3})(copied(large_product()))


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("serialize_matmul", {"nobody": 2}),
        ("serialize_matmul_add", {"no/body": 2}),
        ("merge_matmul", "nobody,no one"),
        ("merge_matmul_add", "a,b,c,d"),
    ],
)
def test_unknown_names_are_warned_of(name, argument, caplog):
    model = bert_like()
    with caplog.at_level(logging.WARNING, "poprt"):
        assert get_pass(name, argument)(copied(model)) == model
    assert name in caplog.text


@pytest.mark.parametrize(
    ("name", "argument"), [("merge_matmul", "a"), ("merge_matmul_add", ["a", "b", "c"])]
)
def test_too_few_names_are_refused(name, argument):
    with pytest.raises(CompileError, match=f"{name}: expected"):
        get_pass(name, argument)


def test_remaps_stand_where_the_modes_say_blanks_or_not():
    model = bert_like()
    options = {"enable_insert_remap": True, "remap_mode": ["after_matmul", " before_softmax "]}
    plain, converted = Converter().convert(model), Converter(**options).convert(model)
    products = count(converted, "MatMul")
    assert count(converted, "Remap") == products + 1
    makers = {name: node for node in converted.graph.node for name in node.output}
    softmax = next(node for node in converted.graph.node if node.op_type == "Softmax")
    assert makers[softmax.input[0]].op_type == "Remap"
    first = next(node for node in converted.graph.node if node.op_type == "Remap")
    found = {each.name: helper.get_attribute_value(each) for each in first.attribute}
    assert (found["fwd_grain_size"], found["fwd_clone_layout"], found["fwd_after_matmul"]) == (
        8,
        0,
        1,
    )
    feeds = narrowed(make_feeds(model))
    np.testing.assert_allclose(run(converted, feeds)[0], run(plain, feeds)[0], atol=1e-5)


@pytest.mark.parametrize("mode", ["matmul", "beside_matmul", "after_"])
def test_an_invalid_mode_is_rejected(mode):
    with pytest.raises(CompileError, match="expected before_ or after_"):
        get_pass("auto_insert_remap", [mode])


def test_small_inputs_become_one_and_the_model_says_which():
    """The inputs are those of poprt's example host_concat_runner, in smaller numbers."""
    net = Exporter(11)
    given = [
        [net.input(f"input_{width}_{i}", [16, width]) for i in range(n)]
        for width, n in ((1, 6), (5, 2))
    ]
    joined = [net.add("Concat", *each, axis=1) for each in given]
    model = net.model({net.add("Concat", *joined, axis=1): [16, 16]})
    merged = get_pass("apply_host_concat_split", [(F, (16, 1), 5), ("fp32", (16, 5))])(
        copied(model)
    )
    assert [value.name for value in merged.graph.input] == [
        "host_concat_0",
        "input_1_5",
        "host_concat_1",
    ]
    (entry,) = merged.metadata_props
    told = json.loads(entry.value)
    assert entry.key == "sHostConcatRunnerConfig"
    assert told["host_concat_1"] == {
        "tensor_name": "host_concat_1",
        "input_tensor_names": ["input_5_0", "input_5_1"],
        "shape": [2, 80],
        "data_size_bytes": 640,
        "input_shape": [16, 5],
    }
    feeds = make_feeds(model)
    joint = {
        name: np.stack([feeds[each].reshape(-1) for each in entry["input_tensor_names"]])
        for name, entry in told.items()
    }
    np.testing.assert_array_equal(run(merged, {**feeds, **joint})[0], run(model, feeds)[0])
    assert cycles(merged)


@pytest.mark.parametrize(
    "group", [(F, (4,)), (F, (4, 0)), ("fp33", (4, 1)), (F,), (F, (4, 1), -1), 7]
)
def test_an_invalid_group_of_inputs_is_rejected(group):
    with pytest.raises(CompileError, match="a shape of two dimensions"):
        get_pass("apply_host_concat_split", [group])


PIECES = {
    "norm": lambda net, x: net.layer_norm(x, 8),
    "plain": lambda net, x: net.layer_norm(x, 8, "inverse"),
    "tensorflow": lambda net, x: net.layer_norm(x, 8, TENSORFLOW),
    "tanh": lambda net, x: net.tanh_gelu(x, "out"),
    "erf": lambda net, x: net.erf_gelu(x),
    "attention": lambda net, x: net.attention(x, 2, 6, 2, 4),
    "rotary": lambda net, x: net.attention(x, 2, 6, 2, 4, rotary="half"),
    "slices": lambda net, x: net.add("Concat", net.slice(x, 1, 3), net.slice(x, 1, 0, 3), axis=1),
    "residual": lambda net, x: net.add("Add", x, net.add("Tanh", x)),
}
FREE = (
    "layer_norm_pattern",
    "gelu_pattern",
    "erf_gelu_pattern",
    *ATTENTION,
    "merge_multi_slice",
    "replace_where_with_wherev2",
    "auto_insert_remap",
)


@given(
    st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=3),
    st.sets(st.integers(0, 60), max_size=3),
    st.permutations(FREE),
    st.sampled_from((11, 13, 18)),
)
@settings(max_examples=examples(40))
def test_passes_in_any_order_keep_every_output(pieces, shown, order, opset):
    """Outputs in the middle of patterns are kept too."""
    net = Exporter(opset)
    x = net.input("x", [2, 6, 8])
    for piece in pieces:
        x = PIECES[piece](net, x)
    model = net.model({x: [2, 6, 8]})
    inner = [value for value in infer_shapes(model).graph.value_info if value.name not in (x, "x")]
    model.graph.output.extend(inner[i] for i in shown if i < len(inner))
    changed = copied(model)
    for name in order:
        changed = get_pass(name)(changed)
        onnx.checker.check_model(changed)
    feeds = make_feeds(model)
    for before, after in zip(run(model, feeds), run(changed, feeds), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-4 * max(1.0, float(np.abs(before).max())))


@pytest.mark.parametrize(
    ("axis", "step", "ends"), [(1, 2, (8, 8)), (1, 2, (7, 99)), (3, 3, (4, 5, 6)), (0, 2, (2, 2))]
)
def test_every_nth_element_is_split_off_a_view(axis, step, ends):
    net, shape = Exporter(), [2, 8, 3, 6]
    x = net.input("x", shape)
    parts = [net.slice(x, axis, start, end, step) for start, end in enumerate(ends)]
    sizes = [size // step if place == axis else size for place, size in enumerate(shape)]
    model = net.model({net.add("Neg", each): sizes for each in parts})
    changed = get_pass("merge_multi_slice")(copied(model))
    assert not count(changed, "Slice")
    assert count(changed, "Split") == 1
    feeds = make_feeds(model)
    for before, after in zip(run(model, feeds), run(changed, feeds), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(("starts", "ends"), [((0, 1), (8, 6)), ((0, 0), (8, 8)), ((0, 2), (8, 8))])
def test_steps_that_are_not_all_of_an_axis_stay(starts, ends):
    net = Exporter()
    x = net.input("x", [2, 8])
    parts = [net.slice(x, 1, start, end, 2) for start, end in zip(starts, ends, strict=True)]
    model = net.model(
        {
            net.add("Neg", each): [2, 4 if start < 1 else 3]
            for each, start in zip(parts, starts, strict=True)
        }
    )
    assert get_pass("merge_multi_slice")(copied(model)) == model
