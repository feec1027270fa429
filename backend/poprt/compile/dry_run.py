"""The dry run at the end of a compilation: it loads the executable and runs it in the engine that
serves it.

It finds what would otherwise fail only in a server: a graph that ONNX Runtime rejects, and outputs
of another shape than declared. The calibration run checks the precision of half.

It also confirms what row rules have proven (`poprt.comparing.rows`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import onnx
from onnxgraph import set_shape
from simipu import (
    CompileError,
    Device,
    DeviceLostError,
    Engine,
    FileLoad,
    GraphOptions,
    LoadError,
    LoadTimeoutError,
    Program,
    RunError,
    RunMemoryError,
    RunTimeoutError,
    Stream,
    needs_guards,
    read_static,
)
from simipu.rows import trace_rows

from popef._tools.arrays import Array
from poprt.comparing import READY_SECONDS, Side
from poprt.comparing.inputs import iter_given, iter_made_up
from poprt.comparing.rows import Batch, Compute, find_bound, measure_rows
from poprt.comparing.sides import Feeds
from poprt.compile.executable import LOAD_PROGRAM, MAIN_PROGRAM, Executable

MAX_WEIGHT_BYTES = 8 << 30
"""Maximum size of the weights of an executable that is run. The weights are in memory already, and
a run would load them a second time."""
MAX_INPUT_BYTES = 256 << 20
"""Maximum size of the inputs of an executable that is run; larger ones would take longer to make
than compiling takes."""
_MAX_PREPACKED_BYTES = 256 << 20
"""Maximum size of the weights that ONNX Runtime may repack into its own memory, as it does when it
serves."""
_DRAWS = 2
"""Number of draws in which rows must differ. If results lie at an edge, as before a Floor or an
ArgMax, the last bit of a sum decides, but hardly twice."""
_SMALL_NUMBERS = 10
"""Upper bound of integers without a known range: in the rows that are compared they are 0 to 9."""
_TENSORS_AT_ONCE = 200
"""Number of tensors that are compared at once: the time that ONNX Runtime takes for each output
grows with their number."""

_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class RowDifference:
    """First tensor of which a row has a different result with other rows in the batch."""

    tensor: str
    node: str
    op_type: str
    distance: float
    """Largest difference, relative to 1 or the largest value."""

    def describe(self) -> str:
        """Return the tensor, its node, and by how much its values differ."""
        maker = f" of node {self.node!r} ({self.op_type})" if self.op_type else ""
        return (
            f"tensor {self.tensor!r}{maker} differs by {self.distance:.2g} with other rows in "
            "the batch"
        )


def dry_run(compiled: Executable, data: Mapping[str, Array] | None = None) -> RowDifference | None:
    """Load and run `compiled` as a server does.

    Args:
        compiled: the executable.
        data: rows of the inputs by name, used if the model rejects random values.

    Returns:
        The first tensor whose rows depend on each other although the executable declares them
        independent; None if there is none.

    Raises:
        CompileError: the executable does not load, or no run of it succeeds.
        LoadTimeoutError: ONNX Runtime does not make it ready in time.
    """
    weight_bytes = sum(value.nbytes for value in _find_weights(compiled).values())
    input_bytes = _count_input_bytes(compiled)
    for what, size, limit in (
        ("weights", weight_bytes, MAX_WEIGHT_BYTES),
        ("inputs", input_bytes, MAX_INPUT_BYTES),
    ):
        if size > limit:
            _log.warning(
                "the executable was compiled without a dry run: its %s take %d MiB, the limit is "
                "%d MiB",
                what,
                size >> 20,
                limit >> 20,
            )
            return None
    options = GraphOptions(
        prepack=weight_bytes <= _MAX_PREPACKED_BYTES,
        ready_seconds=READY_SECONDS,
        index_check="clamp",
    )
    try:
        return _DryRun(compiled, data).run(options)
    except LoadTimeoutError:
        raise
    except LoadError as error:
        raise CompileError(f"the compiled model does not load: {error}") from error
    except (RunTimeoutError, RunMemoryError) as error:
        _log.warning("the compiled model loads, but the dry run was ended: %s", error)
        return None
    except (RunError, DeviceLostError) as error:
        advice = ""
        if isinstance(error, _ValuesError):
            advice = (
                ". If it requires other values than random ones, give some as calibration data "
                "(--data_preprocess) or skip the dry run (--skip_dry_run)"
            )
        raise CompileError(
            f"the compiled model loads, but does not run: {error}{advice}"
        ) from error


class _ValuesError(RunError):
    """A model rejected all inputs that there were, for reasons that depend on their values."""


def _count_input_bytes(compiled: Executable) -> int:
    streams = compiled.executable.program(MAIN_PROGRAM).inputs
    return sum(math.prod(stream.shape) * stream.dtype.itemsize for stream in streams)


def _find_weights(compiled: Executable) -> dict[str, Array]:
    constants = {constant.name: constant.array() for constant in compiled.executable.constants}
    return constants | compiled.weights


@dataclass(slots=True)
class _DryRun:
    compiled: Executable
    data: Feeds | None
    main: Program = field(init=False)
    inputs: list[Stream] = field(init=False)

    def __post_init__(self) -> None:
        self.main = self.compiled.executable.program(MAIN_PROGRAM)
        self.inputs = self.main.inputs

    def run(self, options: GraphOptions) -> RowDifference | None:
        served = replace(options, index_check="error")
        # Indices are clamped for random inputs, which is another graph than the one that is served.
        start, has_indices = time.monotonic(), self._has_indices()
        if options.prepack and has_indices:
            self._load(served).unload()
        engine = self._load(options)
        seconds, name = time.monotonic() - start, self.compiled.executable.name
        kinds = (served, options) if options.prepack or not has_indices else (options,)
        self.compiled.loads = tuple(FileLoad(name, kind).within(seconds) for kind in kinds)
        try:
            if self.main.branches:
                for number, branch in enumerate(self.main.branches):
                    self._run_branch(engine, number, branch)
                return None
            model = read_static(self.main)
            batches, batch = self._run_whole(engine, model)
            if not self.main.row_independent or self.main.batch_size <= 1:
                return None
            return self._confirm_rows(engine, model, batches, batch)
        finally:
            engine.unload()

    def _load(self, options: GraphOptions) -> Engine:
        executable = self.compiled.executable
        engine = Engine(executable, Device(executable.target), graph_options=options)
        for stream in executable.program(LOAD_PROGRAM).streams:
            engine.connect_input(stream.handle, _deliver(self.compiled.weights[stream.tensor]))
        engine.run(LOAD_PROGRAM)
        engine.load(MAIN_PROGRAM)
        return engine

    def _has_indices(self) -> bool:
        """Return whether the index check changes a graph of the executable."""
        programs = self.main.branches or (self.main,)
        return any(needs_guards(read_static(program).graph) for program in programs)

    def _run_branch(self, engine: Engine, number: int, branch: Program) -> None:
        """Run one model of a fused executable; the inputs of the others are zeros."""
        feeds = dict(next(iter_made_up(read_static(branch), branch.inputs, branch.batch_size)))
        feeds[self.main.selector] = np.array(number)
        missing = {s.tensor: np.zeros(s.shape) for s in self.inputs if s.tensor not in feeds}
        engine.compute(MAIN_PROGRAM, self._rows_of(feeds | missing))

    def _run_whole(self, engine: Engine, model: onnx.ModelProto) -> tuple[Iterator[Feeds], Batch]:
        """Run the whole batch on the first inputs that the model accepts; return the remaining
        inputs and the batch."""
        refusals: list[RunError] = []
        for batches in self._iter_sources(model):
            try:
                return batches, Batch.of(_compute_with(engine), self._rows_of(next(batches)))
            except RunMemoryError:
                raise
            except RunError as error:
                refusals.append(error)
        # A fault of the model itself is the same for random numbers and for zeros.
        if self.inputs and len(set(map(str, refusals))) > 1:
            raise _ValuesError(str(refusals[0])) from refusals[0]
        raise refusals[0]

    def _iter_sources(self, model: onnx.ModelProto) -> Iterator[Iterator[Feeds]]:
        """Yield inputs of several kinds, in batches."""
        batch = self.main.batch_size
        count = 2 * _DRAWS * max(1, batch)
        yield _vary(iter_made_up(model, self.inputs, batch, count))
        yield iter_made_up(model, self.inputs, batch, count)
        if self.data is not None:
            yield iter_given(self.inputs, self.data, batch)
        yield iter([{stream.tensor: np.zeros(stream.shape) for stream in self.inputs}])

    def _rows_of(self, feeds: Feeds) -> list[Array]:
        """Return the inputs as an engine takes them: in their types, rows along the first axis."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = [
                np.asarray(feeds[stream.tensor]).astype(stream.dtype) for stream in self.inputs
            ]
        if not self.main.batch_size:
            return [value[None] for value in values]
        return [
            np.moveaxis(value, s.batch_axis, 0)
            for s, value in zip(self.inputs, values, strict=True)
        ]

    def _confirm_rows(
        self, engine: Engine, model: onnx.ModelProto, batches: Iterator[Feeds], whole: Batch
    ) -> RowDifference | None:
        """Return the first tensor whose rows differ in each of several draws of inputs."""
        bound, compute = find_bound(model), _compute_with(engine)
        for draw in range(_DRAWS):
            drawn = [self._rows_of(feeds) for feeds in islice(batches, 2 if draw else 1)]
            if len(drawn) <= bool(draw):
                _log.info("rows were not compared: there are inputs for too few batches")
                return None
            *first, others = drawn
            try:
                whole = Batch.of(compute, first[0]) if first else whole
                distances = measure_rows(compute, whole, others)
            except RunMemoryError:
                raise
            except RunError as error:
                _log.info("rows were not compared: the model rejects random values: %s", error)
                return None
            if max(distances, default=0.0) <= bound:
                return None
        difference = self._find_tensor(model, whole.rows, others, bound)
        if difference is not None:
            return difference
        output = self.main.outputs[int(np.argmax(distances))]
        return RowDifference(output.tensor, "", "", max(distances))

    def _find_tensor(
        self, model: onnx.ModelProto, rows: Sequence[Array], others: Sequence[Array], bound: float
    ) -> RowDifference | None:
        """Return the first tensor of the graph whose rows differ; None where none is found."""
        weights = _find_weights(self.compiled)
        shapes = {stream.tensor: stream.shape for stream in self.main.streams}
        for value in model.graph.output:
            set_shape(value, shapes[value.name])
        axes = {stream.tensor: stream.batch_axis for stream in self.inputs}
        graph, places = trace_rows(model, self.main.batch_size, axes, weights)
        side = Side(graph, weights, self.compiled.executable.numerics)
        makers = {name: node for node in graph.graph.node for name in node.output if name in places}
        names = list(makers)
        for first in range(0, len(names), _TENSORS_AT_ONCE):
            chunk = names[first : first + _TENSORS_AT_ONCE]
            compute = self._compute_tensors(side, {name: places[name] for name in chunk})
            distances = measure_rows(compute, Batch.of(compute, rows), others)
            for name, distance in zip(chunk, distances, strict=True):
                if distance > bound:
                    return RowDifference(name, makers[name].name, makers[name].op_type, distance)
        return None

    def _compute_tensors(self, side: Side, axes: Mapping[str, int]) -> Compute:
        """Return a function that computes tensors inside a graph; rows lie along `axes`."""

        def compute(values: Sequence[Array]) -> list[Array]:
            pairs = zip(self.inputs, values, strict=True)
            feeds = {s.tensor: np.moveaxis(value, 0, s.batch_axis) for s, value in pairs}
            tensors = side.answer(feeds, list(axes))
            return [np.moveaxis(tensors[name], axis, 0) for name, axis in axes.items()]

        return compute


def _compute_with(engine: Engine) -> Compute:
    return lambda values: engine.compute(MAIN_PROGRAM, values)


def _deliver(value: Array) -> Callable[[int], Array]:
    return lambda _most: value[None]


def _vary(batches: Iterator[Feeds]) -> Iterator[dict[str, Array]]:
    """Replace integers that are the same in all rows: such rows could not be told apart."""
    random = np.random.default_rng(0)
    for batch in batches:
        varied = dict(batch)
        for name, value in batch.items():
            if value.dtype.kind in "iu" and value.size and (value == value.flat[0]).all():
                varied[name] = random.integers(0, _SMALL_NUMBERS, value.shape).astype(value.dtype)
        yield varied
