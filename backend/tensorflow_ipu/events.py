"""Events of devices: compilations, transfers and runs, as `ipu_event_trace` returns them.

They are recorded while a configuration turns them on (IpuOptions.profiling), as in the real
library.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from tensorflow_ipu.config.system import SYSTEM
from tensorflow_ipu.messages.trace_pb2 import IpuTraceEvent

MODULE: Final = "cluster"
"""Name of a compiled computation, as XLA's clusters are called."""
_MAX_EVENTS: Final = 10_000
"""Number of events that are kept until somebody reads them; older ones are dropped."""
_EVENTS: Final[deque[IpuTraceEvent]] = deque(maxlen=_MAX_EVENTS)


def is_recording() -> bool:
    """Return whether the configuration turns events on."""
    return SYSTEM.options is not None and SYSTEM.options.profiling.enable_ipu_trace_events


def record_compilation(module: str, ordinal: int, seconds: float) -> None:
    """Record that a computation was compiled.

    Args:
        module: Name of the computation.
        ordinal: k of /device:IPU:k.
        seconds: Time that it took.
    """
    begin = _make(IpuTraceEvent.COMPILE_BEGIN, ordinal)
    begin.timestamp -= seconds
    begin.compile_begin.module_name = module.encode()
    end = _make(IpuTraceEvent.COMPILE_END, ordinal)
    end.compile_end.module_name = module.encode()
    end.compile_end.duration = round(seconds * 1e6)
    _record(begin, end)


def record_load(module: str, ordinal: int) -> None:
    """Record that a program was loaded onto a device.

    Args:
        module: Name of the computation.
        ordinal: k of /device:IPU:k.
    """
    event = _make(IpuTraceEvent.LOAD_ENGINE, ordinal)
    event.load_engine.module_name = module.encode()
    _record(event)


def record_run(module: str, ordinal: int) -> None:
    """Record that a program was run.

    Args:
        module: Name of the computation.
        ordinal: k of /device:IPU:k.
    """
    event = _make(IpuTraceEvent.EXECUTE, ordinal)
    event.execute.module_name = module.encode()
    _record(event)


def record_transfer(names: Iterable[str], ordinal: int, to_device: bool) -> None:
    """Record that tensors were transferred, if the configuration turns these events on.

    Args:
        names: Names of the tensors.
        ordinal: k of /device:IPU:k.
        to_device: Whether they went to the device.
    """
    if SYSTEM.options is None or not SYSTEM.options.profiling.enable_io_trace:
        return
    kind = (
        IpuTraceEvent.HOST_TO_DEVICE_TRANSFER
        if to_device
        else IpuTraceEvent.DEVICE_TO_HOST_TRANSFER
    )
    event = _make(kind, ordinal)
    transfer = {"tensors": [{"name": name} for name in names]}
    event.data_transfer.data_transfer = json.dumps(transfer).encode()
    _record(event)


def take_events() -> list[bytes]:
    """Return the events since the last call, as serialized messages, and forget them."""
    events = [event.SerializeToString() for event in _EVENTS]
    _EVENTS.clear()
    return events


def _make(kind: Any, ordinal: int) -> IpuTraceEvent:
    return IpuTraceEvent(timestamp=time.time(), ordinal=ordinal, type=kind)


def _record(*events: IpuTraceEvent) -> None:
    if is_recording():
        _EVENTS.extend(events)
