"""SessionOptions and the settings within it.

All facts about an option stand in its row: name, kind, default, and behind the bar what it changes
here. Options without an effect are accepted; docs/popart-reference.md lists them. Defaults are
those of the real module (graphcore/popart, willow/include/popart/sessionoptions.hpp).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from popart import enums
from popart.options.settings import Settings

_CACHE_VARIABLES: Final = ("POPXL_CACHE_DIR", "POPART_CACHE_DIR")


class ExecutionPhaseSettings(Settings):
    """Phases of an execution; accepted without effect."""

    TABLE = """
        phases int 0
        stages int 2
        weightIOSchedule ExecutionPhaseIOSchedule Preload
        activationIOSchedule ExecutionPhaseIOSchedule Preload
        optimizerStateIOSchedule ExecutionPhaseIOSchedule OnDemand
        accumulatorIOSchedule ExecutionPhaseIOSchedule Preload
        schedule ExecutionPhaseSchedule Interleaving
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "optimizerSchedule" in kwargs:  # the constructor's name of the last field
            kwargs["schedule"] = kwargs.pop("optimizerSchedule")
        super().__init__(*args, **kwargs)


class AccumulateOuterFragmentSettings(Settings):
    """Order of the updates after accumulation; training only."""

    TABLE = """
        schedule AccumulateOuterFragmentSchedule Serial
        excludedVirtualGraphs list[int]
    """


class BatchSerializationSettings(Settings):
    """Serialization of a batch; accepted without effect on results."""

    TABLE = """
        factor int 0
        concatOnVirtualGraphChange bool True
        concatOnExecutionPhaseChange bool True
        concatOnPipelineStageChange bool True
        transformContext BatchSerializationTransformContext Fwd
        method BatchSerializationMethod UnrollDynamic
        batchSchedule BatchSerializationBatchSchedule Isomorphic
    """


class AutodiffSettings(Settings):
    """Construction of backward graphs; training only."""

    TABLE = """
        stitchStrategy AutodiffStitchStrategy RecomputeAllNonInputs
    """


class ReplicatedCollectivesSettings(Settings):
    """Merging of collectives; accepted without effect."""

    TABLE = """
        prepareScheduleForMergingCollectives bool False
        mergeAllReduceCollectives bool False
        mergeReduceScatterCollectives bool False
        mergeAllGatherCollectives bool False
    """


class AutomaticLossScalingSettings(Settings):
    """Automatic loss scaling; training only."""

    TABLE = """
        enabled bool False
        toTrackTensors list[str]?
        binEdgeLocation float 0.125
        thresholdUpperCountProportion float 1e-07
        updatePeriod int 1
        gradientTensorTrackingMethod GradientTensorTrackingMethod AllNonViewChangingGradientTensors
    """


class ExperimentalSettings(Settings):
    """Experimental options; accepted without effect."""

    TABLE = """
        customTransformApplierSettings dict[list[str]]
        createHostTransferableTensorWithOffset bool False
    """


