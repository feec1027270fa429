"""Places of samples and tokens in the results of operators. `packed_transformer` follows them
through a graph, selects the packed tensors and rewrites the nodes.

An axis is labelled SAMPLES (or a multiple of them, samples outermost), TOKENS, or BOTH if the two
are one axis. Any other axis, and each axis of a tensor without samples, is PLAIN. Sizes are those
of the original model; `TokenSizes` has the sizes after samples are unpacked.

The row rule of an operator says how an axis of independent rows flows through it. Here the rule
runs once with samples as the rows, and once with tokens as the rows for each axis of tokens. If all
runs succeed, each token is computed by itself, whatever sample it belongs to:

    MatMul of [samples, tokens, 4] and [4, 5]      rows are samples:  axis 0 -> axis 0
                                                   rows are tokens:   axis 1 -> axis 1

An axis of tokens for which no run succeeds is one whose tokens the operator mixes, padding too.
The operators that may do so have a function in `_MIXING` with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnxgraph import ByOperator, GraphView, Shape, attribute
from simipu.operators import Family, operator_of
from simipu.rows import Node, NotIndependent, Rows, place_rows

from popef._tools.arrays import Array

PLAIN, SAMPLES, TOKENS, BOTH = "", "samples", "tokens", "both"
Labels = tuple[str, ...]
LEADING: Labels = (SAMPLES, TOKENS)
Axis = tuple[int, int]
"""An input of a node, by place, and an axis of it."""
_MATRIX = 2
_MASK_RANK = 4
_MAX_ALIGNMENTS = 64
"""Maximum number of ways to align the axes of tokens of several inputs that are tried."""
_MAX_READ = 2**26
"""Maximum number of elements of a constant that is cut: positions of long texts, biases between all
their tokens."""


class MixedSamples(Exception):
    """Error for nodes that mix samples, or tokens in a way that has no meaning here. Its message
    gives the reason."""


@dataclass(frozen=True, slots=True)
class TokenSizes:
    """Numbers of samples and tokens: in the packed inputs, and unpacked."""

    batch: int
    tokens: int
    samples: int
    longest: int

    def unpacked(self, size: int, label: str) -> int:
        """Return the unpacked size of an axis."""
        if label == SAMPLES:
            return size // self.batch * self.samples
        if label == BOTH:
            return self.samples * self.longest
        return self.longest if label == TOKENS else size


@dataclass(slots=True)
class _Probe(Node):
    """Node whose row rule runs with samples or tokens as its rows. Constants that meet them are
    noted, not changed: those of tokens may be positions."""

    labelled: frozenset[str] = frozenset()
    met: list[Axis] = field(default_factory=list)
    """Axes of constants along which the rows lie."""
    broadcast: set[Axis] = field(default_factory=set)
    """Axes of constants along which one element is enough."""

    def forget_rows(self, index: int, axis: int, _place: Rows, *, broadcasts: bool = True) -> None:
        """Note that a constant has a part for each row. Raise NotIndependent for a tensor of
        samples."""
        if self.proto.input[index] in self.labelled:
            raise NotIndependent(f"{self.proto.input[index]!r} has a part for each of them")
        self.settled.add(index)
        self.met.append((index, axis))
        if broadcasts:
            self.broadcast.add((index, axis))

    def take_own(self, index: int, _place: Rows) -> None:
        """Raise NotIndependent: the parts of a constant would have to be taken apart."""
        raise NotIndependent(f"{self.proto.input[index]!r} has a part for each of them")


@dataclass(slots=True)
class NodeFlow:
    """One node, and what is known of its inputs; `follow` finds its results."""

    node: onnx.NodeProto
    view: GraphView
    opset: int
    sizes: TokenSizes
    labels: Mapping[str, Labels]
    results: dict[str, Labels] = field(default_factory=dict)
    changed: dict[int, Array] = field(default_factory=dict)
    """Constants whose sizes change when samples are unpacked, by input place."""
    shrunk: dict[int, Array] = field(default_factory=dict)
    """Constants with equal values for all samples or tokens, reduced to one of them, by input
    place."""
    mixes: bool = False
    """Flag that the node combines tokens, so that they have to be unpacked."""
    unpacked: onnx.NodeProto = field(default_factory=onnx.NodeProto)
    """The node as it computes unpacked samples, before its constants change."""
    packed_only: str = ""
    """Reason why the node cannot compute unpacked samples, if so."""

    def labels_of(self, place: int) -> Labels:
        """Return the labels of an input."""
        name = self.node.input[place]
        return self.labels.get(name) or (PLAIN,) * len(self.shape_of(place))

    def shape_of(self, place: int) -> Shape:
        """Return the original shape of an input."""
        return self.shape(self.node.input[place])

    def shape(self, name: str) -> Shape:
        """Return the original shape of a tensor. Raise MixedSamples if it is not known."""
        shape = self.view.shape(name)
        if shape is None:
            raise MixedSamples(f"the shape of {name!r} is not known")
        return shape

    def result(self) -> Shape:
        """Return the original shape of the first result."""
        return self.shape(self.node.output[0])

    def iter_axes(self, *labels: str) -> Iterator[Axis]:
        """Yield the axes of inputs with one of these labels."""
        for place, name in enumerate(self.node.input):
            for axis, label in enumerate(self.labels.get(name, ())):
                if label in labels:
                    yield place, axis


class _FlowConstants(Mapping[str, Array]):
    """Constants that a row rule may read, by name. Their values are read on access."""

    def __init__(self, view: GraphView, known: Mapping[str, Array]) -> None:
        self._view, self._known = view, known

    def __getitem__(self, name: str) -> Array:
        value = self._known.get(name)
        value = self._view.value(name, _MAX_READ) if value is None else value
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter({*self._view.constants, *self._known})

    def __len__(self) -> int:
        return len({*self._view.constants, *self._known})


def follow(flow: NodeFlow) -> None:
    """Find the labels of a node's results, and what changes if it computes unpacked samples. Raise
    MixedSamples if samples do not stay separate."""
    square = _find_square(flow)
    places = _Places(flow)
    places.follow_samples()
    mixed = places.follow_tokens([*flow.iter_axes(TOKENS, BOTH), *square])
    labels = places.label_results()
    if mixed:
        labels[0].update(_mix(flow, mixed))
    seeing = _expand_to_square(flow, labels[0]) if flow.node.op_type == "Expand" else {}
    labels[0].update(seeing)
    flow.mixes |= bool(square or mixed or seeing)
    for name, axes in zip(filter(None, flow.node.output), labels, strict=True):
        flow.results[name] = tuple(axes.get(axis, PLAIN) for axis in range(len(flow.shape(name))))
    for axis in sorted({*square, *(met for probe in places.probes for met in probe.met)}):
        broadcasts = all(axis in probe.broadcast for probe in places.probes if axis in probe.met)
        _resize(flow, axis, places.label_constant(axis), broadcasts=broadcasts)
    _take_changes(flow, places.probes)


def _find_square(flow: NodeFlow) -> list[Axis]:
    """Return the axes of the tokens that see in constants which join a mask of the tokens that are
    seen. A row rule cannot tell such an axis from another one of that size."""
    if not operator_of(flow.node).is_elementwise or len(flow.result()) != _MASK_RANK:
        return []
    labels_found = [PLAIN] * _MASK_RANK
    for place, name in enumerate(flow.node.input):
        labels = flow.labels_of(place) if name in flow.labels else ()
        for axis, label in enumerate(labels, _MASK_RANK - len(labels)):
            labels_found[axis] = labels_found[axis] or label
    if labels_found[-1] != TOKENS or labels_found[_MATRIX]:
        return []
    return [
        (place, len(flow.shape_of(place)) - _MATRIX)
        for place, name in enumerate(flow.node.input)
        if name
        and name not in flow.labels
        and flow.shape_of(place)[-_MATRIX:-1] == (flow.sizes.tokens,)
    ]


def _expand_to_square(flow: NodeFlow, labels: Mapping[int, str]) -> dict[int, str]:
    """Return the label of the tokens that see, if an Expand brings them to a mask of the tokens
    that are seen."""
    shape, result = flow.shape_of(0), flow.result()
    if len(result) != _MASK_RANK or labels.get(_MASK_RANK - 1) != TOKENS or labels.get(_MATRIX):
        return {}
    old = shape[-_MATRIX] if len(shape) >= _MATRIX else 1
    return {_MATRIX: TOKENS} if old == 1 and result[_MATRIX] == flow.sizes.tokens else {}


@dataclass(slots=True)
class _Places:
    """Places of samples and tokens in the results of one node, found by its row rule."""

    flow: NodeFlow
    samples: list[Rows] = field(default_factory=list)
    """Place of the samples in each result."""
    tokens: list[list[Rows]] = field(default_factory=list)
    """Places of tokens in the results, for each run."""
    probes: list[_Probe] = field(default_factory=list)
    """The node of each run: that of samples, then those of tokens."""

    def follow_samples(self) -> None:
        """Find the places of the samples. Raise MixedSamples if the node mixes them."""
        flow = self.flow
        rows: list[Rows | None] = [None] * len(flow.node.input)
        for place, axis in flow.iter_axes(SAMPLES, BOTH):
            rows[place] = Rows(axis, flow.shape_of(place)[axis] // flow.sizes.batch)
        try:
            self.samples = self._run(rows, flow.sizes.batch)
        except NotIndependent as reason:
            raise MixedSamples(f"it mixes samples: with them as rows, {reason}") from None
        if any(sample.before != 1 for sample in self.samples):
            raise MixedSamples("samples lie within others in its result")

    def follow_tokens(self, axes: Sequence[Axis]) -> dict[Axis, str]:
        """Find the places of the tokens. Return the axes whose tokens the node mixes, each with the
        reason.

        Each axis of tokens is followed once, together with the axes of other inputs that lie along
        the same axis of the result, or alone. What a rule shows holds for any values of the inputs
        that carry no rows, so that the runs do not depend on each other.
        """
        unaligned, mixed = list(axes), dict[Axis, str]()
        while unaligned:
            followed = [unaligned[0]]
            for aligned in itertools.islice(_align(self.flow, unaligned), _MAX_ALIGNMENTS):
                try:
                    self.tokens.append(
                        self._run(self._place_tokens(aligned), self.flow.sizes.tokens)
                    )
                except NotIndependent as reason:
                    mixed.setdefault(unaligned[0], str(reason))
                else:
                    followed = list(aligned)
                    mixed.pop(unaligned[0], None)
                    break
            unaligned = [axis for axis in unaligned if axis not in followed]
        return mixed

    def _place_tokens(self, axes: Sequence[Axis]) -> list[Rows | None]:
        flow = self.flow
        rows: list[Rows | None] = [None] * len(flow.node.input)
        for place, axis in axes:
            is_both = flow.labels_of(place)[axis] == BOTH
            rows[place] = Rows(axis, before=flow.sizes.batch if is_both else 1)
        return rows

    def _run(self, rows: list[Rows | None], count: int) -> list[Rows]:
        """Return the places of the rows in the results, by the operator's row rule."""
        flow, proto = self.flow, onnx.NodeProto()
        proto.CopyFrom(flow.node)
        names = [name for name in proto.output if name]
        sizes = operator_of(proto).sizes
        sizes_known = (
            {} if sizes is None else {proto.input[sizes]: np.asarray(flow.result(), np.int64)}
        )
        shapes = [flow.view.shape(name) if name else None for name in proto.input]
        results = [flow.shape(name) for name in names]
        constants = _FlowConstants(flow.view, sizes_known)
        probe = _Probe(
            proto,
            count,
            rows,
            shapes,
            results,
            constants,
            flow.opset,
            labelled=frozenset(flow.labels),
        )
        places = place_rows(probe)
        if len(places) != len(names):
            raise NotIndependent("its rule does not say where they are in all results")
        self.probes.append(probe)
        return [places[name] for name in names]

    def label_results(self) -> list[dict[int, str]]:
        """Return the labels of the axes of each result. Raise MixedSamples if tokens are joined
        with anything but samples."""
        sizes = self.flow.sizes
        labels = [{sample.axis: SAMPLES} for sample in self.samples]
        for places in self.tokens:
            for index, (tokens, samples) in enumerate(zip(places, self.samples, strict=True)):
                is_both = tokens.axis == samples.axis
                expected = Rows(tokens.axis, before=sizes.batch if is_both else 1)
                is_known = labels[index].get(tokens.axis) not in (None, SAMPLES)
                if tokens != expected or is_known or (is_both and samples.block != sizes.tokens):
                    raise MixedSamples("samples or tokens are cut, or joined with something else")
                labels[index][tokens.axis] = BOTH if is_both else TOKENS
        return labels

    def label_constant(self, axis: Axis) -> str:
        """Return the label of an axis of a constant that meets samples or tokens."""
        of_samples, *of_tokens = (axis in probe.met for probe in self.probes)
        if of_samples:
            return BOTH if any(of_tokens) else SAMPLES
        return TOKENS


