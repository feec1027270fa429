"""SessionOptions and the settings within it.

All facts about an option stand at its field: type, default, and what it changes here. Options
without an effect are accepted; docs/popart.md lists them. Defaults are those of the real module
(graphcore/popart, willow/include/popart/sessionoptions.hpp).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from popart import enums
from popart.options.settings import Field, ListOf, MapOf, Maybe, SetOf, Settings

_BOOL, _INT, _FLOAT = (bool, False), (int, 0), (float, 0.0)
_CACHE_VARIABLES: Final = ("POPXL_CACHE_DIR", "POPART_CACHE_DIR")


class ExecutionPhaseSettings(Settings):
    """Phases of an execution; accepted without effect."""

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "phases": Field(int, 0),
        "stages": Field(int, 2),
        "weightIOSchedule": Field(
            enums.ExecutionPhaseIOSchedule, enums.ExecutionPhaseIOSchedule.Preload
        ),
        "activationIOSchedule": Field(
            enums.ExecutionPhaseIOSchedule, enums.ExecutionPhaseIOSchedule.Preload
        ),
        "optimizerStateIOSchedule": Field(
            enums.ExecutionPhaseIOSchedule, enums.ExecutionPhaseIOSchedule.OnDemand
        ),
        "accumulatorIOSchedule": Field(
            enums.ExecutionPhaseIOSchedule, enums.ExecutionPhaseIOSchedule.Preload
        ),
        "schedule": Field(enums.ExecutionPhaseSchedule, enums.ExecutionPhaseSchedule.Interleaving),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "optimizerSchedule" in kwargs:  # the constructor's name of the last field
            kwargs["schedule"] = kwargs.pop("optimizerSchedule")
        super().__init__(*args, **kwargs)


class AccumulateOuterFragmentSettings(Settings):
    """Order of the updates after accumulation; training only."""

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "schedule": Field(
            enums.AccumulateOuterFragmentSchedule, enums.AccumulateOuterFragmentSchedule.Serial
        ),
        "excludedVirtualGraphs": Field(ListOf(int), list),
    }


class BatchSerializationSettings(Settings):
    """Serialization of a batch; accepted without effect on results."""

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "factor": Field(int, 0),
        "concatOnVirtualGraphChange": Field(bool, True),
        "concatOnExecutionPhaseChange": Field(bool, True),
        "concatOnPipelineStageChange": Field(bool, True),
        "transformContext": Field(
            enums.BatchSerializationTransformContext, enums.BatchSerializationTransformContext.Fwd
        ),
        "method": Field(
            enums.BatchSerializationMethod, enums.BatchSerializationMethod.UnrollDynamic
        ),
        "batchSchedule": Field(
            enums.BatchSerializationBatchSchedule, enums.BatchSerializationBatchSchedule.Isomorphic
        ),
    }


class AutodiffSettings(Settings):
    """Construction of backward graphs; training only."""

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "stitchStrategy": Field(
            enums.AutodiffStitchStrategy, enums.AutodiffStitchStrategy.RecomputeAllNonInputs
        )
    }


class ReplicatedCollectivesSettings(Settings):
    """Merging of collectives; accepted without effect."""

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "prepareScheduleForMergingCollectives": Field(*_BOOL),
        "mergeAllReduceCollectives": Field(*_BOOL),
        "mergeReduceScatterCollectives": Field(*_BOOL),
        "mergeAllGatherCollectives": Field(*_BOOL),
    }


class AutomaticLossScalingSettings(Settings):
    """Automatic loss scaling; training only."""

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "enabled": Field(*_BOOL),
        "toTrackTensors": Field(Maybe(ListOf(str))),
        "binEdgeLocation": Field(float, 0.125),
        "thresholdUpperCountProportion": Field(float, 1e-7),
        "updatePeriod": Field(int, 1),
        "gradientTensorTrackingMethod": Field(
            enums.GradientTensorTrackingMethod,
            enums.GradientTensorTrackingMethod.AllNonViewChangingGradientTensors,
        ),
    }


class ExperimentalSettings(Settings):
    """Experimental options; accepted without effect."""

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "customTransformApplierSettings": Field(MapOf(ListOf(str)), dict),
        "createHostTransferableTensorWithOffset": Field(*_BOOL),
    }


class TensorLocation(Settings):
    """Place of tensors: on the chip or in remote memory. Accepted without effect.

    Forms: TensorLocation(), (storage), (storage, replicatedTensorSharding[, shardingDomain]) and
    (storage, loadTileSet, storageTileSet, replicatedTensorSharding[, shardingDomain]).
    """

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "storage": Field(enums.TensorStorage, enums.TensorStorage.OnChip),
        "loadTileSet": Field(enums.TileSet, enums.TileSet.Compute),
        "storageTileSet": Field(enums.TileSet, enums.TileSet.Compute),
        "replicatedTensorSharding": Field(
            enums.ReplicatedTensorSharding, enums.ReplicatedTensorSharding.Off
        ),
        "shardingDomain": Field(object, None),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > 1 and isinstance(args[1], enums.ReplicatedTensorSharding):
            names = ("storage", "replicatedTensorSharding", "shardingDomain")
            kwargs = dict(zip(names, args, strict=False)) | kwargs
            args = ()
        super().__init__(*args, **kwargs)


class TensorLocationSettings(Settings):
    """Place of a kind of tensors, and from which size on it applies. Accepted without effect."""

    __slots__ = ()
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "location": Field(TensorLocation, TensorLocation),
        "minElementsForOffChip": Field(int, 2),
        "minElementsForReplicatedTensorSharding": Field(int, 8192),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and isinstance(args[0], enums.TensorStorage):
            args = (TensorLocation(args[0]), *args[1:])
        if "storage" in kwargs:
            kwargs["location"] = TensorLocation(kwargs.pop("storage"))
        super().__init__(*args, **kwargs)


class NumIOTiles(int):
    """Number of tiles that only transfer; an int under the real module's name."""

    __slots__ = ()


