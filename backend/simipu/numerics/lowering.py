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

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
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
from simipu.numerics.blocks import Shape
from simipu.numerics.bodies import (
    declare_scans,
    find_constants,
    find_stored,
    needs_bodies,
    put_bodies,
)
from simipu.numerics.convolution import CONVOLUTIONS, place_operands
from simipu.numerics.exceptions import check_floats
from simipu.numerics.functions import Table, compute_float, find_tables, function_of, tabulate
from simipu.numerics.kernels import (
    BINARY,
    CHAIN,
    KERNELS,
    MAX_AXES,
    ROUNDINGS,
    Codes,
    Dims,
    Kind,
    Step,
    fuse,
    make_convolution,
    make_kernel,
    make_product,
    quarter_step,
    takes_narrow,
)
from simipu.numerics.layout import block_channels
from simipu.numerics.options import KernelUse, Numerics
from simipu.numerics.partials import (
    HALF_BLOCK,
    QUARTER_BLOCK,
    Operands,
    add_product,
    finish_product,
)
from simipu.numerics.quarter import QUARTERS, QuarterFormat
from simipu.numerics.recurrent import GATES, Activation, Recurrence, add_kernel, expand
from simipu.numerics.rounding import round_to_half, round_to_quarter, rounding_constants
from simipu.numerics.weights import find_codes, iter_readers, widen_tensor, widen_tensors
from simipu.operators import Rounding, operator_of
from simipu.operators.entry import GraphContext, Saturates
from simipu.operators.graphcore_domain import KERNEL_DOMAIN
from simipu.saturation import products_saturate

OLDEST_OPSET = 11
"""First opset in which Clip, Pad and Slice, which the rounding uses, take tensors."""
_FACTORS = {"MatMul": (0, 1), "Gemm": (0, 1), "Conv": (1,), "ConvTranspose": ()}
"""Inputs of products that kernels read in their stored form."""
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
    lowering = _Lowering.of(inferred or infer_shapes(model), numerics, kernels, saturates)
    lowering.stored = find_stored(model, weights or {})
    if (expanded := lowering.expand_recurrences(model)) is not None:
        model = expanded
        lowering = _Lowering.of(infer_shapes(model), numerics, kernels, saturates)
        lowering.stored = find_stored(model, weights or {})
    version = find_opset(model, OLDEST_OPSET)
    around = lowering.context(version)
    has_bodies = needs_bodies(model.graph, around)
    is_placed = has_placement(model.graph)
    if not (lowering.is_narrow or has_bodies or is_placed or lowering.raises):
        return model
    if lowering.is_narrow and version < OLDEST_OPSET:
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
    declare_scans(lowered.graph, lowering.dims)
    lowering.find_tables(lowered)
    lowering.lower_graph(lowered.graph, version)
    if any(node.domain == KERNEL_DOMAIN for node in iter_nodes(lowered.graph)):
        lowered.opset_import.append(helper.make_opsetid(KERNEL_DOMAIN, 1))
    if lowering.has_kernels or lowering.raises:
        lowered.opset_import.append(helper.make_opsetid(KERNELS, 1))
    elif lowering.is_narrow and numerics is not None:
        lowered.graph.initializer.extend(
            rounding_constants(nan_on_overflow=numerics.nan_on_overflow)
        )
    return lowered


