"""Settings of inputs and variables, and the groups of replicas that share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from popart.enums import (
    CommGroupType,
    ExchangeStrategy,
    ReplicatedStreamMode,
    TileSet,
    VariableRetrievalMode,
)
from popart.errors import popart_exception, popart_internal_exception

Text = str
"""Type of texts in a class that has a method of that name."""


class InputSettings:
    """How an input is transferred to the device.

    Args:
        *args: Nothing, a `ReplicatedStreamMode`, or a `TileSet` and an `ExchangeStrategy`.
        **kwargs: The same by name: `replicatedStreamMode`, or `tileSet` and `exchangeStrategy`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._tile_set = TileSet.Compute
        self._strategy = ExchangeStrategy.JustInTime
        self._mode = ReplicatedStreamMode.Replicate
        for value in (*args, *kwargs.values()):
            if isinstance(value, TileSet):
                self._tile_set = value
            elif isinstance(value, ExchangeStrategy):
                self._strategy = value
            elif isinstance(value, ReplicatedStreamMode):
                self._mode = value
            else:
                raise TypeError(
                    f"InputSettings: {value!r} is neither a TileSet, an ExchangeStrategy nor a "
                    "ReplicatedStreamMode"
                )

    def tileSet(self) -> TileSet:
        """Return the tiles that hold the tensor."""
        return self._tile_set

    def exchangeStrategy(self) -> ExchangeStrategy:
        """Return the time of the transfer."""
        return self._strategy

    def replicatedStreamMode(self) -> ReplicatedStreamMode:
        """Return whether replicas get one value or a value each."""
        return self._mode


