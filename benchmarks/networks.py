"""The networks whose times on real IPUs are published, as ONNX graphs in fp16 whose weights have
shapes but no values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper
from onnxgraph import CHIP_DOMAIN, infer_shapes


class Builder:
    """A graph that grows node by node."""

    ipu: int | None = None
    """IPU of the nodes added next, as PopRT's manual sharding sets it."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int], element: int = TensorProto.FLOAT16) -> str:
        """Add an input of the network."""
        self._inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def weight(self, *shape: int, element: int = TensorProto.FLOAT16) -> str:
        """Add a weight without values."""
        name = f"weight_{len(self._initializers)}"
        self._initializers.append(TensorProto(name=name, data_type=element, dims=shape))
        return name

    def integers(self, *values: int) -> str:
        """Add a constant that shape inference must know."""
        name = f"weight_{len(self._initializers)}"
        self._initializers.append(
            helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        )
        return name

    def constant(self, value: bool | int) -> str:
        """Add a scalar."""
        element = TensorProto.BOOL if isinstance(value, bool) else TensorProto.INT64
        name = f"weight_{len(self._initializers)}"
        self._initializers.append(helper.make_tensor(name, element, [], [value]))
        return name

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"{op_type}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        if self.ipu is not None:
            self._nodes[-1].attribute.append(helper.make_attribute("__ipu_number", self.ipu))
        return name

    def model(self, output: str) -> onnx.ModelProto:
        """Return the finished network."""
        outputs = [onnx.ValueInfoProto(name=output)]
        graph = helper.make_graph(self._nodes, "network", self._inputs, outputs, self._initializers)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid(CHIP_DOMAIN, 1)]
        return infer_shapes(helper.make_model(graph, opset_imports=opsets))


def resnet50(batch: int) -> onnx.ModelProto:
    """Return ResNet-50 with folded normalisations, on 224 x 224 pictures."""
    net = Builder()

    def conv(
        x: str, source: int, target: int, kernel: int, stride: int = 1, *, relu: bool = True
    ) -> str:
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        y = net.add(
            "Conv", x, net.weight(target, source, kernel, kernel), net.weight(target), **shape
        )
        return net.add("Relu", y) if relu else y

    x = conv(net.input("x", [batch, 3, 224, 224]), 3, 64, 7, 2)
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            stride = first_stride if i == 0 else 1
            y = conv(conv(x, channels, width, 1), width, width, 3, stride)
            y = conv(y, width, 4 * width, 1, relu=False)
            if i == 0:
                x = conv(x, channels, 4 * width, 1, stride, relu=False)
            channels = 4 * width
            x = net.add("Relu", net.add("Add", y, x))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.model(net.add("Gemm", x, net.weight(2048, 1000), net.weight(1000)))


def gpt2_step(batch: int, context: int, layers_of_ipus: Sequence[int]) -> onnx.ModelProto:
    """GPT-2 XL, one token further with `context` keys and values of each layer at hand, by the
    operators that graphcore/PopTransformer writes (models/gpt2/attention.py); layers are on the
    IPUs given.

    The first IPU has the embedding, which the last layer's result is multiplied with.
    """
    net = Builder()
    hidden, heads = 1600, 25
    size = hidden // heads
    ids = net.input("ids", [batch, 1], TensorProto.INT32)
    step = net.input("step", [1], TensorProto.INT32)
    mask = net.input("mask", [batch, 1, 1, context])
    embedding = net.weight(50257, hidden)

    def dense(x: str, source: int, target: int) -> str:
        return net.add("Add", net.add("MatMul", x, net.weight(source, target)), net.weight(target))

    def norm(x: str) -> str:
        return net.add("NormCE", x, net.weight(hidden), net.weight(hidden), domain=CHIP_DOMAIN)

    def sliced(x: str, start: int, end: int, axis: int) -> str:
        return net.add("Slice", x, *map(net.integers, (start, end, axis)))

    x = net.add("Add", net.add("Gather", embedding, ids, axis=0), net.weight(1, hidden))
    for net.ipu, layers in enumerate(layers_of_ipus):
        for _ in range(layers):
            new = dense(norm(x), hidden, 3 * hidden)
            query = net.add(
                "Reshape", sliced(new, 0, hidden, 2), net.integers(batch, 1, heads, size)
            )
            query = net.add("Transpose", query, perm=[0, 2, 1, 3])
            pair = net.add(
                "Reshape",
                sliced(new, hidden, 3 * hidden, 2),
                net.integers(batch, 1, 2, heads, size),
            )
            pair = net.add("Transpose", pair, perm=[2, 0, 3, 1, 4])
            past = net.add(
                "KVCache", step, pair, domain=CHIP_DOMAIN, max_len=context, sequence_axis=3
            )
            past = net.add("Remap", past, domain=CHIP_DOMAIN)
            key, value = (
                net.add("Squeeze", sliced(past, i, i + 1, 0), net.integers(0)) for i in range(2)
            )
            scores = net.add("MatMul", query, net.add("Transpose", key, perm=[0, 1, 3, 2]))
            weights = net.add(
                "SoftmaxV2", net.add("Add", scores, mask), domain=CHIP_DOMAIN, axis=-1
            )
            joined = net.add("Transpose", net.add("MatMul", weights, value), perm=[0, 2, 1, 3])
            joined = net.add("Reshape", joined, net.integers(batch, 1, hidden))
            x = net.add("Add", x, dense(joined, hidden, hidden))
            x = net.add(
                "Add",
                x,
                dense(net.add("Gelu", dense(norm(x), hidden, 4 * hidden)), 4 * hidden, hidden),
            )
    net.ipu = 0
    logits = net.add("MatMul", norm(x), net.add("Transpose", embedding, perm=[1, 0]))
    return net.model(net.add("ArgMax", logits, axis=-1))


def recurrent(op_type: str, length: int, batch: int, width: int, element: int) -> onnx.ModelProto:
    """Return one LSTM or GRU layer as wide as its input."""
    net = Builder()
    gates = {"LSTM": 4, "GRU": 3}[op_type] * width
    weights = [net.weight(1, gates, width, element=element) for _ in range(2)]
    x = net.input("x", [length, batch, width], element)
    return net.model(net.add(op_type, x, *weights, hidden_size=width))


def reduction(shape: Sequence[int], axes: Sequence[int]) -> onnx.ModelProto:
    """Return one sum."""
    net = Builder()
    return net.model(net.add("ReduceSum", net.input("x", shape), net.integers(*axes), keepdims=0))


def wide_deep(batch: int) -> onnx.ModelProto:
    """Return Wide&Deep on Criteo: 26 embeddings of 32, 13 numbers, a multilayer perceptron."""
    net = Builder()
    ids = net.input("categorical", [26 * batch, 2], TensorProto.INT32)
    numbers = net.input("numeric", [batch, 13])
    rows = net.add(
        "Gather", net.weight(1000, 32), net.add("Gather", ids, net.integers(1), axis=1), axis=0
    )
    x = net.add("Concat", net.add("Reshape", rows, net.integers(batch, 26 * 32)), numbers, axis=1)
    source = 26 * 32 + 13
    for width in (1024, 512, 256, 1):
        x = net.add("Gemm", x, net.weight(source, width), net.weight(width))
        x = net.add("Relu", x) if width > 1 else x
        source = width
    return net.model(net.add("Sigmoid", x))


def matmul(rows: int, k: int, n: int, element: int = TensorProto.FLOAT16) -> onnx.ModelProto:
    """Return one dense product."""
    net = Builder()
    return net.model(
        net.add("MatMul", net.input("x", [rows, k], element), net.weight(k, n, element=element))
    )