def _align(flow: NodeFlow, axes: Sequence[Axis]) -> Iterator[tuple[Axis, ...]]:
    """Yield ways to choose, for the first of several axes of tokens, axes of other inputs that lie
    along the same axis of the result, the likeliest first."""
    seed, *others = axes
    rank = len(flow.shape_of(seed[0]))
    from_end = [
        other for other in others if len(flow.shape_of(other[0])) - other[1] == rank - seed[1]
    ]
    from_front = [other for other in others if other[1] == seed[1]]
    by_place: dict[int, list[Axis | None]] = {}
    for other in others:
        by_place.setdefault(other[0], [None]).append(other)
    by_place.pop(seed[0], None)
    choices = (tuple(filter(None, chosen)) for chosen in itertools.product(*by_place.values()))
    tried = set()
    for chosen in itertools.chain([tuple(from_end), tuple(from_front), ()], choices):
        if chosen not in tried:
            tried.add(chosen)
            yield (seed, *chosen)


def _resize(flow: NodeFlow, axis: Axis, label: str, *, broadcasts: bool) -> None:
    """Change a constant that has a part for each sample or token along an axis.

    Equal parts are reduced to one of them if the operator broadcasts it, else repeated as often as
    needed. Other parts of tokens are positions: they are cut to the length of the longest sample.
    """
    place, along = axis
    name, size = flow.node.input[place], flow.shape_of(place)[along]
    value, longest = flow.shrunk.get(place, flow.view.value(name, _MAX_READ)), flow.sizes.longest
    part = size // flow.sizes.batch if label == SAMPLES else 1
    is_shared = value is not None and _repeats(value, part, along)
    if is_shared and broadcasts and part == 1 and value is not None:
        flow.shrunk[place] = value.take([0], along)
        if place in flow.changed:
            flow.changed[place] = flow.changed[place].take([0], along)
        return
    if not is_shared and label != TOKENS:
        raise MixedSamples(f"{name!r} tells {label} apart")
    if not is_shared and longest > size:
        raise MixedSamples(f"{name!r} is for {size} tokens, samples have up to {longest}")
    flow.mixes |= not is_shared
    new_size = flow.sizes.unpacked(size, label)
    if new_size != size:
        value = flow.changed.get(place, value)
        if value is None:
            raise MixedSamples(
                f"{name!r} is for {size} tokens, and is not a constant whose values are there"
            )
        flow.changed[place] = value.take(np.arange(new_size) % (part if is_shared else size), along)


