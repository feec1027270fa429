"""What the simulated IPU knows of an operator: one entry, whose fields the walkers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import onnx
from onnxgraph import Chain, attribute

from simipu.operators.counts import Count, count_elements
from simipu.operators.formulas.elementwise import guess
from simipu.operators.formulas.work import Context, Work
from simipu.operators.rules.places import Rule

Formula = Callable[[Context], Work]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a body may know of the computed graph that it is put into."""

    opset: int
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Of the tensors, where they are known."""
    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Their sizes; None where one is open."""
    types: Mapping[str, int] = field(default_factory=dict)
    """Their element types: float where the chip has half."""
    makers: Mapping[str, onnx.NodeProto] = field(default_factory=dict)
    """The nodes of the node's own graph, by what they make."""
    constants: Mapping[str, onnx.TensorProto] = field(default_factory=dict)
    """Those whose data the graph itself holds."""


Body = Callable[[Chain, onnx.NodeProto, Surroundings], None]
"""Adds to a chain the nodes, of the standard or of ONNX Runtime, that make a node's results of its inputs."""
Guard = Callable[[onnx.NodeProto, Surroundings], Body | None]
"""What computes a node instead of ONNX Runtime's own; None: ONNX Runtime's own does."""


Shapes = Sequence[tuple[int, ...] | None]
"""Of a node's inputs; None where one is left out or not known."""
Fault = Callable[[onnx.NodeProto, Shapes], str]
"""What is wrong with a node whose inputs have these shapes; "": nothing."""


class Rounding(Enum):
    """What becomes of an operator's results in half."""

    EXACT = auto()
    """It only moves or chooses among values: halves in, halves out, nothing to round. Unless a node of it has
    the attribute `reduction`, as a scatter may: then it adds or multiplies."""
    BOUNDED = auto()
    """Rounded, and never larger than the largest half. (The logarithm of 0 is an infinity, not an
    overflow.)"""
    GROWING = auto()
    """Rounded, and able to take halves beyond the range of float."""
    ROUNDED = auto()
    SUMMED = auto()
    """Its sums are kept in half as well, where partial sums are."""
    PRODUCT = auto()
    """Its sums are, and its operands may be of 8 bits."""


class Indexing(Enum):
    """How the values of an operator's second input choose elements of its first one."""

    ALONG_AXIS = auto()
    """Each is a place along the attribute `axis`."""
    TUPLES = auto()
    """The last axis holds places along the axes that follow the attribute `batch_dims`."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator, in every version of it."""

    rows: Rule | None = None
    """Where its rows go; None: the whole batch is computed, for the reason in `whole_batch`."""
    whole_batch: str = "no rule for this operator"
    cost: Formula | None = guess
    """What it takes of the chip; None: nothing, for it is a view, or known at compile time."""
    rounding: Rounding = Rounding.ROUNDED
    count: Count = count_elements
    """What it asks of the machine that computes it."""
    shaped_by: Sequence[int] = ()
    """Inputs on whose values, not only shapes, the shape of its result depends."""
    apart: Sequence[int] = ()
    """Inputs that meet no rows, or all rows alike, whatever their shape: weights, tables, axes. Those of
    `shaped_by` are, too."""
    reads_mapped_weights: bool = False
    """Whether ONNX Runtime computes with a weight where it lies. Others' weights its optimizers rewrite, as
    convolutions' into a layout of their own, and some do not know that a value was given."""
    last_opset: int = 0
    """The opset up to which ONNX Runtime's kernels go, where the standard has newer versions of the operator,
    or has dropped it; 0: there is none such."""
    taken_apart: bool = False
    """Whether ONNX Runtime has no kernel and puts the standard's definition in its place, before anything
    else here is asked: the entry's other fields are of no use."""
    is_defined: bool = False
    """Whether ONNX Runtime has no kernel, and computes the standard's definition instead."""
    condition: str = ""
    """What has to be so for it to be computed, in words."""
    body: Body | None = None
    """What computes it, where ONNX Runtime has neither kernel nor definition."""
    guard: Guard | None = None
    """What computes those nodes that ONNX Runtime's optimisers or kernels compute wrongly, or that end the
    process."""
    fault: Fault | None = None
    """What shape inference does not see."""
    meaning: str = ""
    """What it says, in words, where the standard does not."""
    indexing: Indexing | None = None
    """How indices that are computed at run time choose what it reads; None: none do."""
    refusal: str = ""
    """Why it cannot be compiled, if so."""
    is_random: bool = False
    """Whether its values differ from run to run, whatever it is given."""
    counts_data: bool = False
    """Whether it makes as many results as the data happen to hold."""

    @property
    def is_view(self) -> bool:
        """Whether it only renames memory, or is known at compile time."""
        return self.cost is None

    def rounding_of(self, node: onnx.NodeProto) -> Rounding:
        """Of that node."""
        computes = attribute(node, "reduction", b"none") in (b"add", b"mul")
        return Rounding.ROUNDED if self.rounding is Rounding.EXACT and computes else self.rounding

    @property
    def is_product(self) -> bool:
        """Whether it is a product whose operands may be of 8 bits, and whose sums may be kept in half."""
        return self.rounding is Rounding.PRODUCT

    @property
    def keeps_sums(self) -> bool:
        """Whether its sums may be kept in half."""
        return self.rounding in (Rounding.SUMMED, Rounding.PRODUCT)
