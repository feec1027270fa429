"""Entry of the operator table: all properties of an operator on the simulated IPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper
from onnxgraph import Results, Site, Tape, attribute

from simipu.operators.counts import Count, count_elements
from simipu.operators.formulas.elementwise import guess
from simipu.operators.formulas.layout import ViewRule
from simipu.operators.formulas.moving import copy_between_ipus, gather, gather_elements, move, remap
from simipu.operators.formulas.work import Context, Work
from simipu.operators.rules.computing import cumulative, elementwise, reduce
from simipu.operators.rules.places import Rule

Formula = Callable[[Context], Work]
Saturates = Callable[[onnx.NodeProto], bool]
"""Function that returns whether a node's product of uint8 and int8, or that of a float product
which reads the node, saturates."""


@dataclass(frozen=True, slots=True)
class GraphContext:
    """Facts about the surrounding computed graph that a body may use."""

    opset: int
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Ranks of the tensors, where known."""
    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Sizes of the tensors; None for an unknown size."""
    types: Mapping[str, int] = field(default_factory=dict)
    """Element types of the tensors: float where the chip has half."""
    makers: Mapping[str, onnx.NodeProto] = field(default_factory=dict)
    """Nodes of the node's own graph, by the names of their results."""
    constants: Mapping[str, onnx.TensorProto] = field(default_factory=dict)
    """Constants whose data the graph itself holds."""
    stored: Callable[[str], npt.NDArray[Any] | None] = lambda _name: None
    """Values of an initializer of any size, inside or outside the graph."""
    saturates: Saturates = lambda _node: False
    """Whether a node's product of uint8 and int8 saturates where the graph is computed."""

    def type(self, name: str) -> int:
        """Return the element type of a tensor, float where the chip has half; 0 if it is not
        known."""
        return self.types.get(name, TensorProto.UNDEFINED)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the static shape of a tensor; None if it is not known."""
        sizes = self.shapes.get(name, (None,))
        return tuple(size for size in sizes if size is not None) if None not in sizes else None

    def rank(self, name: str) -> int | None:
        """Return the number of a tensor's dimensions; None if it is not known."""
        return self.ranks.get(name)

    def value(self, name: str) -> npt.NDArray[Any] | None:
        """Return the values of a constant; None for other tensors."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)


Body = Callable[[Tape, Site[GraphContext]], Results]
"""Expansion of an operator into those of the standard or of ONNX Runtime."""
Guard = Callable[[onnx.NodeProto, GraphContext], Body | None]
"""Function that returns a body to use for a node instead of ONNX Runtime's own kernel, or None to
use the kernel."""


def first_of(*guards: Guard) -> Guard:
    """Return a guard that asks others in turn, until one has a body."""

    def guard(node: onnx.NodeProto, around: GraphContext) -> Body | None:
        bodies = (ask(node, around) for ask in guards)
        return next((body for body in bodies if body is not None), None)

    return guard


Shapes = Sequence[tuple[int, ...] | None]
"""Shapes of a node's inputs; None for one that is omitted or unknown."""
Fault = Callable[[onnx.NodeProto, Shapes], str]
"""Function that returns what is wrong with a node whose inputs have these shapes, or ""."""


class Rounding(Enum):
    """How an operator's results are rounded in half."""

    EXACT = auto()
    """The operator only moves or selects values: halves in, halves out, nothing to round. A node
    with the attribute `reduction`, which a scatter may have, adds or multiplies and is rounded."""
    BOUNDED = auto()
    """The result is rounded, and never exceeds the largest half. (The logarithm of 0 is an
    infinity, not an overflow.)"""
    GROWING = auto()
    """The result is rounded, and may exceed the range of float for halves as inputs."""
    ROUNDED = auto()
    SUMMED = auto()
    """The result is rounded, and its sums are kept in half where partial sums are."""
    PRODUCT = auto()
    """The result is rounded, its sums are kept in half where partial sums are, and its operands may
    have 8 bits."""


