"""Tests of the names that published scripts for packed DeBERTa look for in converted models, and of
the models' answers."""

import numpy as np
import pytest
from exported_graphs import I32, deberta_like, deberta_v2_like
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Compiler, Converter, Pass
from poprt.passes import PatternMatcher
from poprt.passes.onnx_helper import clean_info, topological_sort
from poprt.runtime import Runner
from sample_models import make_model

F, I64, U8, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL
OPTIONS = {
    "precision": "fp16",
    "disable_fast_norm": True,
    "enable_insert_remap": True,
    "remap_mode": "after_matmul,before_add",
    "max_tensor_size": 6291456,
}
"""Converter options of packed_deberta_example and of ByteMLPerf."""
BETWEEN = [
    "s:0->Reshape:Reshape->Squeeze:2->Unsqueeze:3->Cast:4->Mul:5->e:6",
    "Reshape:Reshape->Cast:7->Mul:5",
]
SOFTMAX = [
    "s:0->Cast:Cast0->Sub:1->Cast:2->WhereV2:3->Reshape:Reshape4->e:5",
    "Sub:1->Cast:6->WhereV2:7->Softmax:Softmax->WhereV2:3",
    "s:9->Reshape:Reshape->WhereV2:7",
]
PACKED_DEBERTA = {
    "unpack": (["s:0->Reshape:Reshape->Gather:Gather->e:3"], 1),
    "conv": (["s:0->Sub:Sub->Cast:Cast->Unsqueeze:Unsqueeze->Expand:Expand->e:5"], 1),
    "mul": (
        [
            "s:0->Unsqueeze:Unsqueeze->Cast:Cast->Mul:Mul->Transpose:Transpose->e:4",
            "Cast:Cast->Mul:Mul6->Add:Add->Reshape:Reshape->e:7",
        ],
        1,
    ),
    "between": (BETWEEN, 1),
    "softmax": (SOFTMAX, 2),
}
BYTE_MASK = [
    "s:0->Reshape:Reshape->Squeeze:Squeeze->Unsqueeze:Unsqueeze->Mul:Mul->Cast:Cast->Not:Not->e:1",
    "Reshape:Reshape->Mul:Mul",
]


def count_matches(paths, graph):
    matcher, found = PatternMatcher(paths), 0
    while matcher.next_pattern(graph) is not None:
        found += 1
    return found


@pytest.mark.parametrize("name", PACKED_DEBERTA)
def test_the_patterns_of_packed_deberta_example_match(name):
    paths, expected = PACKED_DEBERTA[name]
    converted = Converter(**OPTIONS).convert(deberta_v2_like())
    assert count_matches(paths, converted.graph) == expected


@pytest.mark.parametrize("in_bytes", [False, True])
def test_a_used_pass_finds_the_mask_of_pairs_as_byte_ml_perf_does(in_bytes, registry):
    """The mask is also found where transformers casts it to bytes before it casts it to
    booleans."""
    model, seen = deberta_like(), []
    if in_bytes:
        place, cast = next(
            (i, node) for i, node in enumerate(model.graph.node) if node.op_type == "Cast"
        )
        model.graph.node.insert(place, helper.make_node("Cast", [cast.input[0]], ["bytes"], to=U8))
        model.graph.node[place + 1].input[0] = "bytes"

    class Look(Pass):
        def run(self, model):
            seen.append(count_matches(BYTE_MASK, model.graph))
            return model

    Pass.override_register_pass("look_for_the_mask")(Look)
    Converter(**OPTIONS, used_passes=["look_for_the_mask"]).convert(model)
    assert seen == [1]


def pack(model):
    """Replace the mask of pairs by an AttentionMask as the published script does: matched nodes are
    removed, and nodes that depended on them stay."""
    nodes = model.graph.node
    between = PatternMatcher(BETWEEN).next_pattern(model.graph)
    mask = between["Reshape"].node.input[0]
    for key in ("Reshape", "2", "3", "4", "5", "7"):
        nodes.remove(between[key].node)
    matcher, hidden = PatternMatcher(SOFTMAX), ""
    while (ops := matcher.next_pattern(model.graph)) is not None:
        scores, shares = ops["Reshape"].node.output[0], ops["Softmax"].node.output[0]
        if not hidden:
            nodes.append(
                helper.make_node(
                    "AttentionMask",
                    [mask, scores],
                    ["attended"],
                    name="attended",
                    domain="ai.graphcore",
                    dataType="FLOAT16",
                )
            )
            nodes.append(helper.make_node("Cast", ["attended"], ["is_hidden"], to=B))
            nodes.append(helper.make_node("Not", ["is_hidden"], ["is_shown"]))
            hidden = "shown"
            nodes.append(helper.make_node("Cast", ["is_shown"], [hidden], to=TensorProto.FLOAT16))
        nodes.append(helper.make_node("Add", ["attended", scores], [f"{scores}/masked"]))
        nodes.append(helper.make_node("Mul", [hidden, shares], [f"{shares}/masked"]))
        ops["Softmax"].node.input[0] = f"{scores}/masked"
        ops["Reshape4"].node.input[0] = f"{shares}/masked"
        for key in ("Cast0", "1", "2", "3", "6", "7"):
            nodes.remove(ops[key].node)
    ordered = topological_sort(model.graph)
    model.graph.ClearField("node")
    model.graph.node.extend(ordered)
    return clean_info(model)


