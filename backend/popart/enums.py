"""PopART's enumerations. Values are those of the real ones; models hold some as attributes."""

from __future__ import annotations

from enum import Enum
from typing import Any


class _Enumeration(Enum):
    """Base of the enumerations, whose members convert to `int` but are not equal to one."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class AnchorReturnTypeId(_Enumeration):
    """Iterations of a step whose values an anchor returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3


class BatchSerializationTransformContext(_Enumeration):
    """Graph in which a batch is serialized."""

    Fwd = 0
    Bwd = 1
    Forward = 0
    Backward = 1


class CollectiveOperator(_Enumeration):
    """Operation of a collective over replicas."""

    Add = 0
    Mean = 1
    Mul = 2
    Min = 3
    Max = 4
    LogicalAnd = 5
    LogicalOr = 6
    SquareAdd = 7
    Local = 8


class CommGroupType(_Enumeration):
    """Groups of replicas that a collective joins."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    Ungrouped = 3


class DataType(_Enumeration):
    """Element type of a tensor."""

    UINT8 = 0
    INT8 = 1
    FLOAT8_143 = 2
    FLOAT8_152 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    UINT32 = 8
    UINT64 = 9
    BOOL = 10
    FLOAT = 11
    FLOAT16 = 12
    BFLOAT16 = 13
    DOUBLE = 14
    COMPLEX64 = 15
    COMPLEX128 = 16
    STRING = 17
    UNDEFINED = 18


class DeviceConnectionType(_Enumeration):
    """Time at which a session attaches to its device."""

    Always = 0
    OnDemand = 1
    Never = 2


class DeviceSelectionCriterion(_Enumeration):
    """Choice among free devices."""

    First = 0
    Random = 1


class DeviceType(_Enumeration):
    """Kind of device."""

    IpuModel = 0
    Cpu = 1
    Ipu = 2
    OfflineIpu = 3
    Sim = 4

    def __str__(self) -> str:
        return ("ipu-model", "cpu", "ipu", "offline-ipu", "sim")[self.value]


class ExchangeStrategy(_Enumeration):
    """Time at which a tensor is exchanged with the host."""

    JustInTime = 0
    OverlapInnerLoop = 1
    OverlapLoops = 2
    OverlapStep = 3


class Instrumentation(_Enumeration):
    """Part of the program whose cycles are counted."""

    Outer = 0
    Inner = 1


class IrSerializationFormat(_Enumeration):
    """Format of a serialized IR."""

    JSON = 0


class PatternsLevel(_Enumeration):
    """Set of patterns that are applied."""

    NoPatterns = 0
    Minimal = 1
    Default = 2
    All = 3


class RecomputeType(_Enumeration):
    """Whether the backward pass recomputes an operator (training only)."""

    Undefined = 0
    Checkpoint = 1
    Recompute = 2
    Recomputed = 3


class RecoveryAction(_Enumeration):
    """Reset that mends an error of the IPU system."""

    IPU_RESET = 0
    LINK_RESET = 1
    PARTITION_RESET = 2
    FULL_RESET = 3


class ReductionType(_Enumeration):
    """Reduction of a loss over its elements."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class ReplicatedStreamMode(_Enumeration):
    """Whether replicas get one value or a value each."""

    Broadcast = 0
    Replicate = 1


class ScatterReduction(_Enumeration):
    """Reduction of the values that one index gets."""

    Sum = 0
    Max = 1
    Min = 2
    Mul = 3
    NoReduction = 4


class SubgraphCopyingStrategy(_Enumeration):
    """Time at which a subgraph's inputs are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class SyncPattern(_Enumeration):
    """Way in which the IPUs of a device synchronize."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2

    def __str__(self) -> str:
        return self.name[0].lower() + self.name[1:]


class SyntheticDataMode(_Enumeration):
    """Values that replace the host's data."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


class TileSet(_Enumeration):
    """Tiles that hold a tensor."""

    Compute = 0
    IO = 1


class VariableRetrievalMode(_Enumeration):
    """Replicas whose copies of a variable are returned."""

    OnePerGroup = 0
    AllReduceReplicas = 1
    AllReplicas = 2


class VirtualGraphMode(_Enumeration):
    """Way in which operators are placed on IPUs."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


def make_enumeration(
    name: str, text: str, members: str, base: Any = _Enumeration, module: str = __name__
) -> Any:
    """Return an enumeration whose members no code tells apart: they are accepted without effect."""
    enumeration = base(name, members, start=0, module=module)
    enumeration.__doc__ = text
    return enumeration


AccumulateOuterFragmentSchedule = make_enumeration(
    "AccumulateOuterFragmentSchedule",
    "Order of the fragments that accumulate (training only).",
    "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
)
AutodiffStitchStrategy = make_enumeration(
    "AutodiffStitchStrategy",
    "Way in which backward graphs get forward values (training only).",
    "RecomputeMinimal RecomputeAllNonInputs AddFwdOutputs SafeAddFwdOutputs",
)
BatchSerializationBatchSchedule = make_enumeration(
    "BatchSerializationBatchSchedule",
    "Order of the parts of a serialized batch.",
    "Scheduler Isomorphic OverlapOnIo OverlapOnCompute",
)
BatchSerializationMethod = make_enumeration(
    "BatchSerializationMethod",
    "Way in which a batch is serialized.",
    "UnrollDynamic UnrollStatic Loop",
)
ExecutionPhaseIOSchedule = make_enumeration(
    "ExecutionPhaseIOSchedule",
    "Time at which an execution phase loads tensors.",
    "Preload OnDemand",
)
ExecutionPhaseSchedule = make_enumeration(
    "ExecutionPhaseSchedule",
    "Order of the parts of an execution phase.",
    "Interleaving Batch BatchClusteredIO",
)
GradientTensorTrackingMethod = make_enumeration(
    "GradientTensorTrackingMethod",
    "Gradients that automatic loss scaling observes (training only).",
    "AllNonViewChangingGradientTensors ConvAndMatmulGradients GradientsOfUserSpecifiedTensors",
)
InitType = make_enumeration(
    "InitType",
    "Contents of a tensor that Init makes.",
    "NoInit Zero",
)
MeanReductionStrategy = make_enumeration(
    "MeanReductionStrategy",
    "Time at which a mean over gradients is taken (training only).",
    "Running Post",
)
MergeVarUpdateType = make_enumeration(
    "MergeVarUpdateType",
    "Way in which updates of variables are merged (training only).",
    "Off All AutoLoose AutoTight",
)
RecomputationType = make_enumeration(
    "RecomputationType",
    "Choice of what the backward pass recomputes (training only).",
    "NoRecompute Standard NormOnly Pipeline RecomputeAll",
)
ReplicatedTensorSharding = make_enumeration(
    "ReplicatedTensorSharding",
    "Whether a variable is split over the replicas.",
    "Off On",
)
TensorRemapType = make_enumeration(
    "TensorRemapType",
    "Directions in which a tensor is laid out anew.",
    "FwdBwdReverse FwdBwd Fwd",
)
TensorStorage = make_enumeration(
    "TensorStorage",
    "Memory that holds a tensor.",
    "OnChip OffChip",
)