class Family(Enum):
    """What an operator does, for those that count its arithmetic."""

    PRODUCT = auto()
    CONVOLUTION = auto()
    RECURRENT = auto()
    POOL = auto()
    """Each result is computed of a window."""
    REDUCTION = auto()
    """Each element of the input is read once, for a sum, an extreme or a product."""
    SOFTMAX = auto()
    NORM = auto()
    """Each element is centred or scaled by its neighbours, then scaled by a weight."""
    OTHER = auto()


class Moves(Enum):
    """How an operator that computes nothing places the elements of its data in its result. Scatters
    have none: with `reduction` they compute."""

    COPIED = auto()
    """Each element stays in its place."""
    SQUEEZED = auto()
    """The order stays; axes of one element come or go."""
    RESHAPED = auto()
    """The order stays, in another shape."""
    PERMUTED = auto()
    """Each element is there once, in another order."""
    REPEATED = auto()
    """Each element is there at least once, along axes that grow."""
    JOINED = auto()
    """The elements of all inputs, side by side."""
    SELECTED = auto()
    """Some of the elements, perhaps several times, or with a fill."""


_IN_ORDER = (Moves.COPIED, Moves.SQUEEZED, Moves.RESHAPED)


class Terms(Enum):
    """What an operator adds up, before a root if it takes one."""

    SIGNED = auto()
    """Terms of either sign, which may cancel."""
    MAGNITUDES = auto()
    """Absolute values or squares, which never cancel."""


class OfLarge(Enum):
    """What an operator makes of large numbers. Only operators with which exporters write norms,
    activations and softmaxes have an entry; those that move elements, and sums, keep them large."""

    LARGE = auto()
    """The result is large, too."""
    SMALL = auto()
    """The result is small again: a root, a quotient, a share."""


class Task(Enum):
    """What a network is for that has an operator which few others have."""

    AUDIO = auto()
    """Spectra at the front."""
    DETECTION = auto()
    """Boxes at the end."""
    ENLARGING = auto()
    """Larger images: pyramids of detectors, segmentation and generators; no classifier."""


class Indexing(Enum):
    """How the values of an operator's second input select elements of its first one."""

    ALONG_AXIS = auto()
    """Values are indices along the attribute `axis`."""
    TUPLES = auto()
    """The last axis holds indices along the axes that follow the attribute `batch_dims`."""


