"""Loads and runs PopEF models: sessions, queues, devices. Names and spelling are the real library's.

What runs is the simulated IPU of `simipu`. Nothing here knows Triton.
"""

from model_runtime.descriptions import DataDesc, InputDesc, OutputDesc
from model_runtime.devices import DeviceManager, DeviceWaitConfig
from model_runtime.errors import ModelRuntimeError
from model_runtime.queues import InputQueue, OutputQueue, QueueManager, TensorMemory
from model_runtime.session import Session, SessionConfig

__all__ = [
    "DataDesc",
    "DeviceManager",
    "DeviceWaitConfig",
    "InputDesc",
    "InputQueue",
    "ModelRuntimeError",
    "OutputDesc",
    "OutputQueue",
    "QueueManager",
    "Session",
    "SessionConfig",
    "TensorMemory",
]
