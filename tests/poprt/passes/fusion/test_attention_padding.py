"""Tests of padding in attention: padded keys do not change the answers, whichever exporter wrote
the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from exported_graphs import Exporter, F, bert_like
from onnxgraph import graph_values, infer_shapes
from oracles import unoptimised_session
from pass_cases import make_feeds
from poprt import Converter
from poprt.passes import get_pass
from simipu.numerics.lowering import lower

HEADS, TOKENS, SIZE, GRAIN = 2, 49, 8, 16


def windows(form, element=F, opset=13, tokens=TOKENS):
    """Return attention in two images of two windows each, as vision transformers have it. `form`
    selects the terms added to the scores."""
    net, shape = Exporter(opset, element), [4, HEADS, tokens, SIZE]
    queries, values = net.input("q", shape), net.input("v", shape)
    keys = net.add("Transpose", net.input("k", shape), perm=[0, 1, 3, 2])
    scores = net.add("Mul", net.add("MatMul", queries, keys), net.constant(SIZE**-0.5))
    if "bias" in form:
        scores = net.add("Add", net.weight(1, HEADS, tokens, tokens), scores)
    if "shifted" in form:
        apart = net.add("Reshape", scores, net.integers(2, 2, HEADS, tokens, tokens))
        masked = net.add("Add", apart, net.input("mask", [1, 2, 1, tokens, tokens]))
        scores = net.add("Reshape", masked, net.integers(-1, HEADS, tokens, tokens))
    if "column" in form:
        scores = net.add("Add", scores, net.weight(HEADS, tokens, 1))
    return net.model({net.add("MatMul", net.add("Softmax", scores, axis=3), values): shape})


def run(model, feeds):
    lowered = lower(model, None)
    session = unoptimised_session(lowered)
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})[0]


def copied(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


@pytest.mark.parametrize("opset", [10, 13])
@pytest.mark.parametrize("form", [(), ("bias",), ("bias", "shifted"), ("shifted",), ("column",)])
def test_keys_that_are_none_change_no_answer(form, opset):
    model = windows(form, opset=opset)
    changed = get_pass("attention_padding")(copied(model))
    onnx.checker.check_model(changed, full_check=True)
    feeds = make_feeds(model)
    np.testing.assert_allclose(run(changed, feeds), run(model, feeds), atol=1e-6)
    values = graph_values(infer_shapes(changed).graph)
    softmax = next(node for node in changed.graph.node if node.op_type == "Softmax")
    assert values[softmax.input[0]].shape[-1] == 64
    assert all(values[each.input[1]].shape[-2] % GRAIN == 0 for each in products(changed)[1:])


def products(model):
    return [node for node in model.graph.node if node.op_type == "MatMul"]


@pytest.mark.parametrize("tokens", [7, 16, 64])
def test_whole_vectors_and_few_keys_stay(tokens):
    model = windows(("bias",), tokens=tokens)
    assert get_pass("attention_padding")(copied(model)) == model


def test_scores_that_somebody_else_reads_stay():
    model = windows(())
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    shape = [4, HEADS, TOKENS, TOKENS]
    model.graph.output.append(onnx.helper.make_tensor_value_info(softmax.input[0], F, shape))
    assert get_pass("attention_padding")(copied(model)) == model


def test_a_transformer_in_half_answers_the_same_with_more_keys():
    model = bert_like(tokens=18)
    plain = Converter(precision="fp16").convert(model)
    used = ("pre_scale", "fused_attention", "attention_padding")
    changed = Converter(precision="fp16", used_passes=used).convert(model)
    feeds = {
        n: v.astype(np.int32) if v.dtype == np.int64 else v for n, v in make_feeds(model).items()
    }
    expected, found = run(plain, feeds), run(changed, feeds)
    np.testing.assert_allclose(found, expected, atol=4e-3 * float(np.abs(expected).max()))
    assert sum(node.op_type == "Pad" for node in changed.graph.node) >= 2