def _find_cache_path() -> str | None:
    """Return the folder of cached executables that the environment names, if there is one."""
    found = [os.environ[name] for name in _CACHE_VARIABLES if name in os.environ]
    if len(set(found)) > 1:
        logging.getLogger("popart").warning(
            "Both POPART_CACHE_DIR ('%s') and POPXL_CACHE_DIR ('%s') are set and differ from each "
            "other. The value of POPART_CACHE_DIR will be ignored.",
            found[1],
            found[0],
        )
    return found[0] if found else None


_POPLAR_TEXTS = (MapOf(str), dict)
_TIME_ONLY: Final = "the modelled time, never the results"

OPTIONS: Final[Mapping[str, Field]] = {
    # What a session computes, and how it exchanges data with the host.
    "constantWeights": Field(
        bool, True, "False: weights are streamed, so that they can be replaced"
    ),
    "enableReplicatedGraphs": Field(bool, False, "turns `replicatedGraphCount` on"),
    "replicatedGraphCount": Field(int, 1, "number of replicas, each with its own part of inputs"),
    "enableFloatingPointChecks": Field(
        bool, False, "invalid operations, divisions by zero and overflows end a run"
    ),
    "syntheticDataMode": Field(
        enums.SyntheticDataMode,
        enums.SyntheticDataMode.Off,
        "inputs are generated once, and anchors are not written",
    ),
    "enableSupportedDataTypeCasting": Field(
        bool, True, "64-bit integers are computed in 32 bits; False: they are rejected"
    ),
    "partialsTypeMatMuls": Field(
        str, "", "'half' or 'float': type of partial sums of products in half"
    ),
    "convolutionOptions": Field(*_POPLAR_TEXTS, "partialsType, as `partialsTypeMatMuls`"),
    "matmulOptions": Field(*_POPLAR_TEXTS, "partialsType, as `partialsTypeMatMuls`"),
    "engineOptions": Field(*_POPLAR_TEXTS, "debug.nanOverflowException and similar; recorded"),
    "customCodelets": Field(ListOf(str), list, "rejected unless empty: C++ cannot run here"),
    # Place and time.
    "virtualGraphMode": Field(
        enums.VirtualGraphMode,
        enums.VirtualGraphMode.Off,
        "how operators are assigned to IPUs; changes the modelled time and memory",
    ),
    "virtualGraphSplitRatios": Field(ListOf(float), list, "share of each IPU in mode Auto"),
    "enablePipelining": Field(bool, False, _TIME_ONLY),
    "enableOutlining": Field(bool, True, "the modelled memory"),
    "numIOTiles": Field(int, 0, "tiles that only transfer; the modelled time"),
    "instrumentWithHardwareCycleCounter": Field(bool, False, "allows getCycleCount"),
    "hardwareInstrumentations": Field(
        SetOf(enums.Instrumentation),
        lambda: {enums.Instrumentation.Outer},
        "ids that getCycleCount takes",
    ),
    "defaultBufferingDepth": Field(int, 1, "batches that are buffered on the host; recorded"),
    # The engine cache, and compilation.
    "enableEngineCaching": Field(bool, False, "executables are kept in `cachePath` and reused"),
    "enableVariablesCaching": Field(bool, True),
    "cachePath": Field(str, "session_cache", "folder of the kept executables"),
    "compileEngine": Field(bool, True, "False: prepareDevice compiles, but does not load"),
    "compilationProgressLogger": Field(Callable, None, "is called with the progress and its total"),
    "compilationProgressTotal": Field(int, 100, "total that compilationProgressLogger gets"),
    # Checked, with the real messages.
    "enableExplicitMainLoops": Field(bool, False, "checked: requires useHostCopyOps"),
    "useHostCopyOps": Field(bool, False, "checked, see enableExplicitMainLoops"),
    "enableGradientAccumulation": Field(bool, False, "rejected: training only"),
    "accumulationFactor": Field(int, 1, "rejected unless 1: training only"),
    "globalReplicationFactor": Field(int, 1, "checked"),
    "globalReplicaOffset": Field(int, 0, "checked"),
    "enableDistributedReplicatedGraphs": Field(bool, False, "rejected: one host only"),
    # Accepted without effect.
    "enableStochasticRounding": Field(*_BOOL),
    "enableNonStableSoftmax": Field(*_BOOL),
    "enableStableNorm": Field(*_BOOL),
    "groupNormStridedChannelGrouping": Field(*_BOOL),
    "explicitRecomputation": Field(*_BOOL),
    "lstmOptions": Field(*_POPLAR_TEXTS),
    "reportOptions": Field(*_POPLAR_TEXTS),
    "gclOptions": Field(*_POPLAR_TEXTS),
    "logDir": Field(str, ""),
    "dotChecks": Field(SetOf(str), set),
    "firstDotOp": Field(*_INT),
    "finalDotOp": Field(int, 10000),
    "dotOpNames": Field(*_BOOL),
    "exportPoplarComputationGraph": Field(*_BOOL),
    "exportPoplarVertexGraph": Field(*_BOOL),
    "separateCallOpPdfs": Field(bool, True),
    "enableOutliningCopyCostPruning": Field(bool, True),
    "outlineThreshold": Field(float, 1.0),
    "outlineSequenceBreakCost": Field(float, 10000.0),
    "subgraphCopyingStrategy": Field(
        enums.SubgraphCopyingStrategy, enums.SubgraphCopyingStrategy.OnEnterAndExit
    ),
    "rearrangeAnchorsOnHost": Field(bool, True),
    "rearrangeStreamsOnHost": Field(*_BOOL),
    "enablePrefetchDatastreams": Field(bool, True),
    "bufferingDepthMap": Field(MapOf(int), dict),
    "executionPhaseSettings": Field(ExecutionPhaseSettings, ExecutionPhaseSettings),
    "aliasZeroCopy": Field(*_BOOL),
    "batchSerializationSettings": Field(BatchSerializationSettings, BatchSerializationSettings),
    "enableFullyConnectedPass": Field(bool, True),
    "enableSerializedMatmuls": Field(bool, True),
    "experimentalSettings": Field(ExperimentalSettings, ExperimentalSettings),
    "updatableNamedBuffers": Field(ListOf(str), list),
    "customCodeletCompileFlags": Field(str, ""),
    "timeLimitScheduler": Field(float, 1e9),
    "swapLimitScheduler": Field(int, 10**9),
    "serializedPoprithmsShiftGraphsDir": Field(str, ""),
    "kahnTieBreaker": Field(str, "greedy"),
    "transitiveClosureOptimizationThreshold": Field(int, 100000),
    "replicatedCollectivesSettings": Field(
        ReplicatedCollectivesSettings, ReplicatedCollectivesSettings
    ),
    "groupHostSync": Field(*_BOOL),
    "strictOpVersions": Field(bool, True),
    "opxAliasChecking": Field(*_BOOL),
    "opxModifyChecking": Field(*_BOOL),
    "enableEfficientOverlapIOTopoCons": Field(*_BOOL),
    "enableLoadAndOffloadRNGState": Field(*_BOOL),
    "_enableRngStateManagement": Field(*_BOOL),
    "activationTensorLocationSettings": Field(TensorLocationSettings, TensorLocationSettings),
    "weightTensorLocationSettings": Field(TensorLocationSettings, TensorLocationSettings),
    "optimizerStateTensorLocationSettings": Field(TensorLocationSettings, TensorLocationSettings),
    "accumulatorTensorLocationSettings": Field(TensorLocationSettings, TensorLocationSettings),
    "tensorLocationSettingsOverride": Field(MapOf(TensorLocation), dict),
    "enableMergeExchange": Field(bool, True),
    "enableInplaceAmbiguityChecking": Field(*_BOOL),
    "createImplicitPipeliningFwdOnlyProgram": Field(*_BOOL),
    "enableConstantFoldingOfMultipleConsumers": Field(bool, True),
    "useLoopCandidateCreator": Field(*_BOOL),
    "stashAllTensorsInferencePipeline": Field(*_BOOL),
    # Training only; accepted without effect.
    "autoRecomputation": Field(enums.RecomputationType, enums.RecomputationType.NoRecompute),
    "mergeVarUpdate": Field(enums.MergeVarUpdateType, enums.MergeVarUpdateType.Off),
    "mergeVarUpdateMemThreshold": Field(int, 1000000),
    "looseThresholdAtPeak": Field(int, 8000),
    "accumulationAndReplicationReductionType": Field(enums.ReductionType, enums.ReductionType.Sum),
    "meanAccumulationAndReplicationReductionStrategy": Field(
        enums.MeanReductionStrategy, enums.MeanReductionStrategy.Post
    ),
    "disableGradAccumulationTensorStreams": Field(*_BOOL),
    "disableOptimizerStateTensorStreams": Field(*_BOOL),
    "accumulateOuterFragmentSettings": Field(
        AccumulateOuterFragmentSettings, AccumulateOuterFragmentSettings
    ),
    "autodiffSettings": Field(AutodiffSettings, AutodiffSettings),
    "delayVarUpdates": Field(bool, True),
    "scheduleNonWeightUpdateGradientConsumersEarly": Field(*_BOOL),
    "decomposeGradSum": Field(*_BOOL),
    "automaticLossScalingSettings": Field(
        AutomaticLossScalingSettings, AutomaticLossScalingSettings
    ),
    "ensureFp32LossScaleTensor": Field(*_BOOL),
    "throwIfLog2ScaleTensorNotInRange": Field(bool, True),
}
"""Options by name, with type, default and effect."""


