"""The real tool's runtime over `model_runtime`: runners that write into the caller's arrays, their
configurations, devices. Packing, host concatenation and fused models are not there yet, and say so."""

from model_runtime import InputMemoryView, OutputMemoryView

from poprt._later import later
from poprt.runtime.config import DeviceWaitConfig, LightRunnerConfig, ReplicaIdToDevice, RuntimeConfig
from poprt.runtime.descriptions import DataDesc
from poprt.runtime.devices import DeviceManager
from poprt.runtime.runners import LightRunner, ModelRunner, Runner

__all__ = [
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
    "PackRunnerConfig",
    "ReplicaIdToDevice",
    "Runner",
    "RuntimeConfig",
]

_CONCATENATION = "feed the joined inputs to a Runner"
_PACKING = "a Runner takes requests of any number of rows with batching_dim=0"
HostConcatConfig = later("runtime.HostConcatConfig", _CONCATENATION)
HostConcatRunner = later("runtime.HostConcatRunner", _CONCATENATION)
HostConcatRunnerConfig = later("runtime.HostConcatRunnerConfig", _CONCATENATION)
PackAlgorithm = later("runtime.PackAlgorithm", _PACKING)
PackRunnerConfig = later("runtime.PackRunnerConfig", _PACKING)