@dataclass(slots=True)
class _Lowering:
    """Facts about the tensors of a model and its subgraphs."""

    numerics: Numerics | None
    kernels: KernelUse
    saturates: Saturates
    halves: set[str] = field(default_factory=set)
    quarters: dict[str, QuarterFormat] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    stored: Callable[[str], npt.NDArray[Any] | None] = lambda _name: None
    """Values of an initializer of any size."""
    weights: set[str] = field(default_factory=set)
    """Weights and parts of them: their 8-bit data are codes."""
    from_quarters: set[str] = field(default_factory=set)
    """Halves that are widened 8-bit values: a product of two such tensors is an 8-bit product."""
    dims: dict[str, Dims] = field(default_factory=dict)
    """Shapes, with the names of open sizes."""
    codes: dict[str, Codes] = field(default_factory=dict)
    """8-bit weights, by the name of the widened half that only products read."""
    made: dict[str, int] = field(default_factory=dict)
    """Index of the main graph's node that makes a tensor."""
    tables: dict[str, Table] = field(default_factory=dict)
    """Tensors of the main graph that are computed by lookup, with their tables."""
    held: dict[str, npt.NDArray[np.float16]] = field(default_factory=dict)
    """Values of the lookup tables, by initializer."""
    version: int = OLDEST_OPSET
    """Opset of the graph."""

    @staticmethod
    def of(
        inferred: onnx.ModelProto,
        numerics: Numerics | None,
        kernels: KernelUse,
        saturates: Saturates,
    ) -> _Lowering:
        found = _Lowering(numerics, kernels, saturates, constants=find_constants(inferred.graph))
        found._collect(inferred.graph)
        if found.has_kernels:
            found.codes = find_codes(inferred.graph, found.quarters, found._takes_codes)
        return found

    @property
    def has_kernels(self) -> bool:
        """Return whether kernels are available, and there is something to round."""
        return self.kernels is not KernelUse.NONE and self.is_narrow and self.numerics is not None

    @property
    def is_fused(self) -> bool:
        """Return whether kernels include further steps."""
        return self.kernels is KernelUse.FUSED and self.has_kernels

    @property
    def raises(self) -> bool:
        """Return whether invalid values end the run, and the model has any numbers to check."""
        has_numbers = bool(self.quarters) or TensorProto.FLOAT in self.types.values()
        return self.numerics is not None and self.numerics.raises and has_numbers

    @property
    def is_narrow(self) -> bool:
        """Return whether the model has tensors that are replaced by float."""
        return bool(self.halves or self.quarters)

    def _collect(self, graph: onnx.GraphProto) -> None:
        # Names in bodies and in the graphs around them form one set: ONNX requires them to differ.
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            self._add(value.name, tensor.elem_type)
            if tensor.HasField("shape"):
                sizes = tensor.shape.dim
                dims = [
                    d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in sizes
                ]
                self._add_shape(value.name, dims)
        for constant in graph.initializer:
            self._add(constant.name, constant.data_type)
            self.weights.add(constant.name)
            self._add_shape(constant.name, constant.dims)
        for place, node in enumerate(graph.node):
            self.made.update(dict.fromkeys(node.output, place))
            for entry in node.attribute:
                if node.op_type == "Constant" and entry.type == onnx.AttributeProto.TENSOR:
                    self._add(node.output[0], entry.t.data_type)
                    self._add_shape(node.output[0], entry.t.dims)
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

    def _add_shape(self, name: str, dims: Iterable[int | str | None]) -> None:
        self.dims[name] = tuple(dims)
        self.shapes[name] = tuple(
            size if isinstance(size, int) else None for size in self.dims[name]
        )

    def expand_recurrences(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """Return the model with the operators that its recurrent nodes stand for; None if it has no
        such nodes, their sums stay float, or a kernel computes them."""
        has_nodes = any(node.op_type in GATES for node in iter_nodes(model.graph))
        if not has_nodes or self.numerics is None or not self.numerics.half_partials:
            return None
        if self.is_fused and not self.raises:
            return None
        expanded = onnx.ModelProto()
        expanded.CopyFrom(model)
        return expanded if expand(expanded.graph, self.dims, self.halves) else None

    def find_tables(self, model: onnx.ModelProto) -> None:
        """Find the main graph's activations that can be tables: none if exceptions are enabled."""
        self.version = find_opset(model, OLDEST_OPSET)
        if self.is_fused and not self.raises:
            self.tables = find_tables(
                model.graph,
                self.dims,
                self.halves,
                model.opset_import,
                lambda function: lower(function, self.numerics),
            )

    def _takes_codes(self, node: onnx.NodeProto, place: int) -> bool:
        return self._is_for_kernels(node) and place in _FACTORS[node.op_type]

    def _is_for_kernels(self, node: onnx.NodeProto) -> bool:
        """Return whether a kernel computes the product."""
        if not self.has_kernels or node.op_type not in _FACTORS or node.domain:
            return False
        operands = self._operands_of(node)
        if node.op_type in CONVOLUTIONS:
            # ONNX Runtime's own Conv, which rearranges filters, is faster than a kernel that sums
            # in float; multiplying zeros between positions is worthwhile only for the order of
            # sums.
            return operands.block > 0 and len(operands.right) in _FIELD_AXES
        return min(len(operands.left), len(operands.right)) >= _MATRIX_AXES

    def _operands_of(self, node: onnx.NodeProto) -> Operands:
        """Return the operands of a product; its block is 0 if sums stay float."""
        left, right, result = (
            self.shapes.get(name, ()) for name in (*node.input[:2], node.output[0])
        )
        # Operands of 8 bits have no float partials, whatever partials_type says
        # (ConvVertexType.cpp).
        in_quarters = self.from_quarters.issuperset(node.input[:2])
        block = QUARTER_BLOCK if in_quarters else HALF_BLOCK
        operands = Operands(left, right, result, block, lambda body, sum_: self._round(body, sum_))
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
        given = dict.fromkeys([v.name for v in graph.input] + weights)
        wide_inputs = {name: f"{name}/wide" for name in given if name in self.halves}
        wide_outputs = {
            name: f"{name}/wide" for name in outputs if name in self.halves - given.keys()
        }
        self._rename(renames := wide_inputs | wide_outputs)
        rename(graph, renames)
        nodes = [make_cast(name, wide, TensorProto.FLOAT) for name, wide in wide_inputs.items()]
        nodes += self._lower_nodes(graph)
        nodes += [make_cast(wide, name, TensorProto.FLOAT16) for name, wide in wide_outputs.items()]
        if self.is_fused:
            nodes = fuse(nodes, set(outputs), self.dims)
            block_channels(nodes, set(outputs), self.dims)
        _replace_nodes(graph, nodes)
        if self.has_kernels:
            self._settle_weights(graph, given.keys())
            graph.initializer.extend(
                numpy_helper.from_array(held, name) for name, held in self.held.items()
            )
        else:
            widen_tensors(graph, given)
        put_bodies(graph, self.context(version))

    def context(self, version: int) -> GraphContext:
        """Return the facts for bodies and guards; the graph has opset `version`."""
        ranks = {name: len(shape) for name, shape in self.shapes.items()}
        return GraphContext(
            version,
            ranks,
            self.shapes,
            self.types,
            constants=self.constants,
            stored=self.stored,
            saturates=self.saturates,
        )

    def _rename(self, renames: dict[str, str]) -> None:
        self.halves.update(renames.values())
        self.types.update({new: self.types[old] for old, new in renames.items()})
        known: tuple[dict[str, Any], ...] = (self.shapes, self.dims, self.made, self.codes)
        for facts in known:
            facts.update({new: facts[old] for old, new in renames.items() if old in facts})
        self.tables = {
            renames.get(name, name): replace(table, root=renames.get(table.root, table.root))
            for name, table in self.tables.items()
        }
        self.from_quarters.update(new for old, new in renames.items() if old in self.from_quarters)

    def _lower_subgraph(self, graph: onnx.GraphProto) -> None:
        # A body's inputs and outputs are not visible outside: they become float in place.
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        widen_tensors(graph)
        nodes = self._lower_nodes(graph)
        if self.is_fused:
            nodes = fuse(nodes, {value.name for value in graph.output}, self.dims)
        _replace_nodes(graph, nodes)

    def _lower_nodes(self, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        return [each for node in graph.node for each in self._lower_node(node)]

    def _settle_weights(self, graph: onnx.GraphProto, given: Collection[str]) -> None:
        """Keep `given` weights, and those that only kernels and Gather read, as halves or codes."""
        stored = {t.name for t in graph.initializer if t.name in self.halves}
        for name, place, node in iter_readers(graph):
            if name in stored and not takes_narrow(node, place):
                stored.discard(name)
        coded = {codes.name for codes in self.codes.values()}
        for tensor in graph.initializer:
            if tensor.name in coded:
                tensor.data_type = TensorProto.UINT8
            elif tensor.name not in stored and tensor.name not in given:
                widen_tensor(tensor)
        nodes = []
        for node in graph.node:
            nodes.append(node)
            if node.op_type == "Gather" and node.input[0] in stored:
                wide, node.output[0] = node.output[0], f"{node.output[0]}/half"
                nodes.append(make_cast(node.output[0], wide, TensorProto.FLOAT))
        replace_nodes(graph, nodes)

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
        results = [name for name in node.output if name in self.halves]
        rounding = operator_of(node).rounding_of(node)
        if self.numerics is None:
            return [node]
        if not results:
            made = compute_float(node)
            return check_floats(made, node, self.types, self._flags()) if self.raises else made
        if self.kernels is KernelUse.FUSED and (made := self._chain(node, rounding)):
            return made
        if rounding is Rounding.EXACT:
            return [node]
        return self._lower_product(node) or self._round_results(node, results)

    def _chain(self, node: onnx.NodeProto, rounding: Rounding) -> list[onnx.NodeProto]:
        """Return the node of an elementwise operator that is a step, in a list; an empty list for
        others."""
        result = node.output[0]
        if result in self.tables:
            table = self.tables[result]
            return [self._step(table.root, Step(Kind.TABLE, operand=self._hold(table)), result)]
        if node.domain or len(self.dims.get(result, (None,) * (MAX_AXES + 1))) > MAX_AXES:
            return []
        if node.op_type == "Relu":
            return [self._step(node.input[0], Step(Kind.MAXIMUM), result)]
        if node.op_type not in BINARY or len(node.input) != len(BINARY["Add"]):
            return []
        dims = self.dims.get(result)
        # Of the inputs with the result's shape the later one: its maker may include the step.
        order = sorted(
            (0, 1),
            key=lambda i: (self.dims.get(node.input[i]) == dims, self.made.get(node.input[i], -1)),
        )
        source, operand = node.input[order[1]], node.input[order[0]]
        kind = BINARY[node.op_type][order[1]]
        return [self._step(source, Step(kind, ROUNDINGS[rounding], operand), result)]

    def _hold(self, table: Table) -> str:
        """Return the name of the initializer that holds a table."""
        for name, held in self.held.items():
            if held is table.values:
                return name
        name = f"simipu/table/{len(self.held)}"
        self.held[name] = table.values
        return name

    def _step(self, source: str, step: Step, result: str) -> onnx.NodeProto:
        """Return a chain of one step."""
        assert self.numerics is not None
        return make_kernel(CHAIN, [source], result, [step], **self._flags())

    def _round_results(self, node: onnx.NodeProto, results: list[str]) -> list[onnx.NodeProto]:
        if function := function_of(node):
            op = Tape(f"{results[0]}/function")
            unrounded = function(op, Site(node, NoFacts(), op))
            self._round(op, unrounded, operator_of(node).rounding_of(node), results[0])
            return op.nodes
        op = Tape(f"{results[0]}/rounded", nodes=[node])
        node.output[:] = [f"{name}/exact" if name in results else name for name in node.output]
        for name in results:
            self._round(op, f"{name}/exact", operator_of(node).rounding_of(node), name)
        return op.nodes

    def _lower_product(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes of a product that a kernel computes, or whose sums are kept in half; an
        empty list for others."""
        if found := self._recurrence(node):
            return self._lower_recurrence(found)
        if not operator_of(node).keeps_sums or self.numerics is None:
            return []
        operands, op = self._operands_of(node), Tape(f"{node.output[0]}/partials")
        if self._is_for_kernels(node):
            total = self._multiply(op, node, operands.block)
            total = finish_product(op, total, node, operands.result, self._apply)
        elif operands.block:
            total = add_product(op, node, operands)
        else:
            return []
        self._round(op, total, operator_of(node).rounding, node.output[0])
        return op.nodes

    def _recurrence(self, node: onnx.NodeProto) -> Recurrence | None:
        """Return the recurrence of a node that a kernel computes, or None for another node."""
        if not self.is_fused or self.numerics is None or not self.numerics.half_partials:
            return None
        return Recurrence.of(node, self.dims, self.halves)

    def _lower_recurrence(self, recurrence: Recurrence) -> list[onnx.NodeProto]:
        assert self.numerics is not None

        def hold(function: Activation) -> str:
            op = Tape(function.name)
            result = function.add(op, "x")
            made = tabulate(op, result, self.version, lambda model: lower(model, self.numerics))
            return self._hold(Table("", made))

        op = Tape(f"{recurrence.node.output[0] or recurrence.node.output[1]}/recurrent")
        overflow = int(self.numerics.nan_on_overflow)
        add_kernel(op, recurrence, HALF_BLOCK, hold, overflow)
        return op.nodes

    def _multiply(self, op: Tape, node: onnx.NodeProto, block: int) -> str:
        """Add the product by a kernel, without a Gemm's scales or a bias, and return its result's
        name."""
        assert self.numerics is not None
        flags = self._flags()
        if node.op_type in CONVOLUTIONS:
            left, right, result = (self.shapes[name] for name in (*node.input[:2], node.output[0]))
            placed = place_operands(op, node, (left, right, result))
            sides = [self.codes.get(name, name) for name in (placed.field, placed.filters)]
            pads, total = [*placed.before, *placed.after], op.new_name()
            made = make_convolution(placed.geometry, pads, sides, total, block, flags)
        else:
            sides, total = [self.codes.get(name, name) for name in node.input[:2]], op.new_name()
            made = make_product(node, sides, total, block, flags)
        op.nodes.append(made)
        self.dims[total] = self.dims[node.output[0]]
        return total

    def _flags(self) -> dict[str, int]:
        """Return the attributes of kernels that define the treatment of results that are too
        large."""
        assert self.numerics is not None
        return {
            "nan_on_overflow": int(self.numerics.nan_on_overflow),
            "raises": int(self.numerics.raises),
        }

    def _apply(self, op: Tape, op_type: str, left: str, right: str, shape: Shape | None) -> str:
        """Add an operator of a product and another operand, in float, which the node of the product
        can include."""
        if self.kernels is KernelUse.APART:
            return op.add(op_type, left, right)
        made = op.new_name()
        self.dims[made] = self.dims[left]
        if shape is not None:
            self.dims[right] = shape
        op.nodes.append(self._step(left, Step(BINARY[op_type][0], operand=right), made))
        return made

    def _round(
        self, op: Tape, source: str, rounding: Rounding = Rounding.ROUNDED, result: str = ""
    ) -> str:
        assert self.numerics is not None
        if self.has_kernels:
            made = result or op.new_name()
            op.nodes.append(self._step(source, Step(Kind.NONE, ROUNDINGS[rounding]), made))
            return made
        return round_to_half(
            op,
            source,
            nan_on_overflow=self.numerics.nan_on_overflow,
            bounded=rounding is Rounding.BOUNDED,
            growing=rounding is Rounding.GROWING,
            result=result,
        )

    def _lower_cast(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Lower a Cast; one from or to 8 bits has our attribute `scale`, its tensor's exponent of
        2."""
        source, result = node.input[0], node.output[0]
        scale, op = attribute(node, "scale", 0), Tape(f"{result}/scaled")
        if result in self.codes:
            return []
        if result in self.quarters:
            if self.numerics is None:
                return [_identity(node)]
            if self.has_kernels:
                return [self._step(source, quarter_step(self.quarters[result], scale), result)]
            overflow = self.numerics.nan_on_overflow
            round_to_quarter(
                op, source, self.quarters[result], scale, nan_on_overflow=overflow, result=result
            )
            return op.nodes
        if source in self.quarters:
            # Computed 8-bit values are already at their scale: `round_to_quarter` gives values, not
            # codes. The codes of weights were decoded at scale 0.
            if source not in self.weights or not scale:
                return [_identity(node)]
            op.add_as(result, "Mul", source, op.constant(2.0**scale))
            return op.nodes
        if result in self.halves:
            if source in self.halves:
                return [_identity(node)]
            # From whole numbers, truths or wider floats: cast by way of float, which may be too
            # large for half.
            source = op.add("Cast", source, to=TensorProto.FLOAT)
            if self.numerics is None:
                op.add_as(result, "Identity", source)
            else:
                self._round(op, source, Rounding.ROUNDED, result)
            return op.nodes
        # Halves are already floats; to other types ONNX Runtime casts from float as the chip does
        # from half.
        to_float = attribute(node, "to") == TensorProto.FLOAT and source in self.halves
        return [_identity(node)] if to_float else [node]


def _identity(node: onnx.NodeProto) -> onnx.NodeProto:
    return make_identity(node.input[0], node.output[0], node.name)


def _replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    forget_values(graph)
    replace_nodes(graph, nodes)