class SessionOptions(Settings):
    """Options of a session.

    Assigning a value of another type raises TypeError, an unknown name AttributeError.

    Example:
        >>> options = SessionOptions()
        >>> options.enableReplicatedGraphs = True
        >>> options.engineOptions["debug.allowOutOfMemory"] = "true"
        >>> sorted(options.changed())
        ['enableReplicatedGraphs', 'engineOptions']
    """

    __slots__ = ()
    FIELDS = OPTIONS
    ALIASES: ClassVar[Mapping[str, str]] = {
        "defaultPrefetchBufferingDepth": "defaultBufferingDepth",
        "prefetchBufferingDepthMap": "bufferingDepthMap",
        "serializedPoprithmsAnnealGraphsDir": "serializedPoprithmsShiftGraphsDir",
        "updatableBuffers": "updatableNamedBuffers",
    }

    def __init__(self) -> None:
        super().__init__()
        cache_path = _find_cache_path()
        if cache_path is not None:
            self.enableEngineCaching = True
            self.cachePath = cache_path

    def enableExplicitIR(self, enable: bool) -> None:
        """Set `useHostCopyOps`, `enableExplicitMainLoops` and `explicitRecomputation`."""
        self.useHostCopyOps = enable
        self.enableExplicitMainLoops = enable
        self.explicitRecomputation = enable

    def explicitPipeliningEnabled(self) -> bool:
        """Return whether pipelining is on, in its explicit form."""
        explicit = self.useHostCopyOps and self.enableExplicitMainLoops
        return bool(self.enablePipelining and explicit)

    def implicitPipeliningEnabled(self) -> bool:
        """Return whether pipelining is on, in its implicit form."""
        return bool(self.enablePipelining) and not self.explicitPipeliningEnabled()

    @property
    def num_replicas(self) -> int:
        """Number of replicas that a session runs."""
        return int(self.replicatedGraphCount) if self.enableReplicatedGraphs else 1
