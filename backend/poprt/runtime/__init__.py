"""The real tool's runtime on top of `model_runtime`: runners that write into the caller's arrays,
their configurations, and devices."""

from model_runtime import InputMemoryView, OutputMemoryView

from poprt.runtime.config import (
    DeviceWaitConfig,
    LightRunnerConfig,
    ReplicaIdToDevice,
    RunnerType,
    RuntimeConfig,
)
from poprt.runtime.descriptions import DataDesc
from poprt.runtime.devices import DeviceManager
from poprt.runtime.host_concat import HostConcatConfig, HostConcatRunner, HostConcatRunnerConfig
from poprt.runtime.pack_algorithms import PackAlgorithm, PackRunnerConfig
from poprt.runtime.runners import AnyConfig, LightRunner, ModelRunner, PackRunner, Runner

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