@pytest.mark.slow
def test_a_model_that_a_script_has_packed_computes_each_sample_alone():
    model = deberta_v2_like(batch=1, tokens=8, conv=False)
    packed = pack(Converter(**OPTIONS).convert(model))
    made = {name for node in packed.graph.node for name in node.output}
    made |= {value.name for value in packed.graph.input} | {
        each.name for each in packed.graph.initializer
    }
    assert made.issuperset(name for node in packed.graph.node for name in node.input)
    samples = [np.array([3, 1, 4]), np.array([1, 5, 9, 2])]
    session = unoptimised_session(model)
    expected = []
    for sample in samples:
        ids, mask = np.zeros((2, 1, 8), np.int64)
        ids[0, : sample.size], mask[0, : sample.size] = sample, 1
        expected.append(
            session.run(None, {"input_ids": ids, "attention_mask": mask})[0][0, : sample.size]
        )
    ids, mask = np.zeros((2, 1, 8), np.int32)
    ids[0, :3], ids[0, 3:7] = samples
    mask[0, :3], mask[0, 3:7] = 1, 2
    # The script turns the mask of tokens into presence flags; here the mask only multiplies.
    name = packed.graph.output[0].name
    outputs = {name: np.zeros((1, 8, 2), np.float16)}
    Runner(Compiler.compile(Converter().convert(shown_as_truth(packed)))).execute(
        {"input_ids": ids, "attention_mask": mask}, outputs
    )
    found = outputs[name][0].astype(np.float32)
    np.testing.assert_allclose(found[:3], expected[0], atol=2e-2)
    np.testing.assert_allclose(found[3:7], expected[1], atol=2e-2)


def shown_as_truth(model):
    """Change the model to multiply the embeddings by 1 for each token of any sample."""
    (cast,) = (
        node
        for node in model.graph.node
        if node.op_type == "Cast"
        and helper.get_attribute_value(node.attribute[0]) == TensorProto.FLOAT16
        and node.input[0].startswith("Unsqueeze")
    )
    place = list(model.graph.node).index(cast)
    model.graph.node.insert(
        place, helper.make_node("Cast", [cast.input[0]], ["mask_is_there"], to=B)
    )
    model.graph.node[place + 1].input[0] = "mask_is_there"
    return model


def integers(nodes, weights=()):
    return make_model(nodes, {"x": (I64, [300])}, {"y": (F, [300])}, dict(weights))


@pytest.mark.parametrize("shift", [1, 0, -1, 255, 256, 257, -256, 300])
@pytest.mark.parametrize("end", [B, I32, I64])
@pytest.mark.parametrize("op_type", ["Sub", "Add"])
def test_casts_by_way_of_bytes_are_fused_only_where_nothing_is_lost(shift, end, op_type):
    nodes = [
        helper.make_node("Cast", ["x"], ["bytes"], to=U8),
        helper.make_node("Cast", ["bytes"], ["whole"], to=I64),
        helper.make_node(op_type, ["shift", "whole"], ["moved"]),
        helper.make_node("Cast", ["moved"], ["bytes_again"], to=U8),
        helper.make_node("Cast", ["bytes_again"], ["end"], to=end),
        helper.make_node("Cast", ["end"], ["y"], to=F),
    ]
    model = integers(nodes, {"shift": np.int64(shift)})
    x = np.arange(-20, 280)
    (expected,) = unoptimised_session(model).run(None, {"x": x})
    (found,) = unoptimised_session(Converter().convert(model)).run(None, {"x": x.astype(np.int32)})
    np.testing.assert_array_equal(found, expected)


def test_nodes_that_a_script_left_hanging_go_with_clean_info():
    nodes = [
        helper.make_node("Neg", ["gone"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("Abs", ["x"], ["unread"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    model = make_model(nodes, {"x": (F, [3])}, {"y": (F, [3])}, {})
    assert [node.op_type for node in clean_info(model).graph.node] == ["Abs", "Relu"]