class ReplicaGrouping:
    """Replicas in groups of `groupSize`, whose members are `stride` apart."""

    def __init__(
        self, numReplicas: int, stride: int | None = None, groupSize: int | None = None
    ) -> None:
        stride = 1 if stride is None else stride
        groupSize = numReplicas if groupSize is None else groupSize
        for what, count in (
            ("number of replicas", numReplicas),
            ("stride", stride),
            ("group size", groupSize),
        ):
            if count < 1:
                raise popart_exception(
                    f"The {what} in a `popart::ReplicaGrouping` must be a positive integer."
                )
        if numReplicas % (stride * groupSize):
            raise popart_exception(
                "The number of replicas in a `popart::ReplicaGrouping` must be divisible by the "
                "product of the stride and the group size."
            )
        self._replicas, self._size = numReplicas, groupSize
        self._stride = 1 if groupSize == 1 else stride

    def getNumReplicas(self) -> int:
        """Return the number of replicas."""
        return self._replicas

    def getStride(self) -> int:
        """Return the distance between members of a group."""
        return self._stride

    def getGroupSize(self) -> int:
        """Return the number of members of a group."""
        return self._size

    def getNumGroups(self) -> int:
        """Return the number of groups."""
        return self._replicas // self._size

    def getGroupAt(self, replica: int) -> int:
        """Return the group of a replica."""
        self._check("replica", replica, self._replicas)
        block = self._stride * self._size
        return replica % self._stride + self._stride * (replica // block)

    def getIndexInGroupAt(self, replica: int) -> int:
        """Return the place of a replica in its group."""
        return (replica - self.getReplicaAt(self.getGroupAt(replica))) // self._stride

    def getReplicaAt(self, group: int, index: int = 0) -> int:
        """Return a member of a group."""
        self._check("group", group, self.getNumGroups())
        self._check("index", index, self._size)
        first = group // self._stride * self._stride * self._size + group % self._stride
        return first + index * self._stride

    def getReplicasAt(self, group: int) -> list[int]:
        """Return the members of a group."""
        return [self.getReplicaAt(group, index) for index in range(self._size)]

    def getTranspose(self) -> ReplicaGrouping:
        """Return the transposed grouping: group i holds member i of every group."""
        if self._stride == 1:
            return ReplicaGrouping(self._replicas, self._size, self.getNumGroups())
        if self._size * self._stride == self._replicas:
            return ReplicaGrouping(self._replicas, 1, self._stride)
        raise popart_exception(
            f"The transpose of '{self.str()}' cannot be represented as a `popart::ReplicaGrouping`."
        )

    def str(self) -> Text:
        """Return a text that shows it."""
        return (
            f"ReplicaGrouping(numReplicas={self._replicas}, stride={self._stride}, "
            f"groupSize={self._size})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplicaGrouping) and self.str() == other.str()

    def __hash__(self) -> int:
        return hash(self.str())

    __repr__ = str

    def _check(self, what: Text, found: int, limit: int) -> None:
        if not 0 <= found < limit:
            raise popart_exception(
                f"The requested {what} index is outside the valid range for '{self.str()}'."
            )


class CommGroup:
    """Groups of replicas, by type and size, or those of a `ReplicaGrouping`.

    Attributes:
        type: Which replicas form a group.
        replicaGroupSize: Number of members; 0 for all, and for ungrouped replicas.
    """

    def __init__(
        self,
        type: CommGroupType | ReplicaGrouping = CommGroupType.All,
        replicaGroupSize: int = 0,
    ) -> None:
        self.type, self.replicaGroupSize = (
            _describe_grouping(type)
            if isinstance(type, ReplicaGrouping)
            else (type, replicaGroupSize)
        )

    def toReplicaGrouping(self, numReplicas: int) -> ReplicaGrouping:
        """Return the groups that it makes of a number of replicas."""
        size = self.replicaGroupSize
        match self.type:
            case CommGroupType.All:
                return ReplicaGrouping(numReplicas, 1, numReplicas)
            case CommGroupType.Ungrouped:
                return ReplicaGrouping(numReplicas, 1, 1)
            case CommGroupType.Orthogonal if size:
                return ReplicaGrouping(numReplicas, numReplicas // size, size)
        return ReplicaGrouping(numReplicas, 1, size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommGroup) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment] # it can be changed

    def __repr__(self) -> str:
        name = "None" if self.type == CommGroupType.Ungrouped else self.type.name
        return f"CommGroup(type={name}, replicaGroupSize={self.replicaGroupSize})"


def _describe_grouping(grouping: ReplicaGrouping) -> tuple[CommGroupType, int]:
    size = grouping.getGroupSize()
    if size == 1:
        return CommGroupType.Ungrouped, 0
    if size == grouping.getNumReplicas():
        return CommGroupType.All, 0
    if grouping.getStride() == grouping.getNumGroups():
        return CommGroupType.Orthogonal, size
    if grouping.getStride() == 1:
        return CommGroupType.Consecutive, size
    raise popart_exception(f"The '{grouping.str()}' cannot be converted to a `popart::CommGroup`.")


class VariableSettings:
    """Which replicas share a variable, and from which of them the host reads it.

    Args:
        *args: A `CommGroup`, or a stride and a group size, then a `VariableRetrievalMode`. Each can
            be missing: by default all replicas share the variable, and one returns it.
        **kwargs: The same by name: `sharedVariableDomain_` or `stride` and `groupSize`, then
            `retrievalMode_` or `mode`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        numbers = []
        self._group: CommGroup | None = CommGroup()
        self._mode = VariableRetrievalMode.OnePerGroup
        for value in (*args, *kwargs.values()):
            match value:
                case CommGroup():
                    self._group = value
                case VariableRetrievalMode():
                    self._mode = value
                case int():
                    numbers.append(value)
                case _:
                    raise TypeError(
                        f"VariableSettings: {value!r} is neither a CommGroup, a "
                        "VariableRetrievalMode nor an int"
                    )
        self._stride, self._size = 0, 0 if self._group is None else self._group.replicaGroupSize
        if numbers:
            if len(numbers) != 2:  # noqa: PLR2004
                raise TypeError("VariableSettings: give a stride and a group size, or neither")
            self._group = None
            self._stride, self._size = numbers
        self.verify()

    def verify(self) -> None:
        """Raise popart_exception if the settings contradict themselves."""
        if self._group is None:
            for what, count in (("stride", self._stride), ("group size", self._size)):
                if count < 1:
                    raise popart_exception(
                        f"The {what} in a `popart::VariableSettings` must be a positive integer."
                    )
            self._stride = 1 if self._size == 1 else self._stride
        elif self._size < 1 and self._group.type in (
            CommGroupType.Consecutive,
            CommGroupType.Orthogonal,
        ):
            raise popart_internal_exception("VariableSettings had 1 errors!")

    def getSharedVariableDomain(self) -> CommGroup:
        """Return the groups of replicas that share the variable."""
        if self._group is None:
            raise popart_exception(
                "The variable settings were not initialised using a `popart::CommGroup` instance."
            )
        return CommGroup(self._group.type, self._size)

    def getReplicaGrouping(self, numReplicas: int) -> ReplicaGrouping:
        """Return the groups among a number of replicas."""
        if self._group is None:
            return ReplicaGrouping(numReplicas, self._stride, self._size)
        return self.getSharedVariableDomain().toReplicaGrouping(numReplicas)

    def isUsingCommGroup(self) -> bool:
        """Return whether it was made of a `CommGroup`."""
        return self._group is not None

    def getCommGroupType(self) -> CommGroupType:
        """Return the type of its `CommGroup`."""
        return CommGroupType.All if self._group is None else self._group.type

    def getStride(self) -> int:
        """Return the stride it was made of; 0 for a `CommGroup`."""
        return self._stride

    def getGroupSize(self) -> int:
        """Return the number of members of a group; 0 for all, and for ungrouped replicas."""
        return self._size

    def getRetrievalMode(self) -> VariableRetrievalMode:
        """Return from which replicas the host reads the variable."""
        return self._mode

    def numReplicasReturningVariable(self, replicaCount: int) -> int:
        """Return how many copies of the variable the host reads."""
        if self._mode == VariableRetrievalMode.AllReplicas:
            return replicaCount
        return self.getGroupCount(replicaCount)

    def getGroupCount(self, replicaCount: int) -> int:
        """Return the number of groups."""
        return self.getReplicaGrouping(replicaCount).getNumGroups()

    def getRealGroupSize(self, replicaCount: int) -> int:
        """Return the number of members of a group."""
        return self.getReplicaGrouping(replicaCount).getGroupSize()

    def getGroupRepresentative(self, group: int) -> int:
        """Return the first member of a group."""
        if self._group is None:
            enough = self._size * self._stride * (group + 1)
            return self.getReplicaGrouping(enough).getReplicaAt(group)
        match self._group.type:
            case CommGroupType.All:
                return 0
            case CommGroupType.Consecutive:
                return self._size * group
        return group

    def shapeOnReplica(self, shape: Sequence[int], replicaCount: int, name: str) -> list[int]:
        """Return a variable's shape on a replica: without the groups' axis.

        Args:
            shape: Shape at the host; its first axis is the groups', if there are several.
            replicaCount: Number of replicas.
            name: Name of the variable, for errors.

        Returns:
            The shape.

        Raises:
            popart_internal_exception: If the first axis is not the number of groups.
        """
        groups = self.getGroupCount(replicaCount)
        if groups == 1:
            return list(shape)
        if not shape or shape[0] != groups:
            outer = shape[0] if shape else "none"
            raise popart_internal_exception(
                f"Return mismatch with possibly appended outer dimension ({outer}) of Tensor: "
                f'"{name}". should match numGroups: {groups}'
            )
        return list(shape[1:])

    def shapeOnHost(self, shape: Sequence[int], replicaCount: int) -> list[int]:
        """Return a variable's shape at the host: with the groups' axis, if there are several."""
        groups = self.getGroupCount(replicaCount)
        return list(shape) if groups == 1 else [groups, *shape]

    def groups(self, replicaCount: int) -> list[list[int]]:
        """Return the members of each group."""
        grouping = self.getReplicaGrouping(replicaCount)
        return [grouping.getReplicasAt(group) for group in range(grouping.getNumGroups())]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableSettings) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        kind = f"commGroupType={self._group.type.name}" if self._group else f"stride={self._stride}"
        return f"VariableSettings({kind}, groupSize={self._size}, retrievalMode={self._mode.name})"
