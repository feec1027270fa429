"""Passes that make operators of the chip's own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from exported_graphs import I32, Exporter, F
from onnx import TensorProto
from poprt.passes import get_pass

from pass_cases.case import Case, Feeds, make_feeds


def one(
    op_type: str,
    shape: Sequence[int] = (4, 6),
    element: int = F,
    result: int | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one operator on one tensor."""
    net = Exporter()
    made = net.add(op_type, net.input("x", shape, element), **attributes)
    return net.model({made: shape}, result or element)


def choice(element: int = F) -> onnx.ModelProto:
    """Return a model of a Where of that type."""
    net = Exporter()
    x, which = net.input("x", [4, 6], element), net.input("chosen", [4, 1], TensorProto.BOOL)
    other = net.constant(0, np.float32 if element == F else np.int32)
    return net.model({net.add("Where", which, x, other): [4, 6]}, element)


def to_bool_and_back(to: int = F) -> onnx.ModelProto:
    net = Exporter()
    truth = net.add("Cast", net.input("x", [4, 6]), to=TensorProto.BOOL)
    return net.model({net.add("Cast", truth, to=to): [4, 6]}, to)


def product(op_type: str = "MatMul") -> onnx.ModelProto:
    net = Exporter()
    made = net.add(
        op_type, net.input("x", [4, 6]), net.weight(*((6, 6) if op_type == "MatMul" else (4, 6)))
    )
    return net.model({net.add("Relu", made): [4, 6]})


def small_inputs(count: int = 3) -> onnx.ModelProto:
    """Return `count` inputs of [8, 1], and one of [8, 2]."""
    net = Exporter()
    given = [net.input(f"x{i}", [8, 1]) for i in range(count)]
    return net.model({net.add("Concat", *given, net.input("z", [8, 2]), axis=1): [8, count + 2]})


def merged_feeds(model: onnx.ModelProto) -> Feeds:
    """Return the small inputs, and the tensor into which the host merges those of [8, 1]."""
    given = make_feeds(model)
    small = [value for name, value in given.items() if name != "z"]
    return {**given, "host_concat_0": np.stack(small).reshape(len(small), 8)}


def halves_and_holes(model: onnx.ModelProto) -> Feeds:
    """Return halves between whole numbers, zeros and infinities."""
    values = [0.5, 1.5, 2.5, -0.5, 0.0, np.inf, -np.inf, -0.0, 3.0, -2.5, 7.25, 1.0]
    return {"x": np.array(values * 2, np.float32).reshape(4, 6)}


def made(name: str) -> frozenset[str]:
    return frozenset((name,))


def encoder() -> onnx.ModelProto:
    """Return a layer of BERT whose positions come from the host."""
    net, width = Exporter(), 16
    ids, places = (net.input(name, [2, 8], TensorProto.INT64) for name in ("ids", "positions"))
    x = net.add("Add", *(net.add("Gather", net.weight(19, width), each) for each in (ids, places)))
    x = net.attention(x, 2, 8, 2, 8, net.mask("mask", 2, 8))
    return net.model({net.linear(x, width, 2): [2, 8, 2]})


def packed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model after the pass."""
    args = {"max_valid_num": 2, "segment_max_size": 8}
    changed: onnx.ModelProto = get_pass("packed_transformer", pack_args=args)(model)
    for node in changed.graph.node:
        node.name = node.name or node.output[0]
    return changed


def whole_samples(model: onnx.ModelProto) -> Feeds:
    """Return as many samples as rows, all as long as a row, so that packing does not move them."""
    return {**make_feeds(model), "unpack_info": np.full((2, 1), 8, np.int32)}


CASES: dict[str, Case] = {
    "replace_erf_with_erfv2": Case(
        lambda: one("Erf"), lambda: one("Tanh"), made=made("ErfV2"), gone=made("Erf"), saves=True
    ),
    "replace_round": Case(
        lambda: one("Round"),
        lambda: one("Floor"),
        made=made("RoundV2"),
        gone=made("Round"),
        feeds=halves_and_holes,
        saves=True,
    ),
    "replace_isinf": Case(
        lambda: one("IsInf", result=TensorProto.BOOL, detect_negative=0),
        lambda: one("IsNaN", result=TensorProto.BOOL),
        made=made("IsInfV2"),
        gone=made("IsInf"),
        feeds=halves_and_holes,
        saves=True,
    ),
    "replace_softmax": Case(
        lambda: one("Softmax", (4, 7), axis=1),
        lambda: one("Softmax", (4, 6), axis=1),
        made=made("SoftmaxV2"),
        gone=made("Softmax"),
        saves=True,
    ),
    "replace_where_with_wherev2": Case(
        choice, lambda: choice(I32), made=made("WhereV2"), gone=made("Where"), saves=True
    ),
    "replace_consecutive_cast_with_notzero": Case(
        to_bool_and_back,
        lambda: to_bool_and_back(I32),
        made=made("NotZero"),
        gone=made("Cast"),
        feeds=halves_and_holes,
        saves=True,
    ),
    "auto_insert_remap": Case(product, lambda: product("Add"), made=made("Remap")),
    "packed_transformer": Case(
        encoder,
        lambda: packed(encoder()),
        {"pack_args": {"max_valid_num": 2, "segment_max_size": 8}},
        made=frozenset(("Unpack", "Repack")),
        main_only="inputs are the main graph's",
        feeds=whole_samples,
        changes_borders="it takes the lengths of samples, and gives each sample a row",
    ),
    "apply_host_concat_split": Case(
        small_inputs,
        lambda: small_inputs(1),
        {"merged_inputs": [(F, (8, 1))]},
        made=made("HCSR"),
        main_only="inputs are the main graph's",
        feeds=merged_feeds,
        changes_borders="it is there to make one input of several",
    ),
}
