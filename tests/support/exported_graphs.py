"""Pieces of transformers as exporters write them out, and whole small models of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F, H, I32, I64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64
TORCH, TENSORFLOW = "torch", "tensorflow"


class Exporter:
    """A graph that grows node by node, in an opset, whose constants are weights or nodes."""

    def __init__(
        self, opset: int = 13, element: int = F, *, constants_are_nodes: bool = False
    ) -> None:
        self.opset, self.element = opset, element
        self.constants_are_nodes = constants_are_nodes
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(0)

    @property
    def dtype(self) -> np.dtype[Any]:
        return helper.tensor_dtype_to_np_dtype(self.element)

    def input(self, name: str, shape: Sequence[Any], element: int | None = None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element or self.element, shape))
        return name

    def add(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], name=name, domain=domain, **attributes)
        )
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        tensor = numpy_helper.from_array(np.asarray(value, dtype or self.dtype))
        if self.constants_are_nodes:
            return self.add("Constant", value=tensor)
        tensor.name = f"constant_{len(self.weights)}"
        self.weights.append(tensor)
        return tensor.name

    def weight(self, *shape: int, scale: float = 0.3) -> str:
        name = f"weight_{len(self.weights)}"
        values = (self.random.standard_normal(shape) * scale).astype(self.dtype)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def axes(
        self, op_type: str, source: str, axes: Sequence[int], since: int = 13, **attributes: Any
    ) -> str:
        """Add an operator whose axes are an attribute, or an input since opset `since`."""
        if self.opset < since:
            return self.add(op_type, source, axes=list(axes), **attributes)
        return self.add(op_type, source, self.integers(*axes), **attributes)

    def mean(self, source: str, axes: Sequence[int] = (-1,)) -> str:
        return self.axes("ReduceMean", source, axes, since=18)

    def slice(self, source: str, axis: int, start: int, end: int = 2**31 - 1, step: int = 1) -> str:
        return self.add(
            "Slice", source, *(self.integers(each) for each in (start, end, axis, step))
        )

    def unsqueeze(self, source: str, *axes: int) -> str:
        return self.axes("Unsqueeze", source, axes)

    def linear(self, source: str, taken: int, given: int, *, bias: bool = True) -> str:
        product = self.add("MatMul", source, self.weight(taken, given))
        return self.add("Add", self.weight(given), product) if bias else product

    def layer_norm(
        self, source: str, width: int, form: str = TORCH, axes: Sequence[int] = (-1,)
    ) -> str:
        """Add a layer norm in one of the exported forms.

        `form` is torch's (two Subs: `twice`; a Cast between: `cast`; x * x: `mul`; no scale and
        bias: `bare`; 1 / deviation: `inverse`, `quotient`; powers of 0.5 and -0.5: `root`, `power`;
        weights of more axes: `wide`), JAX's (`jax`), TensorFlow's, or the operator of opset 17.
        """
        if form == "operator":
            weights = self.weight(width), self.weight(width)
            return self.add("LayerNormalization", source, *weights, axis=-1, epsilon=1e-5)
        mean = self.mean(source, axes)
        off = self.add("Sub", source, mean)
        variance = self._variance(source, mean, off, form, axes)
        shifted = self.add("Add", variance, self.constant(1e-5))
        if form in ("root", "power", "jax"):
            deviation = self.add("Pow", shifted, self.constant(0.5 if form == "root" else -0.5))
        else:
            deviation = self.add("Sqrt", shifted)
        if form == TENSORFLOW:
            factor = self.add("Mul", self.add("Reciprocal", deviation), self.weight(width))
            shift = self.add("Sub", self.weight(width), self.add("Mul", mean, factor))
            return self.add("Add", self.add("Mul", source, factor), shift)
        if form == "jax":
            factor = self.add("Mul", deviation, self.weight(1, width))
            return self.add("Add", self.add("Mul", off, factor), self.weight(width))
        if form == "power":
            normed = self.add("Mul", deviation, off)
        elif form == "quotient":
            normed = self.add("Mul", off, self.add("Div", self.constant(1.0), deviation))
        elif form == "inverse":
            normed = self.add("Mul", off, self.add("Reciprocal", deviation))
        else:
            normed = self.add("Div", off, deviation)
        if form == "bare":
            return normed
        shape = (1, 1, width) if form == "wide" else (width,)
        return self.add("Add", self.add("Mul", normed, self.weight(*shape)), self.weight(*shape))

    def group_norm(
        self, source: str, shape: Sequence[int], groups: int, *, weights: bool = True
    ) -> str:
        """Add a group norm as torch writes it: an instance norm of the groups, then scale and bias
        of channels."""
        apart = self.add("Reshape", source, self.integers(0, groups, -1))
        plain = self.constant(np.ones(groups)), self.constant(np.zeros(groups))
        normed = self.add("InstanceNormalization", apart, *plain, epsilon=1e-5)
        normed = self.add("Reshape", normed, self.integers(*shape))
        if not weights:
            return normed
        wide = (shape[1], *(1,) * (len(shape) - 2))
        return self.add("Add", self.add("Mul", normed, self.weight(*wide)), self.weight(*wide))

    def _variance(self, source: str, mean: str, off: str, form: str, axes: Sequence[int]) -> str:
        if form == "jax":
            mean_square = self.mean(self.add("Mul", source, source), axes)
            difference = self.add("Sub", mean_square, self.add("Mul", mean, mean))
            return self.add("Max", self.constant(0.0), difference)
        squared = self.add("Sub", source, mean) if form == "twice" else off
        squared = self.add("Cast", squared, to=self.element) if form == "cast" else squared
        is_product = form in ("mul", TENSORFLOW)
        square = (
            self.add("Mul", off, off)
            if is_product
            else self.add("Pow", squared, self.constant(2.0))
        )
        return self.mean(square, axes)

    def tanh_gelu(self, source: str, form: str = "pow", end: str = "first") -> str:
        """Add a GELU by tanh: x^3 by `pow`, or by `mul`, or x taken out of the sum (`out`); the
        half `first`, `last` or at the `sum`."""
        if form == "out":
            cube = self.add("Mul", self.add("Mul", source, self.constant(0.044715)), source)
            inner = self.add("Add", self.constant(1.0), cube)
            inner = self.add(
                "Mul", self.add("Mul", source, self.constant((2 / np.pi) ** 0.5)), inner
            )
        else:
            square = self.add("Mul", source, source) if form == "mul" else ""
            cube = (
                self.add("Mul", square, source)
                if square
                else self.add("Pow", source, self.constant(3.0))
            )
            inner = self.add("Add", source, self.add("Mul", self.constant(0.044715), cube))
            inner = self.add("Mul", inner, self.constant((2 / np.pi) ** 0.5))
        return self._halve(source, self.add("Tanh", inner), end)

    def erf_gelu(self, source: str, form: str = "div", end: str = "last") -> str:
        """Add a GELU by erf of x over the root of 2, or times its inverse (`mul`)."""
        if form == "div":
            inner = self.add("Div", source, self.constant(2**0.5))
        else:
            inner = self.add("Mul", self.constant(0.5**0.5), source)
        return self._halve(source, self.add("Erf", inner), end)

    def _halve(self, source: str, found: str, end: str) -> str:
        added, half = self.add("Add", found, self.constant(1.0)), self.constant(0.5)
        if end == "first":
            return self.add("Mul", self.add("Mul", half, source), added)
        if end == "last":
            return self.add("Mul", self.add("Mul", source, added), half)
        return self.add("Mul", source, self.add("Mul", added, half))

    def heads(self, source: str, shape: Sequence[int], *, key: bool = False) -> str:
        """Reshape [batch, tokens, width] to [batch, heads, tokens, size]; for keys the last two are
        exchanged."""
        split = self.add("Reshape", source, self.integers(*shape))
        return self.add("Transpose", split, perm=[0, 2, 3, 1] if key else [0, 2, 1, 3])

    def half_turn(self, source: str, size: int) -> str:
        """Add rotate_half of LLaMA and similar models."""
        first, last = self.slice(source, 3, 0, size // 2), self.slice(source, 3, size // 2)
        return self.add("Concat", self.add("Neg", last), first, axis=-1)

    def interleaved_turn(self, source: str, shape: Sequence[int]) -> str:
        """Add RoFormer's rotation, which rotates neighbours."""
        odd, even = self.slice(source, 3, 1, step=2), self.slice(source, 3, 0, step=2)
        stacked = [self.unsqueeze(self.add("Neg", odd), 4), self.unsqueeze(even, 4)]
        return self.add("Reshape", self.add("Concat", *stacked, axis=4), self.integers(*shape))

    def rotary(self, source: str, shape: Sequence[int], *, interleaved: bool = False) -> str:
        tokens, size = shape[2:]
        turned = (
            self.interleaved_turn(source, shape) if interleaved else self.half_turn(source, size)
        )
        cosines, sines = self.weight(1, 1, tokens, size), self.weight(1, 1, tokens, size)
        return self.add("Add", self.add("Mul", source, cosines), self.add("Mul", turned, sines))

    def mask(
        self, name: str, batch: Any, tokens: int, lowest: float = -1e4, *, reshaped: bool = False
    ) -> str:
        """Add (1 - mask) times a large negative number, [batch, 1, 1, tokens]."""
        given = self.input(name, [batch, tokens], I64)
        if reshaped:
            wide = self.add("Reshape", given, self.integers(-1, 1, 1, tokens))
        else:
            wide = self.unsqueeze(given, 1, 2)
        left = self.add("Sub", self.constant(1.0), self.add("Cast", wide, to=self.element))
        return self.add("Mul", left, self.constant(lowest))

    def attention(
        self,
        source: str,
        batch: int,
        tokens: int,
        heads: int,
        size: int,
        mask: str = "",
        rotary: str = "",
    ) -> str:
        width, shape = heads * size, [batch, tokens, heads, size]
        projected = [self.linear(source, width, width) for _ in range(3)]
        query = self.heads(projected[0], shape)
        key = self.heads(projected[1], shape, key=not rotary)
        value = self.heads(projected[2], shape)
        if rotary:
            turned = [batch, heads, tokens, size]
            interleaved = rotary == "interleaved"
            query, key = (
                self.rotary(each, turned, interleaved=interleaved) for each in (query, key)
            )
            key = self.add("Transpose", key, perm=[0, 1, 3, 2])
        scores = self.add("Div", self.add("MatMul", query, key), self.constant(size**0.5))
        scores = self.add("Add", scores, mask) if mask else scores
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=3), value)
        joined = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = self.add("Reshape", joined, self.integers(batch, tokens, width))
        return self.linear(joined, width, width)

    def model(
        self, outputs: dict[str, Sequence[Any]], element: int | None = None
    ) -> onnx.ModelProto:
        """Return the finished model; `outputs` are names with shapes."""
        made = [
            helper.make_tensor_value_info(name, element or self.element, shape)
            for name, shape in outputs.items()
        ]
        graph = helper.make_graph(self.nodes, "exported", self.inputs, made, self.weights)
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == "ai.graphcore" for node in self.nodes):
            opsets.append(helper.make_opsetid("ai.graphcore", 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def bert_like(
    batch: Any = 2,
    tokens: int = 8,
    layers: int = 1,
    heads: int = 2,
    size: int = 8,
    *,
    opset: int = 13,
    norm: str = TORCH,
    rotary: str = "",
) -> onnx.ModelProto:
    """Return the encoder of BERT or, with rotary, of RoFormer: embedding, norms, attention with a
    mask, GELU."""
    net, width, rows = Exporter(opset), heads * size, batch if isinstance(batch, int) else -1
    ids = net.input("ids", [batch, tokens], I64)
    x = net.add("Gather", net.weight(19, width), ids)
    x = net.layer_norm(net.add("Add", x, net.weight(1, tokens, width)), width, norm)
    mask = net.mask("mask", batch, tokens)
    for _ in range(layers):
        attended = net.attention(x, rows, tokens, heads, size, mask, rotary)
        x = net.layer_norm(net.add("Add", attended, x), width, norm)
        inner = net.erf_gelu(net.linear(x, width, 4 * width))
        x = net.layer_norm(net.add("Add", net.linear(inner, 4 * width, width), x), width, norm)
    return net.model({net.linear(x, width, 2): [batch, tokens, 2]})


def deberta_like(batch: int = 2, tokens: int = 8, heads: int = 2, size: int = 8) -> onnx.ModelProto:
    """Return a model with the masked softmax of DeBERTa, as torch exports it."""
    net, width = Exporter(13), heads * size
    x, given = net.input("x", [batch, tokens, width]), net.input("mask", [batch, tokens], I64)
    shape = [batch, tokens, heads, size]
    query, value = (net.heads(net.linear(x, width, width), shape) for _ in range(2))
    key = net.heads(net.linear(x, width, width), shape, key=True)
    seen = net.add("Unsqueeze", net.add("Unsqueeze", given, net.integers(1)), net.integers(2))
    along = net.unsqueeze(net.axes("Squeeze", seen, [-2]), -1)
    hidden = net.add("Not", net.add("Cast", net.add("Mul", seen, along), to=TensorProto.BOOL))
    scores = net.add("Add", net.add("MatMul", query, key), net.weight(1, heads, tokens, tokens))
    lowest, zero = net.constant(float(np.finfo(np.float32).min)), net.constant(0.0)
    shares = net.add("Softmax", net.add("Where", hidden, lowest, scores), axis=3)
    mixed = net.add("MatMul", net.add("Where", hidden, zero, shares), value)
    joined = net.add(
        "Reshape",
        net.add("Transpose", mixed, perm=[0, 2, 1, 3]),
        net.integers(batch, tokens, width),
    )
    return net.model({net.linear(joined, width, 2): [batch, tokens, 2]})


def _deberta_softmax(net: Exporter, scores: str, pairs: str) -> str:
    """XSoftmax by its symbolic function: each layer casts the mask anew, and to truths for each
    filling."""
    left = net.add("Sub", net.constant(1, np.int64), net.add("Cast", pairs, to=I64))
    hidden = net.add("Cast", left, to=TensorProto.UINT8)
    lowest, zero = net.constant(float(np.finfo(np.float32).min)), net.constant(0.0)
    filled = net.add("Where", net.add("Cast", hidden, to=TensorProto.BOOL), lowest, scores)
    shares = net.add("Softmax", filled, axis=3)
    return net.add("Where", net.add("Cast", hidden, to=TensorProto.BOOL), zero, shares)


def _deberta_layer(net: Exporter, x: str, pairs: str, sizes: Sequence[int]) -> str:
    batch, tokens, heads, size = sizes
    width, flat = heads * size, net.integers(batch * heads, tokens, size)
    query, key, value = (
        net.add("Reshape", net.heads(net.linear(x, width, width), sizes), flat) for _ in range(3)
    )
    scores = net.add("MatMul", query, net.add("Transpose", key, perm=[0, 2, 1]))
    scores = net.add("Div", scores, net.constant(size**0.5))
    scores = net.add("Reshape", scores, net.integers(-1, heads, tokens, tokens))
    shares = _deberta_softmax(net, scores, pairs)
    shares = net.add("Reshape", shares, net.integers(batch * heads, tokens, tokens))
    mixed = net.add(
        "Reshape", net.add("MatMul", shares, value), net.integers(batch, heads, tokens, size)
    )
    joined = net.add("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = net.add("Reshape", joined, net.integers(batch, tokens, width))
    x = net.layer_norm(net.add("Add", net.linear(joined, width, width), x), width)
    inner = net.erf_gelu(net.linear(x, width, 2 * width))
    return net.layer_norm(net.add("Add", net.linear(inner, 2 * width, width), x), width)


def _deberta_convolution(
    net: Exporter, given: str, x: str, mask: str, shown: str, shape: list[int]
) -> str:
    """Add the convolution over tokens beside the first layer."""
    width = shape[2]
    found = net.add("Transpose", given, perm=[0, 2, 1])
    found = net.add("Conv", found, net.weight(width, width, 3), net.weight(width), pads=[1, 1])
    found = net.add("Transpose", found, perm=[0, 2, 1])
    left = net.add("Cast", net.add("Sub", net.constant(1, np.int64), mask), to=TensorProto.BOOL)
    hidden = net.add("Expand", net.unsqueeze(left, -1), net.integers(*shape))
    hidden = net.add("Cast", hidden, to=TensorProto.BOOL)
    found = net.erf_gelu(net.add("Where", hidden, net.constant(0.0), found))
    return net.add("Mul", net.layer_norm(net.add("Add", x, found), width), shown)


def deberta_v2_like(
    batch: int = 2,
    tokens: int = 8,
    layers: int = 2,
    heads: int = 2,
    size: int = 8,
    *,
    conv: bool = True,
) -> onnx.ModelProto:
    """DeBERTa-v2 without its relative positions, in the node sequence that transformers 4.25.1
    exports: the mask of pairs in bytes, which each layer's softmax takes apart anew, and the
    convolution. The result is the first token's, without the convolution every token's."""
    net, width = Exporter(12), heads * size
    ids, mask = (net.input(name, [batch, tokens], I64) for name in ("input_ids", "attention_mask"))
    x = net.layer_norm(net.add("Gather", net.weight(50, width), ids), width)
    shown = net.add("Cast", net.unsqueeze(mask, 2), to=F)
    given = x = net.add("Mul", x, shown)
    wide = net.unsqueeze(net.unsqueeze(mask, 1), 2)
    pairs = net.add("Mul", wide, net.unsqueeze(net.axes("Squeeze", wide, [-2]), -1))
    pairs = net.add("Cast", pairs, to=TensorProto.UINT8)
    for layer in range(layers):
        x = _deberta_layer(net, x, pairs, [batch, tokens, heads, size])
        if conv and not layer:
            x = _deberta_convolution(net, given, x, mask, shown, [batch, tokens, width])
    if not conv:
        return net.model({net.linear(x, width, 2): [batch, tokens, 2]})
    first = net.add("Gather", x, net.constant(0, np.int64), axis=1)
    return net.model({net.linear(first, width, 2): [batch, 2]})
