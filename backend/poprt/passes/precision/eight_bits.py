"""Passes to 8 bits: operands of products become 8-bit floats, weights 8-bit integers, pictures
bytes.

They write the graph that the chip would compute; `simipu.numerics` models the rounding.
"""

from __future__ import annotations

import copy
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    Tape,
    change_values,
    drop_initializers,
    drop_weights,
    find_inputs,
    find_opset,
    fresh_name,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    make_cast,
    register_change,
    rename,
    replace_nodes,
    take_name,
    used_names,
)
from simipu import CompileError
from simipu.numerics import FORMATS, QUARTERS, QuarterFormat, encode
from simipu.operators import operator_of

from popef._tools.arrays import Array
from popef._tools.text import did_you_mean
from poprt.rewrite.base import Pass, Stage, register

_QUARTER_PRECISIONS = ("fp8", "fp8_weight")
_SCALES = range(-32, 32)
"""Range of signed 6-bit numbers."""


@register_change("quarter")
def narrow_to_quarter(values: Array, data_type: int, scale: int) -> npt.NDArray[np.uint8]:
    """Return the codes of the nearest 8-bit floats of an ONNX type, at a scale."""
    return encode(values, QUARTERS[data_type], scale).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Fp8Params:
    """Format and scale (a power of two) of activations and of weights, as in fp8_params. The
    defaults are the real Converter's; the real command's parser has scales of -1.

    A value is the number in its 8 bits times 2 to the power of the scale. A larger scale has a
    larger range, a smaller one a finer resolution.
    """

    input_format: QuarterFormat = FORMATS["F143"]
    weight_format: QuarterFormat = FORMATS["F143"]
    input_scale: int = 0
    weight_scale: int = 0

    @classmethod
    def parse(cls, text: str | Sequence[Any] | None) -> Fp8Params:
        """Return the parameters of `input_format,weight_format,input_scale,weight_scale`, as a
        string or a sequence. Return the defaults for an empty value. Raise CompileError for an
        invalid one."""
        if not text:
            return cls()
        try:
            parts = text.split(",") if isinstance(text, str) else map(str, text)
            of_input, of_weight, *scales = (part.strip() for part in parts)
            formats = FORMATS[of_input], FORMATS[of_weight]
            input_scale, weight_scale = map(int, scales)
            fits = input_scale in _SCALES and weight_scale in _SCALES
        except (KeyError, ValueError):
            fits = False
        if not fits:
            raise CompileError(
                "fp8_params: expected input_format,weight_format,input_scale,weight_scale, formats "
                f"F143 or F152 and scales from -32 to 31, such as F143,F143,0,0; found {text!r}"
            )
        return cls(*formats, input_scale, weight_scale)


