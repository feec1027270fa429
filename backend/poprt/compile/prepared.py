"""Compilation of prepared graphs.

Steps: plan the graph, prove its rows independent, run the calibration of half precision, build the
executable, and run it once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import onnx
from onnxgraph import keep_outputs
from simipu import (
    CompileError,
    Constant,
    Direction,
    LoadTimeoutError,
    OutOfMemoryError,
    Program,
    ProgramKind,
    SimulatedExecutable,
    Stream,
    Target,
)
from simipu.cost import CostOptions, Estimate, describe_spread, iter_printed
from simipu.numerics import QUARTERS, Numerics
from simipu.placement import strip_placement
from simipu.rows import note_dependence

from popef._tools.arrays import Array
from poprt.calibration import Findings, Side, calibrate
from poprt.calibration.sides import Renarrow
from poprt.compile.dry_run import RowDifference, dry_run
from poprt.compile.executable import (
    LOAD_PROGRAM,
    MAIN_PROGRAM,
    Executable,
    make_main,
    make_metadata,
)
from poprt.frontend.frontends import make_streams
from poprt.options import CompilerOptions
from poprt.passes.chip.transfers import MIN_IO_TILES
from poprt.passes.precision.floats import FloatToHalf
from poprt.pipeline import Step, estimate
from poprt.rewrite.weights import MIN_CONSTANT_BYTES, extract_weights

_log = logging.getLogger("poprt")

Plan = tuple[Program, Mapping[str, Array], Findings]
"""MAIN program that is proven to run, its weights, and what the calibration run found."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """Settings of a compilation, with its steps.

    The passes of `pipeline.preparation` must have processed each graph. All steps raise
    CompileError.
    """

    given: Mapping[str, Array]
    """Values of the initializers that the graphs hold without data."""
    target: Target
    options: CompilerOptions
    batch_axis: int
    on_step: Callable[[str], None]
    outputs: Collection[str] | None
    """Outputs that `float_model` keeps; None keeps all."""
    float_model: onnx.ModelProto | None
    """Model in float for the calibration run; None means the model itself without rounding."""
    data: Mapping[str, Array] | None
    """Rows by input name; None means random inputs."""

    def compile(self, model: onnx.ModelProto) -> Executable:
        """Return the executable of a graph."""
        cost = self.estimate(model)
        check_memory(cost, self.options)
        main, weights, findings = self.plan(model, cost)
        compiled = self.build(main, weights, findings)
        difference = self.confirm(compiled)
        if difference is None:
            return compiled
        reason = f"in the dry run {difference.describe()}"
        _log.warning(
            "the rows of a batch depend on each other: %s. The compiled batch is always computed "
            "whole (max_batch_size 0)",
            reason,
        )
        _log.warning(
            "a row rule is wrong: it says that the rows of tensor %r (operator %s) are "
            "independent; please report it with the model",
            difference.tensor,
            difference.op_type or "unknown",
        )
        note_dependence(model, reason)
        main, weights = self._make_program(model, cost)
        compiled = self.build(main, weights, findings)
        self.confirm(compiled)
        return compiled

    def estimate(self, model: onnx.ModelProto) -> Estimate:
        """Return the estimated cost of a graph; check the options against chip and graph."""
        options = self.options
        num_io_tiles, tiles = options.num_io_tiles, self.target.tiles_per_ipu
        if num_io_tiles >= tiles:
            raise CompileError(
                f"compiler option num_io_tiles: expected less than the {tiles} tiles of "
                f"{self.target.label}, found {num_io_tiles}"
            )
        if num_io_tiles and (num_io_tiles < MIN_IO_TILES or num_io_tiles % 2):
            raise CompileError(
                f"compiler option num_io_tiles: expected 0, or an even number of at least "
                f"{MIN_IO_TILES} as PopART requires, found {num_io_tiles}"
            )
        self.on_step(Step.ESTIMATE.value)
        cost = estimate(model, self.target, cost_options(options))
        if options.enable_pipelining and options.batches_per_step % cost.num_stages:
            raise CompileError(
                f"compiler option batches_per_step: expected a multiple of the {cost.num_stages} "
                f"stages of the pipeline, found {options.batches_per_step}"
            )
        if any(iter_printed(model.graph)):
            _log_mapping(cost)
        return cost

    def plan(self, model: onnx.ModelProto, cost: Estimate) -> Plan:
        """Return the plan of an estimated graph; remove its IPUs and stages in place."""
        strip_placement(model.graph)
        self.on_step(Step.ROWS.value)
        main, weights = self._make_program(model, cost)
        if main.row_dependence:
            _log.info("the compiled batch is always computed whole: %s", main.row_dependence)
        self.on_step(Step.CALIBRATE.value)
        half = Side(model, self.given, self.options.numerics().quiet())
        return main, weights, self._calibrate(half, main)

    def build(self, main: Program, weights: Mapping[str, Array], findings: Findings) -> Executable:
        """Return the executable of a MAIN program.

        Weights become constants, or the LOAD program streams them.
        """
        options = self.options
        streamed, constants = ({}, weights) if options.constant_weights else (weights, {})
        streams = tuple(
            Stream(f"h2d_{name}", name, Direction.HOST_TO_DEVICE, value.dtype, value.shape)
            for name, value in streamed.items()
        )
        graphs = [branch.graph for branch in main.branches] or [main.graph]
        executable = SimulatedExecutable(
            _hash_name(graphs, weights, options),
            self.target,
            (Program(LOAD_PROGRAM, "load_program", ProgramKind.LOAD, streams), main),
            compile_options=options.changed(),
            constants=tuple(Constant.of(name, value) for name, value in constants.items()),
            numerics=options.numerics(),
        )
        metadata = make_metadata(executable, options)
        return Executable.of(executable, metadata, streamed, options.opaque_blobs, findings)

    def confirm(self, compiled: Executable) -> RowDifference | None:
        """Load and run an executable, unless the options skip that; see `dry_run`."""
        if self.options.skip_dry_run:
            return None
        self.on_step(Step.DRY_RUN.value)
        try:
            return dry_run(compiled, self.data)
        except LoadTimeoutError as error:
            raise _not_ready(error) from error

    def _make_program(
        self, model: onnx.ModelProto, cost: Estimate
    ) -> tuple[Program, dict[str, Array]]:
        """Return the MAIN program and the weights that it takes."""
        streams = make_streams(model.graph)
        main, graph = make_main(MAIN_PROGRAM, model, streams, cost, self.batch_axis, self.given)
        names = [tensor.name for tensor in graph.graph.initializer if tensor.name in self.given]
        return main, {name: self.given[name] for name in names}

    def _calibrate(self, half: Side, main: Program) -> Findings:
        """Compare `half`, whose program is `main`, with the model in float."""
        inputs = [stream for stream in main.streams if stream.direction is Direction.HOST_TO_DEVICE]
        whole: Side | None = None
        renarrow: Renarrow | None = None
        if self.float_model is not None:
            whole = self._split(self.float_model, None)
            if all(tensor.data_type not in QUARTERS for tensor in half.model.graph.initializer):
                renarrow = partial(self._narrow, half)
        try:
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
        return self._split(FloatToHalf(types).run(deepcopy(self.float_model)), half.numerics)


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
    _log.warning("%s; compiled nevertheless because of allow_out_of_memory", text)


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
    shared = {field.name for field in fields(CostOptions)} & {
        field.name for field in fields(options)
    }
    values = {name: getattr(options, name) for name in shared}
    values["virtual_graph_split_ratios"] = tuple(options.virtual_graph_split_ratios)
    return CostOptions(**values)


def _log_mapping(cost: Estimate) -> None:
    """Log the tiles of the tensors that PrintTileMapping operators read."""
    for variable in cost.variables:
        if variable.is_printed:
            _log.info(
                "tile mapping of %r, modelled (%s), tiles x elements: %s",
                variable.name,
                variable.source.value,
                describe_spread(variable.spread),
            )
