"""Runs the programs of an executable: pulls input streams, computes, pushes output streams.

The engine sees rows, never requests: the code that connects a stream knows whose rows they are. An
engine is used by one thread at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from popef._tools.arrays import Array
from simipu.accelerators import join_names
from simipu.chip.clock import DeviceClock
from simipu.chip.target import Target
from simipu.engines.computed import ComputedGraph, GraphOptions, OrtGraph
from simipu.engines.opening import open_graph
from simipu.errors import RunError
from simipu.executable import Device, Program, ProgramKind, SimulatedExecutable
from simipu.host_link import batch_seconds, call_seconds, pass_seconds, transfer_seconds
from simipu.processes.forks import FORKS, keep_forever
from simipu.streams import Direction, Stream

ReadCallback = Callable[[int], Array]
"""Callback of an input stream. It gets the maximum number of rows that the run has room for, and
returns 1 to that many rows: an array of shape (rows, *row shape)."""
WriteCallback = Callable[[Array], None]
"""Callback of an output stream. It gets the computed rows, of shape (rows, *row shape), and may
keep the array."""


class Engine:
    """Holds an executable on a device and runs its programs.

    Rows: the batch axis of a stream is the leading one, except in models that were compiled for
    another. If all streams of a MAIN program have the same size along their batch axis, that size
    is the compiled batch, and a row is the rest of the shape. Rows are passed stacked along a
    leading axis. Otherwise the program has a batch of one, whose only row is the whole tensor. A
    run has room for `batches_per_run` compiled batches: the number of replicas times the device
    iterations. Only batches that hold rows are computed. An incomplete batch is computed alone if
    the program is row independent, else padded with zeros as the real runtime does.

    `graph_options` set how ONNX Runtime computes, `isolated` moves it into a child process, and
    `paced` delays rows until their modelled time on chip and host link has passed.
    """

    def __init__(
        self,
        executable: SimulatedExecutable,
        device: Device,
        *,
        replication_factor: int = 1,
        device_iterations: int = 1,
        graph_options: GraphOptions | None = None,
        isolated: bool = False,
        paced: bool = False,
    ) -> None:
        device.check_fits(executable, replication_factor)
        self.executable = executable
        self.device = device
        self.replication_factor = replication_factor
        self.device_iterations = device_iterations
        self._graph_options = graph_options or GraphOptions()
        self._isolated = isolated
        self._clock = DeviceClock(self._graph_options.limit_seconds) if paced else None
        self.lateness_ns = 0
        """Maximum delay, in ns, between the modelled end of the last run and its computed rows. It
        is positive if the CPU is slower than the modelled chip, or busy. 0 when in time, or not
        paced."""
        self._reads: dict[str, ReadCallback] = {}
        self._writes: dict[str, WriteCallback] = {}
        self._variables: dict[str, Array] = {}
        self._mains: dict[int, _LoadedMain] = {}
        self._cancelled = False
        self.reads_files = True
        """Whether a run may read weights that are mapped from files. Otherwise all programs are
        built, and hold a copy of what they read."""
        FORKS.watch(self)

    @property
    def batches_per_run(self) -> int:
        """Number of compiled batches that one run has room for."""
        return self.replication_factor * self.device_iterations

    @property
    def kernels(self) -> str:
        """Names of what computes the programs that are built: accelerators, or else the kernels of
        half precision; "reference" for the onnx reference."""
        return join_names(main.graph.kernels for main in self._mains.values())

    @property
    def free_at_ns(self) -> int | None:
        """Time at which the modelled device has room for another run, on the clock of
        time.perf_counter_ns; None if not paced."""
        return self._clock.free_at_ns if self._clock is not None else None

    def connect_input(self, handle: str, callback: ReadCallback) -> None:
        """Set the callback that fills the input stream `handle`; a later call replaces an earlier
        one."""
        self._reads[self._check_handle(handle, Direction.HOST_TO_DEVICE)] = callback

    def connect_output(self, handle: str, callback: WriteCallback) -> None:
        """Set the callback that drains the output stream `handle`; an unconnected output is
        dropped."""
        self._writes[self._check_handle(handle, Direction.DEVICE_TO_HOST)] = callback

    def load(self, index: int) -> None:
        """Build the MAIN program `index`, so that its first run is as fast as the next.

        The device variables that the program's LOAD program sets must be there. Raises LoadError if
        the graph cannot be built.
        """
        program = self.executable.program(index)
        constants = {constant.name: constant.array() for constant in self.executable.constants}
        weights = constants | self._variables
        numerics = self.executable.numerics if self._graph_options.exact else None
        timings = [
            iteration_timing(branch, self.device.target, self.replication_factor)
            for branch in program.branches or [program]
        ]
        graph = open_graph(program, weights, self._graph_options, numerics, isolated=self._isolated)
        self._mains[index] = _LoadedMain(program, graph, timings)
        programs = self.executable.programs
        is_whole = all(p.index in self._mains for p in programs if p.kind is ProgramKind.MAIN)
        self.reads_files = not is_whole or any(
            main.graph.reads_weights for main in self._mains.values()
        )
        if self._cancelled:
            self.cancel()

    def unload(self) -> None:
        """Release the built programs and the device variables; streams stay connected."""
        self._release_mains()
        self._variables.clear()

    def cancel(self) -> None:
        """Cancel the run in flight, from any thread, without waiting. It raises RunCancelledError,
        and so do all later runs."""
        self._cancelled = True
        if self._clock is not None:
            self._clock.cancel()
        for main in self._mains.copy().values():
            main.graph.cancel()

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """Have the run in flight raise RunUnwantedError, from any thread, without waiting, if
        `is_unwanted` returns True (`ComputedGraph.end_run`). Later runs are not affected."""
        for main in self._mains.copy().values():
            main.graph.end_run(is_unwanted)

    def forget_parent(self) -> None:
        """Leave the built programs to the parent process after a fork. The first run of each
        program builds it again."""
        keep_forever(self._mains)
        self._mains, self.reads_files = {}, True
        if self._clock is not None:
            self._clock = DeviceClock(self._graph_options.limit_seconds)

    def run(self, index: int, ready_ns: int | None = None) -> int:
        """Run program `index` once on its streams, and return the number of rows that it computed
        (0 for a LOAD or SAVE program).

        A paced device begins when it is free, and not before `ready_ns`: the time since when the
        rows have been ready, on the clock of time.perf_counter_ns (None: now that they are read).
        Raises RunError for a stream that is not connected or delivers a wrong shape or dtype, and
        for values that an operator rejects, such as an index outside its table; DeviceLostError if
        the run did not end.
        """
        program = self.executable.program(index)
        if program.kind is ProgramKind.LOAD:
            self._run_load(program)
            return 0
        if program.kind is ProgramKind.SAVE:
            self._run_save(program)
            return 0
        values = self.pull(index)
        self.compute(index, values, ready_ns, to_streams=True)
        return len(values[0]) if values else 1

    def pull(self, index: int, most: int | None = None) -> list[Array]:
        """Return the rows that the input streams of MAIN program `index` deliver for one run, in
        their order: at most `most` rows (None: as many as the run has room for)."""
        main = self._find_main(index)
        return main.pull(self._reads, most or self.batches_per_run * (main.batch_size or 1))

    def compute(
        self,
        index: int,
        values: Sequence[Array],
        ready_ns: int | None = None,
        to_streams: bool = False,
        out: Sequence[Array] | None = None,
    ) -> list[Array]:
        """Run MAIN program `index` once on rows of the caller.

        `values` has an array per input stream of the program, in their order, of shape (rows, *row
        shape). It has at most a run's rows, which have been ready since `ready_ns` (None: now). The
        outputs are returned together, in the order of the output streams, so that there is only one
        wait for a paced device. With `to_streams` the result is empty; the outputs of each device
        iteration are written to the output streams as soon as the device would have them. `out` is
        memory for the outputs that may be used: then it is the result. Raises the errors of `run`.
        """
        main = self._mains.get(index) or self._find_main(index)
        rows = main.check(values)
        pieces: Iterable[list[Array]]
        if self._clock is None and rows <= (main.batch_size or 1):
            results = main.compute(values, 0, rows, out)  # the usual case: nothing to join
            if not to_streams:
                return results
            pieces = [results]
        else:
            at_once = 1 if to_streams else self.device_iterations
            pieces = self._iterate(main, values, rows, ready_ns, at_once)
        if not to_streams:
            done = list(pieces)
            if len(done) == 1:
                return done[0]
            return [np.concatenate(piece) for piece in zip(*done, strict=True)]
        for results in pieces:
            main.push(self._writes, results)
        return []

    def _find_main(self, index: int) -> _LoadedMain:
        if index not in self._mains:
            self.load(index)
        return self._mains[index]

    def _iterate(
        self,
        main: _LoadedMain,
        values: Sequence[Array],
        rows: int,
        ready_ns: int | None,
        at_once: int,
    ) -> Iterator[list[Array]]:
        """Yield the outputs of each compiled batch, once the device would have those of `at_once`
        iterations.

        All pacing is here: an iteration ends its latency after its start, and the next starts an
        interval after it.
        """
        batch, clock = main.batch_size or 1, self._clock
        per_iteration = batch * self.replication_factor
        timing = main.find_timing(values)
        latency, interval = timing.latency, timing.interval
        if clock is not None:
            begun_ns = time.perf_counter_ns() if ready_ns is None else ready_ns
            clock.start(begun_ns, latency + interval * (self.device_iterations - 1))
            self.lateness_ns = 0
        done = 0
        for start in range(0, rows, per_iteration * at_once):
            last = min(start + per_iteration * at_once, rows)
            results = [
                main.compute(values, first, min(first + batch, last))
                for first in range(start, last, batch)
            ]
            iterations = -(-(last - start) // per_iteration)
            if clock is not None:
                seconds = interval * (iterations - 1) + latency
                late_ns = clock.advance(seconds, interval * iterations)
                self.lateness_ns = max(self.lateness_ns, late_ns)
            yield from results
            done += iterations
        if clock is not None:
            # The chip also runs the iterations that have no rows, but no caller waits for them.
            clock.skip(interval * (self.device_iterations - done))

    def _check_handle(self, handle: str, direction: Direction) -> str:
        streams = [s for program in self.executable.programs for s in program.streams]
        handles = {stream.handle for stream in streams if stream.direction is direction}
        if handle not in handles:
            raise RunError(
                f"executable {self.executable.name!r} has no {direction.name.lower()} stream "
                f"{handle!r}; it has {', '.join(sorted(handles)) or 'none'}"
            )
        return handle

    def _run_load(self, program: Program) -> None:
        for stream in program.streams:
            value = _read(stream, self._reads, 1)
            if value.shape != (1, *stream.shape) or value.dtype != stream.dtype:
                raise _mismatch(stream, value, (1, *stream.shape))
            self._variables[stream.tensor] = value[0]
        self._release_mains()

    def _release_mains(self) -> None:
        for main in self._mains.values():
            main.graph.close()
        self._mains.clear()
        self.reads_files = True

    def _run_save(self, program: Program) -> None:
        for stream in program.streams:
            if stream.tensor not in self._variables:
                raise RunError(
                    f"stream {stream.handle!r}: there is no {stream.tensor!r} on the device; run "
                    "the load program first"
                )
            if stream.handle in self._writes:
                self._writes[stream.handle](self._variables[stream.tensor][None])


@dataclass(frozen=True, slots=True)
class Timing:
    """Modelled seconds of a device iteration, host transfers included."""

    latency: float
    """Seconds from the start of an iteration to its last row."""
    interval: float
    """Seconds from batch to batch while batches are queued. It is less than the latency if I/O
    tiles or a pipeline overlap batches."""


def iteration_timing(program: Program, target: Target, replication_factor: int) -> Timing:
    """Return the duration of a device iteration of MAIN `program`; for a fused program, that of the
    slowest branch. Replicas compute in parallel and share the host's link."""
    if program.branches:
        timings = [
            iteration_timing(branch, target, replication_factor) for branch in program.branches
        ]
        return max(timings, key=lambda timing: timing.interval)
    transfers = _transfer_seconds(program, target, replication_factor)
    between = target.seconds(program.interval_cycles or program.cycles)
    interval = batch_seconds(between, transfers, overlapped=program.overlapped)
    latency = pass_seconds(
        target.seconds(program.cycles), transfers, interval, overlapped=program.overlapped
    )
    return Timing(latency, interval)