_MOVES: Sequence[Formula] = (move, remap, gather, gather_elements, copy_between_ipus)
"""Formulas of operators that compute nothing."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Entry of one operator, for every version of it."""

    rows: Rule | None = None
    """Rule for the places of its rows. None: the whole batch is computed, for the reason in
    `whole_batch`."""
    whole_batch: str = "no rule for this operator"
    cost: Formula | None = guess
    """Formula of its cost on the chip. None: no cost, because it is a view, or known at compile
    time."""
    view: ViewRule | None = None
    """Rule for the layout of its result, if it is a view that changes shape."""
    family: Family = Family.OTHER
    rounding: Rounding = Rounding.ROUNDED
    count: Count = count_elements
    """Count of its work on the machine that computes it."""
    shaped_by: Sequence[int] = ()
    """Inputs on whose values, not only shapes, the shape of its result depends."""
    sizes: int | None = None
    """Input whose values are the sizes of its result."""
    in_place: Sequence[int] = ()
    """Operands that the real SDK may overwrite with the result: the in-place variants of PopART's
    willow/src/popx/op, and Tanh, which popnn computes in place. Subtractions, divisions,
    comparisons, casts and products have none."""
    commutes: bool = False
    """True if its two operands may be exchanged, for those that are exchanged with constants."""
    neutral: int | None = None
    """Value of its second operand that leaves the first unchanged."""
    floats_only: bool = False
    """True if the standard has integers for it, but the chip's libraries have floats only: products
    are of poplin, powers, means, norms and resampling of popops and popnn."""
    reads_scalars: bool = False
    """True if its cost depends on the value of a constant: an exponent, an axis."""
    moves: Moves | None = None
    """How it places the elements of its data, its first input. None: it computes, or makes
    elements of its own."""
    adds: Terms | None = None
    """What it adds up, if its results are sums."""
    of_large: OfLarge | None = None
    """What it makes of large numbers."""
    applies_masks: bool = False
    """True if models apply it to masks: an input that such operators read holds 0 and 1."""
    orders: bool = False
    """True if it compares by size, which IEEE 754 calls invalid for NaN."""
    positives_only: bool = False
    """True if its result is no number for negative inputs."""
    keeps_single: bool = False
    """True if it is a reduction that returns a single element unchanged."""
    is_integer_product: bool = False
    """True if its operands have 8 bits, and its result is their unscaled sums of 32 bits."""
    broadcasts_one_way: bool = False
    """True if only its second input is broadcast (the standard's unidirectional broadcasting)."""
    aligned: Sequence[int] = ()
    """Inputs that are not broadcast, and so have as many rows as the others."""
    gates: int = 0
    """Number of gates of a recurrent network. Their order is ONNX's: i, o, f, c of an LSTM, and z,
    r, h of a GRU."""
    activations: Sequence[str] = ()
    """Default activation functions of one direction of a recurrent network."""
    task: Task | None = None
    """What networks with it are for."""
    reads_shape: bool = False
    """True if it reads only the shape of its input, not its values."""
    tensors_only: bool = True
    """True if its inputs and results are tensors, not sequences of them or optional ones."""
    sdk: str = ""
    """How the compiler of the real SDK has it: "yes" for an implementation, or in words; "": not.

    Sources: github.com/graphcore/popart at d2f20d78, the last public commit (11 September 2023):
    the OpCreators of willow/src/op/*.cpp for `Onnx::Operators`, and the rewriting of ONNX graphs in
    willow/src/onnxpasses; PopRT 1.5.0's list of passes (graphcore.github.io/PopRT, gh-pages at
    d43620a5). PopART's own operators are those of the domain ai.graphcore."""
    apart: Sequence[int] = ()
    """Inputs that are not combined with rows, or with all rows alike, whatever their shape:
    weights, tables, axes. Those of `shaped_by` belong to them, too."""
    reads_mapped_weights: bool = False
    """True if ONNX Runtime reads a mapped weight in place. For other operators its optimizers
    rewrite the weights, such as convolutions' into a layout of their own, and some optimizers
    ignore a value that was given."""
    widened_late: bool = False
    """True if older opsets have fewer integer types for it than the newest, or none."""
    int64_inputs: Sequence[int] = ()
    """Inputs that keep 64 bits. The standard allows 32, but ONNX's shape inference (1.23) or
    definition does not, or ONNX Runtime (1.23) lacks kernels for all combinations of types."""
    wrong_in_reference: bool = False
    """True if the onnx reference deviates from the standard for some attributes, opsets or shapes,
    as comparing random graphs with ONNX Runtime has shown."""
    ignored_by_reference: Sequence[str] = ()
    """Attributes that the onnx reference ignores although they change answers."""
    in_float_on_openvino: bool = False
    """True if OpenVINO computes its whole numbers in float, beside those of products and
    reductions."""
    last_opset: int = 0
    """Last opset for which ONNX Runtime has a kernel, if the standard has newer versions of the
    operator, or has removed it; 0: no limit."""
    taken_apart: bool = False
    """True if ONNX Runtime has no kernel and the standard's definition replaces the operator before
    any other step; the entry's other fields are then not used."""
    is_defined: bool = False
    """True if ONNX Runtime has no kernel, and computes the standard's definition instead."""
    condition: str = ""
    """Condition under which it is computed, in words."""
    body: Body | None = None
    """Body that computes it, if ONNX Runtime has neither kernel nor definition."""
    guard: Guard | None = None
    """Guard for nodes that ONNX Runtime's optimisers or kernels compute wrongly, or that end the
    process."""
    fault: Fault | None = None
    """Check for faults that shape inference does not detect."""
    meaning: str = ""
    """Meaning of the operator, in words, if the standard does not define it."""
    stands_for: str = ""
    """Operator of the standard that passes write as this one; users know its name only."""
    data_type: bytes = b""
    """Default of the attribute `dataType`, which names the type of its results, if it has one."""
    indexing: Indexing | None = None
    """How indices select the elements of the first input that it reads, or writes. None: it has no
    such indices."""
    unguarded_indices: int | None = None
    """Number of the input with indices or places that only ONNX Runtime's CPU kernels check, if
    they are computed at run time."""
    unchecked_input: int | None = None
    """Number of the first input that accelerators ignore, or whose values they do not check."""
    refusal: str = ""
    """Reason why it cannot be compiled, if so."""
    is_random: bool = False
    """True if its values differ from run to run, whatever its inputs."""
    draws_if: int | None = None
    """Input with which it draws, too: the one that switches training on."""
    counts_data: bool = False
    """True if the number of its results depends on the data."""

    @property
    def is_view(self) -> bool:
        """Return whether it only renames memory, or is known at compile time."""
        return self.cost is None

    @property
    def writes_by_indices(self) -> bool:
        """Return whether its indices select elements that it writes."""
        return self.indexing is not None and self.unguarded_indices is not None

    @property
    def computes_nothing(self) -> bool:
        """Return whether it takes no arithmetic: it moves, selects or makes up elements, or is
        known at compile time. `moves` says where elements go, of those that move some."""
        return self.is_view or self.cost in _MOVES

    @property
    def keeps_elements(self) -> bool:
        """Return whether its result has each element of its first input once, in any order."""
        return self.keeps_order or self.moves is Moves.PERMUTED

    @property
    def keeps_order(self) -> bool:
        """Return whether its result has the elements of its first input, in the same order, in
        another shape at most."""
        return self.moves in _IN_ORDER and self.draws_if is None

    @property
    def is_elementwise(self) -> bool:
        """Return whether each element of its result depends on the elements in the same place of
        its inputs, which are broadcast, and on nothing else."""
        return self.rows is elementwise

    def rounding_of(self, node: onnx.NodeProto) -> Rounding:
        """Return the rounding of a node of this operator."""
        computes = attribute(node, "reduction", b"none") in (b"add", b"mul")
        return Rounding.ROUNDED if self.rounding is Rounding.EXACT and computes else self.rounding

    def draws(self, node: onnx.NodeProto) -> bool:
        """Return whether a node of this operator draws random numbers, or may: Dropout does if it
        has the input that switches training on, whose value may be known only at run time."""
        place = self.draws_if
        return self.is_random or (place is not None and any(node.input[place : place + 1]))

    def moves_of(self, node: onnx.NodeProto) -> Moves | None:
        """Return how a node of this operator moves elements; None if it draws."""
        return None if self.draws(node) else self.moves

    @property
    def is_reduction(self) -> bool:
        """Return whether it reduces the axes that an attribute or its second input names."""
        return self.rows is reduce

    @property
    def sums_along_axes(self) -> bool:
        """Return whether its results are sums of elements along axes, or have a root of them."""
        return self.adds is not None and self.rows in (reduce, cumulative)

    @property
    def is_product(self) -> bool:
        """Return whether it is a product whose operands may have 8 bits, and whose sums may be kept
        in half."""
        return self.rounding is Rounding.PRODUCT

    @property
    def is_convolution(self) -> bool:
        """Return whether it is a convolution whose sums may be kept in half; others of the family
        have integers, or offsets."""
        return self.family is Family.CONVOLUTION and self.keeps_sums

    @property
    def keeps_sums(self) -> bool:
        """Return whether its sums may be kept in half."""
        return self.rounding in (Rounding.SUMMED, Rounding.PRODUCT)
