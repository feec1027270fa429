"""StreamConnections of a session's streams: the user's handlers, queues, weights, or nothing.

Predicates choose between them. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from simipu import Engine, ReadCallback, SimulatedExecutable, Stream, WriteCallback

import popef
from model_runtime.compiled_model import find_stream
from model_runtime.predicate_factory import orBind, predProgramFlowMain, predProgramNotAssigned
from model_runtime.predicate_factory.anchor_callbacks import (
    AnchorCallbackPolicy,
    AnchorCallbackPredicate,
)
from popef._tools.arrays import Array

Handler = Callable[[popef.Anchor], Callable[[Array], None]]
"""Function that returns the callback to fill, or to receive, the arrays of an anchor."""


class StreamConnections:
    """The callbacks of a model's streams. They outlive the engine: a newly attached engine gets
    them all."""

    def __init__(self, model: popef.Model, executable: SimulatedExecutable, batched: bool) -> None:
        self._model = model
        self._frozen = model.frozen_inputs().keys()
        self._executable = executable
        self._batched = batched
        self._reads: dict[str, ReadCallback] = {}
        self._writes: dict[str, WriteCallback] = {}
        self._engine: Engine | None = None

    def attach(self, engine: Engine | None) -> None:
        """Connect everything to `engine` from now on; None disconnects."""
        self._engine = engine
        if engine is None:
            return
        for handle, read in self._reads.items():
            engine.connect_input(handle, read)
        for handle, write in self._writes.items():
            engine.connect_output(handle, write)

    def reads(self, handle: str) -> bool:
        """Return whether an input stream is connected."""
        return handle in self._reads

    def row_shape(self, anchor: popef.Anchor) -> tuple[int, ...]:
        """Return the shape of one row of an anchor: the whole tensor's if there is no batch."""
        stream = self._find(anchor)
        return stream.row_shape if self._batched else stream.shape

    def connect_input(self, anchor: popef.Anchor, read: ReadCallback) -> None:
        """Take the rows of an anchor from `read`."""
        self._reads[anchor.handle()] = read
        if self._engine is not None:
            self._engine.connect_input(anchor.handle(), read)

    def connect_output(self, anchor: popef.Anchor, write: WriteCallback) -> None:
        """Send the rows of an anchor to `write`."""
        self._writes[anchor.handle()] = write
        if self._engine is not None:
            self._engine.connect_output(anchor.handle(), write)

    def handle(
        self, kind: popef.TensorType, handler: Handler, predicate: AnchorCallbackPredicate | None
    ) -> None:
        """Connect the input or output anchors to the callbacks of `handler`, or to nothing."""
        for anchor, policy in self._select_anchors(kind, predicate):
            if policy is AnchorCallbackPolicy.BIND_USER_CB:
                self._connect(anchor, handler(anchor))
            elif policy is AnchorCallbackPolicy.BIND_EMPTY_CB:
                self._discard_rows(anchor)

    def select_queued_anchors(
        self, kind: popef.TensorType, predicate: AnchorCallbackPredicate | None
    ) -> list[popef.Anchor]:
        """Return the anchors that get a queue; connect the user's other anchors to nothing."""
        users = {anchor.name() for anchor in self._model.user_anchors(kind)}
        chosen = []
        for anchor, policy in self._select_anchors(kind, predicate):
            if policy is AnchorCallbackPolicy.BIND_USER_CB:
                chosen.append(anchor)
            elif policy is AnchorCallbackPolicy.BIND_EMPTY_CB and anchor.name() in users:
                self._discard_rows(anchor)
        return chosen

    def _connect(self, anchor: popef.Anchor, callback: Callable[[Array], None]) -> None:
        """Connect an anchor to a callback that fills, or receives, an array of the compiled
        shape."""
        stream = self._find(anchor)
        if anchor.type() == popef.TensorType.INPUT:
            self.connect_input(anchor, _make_reader(stream, callback, self._batched))
        else:
            self.connect_output(anchor, _make_writer(stream, callback, self._batched))

    def _discard_rows(self, anchor: popef.Anchor) -> None:
        """Connect an input to zeros, or drop an output, which needs no stream."""
        if anchor.type() == popef.TensorType.INPUT:
            self._connect(anchor, _ignore)
        else:
            self.connect_output(anchor, _ignore)

    def _find(self, anchor: popef.Anchor) -> Stream:
        return find_stream(self._executable, anchor)

    def _select_anchors(
        self, kind: popef.TensorType, predicate: AnchorCallbackPredicate | None
    ) -> list[tuple[popef.Anchor, AnchorCallbackPolicy]]:
        metadata = self._model.metadata
        predicate = predicate or _default_predicate(metadata)
        return [
            (anchor, predicate(anchor))
            for anchor in metadata.anchors()
            if anchor.type() == kind and anchor.name() not in self._frozen
        ]


def make_weight_reader(tensor: popef.TensorReader) -> ReadCallback:
    """Return a callback that reads one tensor, such as a weight."""
    return lambda _most: np.asarray(tensor.data())[None]


def _default_predicate(metadata: popef.Metadata) -> AnchorCallbackPredicate:
    accept, reject = AnchorCallbackPolicy.BIND_USER_CB, AnchorCallbackPolicy.BIND_EMPTY_CB
    return orBind(
        accept, reject, predProgramFlowMain(metadata.programFlow()), predProgramNotAssigned()
    )


def _ignore(_array: Array) -> None:
    """Ignore the rows of an output, or leave an input array unchanged."""


def _make_reader(stream: Stream, fill: Callable[[Array], None], batched: bool) -> ReadCallback:
    """Return a callback whose rows the user writes into an array of the compiled shape."""

    def read(most: int) -> Array:
        array = np.zeros(stream.shape, stream.dtype)
        fill(array)
        return np.moveaxis(array, stream.batch_axis, 0)[:most] if batched else array[None]

    return read


def _make_writer(stream: Stream, take: Callable[[Array], None], batched: bool) -> WriteCallback:
    if not batched:
        return lambda rows: take(rows[0])
    axis = stream.batch_axis
    return (lambda rows: take(np.moveaxis(rows, 0, axis))) if axis else take
