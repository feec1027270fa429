"""Checks of a session's options against each other and against the model."""

from __future__ import annotations

from typing import Final

import onnx
from onnxgraph import iter_nodes

from popart.enums import DataType, ReplicatedStreamMode
from popart.errors import popart_exception, poplar_exception
from popart.lowering import LoweredModel
from popart.options.session_options import SessionOptions

_STREAM_MODE: Final = "__replicated_stream_mode/"
_BYTES: Final = frozenset({DataType.INT8, DataType.UINT8})
_ENGINE_GROUPS: Final = frozenset(
    "autoReport debug exchange opt prng profiler report streamCallbacks target".split()
)
"""Groups of the options of Poplar's engine, in front of the dot."""
_ENGINE_SWITCHES: Final = frozenset(
    "debug.allowOutOfMemory debug.floatPointOpException debug.nanOverflowException "
    "prng.enableStochasticRounding".split()
)
"""Options of Poplar's engine that are read here, and are true or false."""
_CONVOLUTION_OPTIONS: Final = frozenset(
    "availableMemoryProportion balanceAcrossIpus convDithering cycleBackoffPercent "
    "disableSRForAMPVertices disableTransformations enableAmpHalfEnginesPlan enableConvDithering "
    "enableFastReduce enableMultiStageReduce enableSingleInputReduce enableTransformsConvTable "
    "enableTransformsConvUseIRConvOut gatherConvOutput insertTransformsCycleCountProxy "
    "interIpuPartialsType interTilePartialsType numIPUs partialsType pass planConstraints "
    "planConstraintsOutputFilename remapOutputTensor startTileMultiplier tilesPerIPU "
    "use128BitConvUnitLoad".split()
)
"""Options of poplin's convolutions (poplibs, ConvOptions)."""
_ARITHMETIC: Final = frozenset(
    "Add Sub Mul Div Pow Mod Sum Max Min Mean Abs Neg Relu Sqrt Exp Log MatMul Gemm Conv "
    "ReduceSum ReduceMean ReduceMax ReduceMin".split()
)
"""Operators that PopART refuses for 8-bit integers; poprt compiles some of them, so this is no
field of the operators' entries."""


def check_options(options: SessionOptions) -> None:
    """Check options against each other.

    Args:
        options: Options of the session.

    Raises:
        popart_exception: For options that PopART rejects in inference, or that cannot be had here.
    """
    if options.enableGradientAccumulation:
        raise popart_exception("Gradient Accumulation only available when training.")
    if options.accumulationFactor > 1:
        raise popart_exception(
            "enableGradientAccumulation is false, but accumulationFactor > 1. Either enable "
            "gradient accumulation, or set the accumulation factor to 1."
        )
    if options.replicatedGraphCount < 1:
        raise popart_exception(
            f"replicatedGraphCount: expected at least 1, found {options.replicatedGraphCount}"
        )
    _check_global_replication(options)
    if options.customCodelets:
        raise popart_exception(
            f"customCodelets: {options.customCodelets[0]} cannot be run: codelets are machine code "
            "or C++ of the IPU. Register a body of standard operators instead "
            "(poprt.passes.register_op_body)"
        )


def check_graph_options(options: SessionOptions) -> None:
    """Check what is checked when the graph is known to be right.

    Args:
        options: Options of the session.

    Raises:
        popart_exception: For options that contradict each other.
    """
    if options.enableExplicitMainLoops and not options.useHostCopyOps:
        raise popart_exception("enableExplicitMainLoops requires useHostCopyOps.")


def check_engine_options(options: SessionOptions) -> None:
    """Check the options of Poplar's engine: their names, and values that mean something here.

    Args:
        options: Options of the session.

    Raises:
        poplar_exception: For a name that Poplar lacks, and for values of switches other than true
            and false.
    """
    for name, value in options.engineOptions.items():
        if name in _ENGINE_SWITCHES and value.lower() not in ("true", "false"):
            raise poplar_exception(
                f"Invalid value '{value}' of option '{name}': expected true or false"
            )
        if name.partition(".")[0] not in _ENGINE_GROUPS:
            raise poplar_exception(
                f"Unrecognised option '{name}': names of engine options begin with "
                f"{', '.join(sorted(_ENGINE_GROUPS))} and a dot"
            )


def check_convolution_options(options: SessionOptions, lowered: LoweredModel) -> None:
    """Check the names of options that go to the library of convolutions.

    Args:
        options: Options of the session.
        lowered: The lowered model; the options count if it has convolutions.

    Raises:
        poplar_exception: For a name that the library lacks.
    """
    if not any(node.op_type.startswith("Conv") for node in iter_nodes(lowered.model.graph)):
        return
    for name in options.convolutionOptions:
        if name.partition(".")[0] not in _CONVOLUTION_OPTIONS:
            raise poplar_exception(
                f"Unrecognised option '{name}' of convolutions; known are "
                f"{', '.join(sorted(_CONVOLUTION_OPTIONS))}"
            )


def _check_global_replication(options: SessionOptions) -> None:
    factor, offset = options.globalReplicationFactor, options.globalReplicaOffset
    if factor < 1:
        raise popart_exception(
            f"Invalid globalReplicationFactor value: {factor}, must be greater or equal than 1"
        )
    if offset < 0:
        raise popart_exception(
            f"Invalid globalReplicaOffset value: {offset}, must be greater or equal than 0"
        )
    if offset > factor:
        raise popart_exception(
            f"Global replica offset: {offset}, is larger than global replication factor: {factor}"
        )
    if options.enableDistributedReplicatedGraphs:
        raise popart_exception(
            "enableDistributedReplicatedGraphs is not supported: a session runs on one host. Use "
            "enableReplicatedGraphs and replicatedGraphCount"
        )


def find_broadcast_inputs(model: onnx.ModelProto) -> frozenset[str]:
    """Return the inputs that are given once for all replicas."""
    broadcast = str(int(ReplicatedStreamMode.Broadcast))
    return frozenset(
        entry.key.removeprefix(_STREAM_MODE)
        for entry in model.metadata_props
        if entry.key.startswith(_STREAM_MODE) and entry.value == broadcast
    )


def check_device_types(lowered: LoweredModel, options: SessionOptions) -> None:
    """Check that the chip has the types of a model's tensors and operators.

    Args:
        lowered: The lowered model, and the types of its tensors.
        options: Options of the session.

    Raises:
        popart_exception: For integers of 64 bits that may not be computed in 32.
        poplar_exception: For an operator that computes in 8-bit integers, which the chip's
            libraries lack.
    """
    if not options.enableSupportedDataTypeCasting and lowered.host_types:
        kind = next(iter(lowered.host_types.values())).data_type()
        raise popart_exception(f"The data type {kind} is not supported in Poplar")
    for node in lowered.model.graph.node:
        if node.op_type not in _ARITHMETIC or node.domain:
            continue
        for name in node.input:
            info = lowered.tensors.get(name)
            if info is not None and info.dataType() in _BYTES:
                raise poplar_exception(
                    f"{node.op_type} (node '{node.name or node.output[0]}') does not support type "
                    f"{info.data_type_lcase()} of tensor '{name}': cast it to FLOAT16, FLOAT or "
                    "INT32 first"
                )
