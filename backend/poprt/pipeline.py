"""Passes for given options: this module alone decides which passes run, and in which order.

A graph has four states. Passes turn each into the next; nothing else rewrites a graph.

- given: as it was exported.
- converted: after the passes of `conversion`; `Converter` returns it, and scripts look at it.
- placed: after the passes of `passes.lowering`; the graph that the chip would run. Time and memory
  are counted on it.
- computed: the graph that ONNX Runtime runs on the CPU, where rounding is explicit
  (`simipu.numerics`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import onnx
from onnxgraph import find_opset, infer_shapes
from simipu import CompileError, Target, cost
from simipu.cost import CALIBRATION, Calibration, CostOptions, Estimate
from simipu.numerics import OLDEST_OPSET

from poprt.options import ConverterOptions
from poprt.passes import Pass, PassManager, Stage, find_pass, get_pass
from poprt.passes.precision.floats import has_halves, is_half

CONVERSION = (
    # Admission: check that the model is valid and supported.
    *"spell_domains check_opset inline_custom_operators check_operators admit".split(),
    # Interface: inputs and outputs, their shapes, the opset.
    *(
        "limit_ir_version list_outputs_once sort_graph remove_initializer_from_input "
        "remove_outputs add_checkpoints fix_inputs const_input_shape upgrade_legacy_opset "
        "convert_version settle_bodies settle_defaults settle_layouts settle_slices settle_slopes "
        "settle_windows settle_nothing settle_bits settle_conditions"
    ).split(),
    # Folding: compute constants once, and remove what need not be computed.
    *(
        "half_to_float double_to_float move_subgraph_initializer extract_constant_to_initializer "
        "remove_empty_concat_inputs replace_clip_empty_inputs replace_castlike eliminate_nop_if "
        "check_constants widen_integers check_types replace_group_norm constant_folding "
        "resolve_sequences fill_squeeze_axes widen_batch merge_if_with_same_cond "
        "eliminate_identity eliminate_nop_arithmetic eliminate_nop_where eliminate_nop_expand "
        "eliminate_nop_pad replace_gather_with_reshape fuse_consecutive_cast "
        "fuse_consecutive_reshape fuse_consecutive_squeeze fuse_consecutive_transpose "
        "fuse_consecutive_unsqueeze "
        "eliminate_nop_cast eliminate_nop_flatten eliminate_nop_reshape eliminate_nop_transpose "
        "fuse_bn_into_conv eliminate_duplicate_nodes eliminate_deadend "
        "remove_duplicated_initializer eliminate_unused_initializer unique_name_for_nodes"
    ).split(),
    # Patterns: replace several operators by one, or by a cheaper subgraph.
    *(
        "layer_norm_pattern gelu_pattern erf_gelu_pattern replace_einsum_with_matmul "
        "replace_div_with_mul fold_periodic_initializer merge_matmul merge_matmul_add merge_moe"
    ).split(),
    # Borders: types that the host sends and receives.
    "int64_to_int32",
    # Precision: the types that the chip computes in.
    *"replace_half_reducemean float_to_half eight_bits_io float_to_fp8".split(),
    # Chip: operators of its own compiler.
    *(
        "check_with_fake_data replace_groupnorm_with_fast_norm replace_where_with_wherev2 "
        "compress_pattern packed_transformer serialize_matmul serialize_matmul_add io_precision "
        "apply_host_concat_split"
    ).split(),
    # Custom: passes that the user lists in used_passes run here.
    # Layout.
    "auto_insert_remap",
    # Checks.
    *"check_unsupported_attribute final_check".split(),
)
"""Passes from the given graph to the converted one; the options and the registry decide which of
them run."""
STEPS = (
    (Stage.ADMISSION, "look at the model"),
    (Stage.FOLDING, "fold and clean up"),
    (Stage.BORDERS, "convert types"),
    (Stage.CHIP, "put the chip's operators in"),
    (Stage.CHECKS, "check"),
)
"""The five steps of a conversion that a user sees: the first stage of each, and its description."""
AHEAD = ("constant_folding", "shape_inference")
"""Passes that `infer_shape_ahead` runs before all others that change a model."""
PREPARATION = (
    *(
        "spell_domains inline_custom_operators admit limit_ir_version list_outputs_once "
        "remove_initializer_from_input upgrade_legacy_opset keep_outputs settle_bodies "
        "settle_defaults settle_layouts settle_slices settle_slopes settle_windows "
        "forget_declared_shapes settle_nothing "
        "widen_integers check_chip_operators carry_caches resolve_sequences fold_shapes "
        "check_static unique_name_for_nodes check_ipu_operators check_demand declare_outputs"
    ).split(),
)
"""Passes that the compiler always runs first: a graph may be converted elsewhere, or not at all."""

LOWERING = ("take_quarters", "place_nodes", "insert_copies")
"""Passes from the converted graph to the placed one; the chip and the number of IPUs decide which
of them run."""


@dataclass(frozen=True, slots=True)
class PreparationOptions:
    """Options of the compiler that its passes read."""

    outputs: Collection[str] | None = None
    only_ipu_operators: bool = False


@dataclass(slots=True)
class PlacementOptions:
    """Target of a placed graph, and the options of the estimate."""

    target: Target
    options: CostOptions
    calibration: Calibration = CALIBRATION
    num_ipus: int = field(init=False)
    """Number of IPUs of a replica."""
    has_quarters: bool = field(init=False)
    """Whether the chip multiplies 8-bit operands."""
    shards: bool = field(init=False)
    """Whether nodes are assigned to IPUs."""

    def __post_init__(self) -> None:
        self.num_ipus = self.options.num_ipus
        self.has_quarters = self.target.quarter_macs > 0
        self.shards = self.num_ipus > 1 or self.options.virtual_graph_mode == "manual"


def conversion(options: ConverterOptions, model: onnx.ModelProto) -> list[Pass]:
    """Return the passes that convert `model`, in order."""
    settled = _settle(options, model)
    user_passes = list(map(get_pass, settled.used_passes))
    listed = {graph_pass.name for graph_pass in user_passes}
    own_passes = _make(
        [name for name in _find_on(CONVERSION, settled) if name not in listed], settled
    )
    skipped = _find_skipped(settled.skip_passes)
    early = [graph_pass for graph_pass in own_passes if graph_pass.info.stage <= Stage.CHIP]
    late = own_passes[len(early) :]
    if settled.infer_shape_ahead:
        admitted = sum(graph_pass.info.stage is Stage.ADMISSION for graph_pass in early)
        early[admitted:admitted] = _make(AHEAD, settled)
    passes = [
        graph_pass for graph_pass in (*early, *user_passes, *late) if graph_pass.name not in skipped
    ]
    if any(
        graph_pass.info.against or graph_pass.info.depend or graph_pass.info.before
        for graph_pass in user_passes
    ):
        manager = PassManager(passes)
        manager.sort_passes()
        return manager.get_passes()
    return passes


def _find_skipped(names: Collection[str]) -> Collection[str]:
    """Return the passes to leave out.

    Raises CompileError for a pass that is not registered, and for one without which nothing
    compiles here.
    """
    required = sorted(name for name in names if find_pass(name).info.is_ours)
    if required:
        raise CompileError(
            f"skip_passes: {required[0]!r} is a check or step that every compilation requires; "
            "remove it from the list"
        )
    return names


def prepare(
    model: onnx.ModelProto,
    options: PreparationOptions,
    on_pass: Callable[[str], None] = lambda _name: None,
) -> onnx.ModelProto:
    """Prepare a converted model for the compiler, in place, and return it. `on_pass` is called with
    the name of each pass."""
    return PassManager(_make(PREPARATION, options)).run(model, on_pass)


def lowering(options: PlacementOptions) -> list[Pass]:
    """Return the passes that place a graph, in order."""
    return _make(_find_on(LOWERING, options), options)


def place(
    model: onnx.ModelProto,
    target: Target,
    options: CostOptions,
    calibration: Calibration = CALIBRATION,
) -> onnx.ModelProto:
    """Return the placed graph of a static one, which is not changed.

    Shapes are declared, and large weights have no data: the placed graph is not computed.
    """
    return PassManager(lowering(PlacementOptions(target, options, calibration))).run(
        infer_shapes(model)
    )


def estimate(
    model: onnx.ModelProto,
    target: Target,
    options: CostOptions | None = None,
    batch_size: int = 1,
    calibration: Calibration = CALIBRATION,
) -> Estimate:
    """Return the cost of one run of a static graph, placed on `target`; a run has `batch_size`
    samples.

    `options.num_ipus`, not `target`, sets the number of chips. Raises CompileError for a node with
    a tensor of unknown shape.
    """
    options = options or CostOptions()
    placed = place(model, target, options, calibration)
    return cost.estimate(placed, target, options, batch_size, calibration)


def _find_on(order: Sequence[str], options: ConverterOptions | PlacementOptions) -> list[str]:
    return [name for name in order if find_pass(name).info.is_on(options)]


def _make(
    names: Sequence[str], options: ConverterOptions | PreparationOptions | PlacementOptions
) -> list[Pass]:
    passes = []
    for name in names:
        pass_type = find_pass(name)
        arguments = {
            argument: getattr(options, option) for argument, option in pass_type.info.takes.items()
        }
        passes.append(pass_type(**arguments))
    return passes


def _settle(options: ConverterOptions, model: onnx.ModelProto) -> ConverterOptions:
    """Return the options, completed by what the model itself decides.

    A model that is in half throughout stays in half. A model in half needs at least the oldest
    opset whose operators all have a half variant. A model that is quantised afterwards is in half
    until then.
    """
    stays_half = options.precision == "fp32" and is_half(model)
    precision = "fp16" if stays_half or options.quantize else options.precision
    version = options.convert_version
    narrow = precision != "fp32" or has_halves(model)
    if version is None and narrow and find_opset(model, OLDEST_OPSET) < OLDEST_OPSET:
        version = OLDEST_OPSET
    origin = model if options.check else None
    settled: ConverterOptions = options.copy(
        precision=precision, convert_version=version, origin_model=origin, quantize=False
    )
    return settled
