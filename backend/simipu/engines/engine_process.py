"""The child process of an isolated graph: it confines its memory, opens the graph by `opening`, and
answers the parent's requests (`isolation`)."""

from __future__ import annotations

import os
from dataclasses import replace

from popef._tools.channel import Channel, answer_requests
from popef._tools.child import prepare
from popef._tools.console import LineFormatter
from popef._tools.memory import GROWTH, limit_addresses, limit_memory
from simipu import errors
from simipu.engines.answers import encode_arrays, encode_error, encode_loaded
from simipu.engines.computed import OWN_BYTES, ComputedGraph, GraphOptions, Lowered, Weights
from simipu.engines.isolation import Trial
from simipu.engines.opening import open_confined
from simipu.executable import Program
from simipu.numerics.options import Numerics

_WEIGHT_COPIES = 6
"""Copies of its weights that a child has memory for: as received, widened and packed."""
_MAPPINGS = 3
"""Number of times that a trial maps its files; a mapping of a file is no private memory."""
_LIBRARY_BYTES, _THREAD_BYTES = 4 << 30, 128 << 20
"""Addresses that a child maps without private memory: for the code of libraries, of which OpenVINO
and ONNX Runtime need 0.4 GiB, and for the C library's arena of each thread."""


def serve(descriptor: int) -> None:
    """Answer the requests of the parent; this is the child's main function."""
    prepare(LineFormatter("simipu"))
    answer_requests(descriptor, _Answerer().answer)


class _Answerer:
    """The child's graph, and the limit of its memory."""

    def __init__(self) -> None:
        self._graph: ComputedGraph | None = None
        self._memory_bytes = 0

    def answer(self, channel: Channel) -> list[bytes]:
        """Return the answer to the next request, which comes from the parent."""
        question = channel.receive_object()
        loads = question[0] == "load"
        try:
            if loads:
                return [encode_loaded(self._load(*question[1:]))]
            assert self._graph is not None
            GROWTH.look()
            return [encode_arrays(self._graph.run(*question[1:]))]
        except (errors.LoadError, errors.RunError, errors.DeviceLostError) as error:
            return [encode_error(error)]
        except MemoryError:
            description = errors.describe_memory(self._memory_bytes)
            kind = errors.LoadMemoryError if loads else errors.RunMemoryError
            return [encode_error(kind(description))]

    def _load(
        self,
        source: Program | Lowered | Trial,
        weights: Weights,
        options: GraphOptions,
        numerics: Numerics | None,
        label: str,
    ) -> str:
        """Open the graph, or do the work of a trial; returns what computes the graph."""
        self._memory_bytes = options.memory_bytes
        # Told a number, ONNX Runtime does not pin its threads, which the sandbox forbids.
        cores = len(os.sched_getaffinity(0))
        options = replace(options, num_threads=options.num_threads or cores)
        if isinstance(source, Trial):
            held_bytes = source.held_bytes
        else:
            lowered_weights = source.weights if isinstance(source, Lowered) else weights
            held_bytes = sum(value.nbytes for value in lowered_weights.values())
        private = options.memory_bytes + held_bytes * _WEIGHT_COPIES + OWN_BYTES
        threads = max(options.num_threads, cores)
        limit_memory(private)
        limit_addresses(private + held_bytes * _MAPPINGS + _LIBRARY_BYTES + threads * _THREAD_BYTES)
        GROWTH.start(private)
        if isinstance(source, Trial):
            source.work()
            return ""
        self._graph = open_confined(source, weights, options, numerics, label)
        return self._graph.kernels