def _transfer_seconds(program: Program, target: Target, replication_factor: int = 1) -> float:
    num_bytes = sum(math.prod(stream.shape) * stream.dtype.itemsize for stream in program.streams)
    return transfer_seconds(num_bytes * replication_factor, target)


def latency_of_call(program: Program, target: Target) -> float:
    """Return the modelled seconds of a call of MAIN `program` on one replica, as a profile has it:
    the chip, the transfers and the host's own work; of a fused program that of the slowest
    branch."""
    if program.branches:
        return max(latency_of_call(branch, target) for branch in program.branches)
    return call_seconds(
        target.seconds(program.cycles),
        target.seconds(program.interval_cycles or program.cycles),
        _transfer_seconds(program, target),
        overlapped=program.overlapped,
    )


class _LoadedMain:
    """A MAIN program ready to run, with its streams sorted and its graph built. `timings` are an
    iteration's; those of a fused program have one entry for each branch."""

    def __init__(self, program: Program, graph: ComputedGraph, timings: Sequence[Timing]) -> None:
        self.inputs = program.inputs
        self.outputs = program.outputs
        self.batch_size = program.batch_size
        self.graph = graph
        self._program, self._timings = program, timings
        self._row_independent = program.row_independent
        self._name = program.name
        self._input_names = [stream.tensor for stream in self.inputs]
        self._output_names = [stream.tensor for stream in self.outputs]
        self._expected = [(stream, stream.dtype, self._row_shape(stream)) for stream in self.inputs]
        # Facts that are checked after each run, in the form that is fastest to compare. The axis of
        # the batch is None without a batch.
        self._given = [
            (
                result,
                result.dtype,
                self._row_shape(result),
                result.batch_axis if self.batch_size else None,
            )
            for result in self.outputs
        ]
        self._moves_inputs = any(stream.batch_axis for stream in self.inputs)
        self._moves_outputs = any(stream.batch_axis for stream in self.outputs)
        self._filled = graph if self._can_fill(graph) else None
        """The graph if it can write its outputs to given memory."""

    def _can_fill(self, graph: ComputedGraph) -> TypeGuard[OrtGraph]:
        """Return whether the graph can write the rows of its outputs to given memory. Its outputs
        must have the types of the streams, which is not certain of an unknown source."""
        if not self.batch_size or self._moves_outputs or not isinstance(graph, OrtGraph):
            return False
        return graph.can_fill(self._output_names, [stream.dtype for stream in self.outputs])

    def _row_shape(self, stream: Stream) -> tuple[int, ...]:
        return stream.row_shape if self.batch_size else stream.shape

    def pull(self, reads: dict[str, ReadCallback], most: int) -> list[Array]:
        """Return the waiting rows of each input, at most `most`."""
        values: list[Array] = []
        for stream in self.inputs:
            values.append(_read(stream, reads, len(values[0]) if values else most))
        return values

    def check(self, values: Sequence[Array]) -> int:
        """Return the number of rows, which is the same for all inputs, or 1 without inputs. Raises
        RunError if inputs differ in their rows, or if one has another shape or type than its
        stream."""
        rows = 0 if self.inputs else 1
        for (stream, dtype, row_shape), value in zip(self._expected, values, strict=True):
            shape, value_dtype = value.shape, value.dtype
            if rows and shape[0] != rows:
                raise RunError(
                    f"stream {stream.handle!r} delivered {len(value)} rows, the streams before it "
                    f"{rows}; give the same number of rows to every input"
                )
            rows = shape[0]
            if shape[1:] != row_shape or (value_dtype is not dtype and value_dtype != dtype):
                raise _mismatch(stream, value, (rows, *row_shape))
        return rows

    def find_branches(self, values: Sequence[Array]) -> set[int]:
        """Return the branches of a fused program that these rows select; for other programs the
        only one, 0."""
        if not self._program.branches:
            return {0}
        selected = values[self._input_names.index(self._program.selector)]
        return {self._program.find_branch(row) for row in selected.reshape(len(selected), -1)}

    def find_timing(self, values: Sequence[Array]) -> Timing:
        """Return the timing of a device iteration of a run with these rows; if they select several
        branches, that of the slowest."""
        if len(self._timings) == 1:
            return self._timings[0]
        timings = [self._timings[number] for number in self.find_branches(values)]
        return max(timings, key=lambda timing: timing.interval)

    def compute(
        self,
        values: Sequence[Array],
        first: int,
        last: int,
        out: Sequence[Array] | None = None,
    ) -> list[Array]:
        """Return the outputs of the rows from `first` to before `last`, at most a compiled batch,
        rows first. They are in `out` if it is given and can be used."""
        rows = last - first
        if not self.batch_size:
            values = [np.asarray(value[first]) for value in values]
        else:
            if rows != len(values[0]):
                values = [value[first:last] for value in values]
            if rows != self.batch_size and not self._row_independent:
                values = [_pad(value, self.batch_size) for value in values]
            if self._moves_inputs:
                # A view of an array with this batch axis is not copied.
                values = [
                    np.ascontiguousarray(np.moveaxis(value, 0, stream.batch_axis))
                    for stream, value in zip(self.inputs, values, strict=True)
                ]
        try:
            feeds = dict(zip(self._input_names, values, strict=True))
            is_whole = self._row_independent or rows == self.batch_size
            if out is not None and self._filled is not None and is_whole:
                # ONNX Runtime has checked the shapes.
                return self._filled.run(self._output_names, feeds, out)
            results = self.graph.run(self._output_names, feeds)
        except RunError as error:
            raise type(error)(f"program {self._name!r}: {error}") from error
        self._check_results(results, rows if self._row_independent else self.batch_size)
        if not self.batch_size:
            return [result[None] for result in results]
        if self._moves_outputs:
            results = [
                np.moveaxis(result, stream.batch_axis, 0)
                for stream, result in zip(self.outputs, results, strict=True)
            ]
        if rows == self.batch_size or self._row_independent:
            return results
        return [result[:rows] for result in results]

    def _check_results(self, results: Sequence[Array], rows: int) -> None:
        """Raise RunError if results differ from the streams: a graph from an unknown source may
        return other shapes or types."""
        for (stream, dtype, row_shape, axis), result in zip(self._given, results, strict=True):
            shape = result.shape
            if axis is None:
                fits = shape == row_shape
            elif axis == 0:
                fits = shape == (rows, *row_shape)
            else:
                fits = shape == (*row_shape[:axis], rows, *row_shape[axis:])
            if not fits or result.dtype != dtype:
                raise _mismatch(stream, result, stream.shape)

    def push(self, writes: dict[str, WriteCallback], results: list[Array]) -> None:
        """Write computed rows to the output streams."""
        for stream, result in zip(self.outputs, results, strict=True):
            write = writes.get(stream.handle)
            if write is not None:
                write(result)


def _pad(rows: Array, batch_size: int) -> Array:
    """Return the rows padded with zeros to the compiled batch."""
    padded = np.zeros((batch_size, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _read(stream: Stream, reads: dict[str, ReadCallback], most: int) -> Array:
    try:
        callback = reads[stream.handle]
    except KeyError:
        raise RunError(
            f"input stream {stream.handle!r} (tensor {stream.tensor!r}) is not connected"
        ) from None
    return callback(most)


def _mismatch(stream: Stream, value: Array, shape: tuple[int, ...]) -> RunError:
    return RunError(
        f"stream {stream.handle!r}: expected {stream.dtype.name} of shape {shape}, "
        f"found {value.dtype.name} of shape {value.shape}"
    )
