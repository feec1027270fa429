"""PopART's enumerations. Values are those of the real ones; models hold some as attributes."""

from __future__ import annotations

from enum import Enum


class _Enumeration(Enum):
    """Base of the enumerations, whose members convert to `int` but are not equal to one."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class AccumulateOuterFragmentSchedule(_Enumeration):
    """Order of the fragments that accumulate (training only)."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class AnchorReturnTypeId(_Enumeration):
    """Iterations of a step whose values an anchor returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3


class AutodiffStitchStrategy(_Enumeration):
    """Way in which backward graphs get forward values (training only)."""

    RecomputeMinimal = 0
    RecomputeAllNonInputs = 1
    AddFwdOutputs = 2
    SafeAddFwdOutputs = 3


class BatchSerializationBatchSchedule(_Enumeration):
    """Order of the parts of a serialized batch."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class BatchSerializationMethod(_Enumeration):
    """Way in which a batch is serialized."""

    UnrollDynamic = 0
    UnrollStatic = 1
    Loop = 2


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


class ExecutionPhaseIOSchedule(_Enumeration):
    """Time at which an execution phase loads tensors."""

    Preload = 0
    OnDemand = 1


class ExecutionPhaseSchedule(_Enumeration):
    """Order of the parts of an execution phase."""

    Interleaving = 0
    Batch = 1
    BatchClusteredIO = 2


class GradientTensorTrackingMethod(_Enumeration):
    """Gradients that automatic loss scaling observes (training only)."""

    AllNonViewChangingGradientTensors = 0
    ConvAndMatmulGradients = 1
    GradientsOfUserSpecifiedTensors = 2


class InitType(_Enumeration):
    """Contents of a tensor that Init makes."""

    NoInit = 0
    Zero = 1


class Instrumentation(_Enumeration):
    """Part of the program whose cycles are counted."""

    Outer = 0
    Inner = 1


class IrSerializationFormat(_Enumeration):
    """Format of a serialized IR."""

    JSON = 0


class MeanReductionStrategy(_Enumeration):
    """Time at which a mean over gradients is taken (training only)."""

    Running = 0
    Post = 1


class MergeVarUpdateType(_Enumeration):
    """Way in which updates of variables are merged (training only)."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


class PatternsLevel(_Enumeration):
    """Set of patterns that are applied."""

    NoPatterns = 0
    Minimal = 1
    Default = 2
    All = 3


class RecomputationType(_Enumeration):
    """Choice of what the backward pass recomputes (training only)."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


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


class ReplicatedTensorSharding(_Enumeration):
    """Whether a variable is split over the replicas."""

    Off = 0
    On = 1


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


class TensorRemapType(_Enumeration):
    """Directions in which a tensor is laid out anew."""

    FwdBwdReverse = 0
    FwdBwd = 1
    Fwd = 2


class TensorStorage(_Enumeration):
    """Memory that holds a tensor."""

    OnChip = 0
    OffChip = 1


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
