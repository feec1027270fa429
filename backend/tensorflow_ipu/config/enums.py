"""Enumerations of the configuration; their values are those of the messages."""

from __future__ import annotations

from enum import Enum

from tensorflow_ipu.messages import config_pb2, threestate_pb2


class SelectionOrder(Enum):
    """Order in which a device's IPUs are given to shards and pipeline stages.

    `AUTO` lets the compiler choose. `ZIGZAG` counts up. In `SNAKE` and `HOOF` each IPU has a direct
    link to the next one, in `HOOF` the last one to the first, too. Without effect here.
    """

    AUTO = config_pb2.AUTO
    ZIGZAG = config_pb2.ZIGZAG
    SNAKE = config_pb2.SNAKE
    HOOF = config_pb2.HOOF


class ExecutionProfileType(Enum):
    """Depth of an execution's profile: none, the device, each IPU, or each tile."""

    NO_PROFILE = config_pb2.NO_PROFILE
    DEVICE_PROFILE = config_pb2.DEVICE_PROFILE
    IPU_PROFILE = config_pb2.IPU_PROFILE
    TILE_PROFILE = config_pb2.TILE_PROFILE


class DeviceConnectionType(Enum):
    """When a device's IPUs are attached.

    `ALWAYS`: when the system is configured. `ON_DEMAND`: when a program is run. `PRE_COMPILE`:
    never; programs are compiled, and a run returns zeros. `NEVER`: never; programs are compiled
    only.
    """

    ALWAYS = config_pb2.ALWAYS
    ON_DEMAND = config_pb2.ON_DEMAND
    PRE_COMPILE = config_pb2.PRE_COMPILE
    NEVER = config_pb2.NEVER


class MergeRemoteBuffersBehaviour(Enum):
    """Whether remote buffers are merged: never, always, or where code can be shared."""

    NO_MERGING = threestate_pb2.THREESTATE_OFF
    MERGE = threestate_pb2.THREESTATE_ON
    IF_BENEFICIAL = threestate_pb2.THREESTATE_UNDEFINED


class SchedulingAlgorithm(Enum):
    """How operators are ordered; without effect here."""

    CHOOSE_BEST = config_pb2.CHOOSE_BEST
    CLUSTERING = config_pb2.CLUSTERING
    POST_ORDER = config_pb2.POST_ORDER
    LOOK_AHEAD = config_pb2.LOOK_AHEAD
    SHORTEST_PATH = config_pb2.SHORTEST_PATH


class StochasticRoundingBehaviour(Enum):
    """Stochastic rounding: off, on, or only where all replicas compute the same."""

    OFF = config_pb2.StochasticRounding_Off
    ON = config_pb2.StochasticRounding_On
    REPLICA_IDENTICAL_ONLY = config_pb2.StochasticRounding_ReplicaIdenticalOnly

    @staticmethod
    def from_bool(value: bool) -> StochasticRoundingBehaviour:
        """Return `ON` or `OFF`.

        Args:
            value: Whether it is on.

        Returns:
            The behaviour.
        """
        return StochasticRoundingBehaviour.ON if value else StochasticRoundingBehaviour.OFF
