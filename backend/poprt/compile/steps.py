"""The steps of a compilation, in their order, over one value.

Each step completes `Compilation` and calls no other. A fused model has several members, which go
through the first steps side by side and become one executable.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields

import numpy as np
import onnx
from onnxgraph import find_inputs, has_types, keep_outputs
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
from simipu.chip.placement import strip_placement
from simipu.cost import CostOptions, Estimate, describe_spread, iter_printed
from simipu.numerics import QUARTERS, Numerics
from simipu.rows import note_dependence

from popef._tools.arrays import Array
from poprt import pipeline
from poprt.comparing import Findings, Side
from poprt.compile.dry_run import RowDifference, dry_run
from poprt.compile.executable import (
    LOAD_PROGRAM,
    MAIN_PROGRAM,
    Executable,
    make_main,
    make_metadata,
)
from poprt.compile.model_fusion import fuse_costs, fuse_programs
from poprt.frontend.frontends import make_streams
from poprt.options import CompilerOptions
from poprt.passes.chip.transfers import MIN_IO_TILES
from poprt.passes.precision.floats import FloatToHalf

_log = logging.getLogger("poprt")


@dataclass(slots=True)
class Member:
    """One model of a compilation; a fused model has several."""

    model: onnx.ModelProto
    float_model: onnx.ModelProto | None = None
    """Model in float for the calibration run; None means the model itself without rounding."""
    cost: Estimate = field(init=False)
    program: Program = field(init=False)
    """MAIN program that computes this member alone."""
    weights: Mapping[str, Array] = field(init=False)
    """Values of the initializers that the program's graph holds without data."""
    findings: Findings = field(init=False)
    """Results of the calibration run."""


@dataclass(slots=True)
class Compilation:
    """Models that are compiled into one executable, with what the steps have found so far."""

    options: CompilerOptions
    outputs: Collection[str] | None
    """Outputs that the executable has; None keeps all."""
    batch_axis: int
    data: Mapping[str, Array] | None
    """Rows by input name; None means random inputs."""
    weights: Mapping[str, Array]
    """Values of the initializers that the models hold without data."""
    members: Sequence[Member]
    is_fused: bool
    target: Target = field(init=False)
    executable: Executable = field(init=False)

    def __post_init__(self) -> None:
        self.target = self.options.target()

    def data_of(self, member: Member) -> Mapping[str, Array] | None:
        """Return the rows of the inputs of a member."""
        if self.data is None or not self.is_fused:
            return self.data
        inputs = {value.name for value in find_inputs(member.model.graph)}
        return {name: rows for name, rows in self.data.items() if name in inputs} or None


def estimate_costs(compilation: Compilation) -> None:
    """Estimate each member; check the options against chip and graph, and the memory."""
    options, target = compilation.options, compilation.target
    _check_io_tiles(options.num_io_tiles, target)
    for member in compilation.members:
        member.cost = cost = pipeline.estimate(member.model, target, cost_options(options))
        if options.enable_pipelining and options.batches_per_step % cost.num_stages:
            raise CompileError(
                f"compiler option batches_per_step: expected a multiple of the {cost.num_stages} "
                f"stages of the pipeline, found {options.batches_per_step}"
            )
        if any(iter_printed(member.model.graph)):
            _log_mapping(cost)
    costs = [member.cost for member in compilation.members]
    check_memory(fuse_costs(costs) if compilation.is_fused else costs[0], options)


def prove_rows(compilation: Compilation) -> None:
    """Make each member's program, of any number of rows if they are proven independent. Removes
    its IPUs and stages in place: only the estimate reads them."""
    for member in compilation.members:
        strip_placement(member.model.graph)
        _make_program(compilation, member)
        if member.program.row_dependence:
            _log.info(
                "the compiled batch is always computed whole: %s", member.program.row_dependence
            )


def compare_with_float(compilation: Compilation) -> None:
    """Compare each member in half with the same in float."""
    for member in compilation.members:
        member.findings = _calibrate(compilation, member)


def build(compilation: Compilation) -> None:
    """Make the executable. Weights become constants, or the LOAD program streams them."""
    options, members = compilation.options, compilation.members
    programs = [member.program for member in members]
    main = fuse_programs(programs) if compilation.is_fused else programs[0]
    weights = {name: value for member in members for name, value in member.weights.items()}
    streamed, constants = ({}, weights) if options.constant_weights else (weights, {})
    streams = tuple(
        Stream(f"h2d_{name}", name, Direction.HOST_TO_DEVICE, value.dtype, value.shape)
        for name, value in streamed.items()
    )
    executable = SimulatedExecutable(
        _hash_name([program.graph for program in programs], weights, options),
        compilation.target,
        (Program(LOAD_PROGRAM, "load_program", ProgramKind.LOAD, streams), main),
        compile_options=options.changed(),
        constants=tuple(Constant.of(name, value) for name, value in constants.items()),
        numerics=options.numerics(),
    )
    # A fused model has a comparison for each member, which only the warnings tell.
    findings = Findings() if compilation.is_fused else members[0].findings
    compilation.executable = Executable.of(
        executable, make_metadata(executable, options), streamed, options.opaque_blobs, findings
    )


