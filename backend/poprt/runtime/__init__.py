"""The real tool's runtime on top of `model_runtime`: runners that write into the caller's arrays,
their configurations, and devices."""

from model_runtime import InputMemoryView, OutputMemoryView

from poprt.runtime.config import (
    DataDesc,
    DeviceManager,
    DeviceWaitConfig,
    LightRunnerConfig,
    ReplicaIdToDevice,
    RunnerType,
    RuntimeConfig,
)
from poprt.runtime.pack_algorithms import PackAlgorithm, PackRunnerConfig
from poprt.runtime.runners import (
    AnyConfig,
    HostConcatConfig,
    HostConcatRunner,
    HostConcatRunnerConfig,
    LightRunner,
    ModelRunner,
    PackRunner,
    Runner,
)

__all__ = [
    "AnyConfig",
    "DataDesc",
    "DeviceManager",
    "DeviceWaitConfig",
    "HostConcatConfig",
    "HostConcatRunner",
    "HostConcatRunnerConfig",
    "InputMemoryView",
    "LightRunner",
    "LightRunnerConfig",
    "ModelRunner",
    "OutputMemoryView",
    "PackAlgorithm",
    "PackRunner",
    "PackRunnerConfig",
    "ReplicaIdToDevice",
    "Runner",
    "RunnerType",
    "RuntimeConfig",
]
