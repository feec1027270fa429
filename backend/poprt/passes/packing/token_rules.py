"""Rules for where the samples and tokens lie in the results of operators. `packed_transformer` follows them
through a graph, selects the packed tensors and rewrites the nodes.

An axis is labelled SAMPLES (or a multiple of them, samples outermost), TOKENS, or BOTH if the two
are one axis. Any other axis, and each axis of a tensor without samples, is PLAIN. Sizes are those
of the original model; `Sizes` has the sizes after samples are unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx
from onnxgraph import attribute
from onnxgraph.nodes import STANDARD_DOMAINS
from simipu.operators import operator_of
from simipu.operators.rules import computing

from popef._tools.arrays import Array
from poprt.rewrite.views import AXES_ARE_INPUTS, GraphView, Shape

PLAIN, SAMPLES, TOKENS, BOTH = "", "samples", "tokens", "both"
Labels = tuple[str, ...]
LEADING: Labels = (SAMPLES, TOKENS)
_SOFTMAX_ALONG_AXIS = 13
_MATRIX = 2
_MASK_RANK = 4


class Mixed(Exception):
    """Error for nodes that mix samples, or tokens in a way that has no meaning here. Its message
    gives the reason."""


@dataclass(frozen=True, slots=True)
class Sizes:
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
class Ask:
    """Query for one node: where its results have the samples and tokens of its inputs."""

    node: onnx.NodeProto
    view: GraphView
    opset: int
    sizes: Sizes
    labels: Mapping[str, Labels]
    changed: dict[int, Array] = field(default_factory=dict)
    """Constants whose sizes change when samples are unpacked, by input place."""
    shrunk: dict[int, Array] = field(default_factory=dict)
    """Constants with equal values for all samples or tokens, reduced to one of them, by input
    place."""
    mixes: bool = False
    """Flag that the node combines tokens, so that they have to be unpacked."""

    def labels_of(self, place: int) -> Labels:
        """Return the labels of an input."""
        name = self.node.input[place]
        return self.labels.get(name) or (PLAIN,) * len(self.shape_of(place))

    def shape_of(self, place: int) -> Shape:
        """Return the original shape of an input."""
        return self.shape(self.node.input[place])

    def shape(self, name: str) -> Shape:
        """Return the original shape of a tensor. Raise Mixed if it is not known."""
        found = self.view.shape(name)
        if found is None:
            raise Mixed(f"the shape of {name!r} is not known")
        return found

    def result(self, place: int = 0) -> Shape:
        """Return the original shape of a result."""
        return self.shape(self.node.output[place])

    def is_labelled(self, place: int) -> bool:
        """Return whether an input has samples."""
        return place < len(self.node.input) and self.node.input[place] in self.labels

    def only_first(self) -> Labels:
        """Return the labels of the first input. Raise Mixed if another input has samples."""
        if not self.is_labelled(0) or any(
            self.is_labelled(place) for place in range(1, len(self.node.input))
        ):
            raise Mixed("samples come by another input than the first")
        return self.labels_of(0)

    def axis(self, rank: int, default: int) -> int:
        """Return the attribute `axis`, counted from the front."""
        return int(attribute(self.node, "axis", default)) % max(1, rank)

    def axes(self, default: Sequence[int] | None, since: int = AXES_ARE_INPUTS) -> list[int]:
        """Return the axes of a Squeeze, an Unsqueeze or a reduction as they are written. Raise
        Mixed if they are not known."""
        if self.opset < since:
            found = attribute(self.node, "axes")
        else:
            found = self.view.numbers(self.node.input[1]) if len(self.node.input) > 1 else None
        if found is None and default is None:
            raise Mixed("its axes are not known")
        return list(found if found is not None else default or ())


Rule = Callable[[Ask], Labels]
"""Function that returns the labels of all results of a node. The results have one shape, except
along plain axes. It raises Mixed."""


def _elementwise(ask: Ask) -> Labels:
    """Align axes at the last one. Inputs without samples must not differ between samples."""
    rank = max(len(ask.shape_of(place)) for place, name in enumerate(ask.node.input) if name)
    found = [PLAIN] * rank
    for place, name in enumerate(ask.node.input):
        if name in ask.labels:
            labels = ask.labels_of(place)
            for axis, label in enumerate(labels, rank - len(labels)):
                if label and found[axis] not in (PLAIN, label):
                    raise Mixed(f"{found[axis]} and {label} meet along axis {axis}")
                found[axis] = label or found[axis]
    _square(ask, found)
    for place, name in enumerate(ask.node.input):
        if name:
            _fit(ask, place, found)
    return tuple(found)


def _square(ask: Ask, found: list[str]) -> None:
    """Label the tokens that see in a mask of tokens that are seen, if a constant has them."""
    if len(found) != _MASK_RANK or found[-1] != TOKENS or found[_MATRIX]:
        return
    for place, name in enumerate(ask.node.input):
        shape = ask.shape_of(place) if name and name not in ask.labels else ()
        if shape[-_MATRIX:-1] == (ask.sizes.tokens,):
            found[_MATRIX], ask.mixes = TOKENS, True


def _fit(ask: Ask, place: int, found: Sequence[str]) -> None:
    """Reduce or cut a constant with a number for each token; an axis of one element fits all."""
    labels, shape = ask.labels_of(place), ask.shape_of(place)
    for axis, (label, size) in enumerate(zip(labels, shape, strict=True)):
        wanted = found[len(found) - len(shape) + axis]
        if label == wanted or size == 1 or not wanted:
            continue
        name = ask.node.input[place]
        if name in ask.labels:
            raise Mixed(f"{name!r} tells {wanted} apart")
        value = ask.shrunk.get(place, ask.view.value(name, _MAX_READ))
        first = None if value is None else np.take(value, [0], axis)
        if (
            value is not None
            and first is not None
            and np.array_equal(value, np.broadcast_to(first, value.shape))
        ):
            ask.shrunk[place] = first
            if place in ask.changed:
                ask.changed[place] = np.take(ask.changed[place], [0], axis)
        else:
            _cut(ask, place, axis, wanted)


def _cut(ask: Ask, place: int, axis: int, wanted: str) -> None:
    """Cut a constant of positions to the length of the longest sample."""
    name, size, longest = ask.node.input[place], ask.shape_of(place)[axis], ask.sizes.longest
    if wanted != TOKENS:
        raise Mixed(f"{name!r} tells {wanted} apart")
    ask.mixes = True
    if longest > size:
        raise Mixed(f"{name!r} is for {size} tokens, samples have up to {longest}")
    if longest < size:
        value = ask.changed.get(place, ask.shrunk.get(place, ask.view.value(name, _MAX_READ)))
        if value is None:
            raise Mixed(f"{name!r} is for {size} tokens, and is not a constant whose values are there")
        ask.changed[place] = np.take(value, range(longest), axis)


_MAX_READ = 2**26
"""Maximum number of elements of a constant that is cut: positions of long texts, biases between all
their tokens."""


def _matmul(ask: Ask) -> Labels:
    left, right = ask.labels_of(0), ask.labels_of(1)
    if len(left) < _MATRIX or len(right) < _MATRIX:
        raise Mixed("one of its operands is a vector")
    if left[-1] != right[-2]:
        raise Mixed(f"it adds up over {left[-1] or right[-2]} of one operand")
    ask.mixes = ask.is_labelled(0) and ask.is_labelled(1)
    rank = max(len(left), len(right))
    groups = [PLAIN] * (rank - _MATRIX)
    for labels, place in ((left, 0), (right, 1)):
        shape = ask.shape_of(place)
        for axis, label in enumerate(labels[:-_MATRIX], rank - len(labels)):
            other = groups[axis]
            if label and other and label != other:
                raise Mixed(f"{other} and {label} meet along axis {axis}")
            if not label and shape[axis - rank + len(labels)] != 1 and ask.result()[axis] != 1 and other:
                raise Mixed(f"operand {place} tells {other} apart")
            groups[axis] = label or other
    if ask.is_labelled(1) and not ask.is_labelled(0) and any(left[:-_MATRIX]):
        raise Mixed("its operands do not fit")
    _check_groups(ask, groups)
    return (*groups, left[-2], right[-1])


def _check_groups(ask: Ask, groups: Sequence[str]) -> None:
    """Check that leading axes of an operand without samples do not count samples."""
    for place in (0, 1):
        labels, shape = ask.labels_of(place), ask.shape_of(place)
        for axis, (label, size) in enumerate(zip(labels[:-_MATRIX], shape, strict=False)):
            wanted = groups[len(groups) - len(labels) + _MATRIX + axis]
            if wanted and not label and size != 1:
                raise Mixed(f"operand {place} tells {wanted} apart")


def _gemm(ask: Ask) -> Labels:
    labels = ask.only_first()
    if attribute(ask.node, "transA", 0) or labels[-1]:
        raise Mixed("its first operand is turned")
    if len(ask.node.input) > _MATRIX and len(ask.shape_of(2)) > 1 and ask.shape_of(2)[0] != 1:
        raise Mixed("its bias tells samples apart")
    return (labels[0], PLAIN)


def _transpose(ask: Ask) -> Labels:
    labels = ask.only_first()
    order = attribute(ask.node, "perm", list(range(len(labels)))[::-1])
    return tuple(labels[axis] for axis in order)


def _reshape(ask: Ask) -> Labels:
    labels = _regroup(ask.only_first(), ask.shape_of(0), ask.result(), ask.sizes)
    sizes = [ask.sizes.unpacked(size, label) for size, label in zip(ask.result(), labels, strict=True)]
    ask.changed[1] = np.asarray(sizes, np.int64)
    return labels


def _flatten(ask: Ask) -> Labels:
    return _regroup(ask.only_first(), ask.shape_of(0), ask.result(), ask.sizes)


def _regroup(labels: Labels, taken: Shape, made: Shape, sizes: Sizes) -> Labels:
    """Return the labels after a Reshape. Group neighbouring axes whose sizes have equal products:
    labelled axes must stay whole in their group.

    [b, t, w] as [b, t, h, d]:  (b | b) (t | t) (w | h, d)
    """
    found: list[str] = []
    i = j = 0
    while i < len(taken) or j < len(made):
        before, behind = i, j
        i, j = min(i + 1, len(taken)), min(j + 1, len(made))
        while (left := math.prod(taken[before:i])) != (right := math.prod(made[behind:j])):
            if (left < right and i == len(taken)) or (left > right and j == len(made)):
                raise Mixed("its sizes do not fit")
            i, j = (i + 1, j) if left < right else (i, j + 1)
        found += _label_group(labels[before:i], made[behind:j], sizes)
    return tuple(found)


def _label_group(labels: Labels, made: Shape, sizes: Sizes) -> list[str]:
    given = [label for label in labels if label]
    found = [PLAIN] * len(made)
    if not given:
        return found
    large = [axis for axis, size in enumerate(made) if size != 1] or [len(made) - 1]
    if not made:
        raise Mixed("an axis of samples or tokens goes")
    if given in ([SAMPLES, TOKENS], [BOTH]) and len(labels) == len(given):
        if len(large) == 1:
            found[large[0]] = BOTH
            return found
        if [made[axis] for axis in large] == [sizes.batch, sizes.tokens]:
            found[large[0]], found[large[1]] = LEADING
            return found
    elif given == [SAMPLES] and labels[0] == SAMPLES and made[large[0]] % sizes.batch == 0:
        found[large[0]] = SAMPLES
        return found
    elif given == [TOKENS] and len(large) == 1 and made[large[0]] == sizes.tokens:
        found[large[0]] = TOKENS
        return found
    raise Mixed("samples or tokens are cut, or joined with something else")


def _unsqueeze(ask: Ask) -> Labels:
    labels, rank = list(ask.only_first()), len(ask.result())
    for axis in sorted(axis % rank for axis in ask.axes(None)):
        labels.insert(axis, PLAIN)
    return tuple(labels)


def _squeeze(ask: Ask) -> Labels:
    labels, shape = ask.only_first(), ask.shape_of(0)
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    gone = {axis % len(shape) for axis in ask.axes(ones)}
    if any(labels[axis] for axis in gone):
        raise Mixed("an axis of samples or tokens goes")
    return tuple(label for axis, label in enumerate(labels) if axis not in gone)


def _along(default: int) -> Rule:
    """Return the rule of a node with several results, or several inputs, along one plain axis."""

    def rule(ask: Ask) -> Labels:
        found = _joined(ask)
        if found[ask.axis(len(found), default)]:
            raise Mixed("it joins or parts samples or tokens")
        return found

    return rule


def _joined(ask: Ask) -> Labels:
    """Return the labels of the inputs, whose labelled axes have to be the same."""
    labels = {ask.labels_of(place) for place, name in enumerate(ask.node.input) if name in ask.labels}
    if len(labels) != 1:
        raise Mixed("its inputs have samples along different axes")
    (found,) = labels
    rank = len(found)
    for place, name in enumerate(ask.node.input):
        is_aside = name and name not in ask.labels and len(ask.shape_of(place)) == rank
        if is_aside and ask.node.op_type == "Concat":
            raise Mixed(f"{name!r} is of no sample")
    return found


def _slice(ask: Ask) -> Labels:
    """Allow slices of plain axes, and of the first tokens, which every sample has."""
    labels, shape, made = ask.only_first(), ask.shape_of(0), ask.result()
    found = list(labels)
    for axis, (label, before, after) in enumerate(zip(labels, shape, made, strict=True)):
        if label and before != after:
            starts = ask.view.numbers(ask.node.input[1]) if len(ask.node.input) > 1 else None
            starts = attribute(ask.node, "starts") if starts is None else starts
            if label != TOKENS or list(starts or ()) != [0] or after > ask.sizes.longest:
                raise Mixed(f"it takes some {label} only")
            ask.mixes, found[axis] = True, PLAIN
    return tuple(found)


def _gather(ask: Ask) -> Labels:
    """Look up rows of a table. For samples, allow indices along a plain axis, or tokens that every
    sample has."""
    axis = ask.axis(len(ask.shape_of(0)), 0)
    if not ask.is_labelled(0):
        table, places = ask.labels_of(0), ask.labels_of(1)
        return (*table[:axis], *places, *table[axis + 1 :])
    labels, indices = ask.only_first(), ask.view.numbers(ask.node.input[1])
    if labels[axis]:
        fits = indices is not None and all(0 <= index < ask.sizes.longest for index in indices)
        if labels[axis] != TOKENS or not fits:
            raise Mixed(f"it looks {labels[axis]} up")
        ask.mixes = True
    return (*labels[:axis], *(PLAIN,) * len(ask.shape_of(1)), *labels[axis + 1 :])


_REDUCTION_AXES_ARE_INPUTS = 18


def _reduce(ask: Ask) -> Labels:
    labels = ask.only_first()
    since = AXES_ARE_INPUTS if ask.node.op_type == "ReduceSum" else _REDUCTION_AXES_ARE_INPUTS
    over = {axis % len(labels) for axis in ask.axes(range(len(labels)), since)}
    for axis in over:
        if labels[axis] and (labels[axis] != TOKENS or ask.node.op_type != "ReduceSum"):
            raise Mixed(f"it takes {labels[axis]} together, padding too")
        ask.mixes |= bool(labels[axis])
    if attribute(ask.node, "keepdims", 1):
        return tuple(PLAIN if axis in over else label for axis, label in enumerate(labels))
    return tuple(label for axis, label in enumerate(labels) if axis not in over)


def _softmax(ask: Ask) -> Labels:
    """Allow a softmax over tokens: a mask that hides padding also hides the positions behind a
    sample."""
    labels = ask.only_first()
    along_one = ask.opset >= _SOFTMAX_ALONG_AXIS or ask.node.domain not in STANDARD_DOMAINS
    axis = ask.axis(len(labels), -1 if along_one else 1)
    over = labels[axis : axis + 1] if along_one else labels[axis:]
    if any(label not in (PLAIN, TOKENS) for label in over):
        raise Mixed("it takes samples together")
    ask.mixes = any(over)
    return labels


def _cumulative(ask: Ask) -> Labels:
    """Allow sums from the first token on, so that each sample has its own. In reverse, padding
    would come first."""
    labels, axes = ask.only_first(), ask.view.numbers(ask.node.input[1])
    if axes is None or attribute(ask.node, "reverse", 0) or labels[axes[0]] in (SAMPLES, BOTH):
        raise Mixed("it adds up over samples, or backwards")
    ask.mixes = bool(labels[axes[0]])
    return labels


def _norm(default: int) -> Rule:
    """Return the rule of a norm over all axes from one on."""

    def rule(ask: Ask) -> Labels:
        labels = ask.only_first()
        if any(labels[ask.axis(len(labels), default) :]):
            raise Mixed("it takes samples or tokens together")
        return labels

    return rule


def _group_norm(ask: Ask) -> Labels:
    labels = ask.only_first()
    if any(labels[1:]):
        raise Mixed("it takes tokens together")
    return labels


def _expand(ask: Ask) -> Labels:
    """Label the tokens that see, if a mask of the tokens that are seen is expanded to one for each
    token."""
    labels, shape, made = ask.only_first(), ask.shape_of(0), ask.result()
    found = [PLAIN] * (len(made) - len(labels)) + list(labels)
    for axis, (size, label) in enumerate(zip(made, found, strict=True)):
        old = shape[axis - len(made)] if axis >= len(made) - len(shape) else 1
        is_mask = len(made) == _MASK_RANK and axis == _MATRIX and found[-1] == TOKENS
        if not label and old == 1 and size == ask.sizes.tokens and is_mask:
            found[axis], ask.mixes = TOKENS, True
    sizes = [ask.sizes.unpacked(size, label) for size, label in zip(made, found, strict=True)]
    ask.changed[1] = np.asarray(sizes, np.int64)
    return tuple(found)


_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
)
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "Concat": _along(0),
        "CumSum": _cumulative,
        "Expand": _expand,
        "FastNorm": _norm(-1),
        "Flatten": _flatten,
        "Gather": _gather,
        "Gemm": _gemm,
        "GroupNormalization": _group_norm,
        "LayerNormalization": _norm(-1),
        "LogSoftmax": _softmax,
        "MatMul": _matmul,
        "NormCE": _norm(-1),
        "Reshape": _reshape,
        "Slice": _slice,
        "Softmax": _softmax,
        "SoftmaxV2": _softmax,
        "SoftmaxV3": _softmax,
        "Split": _along(0),
        "Squeeze": _squeeze,
        "Transpose": _transpose,
        "Unsqueeze": _unsqueeze,
        **dict.fromkeys((*_REDUCTIONS.split(), "ReduceSumSquare"), _reduce),
    }
)


def follow(ask: Ask) -> Labels:
    """Return the labels of a node's results. Raise Mixed if samples do not stay separate."""
    rule = RULES.get(ask.node.op_type)
    if rule is None and operator_of(ask.node).rows is computing.elementwise:
        rule = _elementwise
    if rule is None:
        raise Mixed("nothing is known of what it does to samples")
    return rule(ask)
