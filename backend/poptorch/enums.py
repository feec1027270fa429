"""PopTorch's enumerations."""

from __future__ import annotations

from enum import Enum, IntEnum


class OutputMode(IntEnum):
    """Iterations whose outputs a call of a model returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4
    """All for inference, Final for training."""


AnchorMode = OutputMode
"""Name of OutputMode in older scripts."""


class ConnectionType(IntEnum):
    """Time at which an executor attaches to its device."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(IntEnum):
    """Way in which the IPUs of a device synchronize."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class HalfFloatCastingBehavior(IntEnum):
    """Type of an operator whose operands are half and float; deprecated."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class ReductionType(IntEnum):
    """Reduction of a loss, or of gradients, over its elements."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(IntEnum):
    """Time at which a mean over gradients is taken (training only)."""

    Running = 0
    Post = 1


class MatMulSerializationMode(Enum):
    """Dimension by which a matrix multiplication is serialized."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(IntEnum):
    """Time for which tensors stay on the chip in phased execution."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class AutoStage(IntEnum):
    """Choice of a block's stage where the strategy names none."""

    SameAsIpu = 0
    AutoIncrement = 1


class OverlapMode(Enum):
    """Part of a step in which a tensor's transfer may overlap computation."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class MultiConvPlanType(IntEnum):
    """Whether the convolutions of a MultiConv run in parallel or one after the other."""

    Parallel = 0
    Serial = 1


class DataLoaderMode(Enum):
    """Whether a DataLoader loads ahead of the consumer."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(Enum):
    """Way in which the real module's worker process shares tensors; accepted without effect."""

    FileSystem = "file_system"
    SharedMemory = "shared_memory"
    Fork = "fork"
    ForkServer = "forkserver"


class CommGroupType(IntEnum):
    """Groups of replicas that share a value."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Replicas whose copies of a weight are returned."""

    OnePerGroup = 0
    AllReplicas = 2
