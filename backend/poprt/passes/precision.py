"""Passes to 8 bits: operands of products become 8-bit floats, weights 8-bit integers, pictures bytes.

They convert a graph as the chip would compute it; what rounding does to its numbers is `simipu.numerics`'.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from onnxgraph import drop_weights, fresh_name, iter_defined, make_cast, replace_nodes, used_names
from onnxgraph.weights import change_values, register_change
from simipu import CompileError
from simipu.numerics.quarter import FORMATS, QUARTERS, QuarterFormat, encode
from simipu.operators import find_operator

from poprt.passes.base_pass import Pass, Stage, register

_QUARTER_PRECISIONS = ("fp8", "fp8_weight")
_SCALES = range(-32, 32)
"""Signed numbers of 6 bits."""


@register_change("quarter")
def narrow_to_quarter(values: npt.NDArray[Any], data_type: int, scale: int) -> npt.NDArray[np.uint8]:
    """The codes of the nearest 8-bit floats of one of ONNX's types, at a scale."""
    return encode(values, QUARTERS[data_type], scale).astype(np.uint8)


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
    def parse(cls, text: str | Sequence[Any]) -> Fp8Params:
        """From `input_format,weight_format,input_scale,weight_scale`, as a text or one by one; CompileError
        says what is wrong with it."""
        try:
            parts = text.split(",") if isinstance(text, str) else map(str, text)
            of_input, of_weight, *given = (part.strip() for part in parts)
            formats = FORMATS[of_input], FORMATS[of_weight]
            input_scale, weight_scale = map(int, given)
            fits = input_scale in _SCALES and weight_scale in _SCALES
        except (KeyError, ValueError):
            fits = False
        if not fits:
            raise CompileError(
                "fp8_params: expected input_format,weight_format,input_scale,weight_scale, formats F143 or "
                f"F152 and scales from -32 to 31, such as F143,F143,0,0; found {text!r}"
            )
        return cls(*formats, input_scale, weight_scale)


@register(
    "float_to_fp8",
    stage=Stage.PRECISION,
    option="precision",
    values=_QUARTER_PRECISIONS,
    takes={"fp8_params": "fp8_params", "skip_op_names": "fp8_skip_op_names", "convert_model": "precision"},
    depend=("float_to_half",),
)
class FloatToFp8(Pass):
    """Give every Conv, Gemm and MatMul of a graph in half that has a weight 8-bit operands, as on the C600;
    results stay half.

    The weight becomes 8-bit, a Cast narrows the activation; where `convert_model` is fp8_weight the weight is
    widened where it is used, and computed with in half. Products of two activations stay in half, and so do
    nodes of `skip_op_names`. Weights without data stay so.
    """

    def __init__(
        self,
        fp8_params: Fp8Params | None = None,
        skip_op_names: Collection[str] = (),
        convert_model: str = "fp8",
    ) -> None:
        super().__init__()
        self._params, self._skip_op_names = fp8_params or Fp8Params(), skip_op_names
        self._weights_only = convert_model == "fp8_weight"

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Raises CompileError for a name to be skipped that no such product has."""
        graph = model.graph
        weights = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT16}
        products = {
            i: index
            for i, node in enumerate(graph.node)
            if find_operator(node.op_type).is_product and (index := _weight_index(node, weights)) is not None
        }
        unknown = sorted(set(self._skip_op_names) - {graph.node[i].name for i in products})
        if unknown:
            raise CompileError(
                f"fp8_skip_op_names: the model has no Conv, Gemm or MatMul {unknown[0]!r} with a weight"
            )
        narrow = _Narrowing(self._params, frozenset(iter_defined(graph)))
        nodes: list[onnx.NodeProto] = []
        for i, node in enumerate(graph.node):
            index = None if node.name in self._skip_op_names else products.get(i)
            if index is not None:
                nodes += narrow.weight(node, index, weights)
                nodes += [] if self._weights_only else narrow.activation(node, 1 - index)
            nodes.append(node)
        replace_nodes(graph, nodes)
        drop_weights(graph, used_names(graph))
        graph.initializer.extend(narrow.tensors)
        return model


def _weight_index(node: onnx.NodeProto, weights: Collection[str]) -> int | None:
    """Which operand is a weight; a convolution's is the second."""
    places = (1,) if node.op_type == "Conv" else (1, 0)
    found = [place for place in places if node.input[place] in weights]
    return found[0] if len(found) == 1 else None


class _Narrowing:
    """Makes each 8-bit tensor once."""

    def __init__(self, params: Fp8Params, taken: frozenset[str]) -> None:
        self._params, self._taken = params, taken
        self._done: set[str] = set()
        self.tensors: list[TensorProto] = []

    def weight(
        self, node: onnx.NodeProto, index: int, weights: dict[str, TensorProto]
    ) -> list[onnx.NodeProto]:
        """The nodes that widen a weight of 8 bits again: the product takes the 8 bits, and its scale."""
        name, quarter, scale = node.input[index], self._params.weight_format, self._params.weight_scale
        narrow, wide = self._name(name)
        node.input[index] = wide
        if wide in self._done:
            return []
        self._done.add(wide)
        tensor = TensorProto()
        tensor.CopyFrom(weights[name])
        tensor.name = narrow
        change_values(tensor, "quarter", quarter.data_type, quarter.data_type, scale)
        self.tensors.append(tensor)
        return [make_cast(tensor.name, wide, TensorProto.FLOAT16, scale=scale)]

    def activation(self, node: onnx.NodeProto, index: int) -> list[onnx.NodeProto]:
        """The nodes that narrow an activation."""
        name, quarter, scale = node.input[index], self._params.input_format, self._params.input_scale
        narrow, wide = self._name(name)
        node.input[index] = wide
        if wide in self._done:
            return []
        self._done.add(wide)
        return [
            make_cast(name, narrow, quarter.data_type, scale=scale),
            make_cast(narrow, wide, TensorProto.FLOAT16, scale=scale),
        ]

    def _name(self, name: str) -> tuple[str, str]:
        """The names of an operand in 8 bits, and of what it is widened to."""
        narrow = fresh_name(f"{name}/fp8", self._taken)
        return narrow, fresh_name(f"{narrow}/half", self._taken)
