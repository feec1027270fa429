"""Lowering of a placed graph: to a graph in float that computes what the chip would in its types.

ONNX Runtime's CPU kernels keep fp32 between the operators of an fp16 graph, which hides overflow
and rounding, and have no products of fp8. So additional nodes round every half result where the
chip rounds it: once per operator, and in products with half partials (`partials.py`) after every
block. If kernels are available, they replace products, elementwise operators and rounding
and are joined (`kernels.py`), and tables replace functions (`functions.py`). Inside an operator the
arithmetic is fp32. The operator table says which operator rounds, and what computes one that ONNX
Runtime lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    NoFacts,
    Site,
    Tape,
    attribute,
    find_opset,
    forget_values,
    infer_shapes,
    iter_bodies,
    iter_nodes,
    make_cast,
    make_identity,
    rename,
    replace_nodes,
)

from simipu.chip.placement import has_placement, strip_placement
from simipu.errors import LoadError
from simipu.numerics.bodies import (
    declare_scans,
    find_stored,
    needs_bodies,
    put_bodies,
)
from simipu.numerics.exceptions import check_floats
from simipu.numerics.functions import Table, compute_float, find_tables, function_of, tabulate
from simipu.numerics.kernels import (
    BINARY,
    KERNELS,
    MAX_AXES,
    ROUNDINGS,
    CodedWeight,
    KernelStep,
    StepKind,
    fuse,
    make_convolution,
    make_product,
    quarter_step,
)
from simipu.numerics.options import KernelUse, Numerics
from simipu.numerics.partials import (
    HALF_BLOCK,
    QUARTER_BLOCK,
    Operands,
    add_product,
    finish_product,
)
from simipu.numerics.rounding import round_to_quarter, rounding_constants
from simipu.numerics.steps import StepWriter
from simipu.numerics.tensors import Tensors
from simipu.numerics.weights import find_codes, settle_weights, widen_tensor, widen_tensors
from simipu.operators import Rounding, operator_of
from simipu.operators.entry import GraphContext, Saturates
from simipu.operators.graphcore_domain import KERNEL_DOMAIN
from simipu.saturation import products_saturate

if TYPE_CHECKING:  # imported where a graph needs it, as convolutions are: most do without
    from simipu.numerics.recurrent import Activation, Recurrence

OLDEST_OPSET = 11
"""First opset in which Clip, Pad and Slice, which the rounding uses, take tensors."""
_MATRIX_AXES, _FIELD_AXES = 2, (3, 4, 5)


def lower(
    model: onnx.ModelProto,
    numerics: Numerics | None,
    inferred: onnx.ModelProto | None = None,
    kernels: KernelUse = KernelUse.NONE,
    saturates: Saturates | None = None,
    weights: Mapping[str, npt.NDArray[Any]] | None = None,
) -> onnx.ModelProto:
    """Return the fp32 graph that computes what `model` computes in half and fp8; without `numerics`
    one that rounds nowhere on the way. Operators with a replacement in the operator table are
    replaced.

    `inferred` is the result of `infer_shapes` for the model, if already known. `saturates`:
    which products of 8 bits saturate (default: those that do on this machine's processor).
    `weights`: the values of initializers without data, as far as they are known.

    Graph inputs and outputs keep their names and types; places are removed. A model with nothing to
    replace is returned unchanged. Narrow initializers without data (constants and device variables)
    become fp32 ones, except those that `kernels` read as halves or bytes. Raises LoadError before
    opset 11.
    """
    saturates = saturates or (lambda _node: products_saturate())
    stored = find_stored(model, weights or {})
    lowering = _Lowering.of(inferred or infer_shapes(model), numerics, kernels, saturates, stored)
    if (expanded := lowering.expand_recurrences(model)) is not None:
        model, stored = expanded, find_stored(expanded, weights or {})
        lowering = _Lowering.of(infer_shapes(model), numerics, kernels, saturates, stored)
    version = find_opset(model, OLDEST_OPSET)
    around = lowering.context(version)
    has_bodies = needs_bodies(model.graph, around)
    is_placed = has_placement(model.graph)
    if not (lowering.tensors.is_narrow or has_bodies or is_placed or lowering.raises):
        return model
    if lowering.tensors.is_narrow and version < OLDEST_OPSET:
        raise LoadError(
            f"a graph in half needs opset {OLDEST_OPSET} or later, found {version}; convert the "
            "model first"
        )
    if lowering.raises and kernels is KernelUse.NONE:
        raise LoadError(
            "debug.floatPointOpException needs the kernels, which check every result, and there "
            "are none; install the project where there is a C compiler, or compile without the "
            "engine option"
        )
    # The placed graph is not changed: it is used for costs, and stored in files.
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    strip_placement(lowered.graph)
    declare_scans(lowered.graph, lowering.tensors.dims)
    lowering.find_tables(lowered)
    lowering.lower_graph(lowered.graph, version)
    if any(node.domain == KERNEL_DOMAIN for node in iter_nodes(lowered.graph)):
        lowered.opset_import.append(helper.make_opsetid(KERNEL_DOMAIN, 1))
    if lowering.steps.has_kernels or lowering.raises:
        lowered.opset_import.append(helper.make_opsetid(KERNELS, 1))
    elif lowering.tensors.is_narrow and numerics is not None:
        lowered.graph.initializer.extend(
            rounding_constants(nan_on_overflow=numerics.nan_on_overflow)
        )
    return lowered


@dataclass(slots=True)
class _Lowering:
    """The lowering of one model and its subgraphs."""

    tensors: Tensors
    steps: StepWriter
    numerics: Numerics | None
    saturates: Saturates
    stored: Callable[[str], npt.NDArray[Any] | None]
    """Values of an initializer of any size."""
    codes: dict[str, CodedWeight] = field(default_factory=dict)
    """8-bit weights, by the name of the widened half that only products read."""
    tables: dict[str, Table] = field(default_factory=dict)
    """Tensors of the main graph that are computed by lookup, with their tables."""
    version: int = OLDEST_OPSET
    """Opset of the graph."""

    @staticmethod
    def of(
        inferred: onnx.ModelProto,
        numerics: Numerics | None,
        kernels: KernelUse,
        saturates: Saturates,
        stored: Callable[[str], npt.NDArray[Any] | None],
    ) -> _Lowering:
        tensors = Tensors.of(inferred.graph)
        steps = StepWriter(tensors, numerics, kernels)
        lowering = _Lowering(tensors, steps, numerics, saturates, stored)
        if lowering.steps.has_kernels:
            lowering.codes = find_codes(inferred.graph, tensors.quarters, lowering._takes_codes)
        return lowering

    @property
    def raises(self) -> bool:
        """Return whether invalid values end the run, and the model has any numbers to check."""
        has_numbers = (
            bool(self.tensors.quarters) or TensorProto.FLOAT in self.tensors.types.values()
        )
        return self.numerics is not None and self.numerics.raises and has_numbers

    def expand_recurrences(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """Return the model with the operators that its recurrent nodes stand for; None if it has no
        such nodes, their sums stay float, or a kernel computes them."""
        has_nodes = any(operator_of(node).gates for node in iter_nodes(model.graph))
        if not has_nodes or self.numerics is None or not self.numerics.half_partials:
            return None
        if self.steps.is_fused and not self.raises:
            return None
        from simipu.numerics.recurrent import expand

        expanded = onnx.ModelProto()
        expanded.CopyFrom(model)
        return expanded if expand(expanded.graph, self.tensors.dims, self.tensors.halves) else None

    def find_tables(self, model: onnx.ModelProto) -> None:
        """Find the main graph's activations that can be tables: none if exceptions are enabled."""
        self.version = find_opset(model, OLDEST_OPSET)
        if self.steps.is_fused and not self.raises:
            self.tables = find_tables(
                model.graph,
                self.tensors.dims,
                self.tensors.halves,
                model.opset_import,
                lambda function: lower(function, self.numerics),
            )

    def _takes_codes(self, node: onnx.NodeProto, place: int) -> bool:
        """Return whether a kernel reads an input in its stored form: both factors of a matrix
        product, and the filters of a convolution."""
        operator = operator_of(node)
        factors = (1,) if operator.is_convolution else (0, 1)
        return operator.is_product and place in factors and self._is_for_kernels(node)

    def _is_for_kernels(self, node: onnx.NodeProto) -> bool:
        """Return whether a kernel computes the product."""
        if not self.steps.has_kernels or not operator_of(node).keeps_sums:
            return False
        operands = self._operands_of(node)
        if operator_of(node).is_convolution:
            # ONNX Runtime's own Conv, which rearranges filters, is faster than a kernel that sums
            # in float; multiplying zeros between positions is worthwhile only for the order of
            # sums.
            return operands.block > 0 and len(operands.right) in _FIELD_AXES
        return min(len(operands.left), len(operands.right)) >= _MATRIX_AXES

    def _operands_of(self, node: onnx.NodeProto) -> Operands:
        """Return the operands of a product; its block is 0 if sums stay float."""
        left, right, result = (
            self.tensors.shapes.get(name, ()) for name in (*node.input[:2], node.output[0])
        )
        # Operands of 8 bits have no float partials, whatever partials_type says
        # (ConvVertexType.cpp).
        in_quarters = self.tensors.from_quarters.issuperset(node.input[:2])
        block = QUARTER_BLOCK if in_quarters else HALF_BLOCK
        operands = Operands(
            left, right, result, block, lambda body, sum_: self.steps.round(body, sum_)
        )
        assert self.numerics is not None
        rounds = in_quarters or self.numerics.half_partials
        return operands if rounds and operands.has_partials(node) else replace(operands, block=0)

    def lower_graph(self, graph: onnx.GraphProto, version: int) -> None:
        """Lower the main graph, whose inputs and outputs keep their types."""
        # Callers send and receive halves, outputs that are inputs or weights too; inside everything
        # is float, under names of its own. The Cast of an output loses nothing: its maker already
        # rounded it to half.
        outputs = [v.name for v in graph.output]
        weights = [t.name for t in graph.initializer if t.name in outputs]
        input_names = dict.fromkeys([v.name for v in graph.input] + weights)
        wide_inputs = {name: f"{name}/wide" for name in input_names if name in self.tensors.halves}
        wide_outputs = {
            name: f"{name}/wide"
            for name in outputs
            if name in self.tensors.halves - input_names.keys()
        }
        self._rename(renames := wide_inputs | wide_outputs)
        rename(graph, renames)
        nodes = [make_cast(name, wide, TensorProto.FLOAT) for name, wide in wide_inputs.items()]
        nodes += self._lower_nodes(graph)
        nodes += [make_cast(wide, name, TensorProto.FLOAT16) for name, wide in wide_outputs.items()]
        if self.steps.is_fused:
            from simipu.numerics.layout import block_channels

            nodes = fuse(nodes, set(outputs), self.tensors.dims)
            block_channels(nodes, set(outputs), self.tensors.dims)
        _replace_nodes(graph, nodes)
        if self.steps.has_kernels:
            coded = {codes.name for codes in self.codes.values()}
            settle_weights(graph, self.tensors.halves, coded, input_names.keys())
            graph.initializer.extend(
                numpy_helper.from_array(values, name)
                for name, values in self.steps.table_values.items()
            )
        else:
            widen_tensors(graph, input_names)
        put_bodies(graph, self.context(version))

    def context(self, version: int) -> GraphContext:
        """Return the facts for bodies and guards; the graph has opset `version`."""
        ranks = {name: len(shape) for name, shape in self.tensors.shapes.items()}
        return GraphContext(
            version,
            ranks,
            self.tensors.shapes,
            self.tensors.types,
            constants=self.tensors.constants,
            stored=self.stored,
            saturates=self.saturates,
        )

    def _rename(self, renames: Mapping[str, str]) -> None:
        self.tensors.add_names(renames)
        codes = {new: self.codes[old] for old, new in renames.items() if old in self.codes}
        self.codes.update(codes)
        self.tables = {
            renames.get(name, name): replace(table, root=renames.get(table.root, table.root))
            for name, table in self.tables.items()
        }

    def _lower_subgraph(self, graph: onnx.GraphProto) -> None:
        # A body's inputs and outputs are not visible outside: they become float in place.
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        widen_tensors(graph)
        nodes = self._lower_nodes(graph)
        if self.steps.is_fused:
            nodes = fuse(nodes, {value.name for value in graph.output}, self.tensors.dims)
        _replace_nodes(graph, nodes)

    def _lower_nodes(self, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        return [lowered for node in graph.node for lowered in self._lower_node(node)]

    def _lower_node(self, node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
        for entry in node.attribute:
            if entry.type == onnx.AttributeProto.TENSOR:
                widen_tensor(entry.t)
            if entry.name == "dtype" and entry.i == TensorProto.FLOAT16:
                entry.i = TensorProto.FLOAT
        # Results of an If or a Loop are rounded by the nodes inside that make them.
        for subgraph in iter_bodies(node):
            self._lower_subgraph(subgraph)
        if node.op_type == "Cast":
            return self._lower_cast(node)
        results = [name for name in node.output if name in self.tensors.halves]
        rounding = operator_of(node).rounding_of(node)
        if self.numerics is None:
            return [node]
        if not results:
            nodes = compute_float(node)
            flags = self.steps.flags()
            return check_floats(nodes, node, self.tensors.types, flags) if self.raises else nodes
        if self.steps.is_fused and (chain := self._chain(node, rounding)):
            return chain
        if rounding is Rounding.EXACT:
            return [node]
        return self._lower_product(node) or self._round_results(node, results)

    def _chain(self, node: onnx.NodeProto, rounding: Rounding) -> list[onnx.NodeProto]:
        """Return the node of an elementwise operator that is a step, in a list; an empty list for
        others."""
        result = node.output[0]
        if result in self.tables:
            return [self.steps.look_up(self.tables[result], result)]
        if node.domain or len(self.tensors.dims.get(result, (None,) * (MAX_AXES + 1))) > MAX_AXES:
            return []
        if node.op_type == "Relu":
            return [self.steps.step(node.input[0], KernelStep(StepKind.MAXIMUM), result)]
        if node.op_type not in BINARY or len(node.input) != len(BINARY["Add"]):
            return []
        dims = self.tensors.dims.get(result)
        # Of the inputs with the result's shape the later one: its maker may include the step.
        order = sorted(
            (0, 1),
            key=lambda i: (
                self.tensors.dims.get(node.input[i]) == dims,
                self.tensors.positions.get(node.input[i], -1),
            ),
        )
        source, operand = node.input[order[1]], node.input[order[0]]
        kind = BINARY[node.op_type][order[1]]
        return [self.steps.step(source, KernelStep(kind, ROUNDINGS[rounding], operand), result)]

    def _round_results(self, node: onnx.NodeProto, results: list[str]) -> list[onnx.NodeProto]:
        if function := function_of(node):
            op = Tape(f"{results[0]}/function")
            unrounded = function(op, Site(node, NoFacts(), op))
            self.steps.round(op, unrounded, operator_of(node).rounding_of(node), results[0])
            return op.nodes
        op = Tape(f"{results[0]}/rounded", nodes=[node])
        node.output[:] = [f"{name}/exact" if name in results else name for name in node.output]
        for name in results:
            self.steps.round(op, f"{name}/exact", operator_of(node).rounding_of(node), name)
        return op.nodes

    def _lower_product(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes of a product that a kernel computes, or whose sums are kept in half; an
        empty list for others."""
        if recurrence := self._recurrence(node):
            return self._lower_recurrence(recurrence)
        if not operator_of(node).keeps_sums or self.numerics is None:
            return []
        operands, op = self._operands_of(node), Tape(f"{node.output[0]}/partials")
        if self._is_for_kernels(node):
            total = self._multiply(op, node, operands.block)
            total = finish_product(op, total, node, operands.result, self.steps.apply)
        elif operands.block:
            total = add_product(op, node, operands)
        else:
            return []
        self.steps.round(op, total, operator_of(node).rounding, node.output[0])
        return op.nodes

    def _recurrence(self, node: onnx.NodeProto) -> Recurrence | None:
        """Return the recurrence of a node that a kernel computes, or None for another node."""
        halves = self.steps.is_fused and self.numerics is not None and self.numerics.half_partials
        if not halves or not operator_of(node).gates:
            return None
        from simipu.numerics.recurrent import Recurrence

        return Recurrence.of(node, self.tensors.dims, self.tensors.halves)

    def _lower_recurrence(self, recurrence: Recurrence) -> list[onnx.NodeProto]:
        assert self.numerics is not None
        from simipu.numerics.recurrent import add_kernel

        def hold(function: Activation) -> str:
            op = Tape(function.name)
            result = function.add(op, "x")
            values = tabulate(op, result, self.version, lambda model: lower(model, self.numerics))
            return self.steps.hold(Table("", values))

        op = Tape(f"{recurrence.node.output[0] or recurrence.node.output[1]}/recurrent")
        overflow = int(self.numerics.nan_on_overflow)
        add_kernel(op, recurrence, HALF_BLOCK, hold, overflow)
        return op.nodes

    def _multiply(self, op: Tape, node: onnx.NodeProto, block: int) -> str:
        """Add the product by a kernel, without a Gemm's scales or a bias, and return its result's
        name."""
        assert self.numerics is not None
        flags = self.steps.flags()
        if operator_of(node).is_convolution:
            from simipu.numerics.convolution import place_operands

            left, right, result = (
                self.tensors.shapes[name] for name in (*node.input[:2], node.output[0])
            )
            placed = place_operands(op, node, (left, right, result))
            sides = [self.codes.get(name, name) for name in (placed.field, placed.filters)]
            pads, total = [*placed.before, *placed.after], op.new_name()
            product = make_convolution(placed.geometry, pads, sides, total, block, flags)
        else:
            sides, total = [self.codes.get(name, name) for name in node.input[:2]], op.new_name()
            product = make_product(node, sides, total, block, flags)
        op.nodes.append(product)
        self.tensors.dims[total] = self.tensors.dims[node.output[0]]
        return total

    def _lower_cast(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Lower a Cast; one from or to 8 bits has our attribute `scale`, its tensor's exponent of
        2."""
        source, result = node.input[0], node.output[0]
        unchanged = [make_identity(source, result, node.name)]
        scale, op = attribute(node, "scale", 0), Tape(f"{result}/scaled")
        if result in self.codes:
            return []
        if result in self.tensors.quarters:
            if self.numerics is None:
                return unchanged
            if self.steps.has_kernels:
                return [
                    self.steps.step(
                        source, quarter_step(self.tensors.quarters[result], scale), result
                    )
                ]
            overflow = self.numerics.nan_on_overflow
            round_to_quarter(
                op,
                source,
                self.tensors.quarters[result],
                scale,
                nan_on_overflow=overflow,
                result=result,
            )
            return op.nodes
        if source in self.tensors.quarters:
            # Computed 8-bit values are already at their scale: `round_to_quarter` gives values, not
            # codes. The codes of weights were decoded at scale 0.
            if source not in self.tensors.weights or not scale:
                return unchanged
            op.add_as(result, "Mul", source, op.constant(2.0**scale))
            return op.nodes
        if result in self.tensors.halves:
            if source in self.tensors.halves:
                return unchanged
            # From whole numbers, truths or wider floats: cast by way of float, which may be too
            # large for half.
            source = op.add("Cast", source, to=TensorProto.FLOAT)
            if self.numerics is None:
                op.add_as(result, "Identity", source)
            else:
                self.steps.round(op, source, Rounding.ROUNDED, result)
            return op.nodes
        # Halves are already floats; to other types ONNX Runtime casts from float as the chip does
        # from half.
        to_float = attribute(node, "to") == TensorProto.FLOAT and source in self.tensors.halves
        return unchanged if to_float else [node]


def _replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    forget_values(graph)
    replace_nodes(graph, nodes)
