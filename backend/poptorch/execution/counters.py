"""Performance counters of a call: when its tensors move between host and device, as modelled.

    input      input_complete         output   output_complete
      |-- transfer --|---- compute ------|-- transfer --|

Iterations begin one interval apart: the cycles of the slowest stage of a pipeline, or the whole
time of an iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from popart import AnchorReturnType
from poprt.compile import MAIN_PROGRAM, Executable
from simipu import Direction, Stream

from poptorch.execution.steps import Batching

INPUT, INPUT_COMPLETE, OUTPUT, OUTPUT_COMPLETE = (
    "input",
    "input_complete",
    "output",
    "output_complete",
)
EVENTS: Final = (INPUT, INPUT_COMPLETE, OUTPUT, OUTPUT_COMPLETE)
Counters = dict[str, list[list[float]]]
"""Seconds by event, tensor and iteration."""
Latency = tuple[float, float, float]
"""Least, most and mean seconds."""
Side = tuple[str, Callable[[Sequence[float]], float]]
"""An event, and which of its tensors counts: `min` or `max`."""
NO_LATENCY: Final[Latency] = (0.0, 0.0, 0.0)


def make_empty(num_inputs: int = 1, num_outputs: int = 1) -> Counters:
    """Return counters without any entry."""
    counts = (num_inputs, num_inputs, num_outputs, num_outputs)
    return {event: [[] for _ in range(count)] for event, count in zip(EVENTS, counts, strict=True)}


@dataclass(frozen=True, slots=True)
class Clock:
    """Modelled seconds of the parts of an iteration."""

    input_seconds: float
    compute_seconds: float
    output_seconds: float
    interval_seconds: float

    @classmethod
    def of(cls, executable: Executable, replicas: int) -> Clock:
        """Return the clock of a program; its replicas share the link to the host."""
        program, target = executable.executable.program(MAIN_PROGRAM), executable.executable.target
        moved = {
            direction: sum(
                _count_bytes(stream) for stream in program.streams if stream.direction is direction
            )
            for direction in Direction
        }
        seconds = {
            direction: replicas * count / target.host_bytes_per_second
            for direction, count in moved.items()
        }
        before, after = seconds[Direction.HOST_TO_DEVICE], seconds[Direction.DEVICE_TO_HOST]
        compute = target.seconds(program.cycles)
        interval = target.seconds(program.interval_cycles) if program.interval_cycles else 0.0
        return cls(before, compute, after, interval or before + compute + after)


def count(
    clock: Clock, batching: Batching, kinds: Sequence[AnchorReturnType], num_inputs: int
) -> Counters:
    """Return the counters of a call.

    Args:
        clock: Modelled seconds of an iteration.
        batching: Iterations and replicas of the call.
        kinds: Which iterations each output returns.
        num_inputs: Number of input tensors.

    Returns:
        The counters; replicas run at the same time.
    """
    starts = [i * clock.interval_seconds for i in range(batching.iterations)]
    counters = make_empty(0, 0)
    begins = [start for start in starts for _ in range(batching.replicas)]
    counters[INPUT] = [list(begins) for _ in range(num_inputs)]
    counters[INPUT_COMPLETE] = [[second + clock.input_seconds for second in begins]] * num_inputs
    for kind in kinds:
        rows = kind.count(batching.iterations) or 1
        returned = starts[len(starts) // rows - 1 :: len(starts) // rows]
        ready = [
            start + clock.input_seconds + clock.compute_seconds
            for start in returned
            for _ in range(batching.replicas)
        ]
        counters[OUTPUT].append(ready)
        counters[OUTPUT_COMPLETE].append([second + clock.output_seconds for second in ready])
    return counters


def find_latency(counters: Counters, start: Side, end: Side) -> Latency:
    """Return the time between two events.

    Args:
        counters: Counters of a call.
        start: The first event.
        end: The last event.

    Returns:
        Least, most and mean seconds over the returned iterations.
    """
    starts, ends = (_reduce(counters[event], which) for event, which in (start, end))
    if not starts or not ends:
        return NO_LATENCY
    # Several iterations may belong to one returned value: the first of them counts.
    size = len(starts) // len(ends)
    spans = [end - min(starts[i * size : (i + 1) * size]) for i, end in enumerate(ends)]
    least, most = min(spans), max(spans)
    # Rounding must not take the mean out of its bounds.
    return least, most, min(max(sum(spans) / len(spans), least), most)


def _reduce(
    tensors: Sequence[Sequence[float]], which: Callable[[Sequence[float]], float]
) -> list[float]:
    return [which(column) for column in zip(*tensors, strict=True)]


def _count_bytes(stream: Stream) -> int:
    return prod(stream.shape) * stream.dtype.itemsize
