"""Passes that find patterns, merge and serialise."""

from collections.abc import Sequence

import numpy as np
import onnx
from exported_graphs import Exporter, F, H
from onnx import TensorProto, helper
from onnxgraph import iter_nodes

from pass_cases.case import Case, Feeds, make_feeds


def norm_of(form: str = "torch", axes: Sequence[int] = (-1,), opset: int = 13) -> onnx.ModelProto:
    net = Exporter(opset)
    return net.model({net.layer_norm(net.input("x", [2, 3, 8]), 8, form, axes): [2, 3, 8]})


def tanh_gelu_of(scale: float = 1.0) -> onnx.ModelProto:
    net = Exporter()
    x = net.input("x", [2, 3, 8])
    return net.model({net.add("Mul", net.tanh_gelu(x), net.constant(scale)): [2, 3, 8]})


def nearly_gelu() -> onnx.ModelProto:
    """Return a Gelu without the factor of one half."""
    net = Exporter()
    x = net.input("x", [2, 3, 8])
    added = net.add(
        "Add", net.add("Erf", net.add("Div", x, net.constant(2**0.5))), net.constant(1.0)
    )
    tanh = net.add("Add", net.add("Tanh", x), net.constant(1.0))
    return net.model({net.add("Mul", x, net.add("Mul", tanh, added)): [2, 3, 8]})


def erf_gelu_of() -> onnx.ModelProto:
    net = Exporter()
    return net.model({net.erf_gelu(net.input("x", [2, 3, 8])): [2, 3, 8]})


def group_norm_of(opset: int = 21, groups: int = 2) -> onnx.ModelProto:
    """Return a model of the standard's GroupNormalization."""
    net, width = Exporter(opset), 8 if opset > 20 else groups
    normed = net.add(
        "GroupNormalization",
        net.input("x", [2, 8, 5]),
        net.weight(width),
        net.weight(width),
        num_groups=groups,
    )
    return net.model({normed: [2, 8, 5]})


def instance_norm() -> onnx.ModelProto:
    net = Exporter()
    made = net.add("InstanceNormalization", net.input("x", [2, 8, 5]), net.weight(8), net.weight(8))
    return net.model({made: [2, 8, 5]})


def half_group_norm(groups: int = 1) -> onnx.ModelProto:
    """Return a group norm as it is after layer_norm_pattern in a model in half."""
    net = Exporter(13, H)
    flat = net.add("Reshape", net.input("x", [2, 3, 8]), net.integers(-1, 8))
    scale, bias = net.weight(8), net.weight(8)
    normed = net.add(
        "GroupNormalization",
        flat,
        scale,
        bias,
        domain="ai.graphcore",
        num_groups=groups,
        epsilon=1e-5,
    )
    return net.model({net.add("Reshape", normed, net.integers(-1, 3, 8)): [2, 3, 8]})


def attention_of(rotary: str = "", projections: int = 3, masked: bool = False) -> onnx.ModelProto:
    """Return one layer's attention; with two projections the queries are the keys."""
    net = Exporter()
    x = net.input("x", [2, 6, 16])
    mask = net.mask("mask", 2, 6) if masked else ""
    if projections == 3:
        return net.model({net.attention(x, 2, 6, 2, 8, mask, rotary): [2, 6, 16]})
    query = net.heads(net.linear(x, 16, 16), [2, 6, 2, 8])
    key = net.add("Transpose", query, perm=[0, 1, 3, 2])
    value = net.heads(net.linear(x, 16, 16), [2, 6, 2, 8])
    shares = net.add("Softmax", net.add("MatMul", query, key), axis=3)
    return net.model({net.add("MatMul", shares, value): [2, 2, 6, 8]})


def padded_attention(tokens: int = 18) -> onnx.ModelProto:
    """Return one layer's attention over tokens of which the model's mask hides some."""
    net = Exporter()
    attended = net.attention(
        net.input("x", [2, tokens, 16]), 2, tokens, 2, 8, net.mask("mask", 2, tokens)
    )
    return net.model({attended: [2, tokens, 16]})


def reversing() -> onnx.ModelProto:
    """Return x cos + t sin, where t has its tokens, not its elements, exchanged."""
    net = Exporter()
    x = net.input("x", [1, 2, 6, 8])
    first, last = net.slice(x, 2, 0, 3), net.slice(x, 2, 3)
    turned = net.add("Concat", net.add("Neg", last), first, axis=2)
    cosines, sines = net.weight(1, 1, 6, 8), net.weight(1, 1, 6, 8)
    sum_ = net.add("Add", net.add("Mul", x, cosines), net.add("Mul", turned, sines))
    return net.model({sum_: [1, 2, 6, 8]})