def confirm(compilation: Compilation) -> None:
    """Load and run the executable; build it anew if rows that are proven independent are not."""
    difference = _dry_run(compilation)
    if difference is None:
        return
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
    (member,) = compilation.members  # the rows of a fused program are never independent
    note_dependence(member.model, reason)
    _make_program(compilation, member)
    build(compilation)
    _dry_run(compilation)


STEPS: Mapping[str, Callable[[Compilation], None]] = {
    "plan operators": estimate_costs,
    "prove rows independent": prove_rows,
    "run once in half": compare_with_float,
    "build executable": build,
    "load and run once": confirm,
}
"""Steps after the passes, in order, by the names that a progress bar shows. None of them rewrites a
graph, and all raise CompileError.

The estimate reads the IPUs of nodes, which the next step removes. The calibration needs the inputs
of a program. The dry run loads what a file would hold."""


def take_steps(compilation: Compilation, on_step: Callable[[str], None]) -> Executable:
    """Prepare the members and take all steps; return the executable. `on_step` is called with the
    name of each pass and step."""
    options = pipeline.PreparationOptions(
        compilation.outputs, compilation.options.only_ipu_operators
    )
    for member in compilation.members:
        member.model = pipeline.prepare(member.model, options, on_step)
    for title, step in STEPS.items():
        on_step(title)
        step(compilation)
    return compilation.executable


def _check_io_tiles(num_io_tiles: int, target: Target) -> None:
    if num_io_tiles >= target.tiles_per_ipu:
        raise CompileError(
            f"compiler option num_io_tiles: expected less than the {target.tiles_per_ipu} tiles of "
            f"{target.label}, found {num_io_tiles}"
        )
    if num_io_tiles and (num_io_tiles < MIN_IO_TILES or num_io_tiles % 2):
        raise CompileError(
            f"compiler option num_io_tiles: expected 0, or an even number of at least "
            f"{MIN_IO_TILES} as PopART requires, found {num_io_tiles}"
        )


def _make_program(compilation: Compilation, member: Member) -> None:
    """Make the MAIN program of a member, and take the weights that it needs."""
    streams, values = make_streams(member.model.graph), compilation.weights
    member.program, graph = make_main(
        MAIN_PROGRAM, member.model, streams, member.cost, compilation.batch_axis, values
    )
    names = [tensor.name for tensor in graph.graph.initializer if tensor.name in values]
    member.weights = {name: values[name] for name in names}


_HALVES = frozenset((onnx.TensorProto.FLOAT16,))


def _calibrate(compilation: Compilation, member: Member) -> Findings:
    if not has_types(member.model.graph, _HALVES):
        return Findings()
    # Imported here: a model in float does without it.
    from poprt.comparing import calibrate

    half = Side(member.model, compilation.weights, compilation.options.numerics().quiet())
    outputs = None if compilation.is_fused else compilation.outputs
    float_model = member.float_model

    def narrow(types: Collection[str]) -> Side:
        """Return the model in half with operators of those types kept in float."""
        assert float_model is not None
        narrowed = FloatToHalf(types).run(deepcopy(float_model))
        return _split(narrowed, outputs, half.numerics)

    float_side = None if float_model is None else _split(float_model, outputs, None)
    can_narrow = float_side is not None and all(
        tensor.data_type not in QUARTERS for tensor in member.model.graph.initializer
    )
    try:
        return calibrate(
            half,
            float_side,
            member.program.inputs,
            member.program.batch_size,
            compilation.data_of(member),
            narrow if can_narrow else None,
        )
    except LoadTimeoutError as error:
        raise _not_ready(error) from error


def _split(
    model: onnx.ModelProto, outputs: Collection[str] | None, numerics: Numerics | None
) -> Side:
    side = Side.of(model, numerics)
    if outputs is not None:
        keep_outputs(side.model.graph, outputs)
    return side


def _dry_run(compilation: Compilation) -> RowDifference | None:
    if compilation.options.skip_dry_run:
        return None
    try:
        return dry_run(compilation.executable, compilation.data)
    except LoadTimeoutError as error:
        raise _not_ready(error) from error


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
