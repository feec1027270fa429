"""Compilation of a fused model: its models are compiled separately into one executable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxgraph import find_inputs
from simipu import CompileError, Direction, Program, ProgramKind, Stream
from simipu.cost import Estimate, IpuCost
from simipu.operators.formulas.code import Code
from simipu.target import Target

import popef
from poprt.calibration import Findings
from poprt.compile.executable import Executable
from poprt.compile.fusion import split_models
from poprt.compile.prepared import CalibrationRun, build, check_memory, confirm, estimate_model, plan_model
from poprt.options import CompilerOptions
from poprt.pipeline import Step


def check_fusion(
    models: Sequence[onnx.ModelProto], outputs: Collection[str] | None, options: CompilerOptions
) -> None:
    """Raise CompileError if options require a fused model and this is none, or keep only some
    outputs of one."""
    if options.enable_model_fusion and not models:
        raise CompileError(
            "compiler option enable_model_fusion: the model is no fused one; fuse models with "
            "poprt.compile.converter.MFConverter first"
        )
    if (
        models
        and outputs is not None
        and set(outputs) != {value.name for model in models for value in model.graph.output}
    ):
        raise CompileError(
            "a fused model is compiled with all its outputs: give None for outputs; drop those that nobody "
            "needs from its models before they are fused"
        )


def compile_fused(
    models: Sequence[onnx.ModelProto],
    given: Mapping[str, npt.NDArray[Any]],
    target: Target,
    options: CompilerOptions,
    batch_axis: int,
    calibration: CalibrationRun,
    on_step: Callable[[str], None],
) -> Executable:
    """Return the executable of the models of a fused one; otherwise like `compile_model`.

    The passes of `pipeline.preparation` must have processed each model. A tile holds the weights,
    the code and the streams of all models, and the live tensors of the model that runs.
    """
    costs = [estimate_model(model, target, options, on_step) for model in models]
    check_memory(_fuse_costs(costs), options)
    planned = [
        plan_model(model, given, cost, options, batch_axis, run, on_step)
        for model, cost, run in zip(models, costs, _split_run(calibration, models), strict=True)
    ]
    on_step(Step.BUILD.value)
    weights = {name: value for each in planned for name, value in each.weights.items()}
    program = _fuse_programs([each.main for each in planned])
    compiled = build(program, weights, target, options, Findings())
    confirm(compiled, CalibrationRun(None, None, None), options, on_step)
    return compiled


def _split_run(calibration: CalibrationRun, models: Sequence[onnx.ModelProto]) -> list[CalibrationRun]:
    """Return the calibration run of each model.

    The model in float is fused like the model in half.
    """
    whole = calibration.float_model
    floats = split_models(whole) if whole is not None else [None] * len(models)
    runs = []
    for model, float_model in zip(models, floats, strict=True):
        inputs = {value.name for value in find_inputs(model.graph)}
        data = {name: rows for name, rows in (calibration.data or {}).items() if name in inputs}
        runs.append(CalibrationRun(float_model, None, data or None))
    return runs


def _fuse_costs(costs: Sequence[Estimate]) -> Estimate:
    """Return the memory cost of all models together, with the live tensors of the model that has
    most of them."""
    fullest = max(costs, key=lambda cost: max(ipu.live_bytes for ipu in cost.ipus))
    ipus = []
    for mine in zip(*(cost.ipus for cost in costs), strict=True):
        ipus.append(
            IpuCost(
                cycles=max(ipu.cycles for ipu in mine),
                weight_bytes=sum(ipu.weight_bytes for ipu in mine),
                code=sum((ipu.code for ipu in mine), Code()),
                handed_bytes=sum(ipu.handed_bytes for ipu in mine),
                live_bytes=max(ipu.live_bytes for ipu in mine),
                io_tile_bytes=max(ipu.io_tile_bytes for ipu in mine),
            )
        )
    return replace(fullest, ipus=tuple(ipus))


def _fuse_programs(programs: Sequence[Program]) -> Program:
    """Return a MAIN program; each run executes one of `programs`, which are MAIN programs."""
    selector = Stream(f"h2d_{popef.INDEX}", popef.INDEX, Direction.HOST_TO_DEVICE, np.dtype(np.int32), ())
    dearest = max(programs, key=lambda program: program.cycles)
    streams = [stream for program in programs for stream in program.streams]
    return replace(
        dearest,
        name="main_program",
        kind=ProgramKind.MAIN,
        streams=(
            selector,
            *(stream for stream in streams if stream.direction is Direction.HOST_TO_DEVICE),
            *(stream for stream in streams if stream.direction is Direction.DEVICE_TO_HOST),
        ),
        graph=b"",
        row_independent=False,
        row_dependence="each request is one of a single one of its models",
        branches=tuple(programs),
        selector=popef.INDEX,
    )
