"""PopTorch's Python API for inference, on the simulated IPU.

`import poptorch` scripts run unchanged: `inferenceModel` wraps a `torch.nn.Module`, whose first
call captures and compiles it. Names and behaviour are the real module's. Training raises
`poptorch.Error`. It needs torch.
"""

try:
    import torch as _torch  # noqa: F401 # names the missing package below
except ImportError as error:
    raise ImportError(
        "poptorch needs torch: pip install torch --index-url https://download.pytorch.org/whl/cpu "
        "(CPU only), or pip install torch"
    ) from error

from popart import __version__ as __version__

from poptorch import _impl as _impl
from poptorch import _poplar_executor as _poplar_executor
from poptorch import autocasting as autocasting
from poptorch import optim as optim
from poptorch import poptorch_core as poptorch_core
from poptorch import profiling as profiling
from poptorch._logging import setLogLevel
from poptorch.arguments import ICustomArgParser, registerCustomArgParser
from poptorch.capture.control import cond, for_loop
from poptorch.data import AsynchronousDataAccessor, DataLoader
from poptorch.enums import (
    AnchorMode,
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from poptorch.errors import ConfigFileError, Error, RecoverableError, UnrecoverableError
from poptorch.execution.executor import PoplarExecutor
from poptorch.execution.files import FileContents, inspect_file
from poptorch.hooks import registerPostCompileHook, registerPreCompileHook
from poptorch.operators import published_ops as _published_ops  # noqa: F401 # registers its bodies
from poptorch.operators.custom_ops import custom_op, register_custom_op_body
from poptorch.operators.multi_conv import MultiConv
from poptorch.operators.overlap import set_overlap_for_input, set_overlap_for_output
from poptorch.operators.placement import BeginBlock, Block, BlockFunction, module_repr, removeBlocks
from poptorch.operators.tracing import isRunningOnIpu
from poptorch.ops import (
    CPU,
    Attribute,
    NameScope,
    ctc_beam_search_decoder,
    dynamic_slice,
    dynamic_update,
    fps,
    identity_loss,
    ipu_print_tensor,
    nearest,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
)
from poptorch.options.model_options import Options
from poptorch.options.parts import TensorLocationSettings
from poptorch.options.strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from poptorch.poptorch_core import ipuHardwareIsAvailable, ipuHardwareVersion
from poptorch.torch_ops import install as _install_torch_ops
from poptorch.wrapping import inferenceModel, load, trainingModel

_install_torch_ops()

__all__ = [
    "CPU",
    "AnchorMode",
    "AsynchronousDataAccessor",
    "Attribute",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "FileContents",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConv",
    "MultiConvPlanType",
    "NameScope",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "identity_loss",
    "inferenceModel",
    "inspect_file",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "load",
    "module_repr",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "register_custom_op_body",
    "removeBlocks",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "trainingModel",
]
