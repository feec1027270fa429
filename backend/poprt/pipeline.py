"""From options to passes: the only place that knows which passes run, and in which order.

A model is *given*, as it was exported; *converted*, after the passes of `conversion`: what `Converter` gives
and scripts look at; *placed*, after those of `lowering`: what the chip would run, on which time and memory
are counted; and *computed*: what ONNX Runtime runs on the CPU, where rounding is made explicit
(`simipu.numerics`). Each is made of the one before by passes; nothing else rewrites a graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import onnx
from onnxgraph import find_opset, infer_shapes
from simipu import Target, cost
from simipu.cost import CALIBRATION, Calibration, CostOptions, Estimate
from simipu.numerics.lowering import OLDEST_OPSET

from poprt.options import ConverterOptions
from poprt.passes import Pass, PassManager, find_pass
from poprt.passes.precision import is_half

CONVERSION = (
    "check_operators",
    "admit",
    "convert_version",
    "limit_ir_version",
    "remove_outputs",
    "fix_inputs",
    "const_input_shape",
    "half_to_float",
    "eliminate_nop_if",
    "check_constants",
    "constant_folding",
    "name_nodes",
    "int64_to_int32",
    "float_to_half",
    "float_to_fp8",
    "check_static",
)
"""From the given graph to the converted one; those run that the options and the registry say."""
PREPARATION = (
    "admit",
    "keep_outputs",
    "forget_declared_shapes",
    "check_static",
    "name_nodes",
    "check_ipu_operators",
    "check_demand",
    "declare_outputs",
)
"""What the compiler does first, always: a converted graph may come from elsewhere, or be converted by no
one."""

LOWERING = ("take_quarters", "place_nodes", "insert_copies")
"""From the converted graph to the placed one; those run that the chip and its number ask for."""


class Step(str, Enum):
    """What the compiler does after its passes, in order; none of it rewrites a graph."""

    ESTIMATE = "plan operators"
    ROWS = "prove rows independent"
    CALIBRATE = "run once in half"
    BUILD = "build executable"


@dataclass(frozen=True, slots=True)
class PreparationOptions:
    """What the compiler is asked for that its passes look at."""

    outputs: Collection[str] | None = None
    only_ipu_operators: bool = False


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """What a graph is placed on."""

    target: Target
    options: CostOptions
    calibration: Calibration = CALIBRATION

    @property
    def has_quarters(self) -> bool:
        """Whether the chip multiplies 8-bit operands."""
        return self.target.quarter_macs > 0

    @property
    def shards(self) -> bool:
        """Whether nodes have IPUs to be on."""
        return self.num_ipus > 1 or self.options.virtual_graph_mode == "manual"

    @property
    def num_ipus(self) -> int:
        """Of a replica."""
        return self.options.num_ipus


def conversion(options: ConverterOptions, model: onnx.ModelProto) -> list[Pass]:
    """The passes that convert `model`, in order."""
    settled = _settle(options, model)
    return _make(_find_on(CONVERSION, settled), settled)


def preparation(options: PreparationOptions) -> list[Pass]:
    """The passes that get a converted model ready to be compiled, in order."""
    return _make(PREPARATION, options)


def lowering(options: LoweringOptions) -> list[Pass]:
    """The passes that place a graph, in order."""
    return _make(_find_on(LOWERING, options), options)


def place(
    model: onnx.ModelProto, target: Target, options: CostOptions, calibration: Calibration = CALIBRATION
) -> onnx.ModelProto:
    """The placed graph of a static one, which stays as it is. Shapes are declared, and large weights have no
    data: nothing is computed with it."""
    return PassManager(lowering(LoweringOptions(target, options, calibration))).run(infer_shapes(model))


def estimate(
    model: onnx.ModelProto,
    target: Target,
    options: CostOptions | None = None,
    batch_size: int = 1,
    calibration: Calibration = CALIBRATION,
) -> Estimate:
    """What one run of a static graph takes on `target`, placed there; `batch_size` samples are in a run.

    `options.num_ipus` counts the chips, not `target`. Raises CompileError for a node with a tensor whose
    shape is not known.
    """
    options = options or CostOptions()
    placed = place(model, target, options, calibration)
    return cost.estimate(placed, target, options, batch_size, calibration)


def count_steps(options: ConverterOptions, model: onnx.ModelProto, *, compiling: bool) -> int:
    """How many steps converter and, if asked for, compiler announce for `model`."""
    return len(conversion(options, model)) + (len(PREPARATION) + len(Step) if compiling else 0)


def _find_on(order: Sequence[str], options: ConverterOptions | LoweringOptions) -> list[str]:
    return [name for name in order if find_pass(name).info.is_on(options)]


def _make(
    names: Sequence[str], options: ConverterOptions | PreparationOptions | LoweringOptions
) -> list[Pass]:
    passes = []
    for name in names:
        found = find_pass(name)
        arguments = {taken: getattr(options, option) for taken, option in found.info.takes.items()}
        passes.append(found(**arguments))
    return passes


def _settle(options: ConverterOptions, model: onnx.ModelProto) -> ConverterOptions:
    """The options with what the model itself decides: one that is in half throughout stays so, and one in
    half is of the oldest opset whose operators all have a half variant, or of a newer one."""
    precision = "fp16" if options.precision == "fp32" and is_half(model) else options.precision
    version = options.convert_version
    if version is None and precision != "fp32" and find_opset(model, OLDEST_OPSET) < OLDEST_OPSET:
        version = OLDEST_OPSET
    return replace(options, precision=precision, convert_version=version)