def all_shown(model: onnx.ModelProto) -> Feeds:
    """Return inputs with a mask that hides nothing, because the results of padding change and mean
    nothing."""
    return {**make_feeds(model), "mask": np.ones((2, 6), np.int64)}


def where_mask(heads: int = 8) -> onnx.ModelProto:
    """Return a masked softmax with so many scores that selecting among fewer pays."""
    net, shape = Exporter(), [2, 8, 64, 64]
    scores, hidden = (
        net.input("x", shape),
        net.input("hidden", [2, heads, 64, 64], TensorProto.BOOL),
    )
    chosen = net.add("Where", hidden, net.constant(-1e4), scores)
    return net.model({net.add("Softmax", chosen, axis=3): shape})


def some_hidden(model: onnx.ModelProto) -> Feeds:
    """Return inputs with a mask that hides some tokens, but no row altogether."""
    fed = make_feeds(model)
    hidden = np.zeros(fed["hidden"].shape, bool)
    hidden[..., 4:] = True
    return {**fed, "hidden": hidden}


def two_products(bias: bool = False, same: bool = True) -> onnx.ModelProto:
    """Return MatMul_0 and, behind its bias if there is one, another product of the same tensor or
    not."""
    net = Exporter()
    x = net.input("x", [2, 3, 8])
    first = net.linear(x, 8, 4, bias=bias)
    second = net.linear(x if same else net.add("Relu", x), 8, 6, bias=bias)
    return net.model({net.add("Relu", first): [2, 3, 4], net.add("Tanh", second): [2, 3, 6]})


def one_product(bias: bool = False, second: bool = False) -> onnx.ModelProto:
    """Return MatMul_0, unless there is something before it."""
    net = Exporter()
    x = net.input("x", [2, 6, 8])
    made = net.linear(net.add("Relu", x) if second else x, 8, 12, bias=bias)
    return net.model({net.add("Relu", made): [2, 6, 12]})


def slices(last: int = 8) -> onnx.ModelProto:
    """Return a model of three slices of which one ends at `last`."""
    net = Exporter()
    x = net.input("x", [2, 8, 3])
    parts = [net.slice(x, 1, 4, last), net.slice(x, -2, 0, 3), net.slice(x, 1, 3, -4)]
    return net.model(
        {
            net.add("Relu", part): [2, size, 3]
            for part, size in zip(parts, (last - 4, 3, 1), strict=True)
        }
    )


def branch(name: str, op_type: str, taken: str, shape: Sequence[int] = (2, 3)) -> onnx.GraphProto:
    node = helper.make_node(op_type, [taken], ["result"], name=f"{name}/{op_type}")
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info("result", F, shape)])


def two_ifs(same: bool = True) -> onnx.ModelProto:
    """Return two Ifs, the second of which reads the first's result, with an independent node
    between them."""
    net = Exporter()
    x, on = net.input("x", [2, 3]), net.input("on", [], TensorProto.BOOL)
    other = on if same else net.add("Not", on)
    first = net.add("If", on, then_branch=branch("a", "Relu", x), else_branch=branch("b", "Neg", x))
    between = net.add("Tanh", x)
    second = net.add(
        "If", other, then_branch=branch("c", "Exp", first), else_branch=branch("d", "Abs", first)
    )
    return net.model({net.add("Add", between, second): [2, 3], first: [2, 3]})


def count_ifs(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "If" for node in model.graph.node)


_CLOSE = 1e-6
"""Tolerance in float for the same sums in another order."""


def two_experts(widths: tuple[int, int] = (16, 16)) -> onnx.ModelProto:
    """Return two experts of one tensor, mixed by a gate: MatMul_0 to Add_5 and MatMul_6 to
    Add_11."""
    net = Exporter()
    x, made = net.input("x", [2, 6, 8]), []
    for width in widths:
        inner = net.linear(x, 8, width)
        inner = net.add("Mul", inner, net.add("Sigmoid", inner))
        made.append(net.linear(inner, width, 8))
    gate = net.add("Sigmoid", net.linear(x, 8, 1))
    mixed = net.add("Add", net.add("Mul", made[0], gate), made[1])
    return net.model({mixed: [2, 6, 8]})