def _repeats(value: Array, part: int, axis: int) -> bool:
    """Return whether a constant consists of equal parts along an axis."""
    repeats = [1] * value.ndim
    repeats[axis] = value.shape[axis] // part
    first = value.take(range(part), axis)
    return np.array_equal(value, np.tile(first, repeats), equal_nan=value.dtype.kind == "f")


def _take_changes(flow: NodeFlow, probes: Sequence[_Probe]) -> None:
    """Take over what the rules change for another number of samples and tokens, which is static
    here. Target sizes are written out: a rule leaves the number of rows open, which is two numbers
    here."""
    flow.unpacked.CopyFrom(probes[0].proto)
    sizes = operator_of(flow.node).sizes
    for probe in probes:
        if probe.op.nodes or probe.after.nodes:
            flow.packed_only = "its sizes depend on the number of samples or tokens"
        for index, name in probe.computed.items():
            if not name:
                flow.unpacked.input[index] = ""
        for index, value in probe.rewrites.items():
            if index == sizes:
                continue
            before = flow.changed.get(index)
            original = (
                flow.view.value(flow.node.input[index]) if index < len(flow.node.input) else None
            )
            if before is None or original is None:
                flow.changed[index] = value
            else:
                flow.changed[index] = np.where(value == original, before, value)
    if sizes is not None:
        labels = flow.results[flow.node.output[0]]
        new_sizes = map(flow.sizes.unpacked, flow.result(), labels)
        flow.changed[sizes] = np.asarray(list(new_sizes), np.int64)


