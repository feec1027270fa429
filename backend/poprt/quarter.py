"""float_to_fp8: the products of a graph in half get operands of 8 bits, as on the C600 (precision fp8 and
fp8_weight)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import drop_weights, used_names
from onnxgraph.weights import has_data, read_array
from simipu import CompileError
from simipu.numerics.quarter import FORMATS, QuarterFormat, encode

_PRODUCTS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class Fp8Params:
    """fp8_params: format and scale (a power of two) of activations and of weights; the defaults are the
    Converter's.

    A value is what its 8 bits say times 2 to the power of the scale: a larger scale reaches further, a
    smaller one is finer.
    """

    input_format: QuarterFormat = FORMATS["F143"]
    weight_format: QuarterFormat = FORMATS["F143"]
    input_scale: int = 0
    weight_scale: int = 0

    @classmethod
    def parse(cls, text: str) -> Fp8Params:
        """From `input_format,weight_format,input_scale,weight_scale`; CompileError says what is wrong with
        it."""
        parts = [part.strip() for part in text.split(",")]
        try:
            formats, scales = [FORMATS[part] for part in parts[:2]], [int(part) for part in parts[2:]]
            fits = len(parts) == 4 and all(-32 <= scale < 32 for scale in scales)
        except (KeyError, ValueError):
            fits = False
        if not fits:
            raise CompileError(
                "fp8_params: expected input_format,weight_format,input_scale,weight_scale, formats F143 or "
                f"F152 and scales from -32 to 31, such as F143,F143,0,0; found {text!r}"
            )
        return cls(formats[0], formats[1], scales[0], scales[1])


def float_to_fp8(
    model: onnx.ModelProto,
    params: Fp8Params,
    skip_op_names: Collection[str] = (),
    *,
    weights_only: bool = False,
) -> None:
    """Give every Conv, Gemm and MatMul that has a weight 8-bit operands, in place; results stay half.

    The weight becomes 8-bit, a Cast narrows the activation; with `weights_only` (fp8_weight) the weight is
    widened where it is used, and computed with in half. Products of two activations stay in half, and so do
    nodes of `skip_op_names`. Weights without data stay so. Raises CompileError for a name that no such
    product has.
    """
    graph = model.graph
    weights = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT16}
    products = [
        node for node in graph.node if node.op_type in _PRODUCTS and _weight_index(node, weights) is not None
    ]
    unknown = sorted(set(skip_op_names) - {node.name for node in products})
    if unknown:
        raise CompileError(
            f"fp8_skip_op_names: the model has no Conv, Gemm or MatMul {unknown[0]!r} with a weight"
        )
    narrowed = {id(node) for node in products if node.name not in skip_op_names}
    narrow = _Narrowing(params)
    nodes = []
    for node in graph.node:
        if id(node) in narrowed:
            index = _weight_index(node, weights)
            assert index is not None
            nodes += narrow.weight(node, index, weights)
            nodes += [] if weights_only else narrow.activation(node, 1 - index)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    drop_weights(graph, used_names(graph))
    graph.initializer.extend(narrow.tensors)


def _weight_index(node: onnx.NodeProto, weights: Collection[str]) -> int | None:
    """Which operand is a weight; a convolution's is the second."""
    places = (1,) if node.op_type == "Conv" else (1, 0)
    found = [place for place in places if node.input[place] in weights]
    return found[0] if len(found) == 1 else None


class _Narrowing:
    """Makes each 8-bit tensor once."""

    def __init__(self, params: Fp8Params) -> None:
        self._params = params
        self._done: set[str] = set()
        self.tensors: list[TensorProto] = []

    def weight(
        self, node: onnx.NodeProto, index: int, weights: dict[str, TensorProto]
    ) -> list[onnx.NodeProto]:
        """The nodes that widen a weight of 8 bits again: the product takes the 8 bits, and its scale."""
        name, quarter, scale = node.input[index], self._params.weight_format, self._params.weight_scale
        node.input[index] = wide = f"{name}/fp8/half"
        if wide in self._done:
            return []
        self._done.add(wide)
        tensor = TensorProto(name=f"{name}/fp8", data_type=quarter.data_type, dims=weights[name].dims)
        if has_data(weights[name]):
            tensor.raw_data = encode(read_array(weights[name]), quarter, scale).astype(np.uint8).tobytes()
        self.tensors.append(tensor)
        return [_cast(tensor.name, wide, TensorProto.FLOAT16, scale)]

    def activation(self, node: onnx.NodeProto, index: int) -> list[onnx.NodeProto]:
        """The nodes that narrow an activation."""
        name, quarter, scale = node.input[index], self._params.input_format, self._params.input_scale
        narrow = f"{name}/fp8"
        node.input[index] = wide = f"{narrow}/half"
        if wide in self._done:
            return []
        self._done.add(wide)
        return [
            _cast(name, narrow, quarter.data_type, scale),
            _cast(narrow, wide, TensorProto.FLOAT16, scale),
        ]


def _cast(source: str, result: str, to: int, scale: int) -> onnx.NodeProto:
    """A Cast with the scale of its 8-bit tensor, which ONNX's has not."""
    return helper.make_node("Cast", [source], [result], name=f"{result}/cast", to=to, scale=scale)