CASES: dict[str, Case] = {
    "layer_norm_pattern": Case(
        norm_of,
        lambda: norm_of(axes=(-2, -1)),
        made=frozenset(("GroupNormalization",)),
        gone=frozenset(("Sqrt", "Pow", "ReduceMean")),
        tolerance=_CLOSE,
        saves=True,
    ),
    "replace_group_norm": Case(
        group_norm_of,
        instance_norm,
        holds=lambda model: any(node.domain == "ai.graphcore" for node in iter_nodes(model.graph)),
        tolerance=_CLOSE,
    ),
    "replace_groupnorm_with_fast_norm": Case(
        half_group_norm,
        lambda: half_group_norm(2),
        made=frozenset(("FastNorm",)),
        gone=frozenset(("GroupNormalization", "Reshape")),
        tolerance=2 * float(np.finfo(np.float16).eps),
        saves=True,
    ),
    "gelu_pattern": Case(
        tanh_gelu_of,
        nearly_gelu,
        made=frozenset(("Gelu",)),
        gone=frozenset(("Tanh", "Pow")),
        tolerance=_CLOSE,
        saves=True,
    ),
    "erf_gelu_pattern": Case(
        erf_gelu_of,
        nearly_gelu,
        made=frozenset(("Gelu",)),
        gone=frozenset(("Erf",)),
        tolerance=_CLOSE,
        saves=True,
    ),
    "pre_scale": Case(
        attention_of,
        lambda: attention_of(projections=2),
        gone=frozenset(("Div",)),
        tolerance=_CLOSE,
        saves=True,
    ),
    "fused_attention": Case(
        attention_of,
        lambda: attention_of(projections=2),
        made=frozenset(("Split",)),
        tolerance=_CLOSE,
        saves=True,
    ),
    "matmul_rotary_embedding": Case(
        lambda: attention_of("half"),
        reversing,
        gone=frozenset(("Slice", "Neg", "Concat")),
        tolerance=_CLOSE,
    ),
    "attention_padding": Case(
        padded_attention,
        lambda: padded_attention(16),
        made=frozenset(("Pad",)),
        tolerance=_CLOSE,
    ),
    "insert_attention_mask": Case(
        lambda: attention_of(masked=True),
        attention_of,
        made=frozenset(("AttentionMask",)),
        gone=frozenset(("Sub",)),
        tolerance=_CLOSE,
        feeds=all_shown,
    ),
    "replace_where_mask": Case(
        lambda: where_mask(heads=1),
        where_mask,
        made=frozenset(("Add",)),
        tolerance=_CLOSE,
        feeds=some_hidden,
        saves=True,
    ),
    "merge_matmul": Case(
        two_products,
        lambda: two_products(same=False),
        {"merge_matmul": "MatMul_0,MatMul_1"},
        made=frozenset(("Split",)),
        tolerance=_CLOSE,
        saves=True,
        main_only="nodes are named, and names of bodies' nodes are others here",
    ),
    "merge_moe": Case(
        two_experts,
        lambda: two_experts((16, 8)),
        {"merge_str": "MatMul_0,Add_5,MatMul_6,Add_11"},
        made=frozenset(("Split",)),
        tolerance=_CLOSE,
        main_only="nodes are named, and names of bodies' nodes are others here",
    ),
    "merge_matmul_add": Case(
        lambda: two_products(bias=True),
        two_products,
        {"merge_matmul_add": "MatMul_0,Add_1,MatMul_2,Add_3"},
        made=frozenset(("Split",)),
        tolerance=_CLOSE,
        saves=True,
        main_only="nodes are named, and names of bodies' nodes are others here",
    ),
    "merge_multi_slice": Case(
        slices,
        lambda: slices(7),
        made=frozenset(("Split",)),
        gone=frozenset(("Slice",)),
        saves=True,
    ),
    "merge_if_with_same_cond": Case(
        two_ifs,
        lambda: two_ifs(same=False),
        saves=True,
    ),
    "serialize_matmul": Case(
        one_product,
        lambda: one_product(second=True),
        {"serialize_matmul": {"MatMul_0": "4"}},
        made=frozenset(("Concat",)),
        tolerance=_CLOSE,
        main_only="nodes are named, and names of bodies' nodes are others here",
    ),
    "serialize_matmul_add": Case(
        lambda: one_product(bias=True),
        one_product,
        {"serialize_matmul_add": {"MatMul_0/Add_1": 3}},
        made=frozenset(("Concat",)),
        tolerance=_CLOSE,
        main_only="nodes are named, and names of bodies' nodes are others here",
    ),
}