@register(
    "float_to_fp8",
    stage=Stage.PRECISION,
    option="precision",
    values=_QUARTER_PRECISIONS,
    takes="fp8_params skip_op_names=fp8_skip_op_names convert_model=precision",
    depend="float_to_half",
)
class FloatToFp8(Pass):
    """Give every Conv, Gemm and MatMul of a graph in half that has a weight 8-bit operands, as on
    the C600; results stay half.

    The weight becomes 8-bit, a Cast narrows the activation; where `convert_model` is fp8_weight the
    weight is widened where it is used, and computed with in half. Products of two activations stay
    in half, and where `skip_op` so do nodes of `skip_op_names`; other operators may be among those.
    `fp8_input_dict` and `fp8_weight_dict` have (format, scale) by a node's name, which go before
    `fp8_params`. Weights without data stay so.
    """

    def __init__(
        self,
        fp8_params: Fp8Params | str | Sequence[Any] | None = None,
        skip_op_names: Collection[str] = (),
        convert_model: str = "fp8",
        fp8_input_dict: Mapping[str, Sequence[Any]] | None = None,
        fp8_weight_dict: Mapping[str, Sequence[Any]] | None = None,
        skip_op: bool = True,
    ) -> None:
        if convert_model not in _QUARTER_PRECISIONS:
            raise CompileError(
                f"convert_model: expected {' or '.join(_QUARTER_PRECISIONS)}, found "
                f"{convert_model!r}"
            )
        self._params = (
            fp8_params if isinstance(fp8_params, Fp8Params) else Fp8Params.parse(fp8_params)
        )
        self._skip_op_names = frozenset(skip_op_names if skip_op else ())
        self._weights_only = convert_model == "fp8_weight"
        self._inputs = {
            name: _parse_pair(name, pair) for name, pair in (fp8_input_dict or {}).items()
        }
        self._weights = {
            name: _parse_pair(name, pair) for name, pair in (fp8_weight_dict or {}).items()
        }

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert the model. Raise CompileError for a name that no node has."""
        self._check_names({node.name for node in iter_nodes(model.graph)})
        self._narrowing = _Fp8Narrowing(set(iter_defined(model.graph)))
        self._convert_graph(model.graph, ChainMap(), _Casts())
        return model

    def _convert_graph(self, graph: onnx.GraphProto, around: _Scope, casts: _Casts) -> None:
        """Convert a graph, or a body of a node. `around` has the weights in scope, `casts` the
        tensors that are already narrowed and widened."""
        weights = _see(graph, around)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in iter_bodies(node):
                self._convert_graph(body, weights, casts.new_child())
            place = _weight_index(node, weights)
            if place is not None and node.name not in self._skip_op_names:
                nodes += self._convert(node, place, weights, casts)
            nodes.append(node)
        replace_nodes(graph, nodes)
        drop_weights(graph, used_names(graph))
        graph.initializer.extend(self._narrowing.take(graph))

    def _convert(
        self, node: onnx.NodeProto, place: int, weights: _Scope, casts: _Casts
    ) -> list[onnx.NodeProto]:
        """Change a product in place and return the nodes that go before it."""
        params = self._params
        of_weight = self._weights.get(node.name, (params.weight_format, params.weight_scale))
        of_input = self._inputs.get(node.name, (params.input_format, params.input_scale))
        nodes = self._narrowing.weight(node, place, weights[node.input[place]], of_weight, casts)
        if not self._weights_only:
            nodes += self._narrowing.activation(node, 1 - place, of_input, casts)
        return nodes

    def _check_names(self, known: Collection[str]) -> None:
        listed = {
            "fp8_skip_op_names": self._skip_op_names,
            "fp8_input_dict": self._inputs,
            "fp8_weight_dict": self._weights,
        }
        for what, names in listed.items():
            unknown = sorted(set(names) - set(known))
            if unknown:
                raise CompileError(
                    f"{what}: the model has no Conv, Gemm or MatMul {unknown[0]!r}"
                    f"{did_you_mean(unknown[0], known)}"
                )


_Quarter = tuple[QuarterFormat, int]
"""Format and scale of a tensor."""


def _parse_pair(name: str, given: Sequence[Any]) -> _Quarter:
    """Return the format and scale given for one node. Raise CompileError for invalid ones."""
    try:
        quarter, scale = given
        pair = FORMATS[str(quarter).strip()], int(scale)
    except (KeyError, TypeError, ValueError):
        pair = None
    if pair is None or pair[1] not in _SCALES:
        raise CompileError(
            f"fp8 of node {name!r}: expected a format, F143 or F152, and a scale from -32 to 31, "
            f"such as ('F143', 0); found {given!r}"
        )
    return pair


@dataclass(frozen=True, slots=True)
class _Fp8Weight:
    """Weight in half, and the graph that holds it."""

    tensor: TensorProto
    owner: onnx.GraphProto


_Scope = ChainMap[str, _Fp8Weight]
"""Weights in scope of a graph, by name."""
_Casts = ChainMap[tuple[str, int, int], str]
"""Names of tensors narrowed and widened again, by the original's name, the 8-bit type and the
scale."""


@dataclass(frozen=True, slots=True)
class NarrowProduct:
    """Product with a weight in half: its node, the place of the weight among its inputs, and the
    weight. `is_outside` says that it is outside of all bodies, where its operands can be
    examined."""

    node: onnx.NodeProto
    place: int
    weight: TensorProto
    is_outside: bool

    @property
    def activation(self) -> str:
        """Name of the other operand."""
        return str(self.node.input[1 - self.place])


def find_products(graph: onnx.GraphProto) -> list[NarrowProduct]:
    """Return the products that float_to_fp8 may convert, including those in bodies, in order."""
    return list(_iter_products(graph, ChainMap(), is_outside=True))


def _iter_products(
    graph: onnx.GraphProto, around: _Scope, *, is_outside: bool
) -> Iterator[NarrowProduct]:
    weights = _see(graph, around)
    for node in graph.node:
        for body in iter_bodies(node):
            yield from _iter_products(body, weights, is_outside=False)
        place = _weight_index(node, weights)
        if place is not None:
            yield NarrowProduct(node, place, weights[node.input[place]].tensor, is_outside)


def _see(graph: onnx.GraphProto, around: _Scope) -> _Scope:
    own = {
        t.name: _Fp8Weight(t, graph)
        for t in graph.initializer
        if t.data_type == TensorProto.FLOAT16
    }
    return around.new_child(own)


def _weight_index(node: onnx.NodeProto, weights: Mapping[str, Any]) -> int | None:
    """Return the place of a product's weight, or None if not exactly one operand is a weight. A
    convolution's weight is the second operand."""
    if not operator_of(node).is_product:
        return None
    places = (1,) if node.op_type == "Conv" else (1, 0)
    weight_places = [place for place in places if node.input[place] in weights]
    return weight_places[0] if len(weight_places) == 1 else None


