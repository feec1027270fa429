"""Strategies and collective operators of several processes, which are not supported."""

from __future__ import annotations

from typing import Final

from tensorflow_ipu.training.refusals import make_refusing_class, make_refusing_function

_ADVICE: Final = (
    "programs of several processes (popdist, poprun) cannot be had here; use IPUStrategy in one "
    "process, whose replicas run side by side"
)

PopDistStrategy = make_refusing_class("PopDistStrategy", _ADVICE)
PopDistExtendedV1 = make_refusing_class("PopDistExtendedV1", _ADVICE)
IPUMultiWorkerStrategyV1 = make_refusing_class("IPUMultiWorkerStrategyV1", _ADVICE)
IPUMultiWorkerStrategy = IPUMultiWorkerStrategyV1
IPUMultiWorkerExtendedV1 = make_refusing_class("IPUMultiWorkerExtendedV1", _ADVICE)
IPUDistributedVariable = make_refusing_class("IPUDistributedVariable", _ADVICE)
IPUSyncOnReadVariable = make_refusing_class("IPUSyncOnReadVariable", _ADVICE)
IPUMirroredVariable = make_refusing_class("IPUMirroredVariable", _ADVICE)
IPUOnWritePolicy = make_refusing_class("IPUOnWritePolicy", _ADVICE)
IPUOnReadPolicy = make_refusing_class("IPUOnReadPolicy", _ADVICE)
allgather = make_refusing_function("allgather", _ADVICE)
allreduce = make_refusing_function("allreduce", _ADVICE)
broadcast = make_refusing_function("broadcast", _ADVICE)
