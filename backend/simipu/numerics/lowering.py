"""Makes the computed graph of a placed one: a graph in float that computes what the chip would in its types.

ONNX Runtime's CPU kernels keep fp32 between the operators of an fp16 graph, which hides overflow and
rounding, and have no products of fp8. So every half result is rounded where the chip rounds it, by nodes in
between: once an operator, and in products with half partials (`partials.py`) after every block. Inside an
operator the arithmetic is fp32. Which operator rounds, and what computes one that ONNX Runtime lacks, says
the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    Chain,
    attribute,
    find_opset,
    infer_shapes,
    iter_bodies,
    iter_nodes,
    make_cast,
    rename,
    replace_nodes,
)
from onnxgraph.building import make_identity
from onnxgraph.edit import forget_values

from simipu.errors import LoadError
from simipu.numerics.blocks import Shape
from simipu.numerics.partials import HALF_BLOCK, QUARTER_BLOCK, Operands, add_product
from simipu.numerics.quarter import QUARTERS, QuarterFormat, decode
from simipu.numerics.rounding import HALF_BOUNDS, round_to_half, round_to_quarter, rounding_constants
from simipu.operators import Rounding, operator_of
from simipu.operators.chip import KERNEL_DOMAIN
from simipu.operators.entry import Surroundings
from simipu.places import has_places, strip_places

OLDEST_OPSET = 11
"""The first in which Clip, Pad and Slice, of which the rounding is made, take tensors."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """What the chip was told of half precision, by the names of the real options.

    half_partials: partials_type half, not float: sums of MatMul, Gemm and Conv are kept in half.
    nan_on_overflow: the engine option debug.nanOverflowException: a result too large for half is NaN;
    otherwise it is the largest half, with its sign.
    """

    half_partials: bool = True
    nan_on_overflow: bool = False


def lower(
    model: onnx.ModelProto, numerics: Numerics | None, inferred: onnx.ModelProto | None = None
) -> onnx.ModelProto:
    """The fp32 graph that computes what `model` computes in half and fp8; with None, one that rounds nowhere
    on the way. Operators of which the table says what computes them are replaced by it.

    `inferred` is what `infer_shapes` says of the model, where that is known already.

    Graph inputs and outputs keep their names and types. IPUs and stages that nodes say go. A model without
    such tensors, operators and places comes back as it is. Narrow initializers without data (constants and
    device variables) become fp32 ones: whoever feeds them widens them. Raises LoadError for a model older
    than opset 11.
    """
    lowering = _Lowering.of(inferred or infer_shapes(model), numerics)
    has_bodies = any(operator_of(node).body for node in iter_nodes(model.graph))
    is_placed = has_places(model.graph)
    if not lowering.is_narrow and not has_bodies and not is_placed:
        return model
    version = find_opset(model, OLDEST_OPSET)
    if lowering.is_narrow and version < OLDEST_OPSET:
        raise LoadError(
            f"a graph in half needs opset {OLDEST_OPSET} or later, found {version}; convert the model first"
        )
    # The placed graph stays: it is what is costed, what files hold, and what the emulation is compared with.
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    if is_placed:
        strip_places(lowered.graph)
    lowering.lower_graph(lowered.graph, version)
    if any(node.domain == KERNEL_DOMAIN for node in iter_nodes(lowered.graph)):
        lowered.opset_import.append(helper.make_opsetid(KERNEL_DOMAIN, 1))
    if lowering.is_narrow and numerics is not None:
        lowered.graph.initializer.extend(rounding_constants(nan_on_overflow=numerics.nan_on_overflow))
    return lowered


@dataclass(slots=True)
class _Lowering:
    """What is known of the tensors of a model and its subgraphs."""

    numerics: Numerics | None
    halves: set[str] = field(default_factory=set)
    quarters: dict[str, QuarterFormat] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)
    """And parts of them: what is of 8 bits there are codes."""
    from_quarters: set[str] = field(default_factory=set)
    """Halves that are 8-bit values, widened: a product of two such is one of 8 bits."""

    @staticmethod
    def of(inferred: onnx.ModelProto, numerics: Numerics | None) -> _Lowering:
        found = _Lowering(numerics)
        found._collect(inferred.graph)
        return found

    @property
    def is_narrow(self) -> bool:
        """Whether the model has tensors that float takes the place of."""
        return bool(self.halves or self.quarters)

    def _collect(self, graph: onnx.GraphProto) -> None:
        # Names of bodies and of the graphs around them are one set: ONNX wants them to differ.
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            self._add(value.name, tensor.elem_type)
            if tensor.HasField("shape"):
                self.shapes[value.name] = tuple(
                    d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim
                )
        for constant in graph.initializer:
            self._add(constant.name, constant.data_type)
            self.weights.add(constant.name)
            self.shapes[constant.name] = tuple(constant.dims)
        for node in graph.node:
            for each in node.attribute:
                if node.op_type == "Constant" and each.type == onnx.AttributeProto.TENSOR:
                    self._add(node.output[0], each.t.data_type)
                    self.shapes[node.output[0]] = tuple(each.t.dims)
            if node.op_type == "Cast" and node.input[0] in self.quarters:
                self.from_quarters.add(node.output[0])
            if node.op_type == "Slice" and node.input[0] in self.weights:
                self.weights.add(node.output[0])
            for subgraph in iter_bodies(node):
                self._collect(subgraph)

    def _add(self, name: str, data_type: int) -> None:
        self.types[name] = TensorProto.FLOAT if data_type == TensorProto.FLOAT16 else data_type
        if data_type == TensorProto.FLOAT16:
            self.halves.add(name)
        if data_type in QUARTERS:
            self.quarters[name] = QUARTERS[data_type]

    def lower_graph(self, graph: onnx.GraphProto, version: int) -> None:
        """The main graph, whose inputs and outputs keep their types."""
        # Callers bring and get halves; inside all is float, under names of its own. The Cast of an output
        # loses nothing: what made it has rounded it to half already.
        wide_inputs = {v.name: f"{v.name}/wide" for v in graph.input if v.name in self.halves}
        wide_outputs = {v.name: f"{v.name}/wide" for v in graph.output if v.name in self.halves}
        renames = {**wide_inputs, **wide_outputs}
        self._rename(renames)
        rename(graph, renames)
        nodes = [make_cast(name, wide, TensorProto.FLOAT) for name, wide in wide_inputs.items()]
        nodes += self._lower_nodes(graph)
        nodes += [make_cast(wide, name, TensorProto.FLOAT16) for name, wide in wide_outputs.items()]
        _replace_nodes(graph, nodes)
        self._put_bodies(graph, Surroundings(version, self._ranks(), self.types))

    def _ranks(self) -> dict[str, int]:
        return {name: len(shape) for name, shape in self.shapes.items() if shape is not None}

    def _put_bodies(self, graph: onnx.GraphProto, around: Surroundings) -> None:
        """Nodes of standard operators are those of the rounding, too; their operators' are all that lack a
        kernel."""
        for node in graph.node:
            for body in iter_bodies(node):
                self._put_bodies(body, around)
        if any(operator_of(node).body for node in graph.node):
            replace_nodes(graph, [made for node in graph.node for made in _replace_by_body(node, around)])

    def _rename(self, renames: dict[str, str]) -> None:
        self.halves.update(renames.values())
        self.types.update({new: self.types[old] for old, new in renames.items()})
        self.shapes.update({new: self.shapes[old] for old, new in renames.items() if old in self.shapes})
        self.from_quarters.update(new for old, new in renames.items() if old in self.from_quarters)

    def _lower_subgraph(self, graph: onnx.GraphProto) -> None:
        # Nobody outside sees a body's inputs and outputs: they become float where they are.
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        _replace_nodes(graph, self._lower_nodes(graph))

    def _lower_nodes(self, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        return [each for node in graph.node for each in self._lower_node(node)]

    def _lower_node(self, node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
        for each in node.attribute:
            if each.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(each.t)
            if each.name == "dtype" and each.i == TensorProto.FLOAT16:
                each.i = TensorProto.FLOAT
        # Bodies round inside: an If's or a Loop's own results are rounded by whatever made them there.
        for subgraph in iter_bodies(node):
            self._lower_subgraph(subgraph)
        if node.op_type == "Cast":
            return self._lower_cast(node)
        results = [name for name in node.output if name in self.halves]
        rounding = operator_of(node).rounding_of(node)
        if rounding is Rounding.EXACT or not results or self.numerics is None:
            return [node]
        return self._lower_product(node) or self._round_results(node, results)

    def _round_results(self, node: onnx.NodeProto, results: list[str]) -> list[onnx.NodeProto]:
        chain = Chain(results[0], [node])
        node.output[:] = [f"{name}/exact" if name in results else name for name in node.output]
        for name in results:
            self._round(chain, f"{name}/exact", operator_of(node).rounding, name)
        return chain.nodes

    def _lower_product(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes of a product whose sums are kept in half; none where there is only one sum, or float
        partials."""
        if not operator_of(node).is_product or self.numerics is None:
            return []
        # The AMP units have no float partials for 8-bit operands, whatever partials_type says (poplibs,
        # ConvVertexType.cpp).
        in_quarters = self.from_quarters.issuperset(node.input[:2])
        if not (in_quarters or self.numerics.half_partials):
            return []
        left, right, result = (self.shapes.get(name, ()) for name in (*node.input[:2], node.output[0]))
        block = QUARTER_BLOCK if in_quarters else HALF_BLOCK
        operands = Operands(left, right, result, block, lambda body, sum_: self._round(body, sum_))
        if not operands.has_partials(node):
            return []
        chain = Chain(f"{node.output[0]}/partials")
        total = add_product(chain, node, operands)
        self._round(chain, total, operator_of(node).rounding, node.output[0])
        return chain.nodes

    def _round(
        self, chain: Chain, source: str, rounding: Rounding = Rounding.ROUNDED, result: str = ""
    ) -> str:
        assert self.numerics is not None
        return round_to_half(
            chain,
            source,
            nan_on_overflow=self.numerics.nan_on_overflow,
            bounded=rounding is Rounding.BOUNDED,
            growing=rounding is Rounding.GROWING,
            result=result,
        )

    def _lower_cast(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """A Cast from or to 8 bits has our attribute `scale`, the power of two of its tensor."""
        source, result = node.input[0], node.output[0]
        scale, chain = attribute(node, "scale", 0), Chain(result)
        if result in self.quarters:
            if self.numerics is None:
                return [_identity(node)]
            overflow = self.numerics.nan_on_overflow
            round_to_quarter(
                chain, source, self.quarters[result], scale, nan_on_overflow=overflow, result=result
            )
            return chain.nodes
        if source in self.quarters:
            # Computed 8-bit values are at their scale already: `round_to_quarter` gives values, not codes. Of
            # weights the codes were decoded, at scale 0.
            if source not in self.weights or not scale:
                return [_identity(node)]
            chain.add_as(result, "Mul", source, chain.constant(2.0**scale))
            return chain.nodes
        if result in self.halves:
            if source in self.halves:
                return [_identity(node)]
            # From whole numbers, truths or wider floats: by way of float, which may be too large for half.
            source = chain.add("Cast", source, to=TensorProto.FLOAT)
            if self.numerics is None:
                chain.add_as(result, "Identity", source)
            else:
                self._round(chain, source, Rounding.ROUNDED, result)
            return chain.nodes
        # Halves are floats already; to anything else ONNX Runtime casts from float as the chip does from
        # half.
        to_float = attribute(node, "to") == TensorProto.FLOAT and source in self.halves
        return [_identity(node)] if to_float else [node]


def unrounded_results(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The tensors of a lowered main graph that are about to be rounded to half and may be too large, with
    their makers."""
    makers = {name: node for node in graph.node for name in node.output}
    clipped = [
        node.input[0] for node in graph.node if node.op_type == "Clip" and node.input[1:] == list(HALF_BOUNDS)
    ]
    return {name: makers[name] for name in clipped if name in makers}


def _replace_by_body(node: onnx.NodeProto, around: Surroundings) -> list[onnx.NodeProto]:
    """What computes an operator that ONNX Runtime lacks; the node itself of all others."""
    body = operator_of(node).body
    if body is None:
        return [node]
    chain = Chain(f"{node.output[0]}/body")
    body(chain, node, around)
    chain.nodes[-1].name = node.name  # by which reports speak of what makes its results
    return chain.nodes


def _identity(node: onnx.NodeProto) -> onnx.NodeProto:
    return make_identity(node.input[0], node.output[0], node.name)


def _replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    forget_values(graph)
    replace_nodes(graph, nodes)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    quarter = QUARTERS.get(tensor.data_type)
    if quarter is None and tensor.data_type != TensorProto.FLOAT16:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        # A weight without data: who feeds it brings floats, see `lower`.
        tensor.data_type = TensorProto.FLOAT
        return
    if quarter is None:
        value = numpy_helper.to_array(tensor).astype(np.float32)
    else:
        value = decode(np.frombuffer(tensor.raw_data, np.uint8), quarter).reshape(tensor.dims)
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