Mixing = Callable[[NodeFlow, Mapping[Axis, str]], dict[int, str] | None]
"""Function that returns the labels of the axes of tokens in the result of a node that mixes tokens
along some axes of its inputs, each with the reason that its row rule gives; None if padding would
be mixed, too."""


_MIXING = ByOperator[Mixing]()
"""Operators that may mix tokens once samples are unpacked, although no row rule can say so: what is
known of padding is a decision of packing."""


def _mix(flow: NodeFlow, mixed: Mapping[Axis, str]) -> dict[int, str]:
    reason = next(iter(mixed.values()))
    is_softmax = operator_of(flow.node).family is Family.SOFTMAX
    mixing = _softmax if is_softmax else _MIXING.get(flow.node.op_type)
    labels = mixing(flow, mixed) if mixing is not None else None
    if labels is None:
        raise MixedSamples(f"it mixes tokens, padding too: with them as rows, {reason}")
    return labels


def _softmax(_flow: NodeFlow, mixed: Mapping[Axis, str]) -> dict[int, str]:
    """A mask that hides padding also hides the positions behind a sample."""
    return {axis: TOKENS for _, axis in mixed}


@_MIXING.register("MatMul")
def _matmul(flow: NodeFlow, mixed: Mapping[Axis, str]) -> dict[int, str] | None:
    """The second product of attention: a mask has made the factors of padding 0."""
    ranks = [len(flow.shape_of(place)) for place in (0, 1)]
    return {} if mixed.keys() == {(0, ranks[0] - 1), (1, ranks[1] - _MATRIX)} else None