class _Fp8Narrowing:
    """Maker of 8-bit tensors, each made once."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._weights: dict[tuple[str, int, int], str] = {}
        self._made: list[_Fp8Weight] = []

    def take(self, graph: onnx.GraphProto) -> list[TensorProto]:
        """Return the 8-bit weights made for a graph since the last call."""
        tensors = [entry.tensor for entry in self._made if entry.owner is graph]
        self._made = [entry for entry in self._made if entry.owner is not graph]
        return tensors

    def weight(
        self, node: onnx.NodeProto, place: int, weight: _Fp8Weight, to: _Quarter, casts: _Casts
    ) -> list[onnx.NodeProto]:
        """Narrow a weight and return the nodes that widen it again. The chip's product takes the 8
        bits and the scale."""
        quarter, scale = to
        key = (weight.tensor.name, quarter.data_type, scale)
        if key not in self._weights:
            tensor = copy.deepcopy(weight.tensor)
            tensor.name = self._weights[key] = take_name(f"{weight.tensor.name}/fp8", self._taken)
            change_values(tensor, "quarter", quarter.data_type, quarter.data_type, scale)
            self._made.append(_Fp8Weight(tensor, weight.owner))
        if key in casts:
            node.input[place] = casts[key]
            return []
        narrow = self._weights[key]
        node.input[place] = casts[key] = take_name(f"{narrow}/half", self._taken)
        return [make_cast(narrow, casts[key], TensorProto.FLOAT16, scale=scale)]

    def activation(
        self, node: onnx.NodeProto, place: int, to: _Quarter, casts: _Casts
    ) -> list[onnx.NodeProto]:
        """Return the nodes that narrow an activation and widen it again."""
        name, (quarter, scale) = node.input[place], to
        key = (name, quarter.data_type, scale)
        if key in casts:
            node.input[place] = casts[key]
            return []
        narrow = take_name(f"{name}/fp8", self._taken)
        node.input[place] = casts[key] = take_name(f"{narrow}/half", self._taken)
        return [
            make_cast(name, narrow, quarter.data_type, scale=scale),
            make_cast(narrow, casts[key], TensorProto.FLOAT16, scale=scale),
        ]


@register("float_to_int8", stage=Stage.PRECISION)
class FloatToInt8(Pass):
    """Store weights in 8 bits, with a DequantizeLinear that computes (value - offset) * scale where
    they are used.

    `int8_offset_scale` has, by a weight's name, {"value": int8 of the weight's shape, "offset": a
    whole number, "scale": a float}.
    """

    def __init__(self, int8_offset_scale: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._given = dict(int8_offset_scale or {})

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert the weights. Raise CompileError for a missing weight, and for values that do not
        have its shape."""
        if not self._given:
            return model
        version = find_opset(model, 1)
        if version < _OLDEST_DEQUANTIZING:
            raise CompileError(
                f"float_to_int8 makes DequantizeLinear, which opset {_OLDEST_DEQUANTIZING} "
                f"brought, and the model is of {version}; convert it first"
            )
        defined = set(iter_defined(model.graph))
        results = {name for node in iter_nodes(model.graph) for name in node.output}
        missing = sorted(set(self._given) - results)  # results of nodes were converted before
        for graph in iter_graphs(model.graph):
            tensors = [tensor for tensor in graph.initializer if tensor.name in self._given]
            nodes = [
                added for tensor in tensors for added in self._dequantize(graph, tensor, defined)
            ]
            missing = [name for name in missing if name not in {tensor.name for tensor in tensors}]
            if tensors:
                drop_initializers(graph, {tensor.name for tensor in tensors})
                replace_nodes(graph, [*nodes, *graph.node])
        if missing:
            raise CompileError(f"float_to_int8: the model has no weight {missing[0]!r}")
        return model

    def _dequantize(
        self, graph: onnx.GraphProto, tensor: TensorProto, taken: set[str]
    ) -> list[onnx.NodeProto]:
        value, offset, scale = _read_int8(tensor, self._given[tensor.name])
        op = Tape(take_name(f"{tensor.name}/int8", taken))
        names: list[str] = []
        for array in (value, scale, offset):
            names.append(take_name(f"{op.prefix}/{len(names)}", taken))
            graph.initializer.append(numpy_helper.from_array(array, names[-1]))
        is_float = tensor.data_type == TensorProto.FLOAT
        wide = tensor.name if is_float else fresh_name(f"{tensor.name}/float", taken)
        node = helper.make_node("DequantizeLinear", names, [wide], name=f"{op.prefix}/widen")
        return [node] if is_float else [node, make_cast(wide, tensor.name, tensor.data_type)]


