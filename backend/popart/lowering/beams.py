"""Rule of CtcBeamSearchDecoder: prefix beam search, all beams of a batch at once.

A beam is a prefix of labels with the probabilities that its paths end in a blank and that they do
not. A step extends each beam by a blank, by its last label again, and by each label. An extension
that another beam has as its prefix already is added to that beam. The likeliest beams go on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from onnx import TensorProto
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.lowering.control import make_body, new_input
from popart.lowering.graph import Array, Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, type_name
from popart.lowering.sequences import NEVER, check_scores, read_ints

_INT32 = TensorProto.INT32
_NO_BEAM = -9
"""Length of a beam that does not exist; none is one longer or one shorter."""


@dataclass(frozen=True, slots=True)
class _Beams:
    """State of the search: tensors of a batch of beams."""

    labels: Tensor
    lengths: Tensor
    last: Tensor
    blank: Tensor
    """Logarithm of the probability of the paths that end in a blank."""
    other: Tensor
    """Logarithm of the probability of the other paths."""

    def list(self) -> list[Tensor]:
        """Return the tensors."""
        return [getattr(self, field.name) for field in fields(self)]


@chip_rule("CtcBeamSearchDecoder")
def _decode(op: Graph, node: Operation) -> Results:
    scores, lengths = node.input(0), node.input(1)
    check_scores(node, scores)
    steps, batch, _ = scores.shape
    if lengths.shape != (batch,):
        raise popart_exception(
            f"Unsupported shape for input 1 of Op {node.describe()} (expected a 'data "
            f"lengths' tensor of shape {format_shape([batch])}, got "
            f"{format_shape(lengths.shape)})."
        )
    if lengths.element_type != TensorProto.UINT32:
        raise popart_exception(
            f"Unsupported data type for input 1 of Op {node.describe()} (expected a 'input "
            f"lengths' tensor of type UINT32, got {type_name(lengths)})."
        )
    width, paths = (int(node.get(name)) for name in ("beam_width", "top_paths"))
    if paths > width:
        raise popart_exception(
            f"{node.describe()}: expected at most {width} top_paths, the beam width, found {paths}"
        )
    search = _Search(op, batch, width, steps, scores.shape[2], int(node.get("blank", 0)))
    beams = search.run(op.in_float(scores), op.reshape(read_ints(op, node, 1), [batch, 1]))
    top, total = op.ints(np.arange(paths)), search.add_up(beams.blank, beams.other)
    lengths, labels, total = (
        op.Gather(values, top, axis=1) for values in (beams.lengths, beams.labels, total)
    )
    numbers = [op.cast(op.Max(values, 0), TensorProto.UINT32) for values in (lengths, labels)]
    return [op.cast(total, scores.element_type), *numbers]


@dataclass(frozen=True, slots=True)
class _Search:
    """Search with its sizes."""

    op: Graph
    """Graph that the nodes are added to: the main graph, or the body of a step."""
    batch: int
    width: int
    steps: int
    classes: int
    blank: int
    """Number of the blank among the classes."""

    def run(self, scores: Tensor, lengths: Tensor) -> _Beams:
        """Return the beams after the last step of each sequence."""
        first, inner = self._first().list(), Graph(self.op)
        begin = self.op.constant(np.zeros(1, np.int32))
        inputs = [new_input(inner, "beams", state.element_type, state.shape) for state in first]
        number = new_input(inner, "number", _INT32, (1,))
        row = new_input(inner, "row", scores.element_type, scores.shape[1:])
        step = replace(self, op=inner)
        after = step.take_step(_Beams(*inputs), row).list()
        goes_on = inner.Less(number, lengths)
        results = [
            inner.Where(step.like(goes_on, new), new, old)
            for new, old in zip(after, inputs, strict=True)
        ]
        body = make_body(inner, [*inputs, number, row], [*results, number + 1], "step")
        states = [*first, begin]
        results = self.op.add_all(
            6, "Scan", *states, scores, results=states, body=body, num_scan_inputs=1
        )
        return _Beams(*results[:5])

    def _first(self) -> _Beams:
        """Return the beams before the first step: one, of no labels."""
        rows = self.batch, self.width
        lengths = np.full(rows, _NO_BEAM, np.int32)
        lengths[:, 0] = 0
        blank = np.full(rows, NEVER, np.float32)
        blank[:, 0] = 0
        values: list[Array] = [
            np.full((*rows, self.steps), -1, np.int32),
            lengths,
            np.full(rows, -1, np.int32),
            blank,
            np.full(rows, NEVER, np.float32),
        ]
        return _Beams(*map(self.op.constant, values))

    def take_step(self, beams: _Beams, row: Tensor) -> _Beams:
        """Return the beams after a step with these scores of all classes."""
        op = self.op
        total = self.add_up(beams.blank, beams.other)
        kept_blank = total + op.Gather(row, op.ints([self.blank]), axis=1)
        wide = self._spread(row, 1, self.width)
        again = beams.other + self._flat(self._take(wide, self._spread(beams.last, 2, 1), 2))
        again = op.Where(op.Less(beams.last, 0), NEVER, again)
        longer = self._extend(beams, total, wide)
        parent = self._find_parents(beams)
        met = self._take(longer, self._spread(beams.last, 1, self.width), 2)
        met = op.Where(parent, met, NEVER)
        column = op.reshape(again, [self.batch, 1, self.width])
        kept_other = op.ReduceLogSumExp(op.Concat(met, column, axis=1), axes=[1], keepdims=0)
        kept_other = op.Max(kept_other, NEVER)
        longer = op.Where(self._find_met(beams, parent), NEVER, longer)
        return self._choose(beams, kept_blank, kept_other, longer)

    def _extend(self, beams: _Beams, total: Tensor, wide: Tensor) -> Tensor:
        """Return the probability of each beam with each label behind it; a label that is the last
        one already needs a blank before it."""
        op = self.op
        labels = op.constant(np.arange(self.classes, dtype=np.int32))
        is_same = op.Equal(self._spread(beams.last, 2, 1), labels)
        before = op.Where(is_same, self._spread(beams.blank, 2, 1), self._spread(total, 2, 1))
        return op.Where(op.Equal(labels, self.blank), NEVER, before + wide)

    def _find_parents(self, beams: _Beams) -> Tensor:
        """Return [batch, i, j]: whether beam j is beam i with one label more."""
        op = self.op
        before, behind = (self._spread(beams.lengths, axis, 1) for axis in (2, 1))
        first, second = (self._spread(beams.labels, axis, 1) for axis in (2, 1))
        places = op.constant(np.arange(self.steps, dtype=np.int32))
        is_beyond = op.Not(op.Less(places, self._spread(before, 3, 1)))
        counts = op.cast(op.Or(is_beyond, op.Equal(first, second)), _INT32)
        equal = op.cast(op.ReduceMin(counts, axes=[3], keepdims=0), TensorProto.BOOL)
        return op.And(op.Equal(behind, before + 1), equal)

    def _find_met(self, beams: _Beams, parent: Tensor) -> Tensor:
        """Return [batch, beam, label]: whether the extension is a beam already."""
        op = self.op
        labels = op.constant(np.arange(self.classes, dtype=np.int32))
        is_last = op.Equal(self._spread(beams.last, 2, 1), labels)
        counts = op.MatMul(op.in_float(parent), op.in_float(is_last))
        return op.cast(counts, TensorProto.BOOL)

    def _choose(
        self, beams: _Beams, kept_blank: Tensor, kept_other: Tensor, longer: Tensor
    ) -> _Beams:
        """Return the likeliest of the beams that stay and of those that grow."""
        op, width = self.op, self.width
        stayed = self.add_up(kept_blank, kept_other)
        grown = op.reshape(longer, [self.batch, width * self.classes])
        values, places = op.add_all(2, "TopK", op.Concat(stayed, grown, axis=1), k=[width], axis=1)
        places = op.cast(places, _INT32)
        stays = op.Less(places, width)
        number = op.Max(places - width, 0)
        source = op.Where(stays, places, number / self.classes)
        label = op.Mod(number, self.classes, fmod=0)
        lengths = self._take(beams.lengths, source, 1)
        rows = op.Expand(self.like(source, beams.labels), op.ints(beams.labels.shape))
        labels = self._take(beams.labels, rows, 1)
        steps = op.constant(np.arange(self.steps, dtype=np.int32))
        is_end = op.Equal(steps, self.like(lengths, labels))
        is_new = op.And(is_end, op.Not(self.like(stays, labels)))
        labels = op.Where(is_new, self.like(label, labels), labels)
        grows = op.cast(op.Not(stays), _INT32)
        exists = op.Less(op.constant(NEVER / 2), values)
        return _Beams(
            labels,
            op.Where(exists, lengths + grows, _NO_BEAM),
            op.Where(stays, self._take(beams.last, source, 1), label),
            op.Where(stays, self._take(kept_blank, source, 1), NEVER),
            op.Where(stays, self._take(kept_other, source, 1), values),
        )

    def add_up(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the logarithm of the sum of two probabilities."""
        op, axis = self.op, left.rank
        pair = op.Concat(self._spread(left, axis, 1), self._spread(right, axis, 1), axis=axis)
        return op.Max(op.ReduceLogSumExp(pair, axes=[axis], keepdims=0), NEVER)

    def _spread(self, tensor: Tensor, axis: int, count: int) -> Tensor:
        """Return the tensor with a new axis, repeated `count` times along it."""
        shape = [*tensor.shape[:axis], 1, *tensor.shape[axis:]]
        column = self.op.reshape(tensor, shape)
        if count == 1:
            return column
        shape[axis] = count
        return self.op.Expand(column, self.op.ints(shape))

    def _flat(self, tensor: Tensor) -> Tensor:
        return self.op.reshape(tensor, tensor.shape[:-1])

    def like(self, tensor: Tensor, other: Tensor) -> Tensor:
        """Return the tensor with further axes of one element, as many as the other has."""
        return self.op.reshape(tensor, [*tensor.shape, *[1] * (other.rank - tensor.rank)])

    def _take(self, tensor: Tensor, places: Tensor, axis: int) -> Tensor:
        """Return the elements at places along an axis; places before the first are the first."""
        return self.op.GatherElements(tensor, self.op.Max(places, 0), axis=axis)