@_MIXING.register("Einsum")
def _einsum(flow: NodeFlow, mixed: Mapping[Axis, str]) -> dict[int, str] | None:
    """Like MatMul, of two operands, by letters."""
    equation = attribute(flow.node, "equation", b"").decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    letters = [(place, terms.split(",")[place][axis]) for place, axis in mixed]
    summed = {letter for _, letter in letters}
    is_sum = len(letters) == 2 * len(summed) and not summed.intersection(result)
    return {} if is_sum and {place for place, _ in letters} == {0, 1} else None


@_MIXING.register("ReduceSum")
def _sum(_flow: NodeFlow, _mixed: Mapping[Axis, str]) -> dict[int, str]:
    """Models multiply by the mask before they add up; behind a sample the sum adds zeros."""
    return {}


@_MIXING.register("CumSum")
def _cumulative(flow: NodeFlow, mixed: Mapping[Axis, str]) -> dict[int, str] | None:
    """Padding is behind a sample: a sum from the first token on adds it to padding only."""
    return None if attribute(flow.node, "reverse", 0) else {axis: TOKENS for _, axis in mixed}


@_MIXING.register("Slice")
def _slice(flow: NodeFlow, mixed: Mapping[Axis, str]) -> dict[int, str] | None:
    """Every sample has the first tokens."""
    starts = flow.view.numbers(flow.node.input[1]) if len(flow.node.input) > 1 else None
    starts = attribute(flow.node, "starts") if starts is None else starts
    fits = all(flow.result()[axis] <= flow.sizes.longest for _, axis in mixed)
    return {} if fits and list(starts or ()) == [0] else None


@_MIXING.register("Gather")
def _gather(flow: NodeFlow, mixed: Mapping[Axis, str]) -> dict[int, str] | None:
    """Every sample has the first tokens."""
    indices = flow.view.numbers(flow.node.input[1])
    fits = indices is not None and all(0 <= index < flow.sizes.longest for index in indices)
    return {} if fits and all(place == 0 for place, _ in mixed) else None


@_MIXING.register("Attention")
def _attention(flow: NodeFlow, mixed: Mapping[Axis, str]) -> dict[int, str] | None:
    """Its softmax is inside. Its mask, which must be one of tokens, hides padding; without one, no
    token sees another behind it."""
    query, key, value, mask = range(4)
    others = [name for name in flow.node.input[mask + 1 :] if name]
    if others or len(list(filter(None, flow.node.output))) > 1:
        return None
    tokens = {
        place: [axis for input_place, axis in mixed if input_place == place] for place in range(4)
    }
    rank = len(flow.shape_of(query))
    axis = 1 if rank == _MASK_RANK - 1 else _MATRIX
    if (
        any(tokens[place] not in ([], [axis]) for place in (query, key, value))
        or tokens[key] != tokens[value]
    ):
        return None
    has_mask = len(flow.node.input) > mask and bool(flow.node.input[mask])
    last = len(flow.shape_of(mask)) - 1 if has_mask else 0
    is_causal = bool(attribute(flow.node, "is_causal", 0)) and tokens[query] == tokens[key]
    if tokens[key] and not (last in tokens[mask] if has_mask else is_causal):
        return None
    return {axis: TOKENS} if tokens[query] else {}
