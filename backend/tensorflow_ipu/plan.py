"""The plan of a computation: compiled segments, and what the host does between them.

A slot holds one value of a run. Items run in order; each reads slots and fills others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from popef._tools.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Place of a value in a run."""

    number: int
    dtype: tf.DType
    shape: tf.TensorShape
    constant: Array | None = None
    """Value of a slot that nothing fills."""


@dataclass(frozen=True, slots=True)
class VariableKey:
    """A variable of the computation: the name of its handle, type and shape."""

    name: str
    dtype: tf.DType
    shape: tf.TensorShape


Source = Slot | VariableKey
"""Where a segment's input comes from, or where its output goes."""


@dataclass(slots=True, eq=False)
class Segment:
    """Operators that run without the host's help: one program of the IPU."""

    graph: tf.Graph
    inputs: list[tuple[Source, tf.Tensor]] = field(default_factory=list)
    """Placeholders of the graph, with what is fed to each."""
    outputs: list[tuple[Source, tf.Tensor]] = field(default_factory=list)
    on_host: bool = False
    """Whether it has only whole numbers that count loops, which the host computes."""
    program: Any = None
    """The compiled program, made by the first run."""

    def is_trivial(self) -> bool:
        """Return whether it only copies, or has elementwise operators of single numbers only."""
        return all(
            operation.type in _SOURCES
            or (operation.type in _COPIES and operation.inputs[0].op.type in _SOURCES)
            or (
                not operation.op_def.is_stateful
                and not _calls(operation)
                and all(tensor.shape.rank == 0 for tensor in _tensors(operation))
            )
            for operation in self.graph.get_operations()
        )


_SOURCES = ("Placeholder", "Const", "NoOp")
_COPIES = ("Identity", "EnsureShape")


def _tensors(operation: tf.Operation) -> list[tf.Tensor]:
    return [*operation.inputs, *operation.outputs]


def _calls(operation: tf.Operation) -> bool:
    return any(value.HasField("func") for value in operation.node_def.attr.values())


@dataclass(frozen=True, slots=True, eq=False)
class Dequeue:
    """Takes the next element of an infeed."""

    queue: str
    slots: Sequence[Slot]


@dataclass(frozen=True, slots=True, eq=False)
class Enqueue:
    """Gives one element to an outfeed."""

    queue: str
    slots: Sequence[Slot]


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Begins a pipeline: checks that its number of iterations suits its schedule."""

    count: Slot
    overlapping: int
    """Number of stages that run at once."""
    num_ipus: int
    """Number of IPUs of the pipeline, also of those whose stages compute nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Assertion:
    """Ends the run with an error unless a value is true."""

    condition: Slot
    name: str
    """Name of the operator."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop that exchanges values with the host: feeds, or variables that change."""

    condition: Plan
    body: Plan
    initial: Sequence[Slot]
    carried: Sequence[Slot]
    """Slots that hold the loop's values; its results too, once it ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A choice between plans that exchange values with the host."""

    index: Slot
    """False, True or a number: the branch."""
    branches: Sequence[Plan]
    results: Sequence[Slot]


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """Something that the host does with values between segments: see `host_steps`."""

    name: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Slot]
    outputs: Sequence[Slot]
    state: dict[int, Any] = field(default_factory=dict)
    """What it keeps from one time to the next, by the number of the replica."""


Item = Segment | Dequeue | Enqueue | Check | Assertion | HostStep | Loop | Branch


@dataclass(slots=True, eq=False)
class Plan:
    """Items in the order in which they run."""

    inputs: list[Slot] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    outputs: list[Slot] = field(default_factory=list)

    def iter_items(self) -> Iterator[Item]:
        """Yield all items, also those within loops and branches, in the order of a walk."""
        for item in self.items:
            if isinstance(item, Loop):
                yield from item.condition.iter_items()
                yield from item.body.iter_items()
            elif isinstance(item, Branch):
                for branch in item.branches:
                    yield from branch.iter_items()
            yield item

    def feed_whole_elements(self) -> None:
        """Give the segment that reads a part of an infeed's element the rest of it too.

        A program takes whole elements, as callers of its file send them.
        """
        for item in self.iter_items():
            if not isinstance(item, Dequeue):
                continue
            for segment in self.iter_segments():
                fed = [source for source, _ in segment.inputs]
                if any(slot in fed for slot in item.slots):
                    with segment.graph.as_default():
                        segment.inputs += [
                            (slot, tf.compat.v1.placeholder(slot.dtype, slot.shape))
                            for slot in item.slots
                            if slot not in fed
                        ]
                    break

    def iter_segments(self) -> Iterator[Segment]:
        """Yield the segments."""
        return (item for item in self.iter_items() if isinstance(item, Segment))
