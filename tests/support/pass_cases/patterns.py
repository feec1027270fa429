"""Passes that find patterns, merge and serialise."""

import numpy as np
import onnx
from exported_graphs import H, Exporter
from pass_cases.case import Case


def norm_of(form: str = "torch", axes=(-1,), opset: int = 13) -> onnx.ModelProto:
    net = Exporter(opset)
    return net.model({net.layer_norm(net.input("x", [2, 3, 8]), 8, form, axes): [2, 3, 8]})


def tanh_gelu_of(scale: float = 1.0) -> onnx.ModelProto:
    net = Exporter()
    x = net.input("x", [2, 3, 8])
    return net.model({net.add("Mul", net.tanh_gelu(x), net.constant(scale)): [2, 3, 8]})


def nearly_gelu() -> onnx.ModelProto:
    """The half is missing."""
    net = Exporter()
    x = net.input("x", [2, 3, 8])
    added = net.add("Add", net.add("Erf", net.add("Div", x, net.constant(2**0.5))), net.constant(1.0))
    tanh = net.add("Add", net.add("Tanh", x), net.constant(1.0))
    return net.model({net.add("Mul", x, net.add("Mul", tanh, added)): [2, 3, 8]})


def erf_gelu_of() -> onnx.ModelProto:
    net = Exporter()
    return net.model({net.erf_gelu(net.input("x", [2, 3, 8])): [2, 3, 8]})


def half_group_norm(groups: int = 1) -> onnx.ModelProto:
    """As it stands behind layer_norm_pattern in a model in half."""
    net = Exporter(13, H)
    flat = net.add("Reshape", net.input("x", [2, 3, 8]), net.integers(-1, 8))
    scale, bias = net.weight(8), net.weight(8)
    normed = net.add(
        "GroupNormalization", flat, scale, bias, domain="ai.graphcore", num_groups=groups, epsilon=1e-5
    )
    return net.model({net.add("Reshape", normed, net.integers(-1, 3, 8)): [2, 3, 8]})


_CLOSE = 1e-6
"""Of float: the same sums in another order."""

CASES: dict[str, Case] = {
    "layer_norm_pattern": Case(
        norm_of,
        lambda: norm_of(axes=(-2, -1)),
        made=frozenset(("GroupNormalization",)),
        gone=frozenset(("Sqrt", "Pow", "ReduceMean")),
        tolerance=_CLOSE,
        saves=True,
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
}
