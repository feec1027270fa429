"""Compilation of a prepared graph.

Steps: plan the graph, prove its rows independent, run the calibration of half precision, build the
executable, and run it once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import simipu
from onnxgraph import keep_outputs
from simipu import (
    CompileError,
    Direction,
    OutOfMemoryError,
    Program,
    ProgramKind,
)
from simipu.cost import CostOptions, Estimate
from simipu.errors import LoadTimeoutError
from simipu.executable import Constant
from simipu.numerics import Numerics
from simipu.numerics.quarter import QUARTERS
from simipu.placement import strip_placement
from simipu.rows import note_dependence
from simipu.target import Target

from popef._tools.arrays import Array
from poprt.calibration import Findings, Side, calibrate
from poprt.compile.dry_run import RowDifference, dry_run
from poprt.compile.executable import (
    LOAD_PROGRAM,
    MAIN_PROGRAM,
    Executable,
    make_main,
    make_metadata,
)
from poprt.frontend.frontends import make_streams, weight_stream
from poprt.options import CompilerOptions
from poprt.passes.chip.transfers import MIN_IO_TILES
from poprt.passes.precision.floats import FloatToHalf
from poprt.pipeline import Step, estimate
from poprt.rewrite.weights import MIN_CONSTANT_BYTES, extract_weights

_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """Inputs of the calibration run, apart from the model in half."""

    float_model: onnx.ModelProto | None
    outputs: Collection[str] | None
    data: Mapping[str, Array] | None

    def run(self, half: Side, main: Program) -> Findings:
        """Compare `half`, whose program is `main`, with the model in float."""
        inputs = [stream for stream in main.streams if stream.direction is Direction.HOST_TO_DEVICE]
        try:
            if self.float_model is None:
                return calibrate(half, None, inputs, main.batch_size, self.data)
            whole = self._split(self.float_model, None)
            in_quarters = any(
                tensor.data_type in QUARTERS for tensor in half.model.graph.initializer
            )
            renarrow = None if in_quarters else lambda types: self._narrow(half, types)
            return calibrate(half, whole, inputs, main.batch_size, self.data, renarrow)
        except LoadTimeoutError as error:
            raise _not_ready(error) from error

    def _split(self, model: onnx.ModelProto, numerics: Numerics | None) -> Side:
        light, weights = extract_weights(model, MIN_CONSTANT_BYTES)
        if self.outputs is not None:
            keep_outputs(light.graph, self.outputs)
        return Side(light, weights, numerics)

    def _narrow(self, half: Side, types: Collection[str]) -> Side:
        """Return the model in half with operators of those types kept in float."""
        assert self.float_model is not None
        model = onnx.ModelProto()
        model.CopyFrom(self.float_model)
        return self._split(FloatToHalf(types).run(model), half.numerics)


@dataclass(frozen=True, slots=True)
class Planned:
    """Planned model that is proven to run: what an executable is built from."""

    main: Program
    weights: Mapping[str, Array]
    cost: Estimate
    findings: Findings


def compile_model(
    model: onnx.ModelProto,
    given: Mapping[str, Array],
    target: Target,
    options: CompilerOptions,
    batch_axis: int,
    calibration: CalibrationRun,
    on_step: Callable[[str], None],
) -> Executable:
    """Return the executable of a graph that the passes of `pipeline.preparation` have processed.

    `given` has the values of the initializers that the graph holds without data. Raises
    CompileError.
    """
    cost = estimate_model(model, target, options, on_step)
    check_memory(cost, options)
    planned = plan_model(model, given, cost, options, batch_axis, calibration, on_step)
    on_step(Step.BUILD.value)
    compiled = build(planned.main, planned.weights, target, options, planned.findings)
    difference = confirm(compiled, calibration, options, on_step)
    if difference is None:
        return compiled
    reason = f"in the dry run {difference.describe()}"
    _log.warning(
        "the rows of a batch depend on each other: %s. The compiled batch is always computed whole "
        "(max_batch_size 0)",
        reason,
    )
    _log.warning(
        "a row rule is wrong: it says that the rows of tensor %r (operator %s) are independent; "
        "please report it with the model",
        difference.tensor,
        difference.op_type or "unknown",
    )
    note_dependence(model, reason)
    main, weights = make_main_program(model, given, cost, batch_axis)
    compiled = build(main, weights, target, options, planned.findings)
    confirm(compiled, calibration, options, on_step)
    return compiled


def confirm(
    compiled: Executable,
    calibration: CalibrationRun,
    options: CompilerOptions,
    on_step: Callable[[str], None],
) -> RowDifference | None:
    """Load and run an executable, unless the options skip that; see `dry_run`.

    Raises CompileError.
    """
    if options.skip_dry_run:
        return None
    on_step(Step.DRY_RUN.value)
    try:
        return dry_run(compiled, calibration.data)
    except LoadTimeoutError as error:
        raise _not_ready(error) from error


def estimate_model(
    model: onnx.ModelProto, target: Target, options: CompilerOptions, on_step: Callable[[str], None]
) -> Estimate:
    """Return the estimated cost of a prepared graph.

    Raises CompileError if options do not fit chip or graph.
    """
    if options.num_io_tiles >= target.tiles_per_ipu:
        raise CompileError(
            f"compiler option num_io_tiles must be below the {target.tiles_per_ipu} tiles of "
            f"{target.name}, found {options.num_io_tiles}"
        )
    if options.num_io_tiles and (options.num_io_tiles < MIN_IO_TILES or options.num_io_tiles % 2):
        raise CompileError(
            f"compiler option num_io_tiles must be 0, or even and at least {MIN_IO_TILES} as "
            f"PopART wants them, found {options.num_io_tiles}"
        )
    on_step(Step.ESTIMATE.value)
    cost = estimate(model, target, cost_options(options))
    if options.enable_pipelining and options.batches_per_step % cost.num_stages:
        raise CompileError(
            f"compiler option batches_per_step must be a multiple of the {cost.num_stages} stages "
            f"of the pipeline, found {options.batches_per_step}"
        )
    return cost


def plan_model(
    model: onnx.ModelProto,
    given: Mapping[str, Array],
    cost: Estimate,
    options: CompilerOptions,
    batch_axis: int,
    calibration: CalibrationRun,
    on_step: Callable[[str], None],
) -> Planned:
    """Return the planned model of a prepared graph that was estimated; remove its IPUs and stages
    in place.

    Raises CompileError.
    """
    strip_placement(model.graph)
    on_step(Step.ROWS.value)
    main, weights = make_main_program(model, given, cost, batch_axis)
    if main.row_dependence:
        _log.info("the compiled batch is always computed whole: %s", main.row_dependence)
    on_step(Step.CALIBRATE.value)
    findings = calibration.run(Side(model, given, options.numerics().quiet()), main)
    return Planned(main, weights, cost, findings)


def make_main_program(
    model: onnx.ModelProto,
    given: Mapping[str, Array],
    cost: Estimate,
    batch_axis: int,
) -> tuple[Program, dict[str, Array]]:
    """Return the MAIN program and the weights that it takes."""
    main, graph = make_main(
        MAIN_PROGRAM,
        model,
        make_streams(model.graph),
        cost,
        batch_axis=batch_axis,
        weights=given,
    )
    weights = {
        tensor.name: given[tensor.name]
        for tensor in graph.graph.initializer
        if tensor.name in given
    }
    return main, weights


def build(
    main: Program,
    weights: Mapping[str, Array],
    target: Target,
    options: CompilerOptions,
    findings: Findings,
) -> Executable:
    """Return the executable of a MAIN program.

    Weights become constants, or the LOAD program streams them.
    """
    streamed = {} if options.constant_weights else weights
    constants = {} if streamed else weights
    load = Program(
        LOAD_PROGRAM,
        "load_program",
        ProgramKind.LOAD,
        tuple(weight_stream(name, value) for name, value in streamed.items()),
    )
    graphs = [branch.graph for branch in main.branches] or [main.graph]
    executable = simipu.SimulatedExecutable(
        _hash_name(graphs, weights, options),
        target,
        (load, main),
        compile_options=options.changed(),
        constants=tuple(Constant.of(name, value) for name, value in constants.items()),
        numerics=options.numerics(),
    )
    return Executable.of(
        executable, make_metadata(executable, options), streamed, options.opaque_blobs, findings
    )


def _not_ready(error: LoadTimeoutError) -> CompileError:
    return CompileError(
        f"the model would not be ready to serve in time: {error}; in half, partials_type=float has "
        "fewer nodes to make ready, and fp32 the fewest"
    )


def check_memory(cost: Estimate, options: CompilerOptions) -> None:
    """Raise OutOfMemoryError if a tile's memory is too small, unless options allow that."""
    if cost.fits:
        return
    fullest = cost.fullest
    tile = cost.ipus.index(fullest) * cost.target.tiles_per_ipu
    if fullest.peak_tile_bytes > cost.target.bytes_per_tile:
        parts = ", ".join(f"{name} {size}" for name, size in fullest.by_memory().items() if size)
        what = f"{parts}; fullest at node {cost.peak.node if cost.peak else ''!r}"
        way = "a smaller batch, fp16, a smaller available_memory_proportion"
    else:
        # I/O tiles are numbered after the compute tiles.
        tile += cost.compute_tiles // cost.target.num_ipus
        what = f"the next inputs and the last outputs, on {options.num_io_tiles} I/O tiles"
        way = "more num_io_tiles, a smaller batch, narrower inputs"
    text = (
        "Out of memory: Cannot fit all variable data onto one or more tiles. Out of memory on tile "
        f"{tile}: {fullest.fullest_tile_bytes} bytes used but tiles only have "
        f"{cost.target.bytes_per_tile} bytes of memory (modelled; {what})"
    )
    if not options.allow_out_of_memory:
        raise OutOfMemoryError(f"{text}; use {way} or allow_out_of_memory")
    _log.warning("%s; compiled all the same, as allow_out_of_memory asks", text)


def _hash_name(
    graphs: Sequence[bytes], weights: Mapping[str, Array], options: CompilerOptions
) -> str:
    """Return the executable's name: a decimal hash of all inputs of the compilation.

    PopART uses its IR hash instead.
    """
    digest = hashlib.sha256()
    for graph in graphs:
        digest.update(graph)
    for value in weights.values():
        digest.update(np.ascontiguousarray(value).data)
    digest.update(repr(options.changed()).encode())
    return str(int.from_bytes(digest.digest()[:8], "little"))


def cost_options(options: CompilerOptions) -> CostOptions:
    """Return the compiler options that time and memory depend on."""
    shared = {entry.name for entry in dataclasses.fields(CostOptions)} & {
        entry.name for entry in dataclasses.fields(options)
    }
    values = {name: getattr(options, name) for name in shared}
    return CostOptions(
        **{**values, "virtual_graph_split_ratios": tuple(options.virtual_graph_split_ratios)}
    )
