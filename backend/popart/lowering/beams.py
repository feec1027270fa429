"""Rule of CtcBeamSearchDecoder: prefix beam search, all beams of a batch at once.

A beam is a prefix of labels with the probabilities that its paths end in a blank and that they do
not. A step extends each beam by a blank, by its last label again, and by each label. An extension
that another beam has as its prefix already is added to that beam. The likeliest beams go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from onnx import TensorProto

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
def _decode(operation: Operation) -> Sequence[Tensor]:
    scores, lengths = operation.input(0), operation.input(1)
    check_scores(operation, scores)
    steps, batch, _ = scores.shape
    if lengths.shape != (batch,):
        raise popart_exception(
            f"Unsupported shape for input 1 of Op {operation.describe()} (expected a 'data "
            f"lengths' tensor of shape {format_shape([batch])}, got "
            f"{format_shape(lengths.shape)})."
        )
    if lengths.type != TensorProto.UINT32:
        raise popart_exception(
            f"Unsupported data type for input 1 of Op {operation.describe()} (expected a 'input "
            f"lengths' tensor of type UINT32, got {type_name(lengths)})."
        )
    width, paths = (int(operation.attribute(name)) for name in ("beam_width", "top_paths"))
    if paths > width:
        raise popart_exception(
            f"{operation.describe()}: expected at most {width} top_paths, the beam width, found "
            f"{paths}"
        )
    search = _Search(operation, batch, width, steps, scores.shape[2])
    found = search.run(
        operation.in_float(scores), operation.reshape(read_ints(operation, 1), [batch, 1])
    )
    top = operation.numbers(np.arange(paths))
    total = search.add_up(found.blank, found.other)
    lengths, labels, total = (
        operation.add("Gather", each, top, axis=1) for each in (found.lengths, found.labels, total)
    )
    zero = operation.constant(np.int32(0))
    return [
        operation.cast(total, scores.type),
        *(
            operation.cast(operation.add("Max", each, zero), TensorProto.UINT32)
            for each in (lengths, labels)
        ),
    ]


@dataclass(slots=True)
class _Search:
    """Search with its sizes."""

    op: Operation
    batch: int
    width: int
    steps: int
    classes: int

    def run(self, scores: Tensor, lengths: Tensor) -> _Beams:
        """Return the beams after the last step of each sequence."""
        first = self._first()
        begin = self.op.constant(np.zeros(1, np.int32))
        outer, inner = self.op.graph, Graph(self.op.graph)
        self.op.graph = inner
        try:
            beams = _Beams(*(new_input(inner, "beams", each) for each in first.list()))
            number = new_input(inner, "number", begin)
            row = new_input(inner, "row", replace(scores, shape=scores.shape[1:]))
            after = self._step(beams, row)
            goes_on = self.op.add("Less", number, lengths)
            kept = [
                self.op.add("Where", self._like(goes_on, new), new, old)
                for new, old in zip(after.list(), beams.list(), strict=True)
            ]
            following = self.op.add("Add", number, self._int(1))
            inputs = [*beams.list(), number, row]
            body = make_body(inner, inputs, [*kept, following], "step")
        finally:
            self.op.graph = outer
        states = [*first.list(), begin]
        found = self.op.add_all(
            "Scan", *states, scores, outputs=6, results=states, body=body, num_scan_inputs=1
        )
        return _Beams(*found[:5])

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

    def _step(self, beams: _Beams, row: Tensor) -> _Beams:
        add = self.op.add
        blank = int(self.op.attribute("blank", 0))
        total = self.add_up(beams.blank, beams.other)
        of_blank = add("Gather", row, self.op.numbers(np.asarray([blank])), axis=1)
        kept_blank = add("Add", total, of_blank)
        wide = self._spread(row, 1, self.width)
        again = self._take(wide, self._spread(beams.last, 2, 1), 2)
        again = add("Add", beams.other, self._flat(again))
        is_empty = add("Less", beams.last, self._int(0))
        again = add("Where", is_empty, self.op.constant(NEVER), again)
        longer = self._extend(beams, total, wide, blank)
        parent = self._find_parents(beams)
        met = self._take(longer, self._spread(beams.last, 1, self.width), 2)
        met = add("Where", parent, met, self.op.constant(NEVER))
        column = self.op.reshape(again, [self.batch, 1, self.width])
        axes = self.op.numbers(np.asarray([1]))
        kept_other = add("ReduceLogSumExp", add("Concat", met, column, axis=1), axes, keepdims=0)
        kept_other = add("Max", kept_other, self.op.constant(NEVER))
        longer = add("Where", self._find_met(beams, parent), self.op.constant(NEVER), longer)
        return self._choose(beams, kept_blank, kept_other, longer)

    def _extend(self, beams: _Beams, total: Tensor, wide: Tensor, blank: int) -> Tensor:
        """Return the probability of each beam with each label behind it; a label that is the last
        one already needs a blank before it."""
        add = self.op.add
        numbers = self.op.constant(np.arange(self.classes, dtype=np.int32))
        same = add("Equal", self._spread(beams.last, 2, 1), numbers)
        before = add("Where", same, self._spread(beams.blank, 2, 1), self._spread(total, 2, 1))
        is_blank = add("Equal", numbers, self._int(blank))
        return add("Where", is_blank, self.op.constant(NEVER), add("Add", before, wide))

    def _find_parents(self, beams: _Beams) -> Tensor:
        """Return [batch, i, j]: whether beam j is beam i with one label more."""
        add = self.op.add
        before, behind = (self._spread(beams.lengths, axis, 1) for axis in (2, 1))
        follows = add("Equal", behind, add("Add", before, self._int(1)))
        first, second = (self._spread(beams.labels, axis, 1) for axis in (2, 1))
        places = self.op.constant(np.arange(self.steps, dtype=np.int32))
        beyond = add("Less", places, self._spread(before, 3, 1))
        counts = add("Or", add("Not", beyond), add("Equal", first, second))
        axes = self.op.numbers(np.asarray([3]))
        equal = add("ReduceMin", self.op.cast(counts, _INT32), axes, keepdims=0)
        return add("And", follows, self.op.cast(equal, TensorProto.BOOL))

    def _find_met(self, beams: _Beams, parent: Tensor) -> Tensor:
        """Return [batch, beam, label]: whether the extension is a beam already."""
        numbers = self.op.constant(np.arange(self.classes, dtype=np.int32))
        labels = self.op.add("Equal", self._spread(beams.last, 2, 1), numbers)
        counted = self.op.add("MatMul", self.op.in_float(parent), self.op.in_float(labels))
        return self.op.cast(counted, TensorProto.BOOL)

    def _choose(
        self, beams: _Beams, kept_blank: Tensor, kept_other: Tensor, longer: Tensor
    ) -> _Beams:
        """Return the likeliest of the beams that stay and of those that grow."""
        add, width = self.op.add, self.width
        kept = self.add_up(kept_blank, kept_other)
        grown = self.op.reshape(longer, [self.batch, width * self.classes])
        values, places = self.op.add_all(
            "TopK",
            add("Concat", kept, grown, axis=1),
            self.op.numbers(np.asarray([width])),
            outputs=2,
            axis=1,
        )
        places = self.op.cast(places, _INT32)
        stays = add("Less", places, self._int(width))
        number = add("Max", add("Sub", places, self._int(width)), self._int(0))
        source = add("Where", stays, places, add("Div", number, self._int(self.classes)))
        label = add("Mod", number, self._int(self.classes), fmod=0)
        lengths = self._take(beams.lengths, source, 1)
        rows = self._like(source, beams.labels)
        shape = self.op.numbers(np.asarray(beams.labels.shape))
        labels = self._take(beams.labels, add("Expand", rows, shape), 1)
        steps = self.op.constant(np.arange(self.steps, dtype=np.int32))
        is_end = add("Equal", steps, self._like(lengths, labels))
        is_new = add("And", is_end, add("Not", self._like(stays, labels)))
        labels = add("Where", is_new, self._like(label, labels), labels)
        grows = self.op.cast(add("Not", stays), _INT32)
        there = add("Less", self.op.constant(NEVER / 2), values)
        lengths = add("Where", there, add("Add", lengths, grows), self._int(_NO_BEAM))
        never = self.op.constant(NEVER)
        return _Beams(
            labels,
            lengths,
            add("Where", stays, self._take(beams.last, source, 1), label),
            add("Where", stays, self._take(kept_blank, source, 1), never),
            add("Where", stays, self._take(kept_other, source, 1), values),
        )

    def add_up(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the logarithm of the sum of two probabilities."""
        pair = self.op.add(
            "Concat", *(self._spread(each, left.rank, 1) for each in (left, right)), axis=left.rank
        )
        axes = self.op.numbers(np.asarray([left.rank]))
        found = self.op.add("ReduceLogSumExp", pair, axes, keepdims=0)
        return self.op.add("Max", found, self.op.constant(NEVER))

    def _int(self, value: int) -> Tensor:
        return self.op.constant(np.int32(value))

    def _spread(self, tensor: Tensor, axis: int, count: int) -> Tensor:
        """Return the tensor with a new axis, repeated `count` times along it."""
        shape = [*tensor.shape[:axis], 1, *tensor.shape[axis:]]
        found = self.op.reshape(tensor, shape)
        if count == 1:
            return found
        shape[axis] = count
        return self.op.add("Expand", found, self.op.numbers(np.asarray(shape)))

    def _flat(self, tensor: Tensor) -> Tensor:
        return self.op.reshape(tensor, tensor.shape[:-1])

    def _like(self, tensor: Tensor, other: Tensor) -> Tensor:
        """Return the tensor with further axes of one element, as many as the other has."""
        return self.op.reshape(tensor, [*tensor.shape, *[1] * (other.rank - tensor.rank)])

    def _take(self, tensor: Tensor, places: Tensor, axis: int) -> Tensor:
        """Return the elements at places along an axis; places before the first are the first."""
        places = self.op.add("Max", places, self._int(0))
        return self.op.add("GatherElements", tensor, places, axis=axis)