class TensorLocation(Settings):
    """Place of tensors: on the chip or in remote memory. Accepted without effect.

    Forms: TensorLocation(), (storage), (storage, replicatedTensorSharding[, shardingDomain]) and
    (storage, loadTileSet, storageTileSet, replicatedTensorSharding[, shardingDomain]).
    """

    TABLE = """
        storage TensorStorage OnChip
        loadTileSet TileSet Compute
        storageTileSet TileSet Compute
        replicatedTensorSharding ReplicatedTensorSharding Off
        shardingDomain object
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > 1 and isinstance(args[1], enums.ReplicatedTensorSharding):
            names = ("storage", "replicatedTensorSharding", "shardingDomain")
            kwargs = dict(zip(names, args, strict=False)) | kwargs
            args = ()
        super().__init__(*args, **kwargs)


class TensorLocationSettings(Settings):
    """Place of a kind of tensors, and from which size on it applies. Accepted without effect."""

    TABLE = """
        location TensorLocation
        minElementsForOffChip int 2
        minElementsForReplicatedTensorSharding int 8192
    """

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
    folders = [os.environ[name] for name in _CACHE_VARIABLES if name in os.environ]
    if len(set(folders)) > 1:
        logging.getLogger("popart").warning(
            "Both POPART_CACHE_DIR ('%s') and POPXL_CACHE_DIR ('%s') are set and differ from each "
            "other. The value of POPART_CACHE_DIR will be ignored.",
            folders[1],
            folders[0],
        )
    return folders[0] if folders else None


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

    TABLE = """
        # What a session computes, and how it exchanges data with the host.
        constantWeights bool True | False: weights are streamed, so that they can be replaced
        enableReplicatedGraphs bool False | turns `replicatedGraphCount` on
        replicatedGraphCount int 1 | number of replicas, each with its own part of inputs
        enableFloatingPointChecks bool False | invalid operations, divisions by zero and \
            overflows end a run
        syntheticDataMode SyntheticDataMode Off | inputs are generated once, and anchors are not \
            written
        enableSupportedDataTypeCasting bool True | 64-bit integers are computed in 32 bits; \
            False: they are rejected
        partialsTypeMatMuls str | 'half' or 'float': type of partial sums of products in half
        convolutionOptions dict[str] | partialsType, as `partialsTypeMatMuls`
        matmulOptions dict[str] | partialsType, as `partialsTypeMatMuls`
        engineOptions dict[str] | debug.nanOverflowException and similar; recorded
        customCodelets list[str] | rejected unless empty: C++ cannot run here
        # Place and time.
        virtualGraphMode VirtualGraphMode Off | how operators are assigned to IPUs; changes the \
            modelled time and memory
        virtualGraphSplitRatios list[float] | share of each IPU in mode Auto
        enablePipelining bool False | the modelled time, never the results
        enableOutlining bool True | the modelled memory
        numIOTiles int 0 | tiles that only transfer; the modelled time
        instrumentWithHardwareCycleCounter bool False | allows getCycleCount
        hardwareInstrumentations set[Instrumentation] Outer | ids that getCycleCount takes
        defaultBufferingDepth int 1 | batches that are buffered on the host; recorded
        # The engine cache, and compilation.
        enableEngineCaching bool False | executables are kept in `cachePath` and reused
        enableVariablesCaching bool True
        cachePath str session_cache | folder of the kept executables
        compileEngine bool True | False: prepareDevice compiles, but does not load
        compilationProgressLogger Callable | is called with the progress and its total
        compilationProgressTotal int 100 | total that compilationProgressLogger gets
        # Checked, with the real messages.
        enableExplicitMainLoops bool False | checked: requires useHostCopyOps
        useHostCopyOps bool False | checked, see enableExplicitMainLoops
        enableGradientAccumulation bool False | rejected: training only
        accumulationFactor int 1 | rejected unless 1: training only
        globalReplicationFactor int 1 | checked
        globalReplicaOffset int 0 | checked
        enableDistributedReplicatedGraphs bool False | rejected: one host only
        # Accepted without effect.
        enableStochasticRounding bool False
        enableNonStableSoftmax bool False
        enableStableNorm bool False
        groupNormStridedChannelGrouping bool False
        explicitRecomputation bool False
        lstmOptions dict[str]
        reportOptions dict[str]
        gclOptions dict[str]
        logDir str
        dotChecks set[str]
        firstDotOp int 0
        finalDotOp int 10000
        dotOpNames bool False
        exportPoplarComputationGraph bool False
        exportPoplarVertexGraph bool False
        separateCallOpPdfs bool True
        enableOutliningCopyCostPruning bool True
        outlineThreshold float 1.0
        outlineSequenceBreakCost float 10000.0
        subgraphCopyingStrategy SubgraphCopyingStrategy OnEnterAndExit
        rearrangeAnchorsOnHost bool True
        rearrangeStreamsOnHost bool False
        enablePrefetchDatastreams bool True
        bufferingDepthMap dict[int]
        executionPhaseSettings ExecutionPhaseSettings
        aliasZeroCopy bool False
        batchSerializationSettings BatchSerializationSettings
        enableFullyConnectedPass bool True
        enableSerializedMatmuls bool True
        experimentalSettings ExperimentalSettings
        updatableNamedBuffers list[str]
        customCodeletCompileFlags str
        timeLimitScheduler float 1000000000.0
        swapLimitScheduler int 1000000000
        serializedPoprithmsShiftGraphsDir str
        kahnTieBreaker str greedy
        transitiveClosureOptimizationThreshold int 100000
        replicatedCollectivesSettings ReplicatedCollectivesSettings
        groupHostSync bool False
        strictOpVersions bool True
        opxAliasChecking bool False
        opxModifyChecking bool False
        enableEfficientOverlapIOTopoCons bool False
        enableLoadAndOffloadRNGState bool False
        _enableRngStateManagement bool False
        activationTensorLocationSettings TensorLocationSettings
        weightTensorLocationSettings TensorLocationSettings
        optimizerStateTensorLocationSettings TensorLocationSettings
        accumulatorTensorLocationSettings TensorLocationSettings
        tensorLocationSettingsOverride dict[TensorLocation]
        enableMergeExchange bool True
        enableInplaceAmbiguityChecking bool False
        createImplicitPipeliningFwdOnlyProgram bool False
        enableConstantFoldingOfMultipleConsumers bool True
        useLoopCandidateCreator bool False
        stashAllTensorsInferencePipeline bool False
        # Training only; accepted without effect.
        autoRecomputation RecomputationType NoRecompute
        mergeVarUpdate MergeVarUpdateType Off
        mergeVarUpdateMemThreshold int 1000000
        looseThresholdAtPeak int 8000
        accumulationAndReplicationReductionType ReductionType Sum
        meanAccumulationAndReplicationReductionStrategy MeanReductionStrategy Post
        disableGradAccumulationTensorStreams bool False
        disableOptimizerStateTensorStreams bool False
        accumulateOuterFragmentSettings AccumulateOuterFragmentSettings
        autodiffSettings AutodiffSettings
        delayVarUpdates bool True
        scheduleNonWeightUpdateGradientConsumersEarly bool False
        decomposeGradSum bool False
        automaticLossScalingSettings AutomaticLossScalingSettings
        ensureFp32LossScaleTensor bool False
        throwIfLog2ScaleTensorNotInRange bool True
    """
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