_OLDEST_DEQUANTIZING = 10
"""Opset that introduced DequantizeLinear."""


def _read_int8(tensor: TensorProto, given: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """Return the value, offset and scale given for a weight as arrays. Raise CompileError for
    invalid ones."""
    try:
        value, offset = np.asarray(given["value"]), np.asarray(given["offset"])
        scale = np.asarray(given["scale"], np.float32)
    except (KeyError, TypeError, ValueError):
        value = offset = scale = np.zeros(0, np.float32)
    narrow = np.iinfo(np.int8)
    fits = (
        value.dtype == np.int8
        and value.shape == tuple(tensor.dims)
        and scale.size == offset.size == 1
    )
    if not (fits and offset.dtype.kind in "iu" and narrow.min <= offset.item() <= narrow.max):
        raise CompileError(
            f"float_to_int8, weight {tensor.name!r}: expected value, int8 of shape "
            f"{list(tensor.dims)}, offset, a whole number of 8 bits, and scale, a float; found "
            f"{value.dtype} of shape {list(value.shape)}"
        )
    return value, offset.astype(np.int8).reshape(()), scale.reshape(())


@register("eight_bits_io", stage=Stage.PRECISION, option="eightbitsio")
class EightBitsIo(Pass):
    """Take pictures as bytes: an input of floats of shape [batch, 3, height, width] becomes one of
    uint8, which is cast to what it was and normalised behind it.

    How the real tool normalises is not public. Here as its published ResNet-50 does that takes
    bytes (graphcore/PopRT, examples/resnet50/test_resnet.py): x * 1 / (255 std) - mean / std, with
    ImageNet's means and deviations.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert the inputs. The host then sends the picture itself, without preprocessing."""
        graph = model.graph
        defined = set(iter_defined(graph))
        pictures = [value for value in find_inputs(graph) if _is_picture(value)]
        inner = {value.name: fresh_name(f"{value.name}/normalised", defined) for value in pictures}
        rename(graph, inner)
        nodes = []
        for value in pictures:
            element = value.type.tensor_type.elem_type
            value.type.tensor_type.elem_type = TensorProto.UINT8
            op = Tape(inner[value.name])
            dtype = helper.tensor_dtype_to_np_dtype(element)
            wide = op.add("Cast", value.name, to=element)
            scaled = op.add("Mul", wide, op.constant(_PER_BYTE, dtype))
            op.add_as(inner[value.name], "Sub", scaled, op.constant(_DARKNESS, dtype))
            nodes += op.nodes
        if pictures:
            replace_nodes(graph, [*nodes, *graph.node])
        return model


_MEANS, _DEVIATIONS = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
"""Means and deviations of red, green and blue over ImageNet, for values from 0 to 1, from
torchvision."""
_PER_BYTE = (1 / (255 * _DEVIATIONS)).reshape(1, 3, 1, 1)
_DARKNESS = (_MEANS / _DEVIATIONS).reshape(1, 3, 1, 1)
_PICTURE_AXES, _COLOURS = 4, 3


def _is_picture(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    is_float = tensor.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
    return is_float and len(sizes) == _PICTURE_AXES and sizes[1] == _COLOURS
