"""Public names of `model_runtime`, which the package imports when one of them is first used. Those
that `__all__` does not list are for the rooms above."""

from model_runtime import predicate_factory
from model_runtime.compiled_model import DIRECTIONS as DIRECTIONS
from model_runtime.compiled_model import RunCost as RunCost
from model_runtime.descriptions import DataDesc as DataDesc
from model_runtime.descriptions import FusedRequests as FusedRequests
from model_runtime.descriptions import InputDesc as InputDesc
from model_runtime.descriptions import OutputDesc as OutputDesc
from model_runtime.descriptions import describe_anchor as describe_anchor
from model_runtime.descriptions import describe_tensors as describe_tensors
from model_runtime.devices import Device as Device
from model_runtime.devices import DeviceManager as DeviceManager
from model_runtime.devices import DeviceWaitConfig as DeviceWaitConfig
from model_runtime.devices import DeviceWaitStrategy as DeviceWaitStrategy
from model_runtime.devices import model_target as model_target
from model_runtime.environment import host_sync_timeout_seconds as host_sync_timeout_seconds
from model_runtime.errors import ModelRuntimeError as ModelRuntimeError
from model_runtime.errors import StoppedError as StoppedError
from model_runtime.predicate_factory.anchor_callbacks import (
    AnchorCallbackPolicy as AnchorCallbackPolicy,
)
from model_runtime.predicate_factory.anchor_callbacks import (
    AnchorCallbackPredicate as AnchorCallbackPredicate,
)
from model_runtime.queues import InputQueue as InputQueue
from model_runtime.queues import InputRingBuffer as InputRingBuffer
from model_runtime.queues import OutputQueue as OutputQueue
from model_runtime.queues import OutputSlot as OutputSlot
from model_runtime.queues import QueueManager as QueueManager
from model_runtime.request_flow import RequestFlow as RequestFlow
from model_runtime.request_flow import RequestTracepoint as RequestTracepoint
from model_runtime.request_joining import JoinChoice as JoinChoice
from model_runtime.request_joining import compute_joined as compute_joined
from model_runtime.request_joining import is_retried_alone as is_retried_alone
from model_runtime.request_joining import take_next_run as take_next_run
from model_runtime.runner import ConstTensorMemoryView as ConstTensorMemoryView
from model_runtime.runner import InputMemory as InputMemory
from model_runtime.runner import InputMemoryView as InputMemoryView
from model_runtime.runner import ModelRunner as ModelRunner
from model_runtime.runner import ModelRunnerConfig as ModelRunnerConfig
from model_runtime.runner import OutputFutureMemory as OutputFutureMemory
from model_runtime.runner import OutputMemory as OutputMemory
from model_runtime.runner import OutputMemoryView as OutputMemoryView
from model_runtime.runner import PopefPaths as PopefPaths
from model_runtime.runner import Promise as Promise
from model_runtime.runner import TensorMemory as TensorMemory
from model_runtime.runner import TensorMemoryView as TensorMemoryView
from model_runtime.session import LaunchPolicy as LaunchPolicy
from model_runtime.session import Session as Session
from model_runtime.session import SessionConfig as SessionConfig
from model_runtime.session import read_model as read_model
from model_runtime.shutdown import ServingThread as ServingThread
from model_runtime.shutdown import endless_wait as endless_wait
from model_runtime.shutdown import stop_at_exit as stop_at_exit
from popef._tools.version import __version__ as __version__

__all__ = [
    "AnchorCallbackPolicy",
    "AnchorCallbackPredicate",
    "ConstTensorMemoryView",
    "DataDesc",
    "Device",
    "DeviceManager",
    "DeviceWaitConfig",
    "DeviceWaitStrategy",
    "InputDesc",
    "InputMemory",
    "InputMemoryView",
    "InputQueue",
    "InputRingBuffer",
    "LaunchPolicy",
    "ModelRunner",
    "ModelRunnerConfig",
    "ModelRuntimeError",
    "OutputDesc",
    "OutputFutureMemory",
    "OutputMemory",
    "OutputMemoryView",
    "OutputQueue",
    "OutputSlot",
    "PopefPaths",
    "QueueManager",
    "RequestFlow",
    "RequestTracepoint",
    "Session",
    "SessionConfig",
    "StoppedError",
    "TensorMemory",
    "TensorMemoryView",
    "__version__",
    "host_sync_timeout_seconds",
    "predicate_factory",
]
