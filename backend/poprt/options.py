"""ConverterOptions and CompilerOptions: the real tool's names, defaults and spellings.

All facts about an option stand at its field: name, type, default, and how a value is read and
checked. `poprt.cli.option_table` has the options of the command that set these fields.
"""

from __future__ import annotations

import ast
import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import numpy as np
import onnx
from simipu import (
    DEFAULT_CHIP,
    MAX_IPUS,
    MAX_TILES_PER_IPU,
    CompileError,
    LoadError,
    Target,
    find_target,
    known_chips,
)
from simipu.numerics import Numerics

from popef._tools.text import did_you_mean, escape
from poprt._names import IO_PRECISIONS, PRECISIONS
from poprt.passes.chip.transfers import IO_TILES
from poprt.passes.packing.packed_transformer import PackArgs
from poprt.passes.precision.eight_bits import Fp8Params

_NUMERIC_SWITCHES = (
    "debug.nanOverflowException",
    "debug.floatPointOpException",
    "prng.enableStochasticRounding",
)
"""Engine options that change numeric results, or end a run because of them."""
_MAX_INT32 = 2**31 - 1
_ROUNDING = 1e-3
"""Tolerance for the sum of shares that are written in decimal."""

Names = Collection[str] | str | None
"""Names as a text separated by commas, or as a collection."""


def _find_note(hint: Any, default: Any) -> Any:
    """Return what an annotation says of a field beside its type."""
    return next(iter(getattr(hint, "__metadata__", ())), default)


def _keep(value: Any) -> Any:
    return value


def _split(names: Names) -> list[str]:
    """Return the user's names without blanks around them."""
    listed = names.split(",") if isinstance(names, str) else names or ()
    return [stripped for name in listed if (stripped := name.strip())]


def _split_set(names: Names) -> frozenset[str]:
    return frozenset(_split(names))


def _list_groups(
    groups: Mapping[str, Any] | Sequence[Sequence[Any]] | None,
) -> Sequence[Sequence[Any]]:
    """Return groups of inputs as a list.

    A dict has the groups by name, or as the pass's `merged_inputs`.
    """
    if isinstance(groups, Mapping):
        listed: Sequence[Sequence[Any]] = groups.get("merged_inputs", list(groups.values()))
        return listed
    return groups or ()


def _copy(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(values or {})


def _read_precision(given: str | None) -> str:
    return given or "fp32"


def _read_packing(given: Any) -> PackArgs | None:
    return PackArgs.read(given) if given else None


_NameList = Annotated[Sequence[str], _split]
_NameSet = Annotated[Collection[str], _split_set]


@dataclass(frozen=True, slots=True)
class ConverterOptions:
    """Options of a conversion; `Converter` describes each.

    An argument of Converter may have more forms than the field. The function in the annotation
    turns each of them into the field's.
    """

    input_shape: Annotated[Mapping[str, Sequence[int]], _copy] = field(default_factory=dict)
    convert_version: int | None = None
    precision: Annotated[str, _read_precision] = "fp32"
    io_precision: str = "model"
    checkpoints: _NameList = ()
    eightbitsio: bool = False
    fp16_skip_op_types: _NameSet = ()
    fp16_skip_op_names: _NameSet = ()
    skip_passes: _NameSet = ()
    used_passes: _NameList = ()
    check: bool = False
    disable_fast_norm: bool = False
    pack_args: Annotated[PackArgs | None, _read_packing] = None
    fp8_params: Annotated[Fp8Params, Fp8Params.parse] = field(default_factory=Fp8Params)
    fp8_skip_op_names: _NameSet = ()
    quantize: bool = False
    enable_insert_remap: bool = False
    remap_mode: _NameList = ("after_matmul",)
    enable_erf_gelu: bool = False
    serialize_matmul: Mapping[str, str] | None = None
    serialize_matmul_add: Mapping[str, str] | None = None
    merge_matmul: str | None = None
    merge_matmul_add: str | None = None
    merge_moe: str | None = None
    max_tensor_size: int = -1
    infer_shape_ahead: bool = False
    enable_avoid_overflow_patterns: bool = False
    batch_size: int | None = None
    batch_axis: int | None = None
    remove_outputs: _NameSet = ()
    fold_periodic_initializer: bool = False
    enable_compress_pattern: bool = False
    merge_if_with_same_cond: bool = False
    apply_hcsr: Annotated[Sequence[Sequence[Any]], _list_groups] = ()
    """Groups of inputs: type, shape, and the number of inputs if given."""
    fix_inputs: Annotated[Mapping[str, Any], _copy] = field(default_factory=dict)
    origin_model: onnx.ModelProto | None = None
    """Source model, for passes that compare with it; the pipeline sets it."""

    def __post_init__(self) -> None:
        for name, supported in (("precision", PRECISIONS), ("io_precision", IO_PRECISIONS)):
            if (found := getattr(self, name)) not in supported:
                raise CompileError(f"{name}: expected {', '.join(supported)}, found {found!r}")
        if self.quantize and not self.precision.startswith("fp8"):
            raise CompileError(
                "quantize prepares a model for 8 bits: expected precision fp8 or fp8_weight, "
                f"found {self.precision!r}"
            )

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ConverterOptions:
        """Return the options that arguments of Converter set, in any form that it accepts. Other
        names are ignored. Raise CompileError for a value of another type."""
        found = {}
        for name in _READERS.keys() & arguments.keys():
            value = arguments[name]
            try:
                found[name] = _READERS[name](value)
            except (TypeError, AttributeError) as error:
                raise CompileError(
                    f"{name}: {type(value).__name__} {_quote(value)} cannot be used: {error}"
                ) from error
        return cls(**found)

    @property
    def widens(self) -> bool:
        """Return whether the pass widen_batch runs; it can widen a batch that is fixed at 1."""
        return self.batch_size is not None

    @property
    def shapes_left(self) -> dict[str, Sequence[int]]:
        """Return `input_shape` of the inputs that stay inputs."""
        return {
            name: shape for name, shape in self.input_shape.items() if name not in self.fix_inputs
        }


@dataclass(frozen=True, slots=True)
class Rule:
    """Facts about a field of CompilerOptions beside its name, type and default."""

    minimum: float | None = None
    maximum: float | None = None
    """Smallest and largest value of a number."""
    choices: tuple[Any, ...] = ()
    """Supported values, if other values would change what the program does. Other values are
    rejected rather than ignored."""
    entries: tuple[type, ...] = ()
    """Types of the values in a dict, the one that errors name first."""
    convert: Callable[[Any], Any] | None = None
    """Conversion of a value from other types, before it is checked."""
    check: Callable[[Any], Any] | None = None
    """Further check, which returns the value; it raises CompileError."""
    recorded: bool = True
    """Whether an executable records the option: whether it affects the program."""
    no_effect: str = ""
    """Reason why the option is accepted and changes nothing here."""
    warned: bool = False
    """Whether an option without effect is warned of when it is set, because it requests something
    unsupported."""
    ours: bool = False
    """Whether the real tool lacks the option."""


def _check_chip(name: str) -> str:
    try:
        return find_target(name).given_name if name else name
    except LoadError as error:
        text = f"compiler option ipu_version={_quote(name)} is not supported; supported: "
        raise CompileError(text + known_chips()) from error


def _check_shares(shares: list[Any]) -> list[Any]:
    if not all(isinstance(share, (int, float)) and 0 < share < 1 for share in shares):
        raise CompileError(
            "compiler option virtual_graph_split_ratios: expected numbers in (0, 1), found "
            f"{_quote(shares)}"
        )
    return shares


def _encode(blobs: Any) -> Any:
    if not isinstance(blobs, dict):
        return blobs
    return {key: each.encode() if isinstance(each, str) else each for key, each in blobs.items()}


_CODE = Rule(no_effect="steers the real compiler's code; recorded in the executable, not modelled")
_SCHEDULER = replace(_CODE, no_effect=_CODE.no_effect.replace("code", "scheduler"))
_IR = Rule(no_effect="the IR that PopART writes is not public", warned=True, recorded=False)
_LIBRARIES = Rule(
    no_effect="PopART's patterns and transforms are libraries of its own, which cannot be loaded "
    "here",
    warned=True,
)
_UNRECORDED = Rule(recorded=False)
_OURS = Rule(ours=True)


@dataclass(slots=True)
class CompilerOptions:
    """Options of a compilation: the real tool's options with its defaults, checked when they are
    assigned.

    Options that only affect the real compiler (`Rule.no_effect`) are recorded in the executable and
    change nothing else here. Several IPUs, pipelining and I/O tiles change the modelled time and
    memory, never the results.

    Args:
        num_ipus: number of IPUs to distribute the model over.
        ipu_version: chip: ipu1, ipu2, ipu21 or bow, or a name such as c600 or mk2; "" means ipu21,
            the C600.
        batches_per_step: number of batches in a run of the program.
        partials_type: type of partial sums of products: half or float.
        available_memory_proportion: share of a tile's memory that products may use, 0 to 1.
        num_io_tiles: number of tiles that only transfer data, in parallel with the computation.
        enable_model_fusion: whether to reject a model that MFConverter did not fuse.
        enable_prefetch_datastreams: no effect.
        stream_buffering_depth: number of batches that are buffered on the host.
        enable_pad_conv_channel: no effect.
        serialize_ir: no effect; a warning.
        serialized_ir_dest: no effect; a warning.
        enable_gather_simplifier: no effect.
        engine_options: options of the engine by name, as texts.
        show_compilation_progress_bar: whether to show a bar on a terminal.
        compilation_progress_logger: function that receives the progress and its total, 100.
        custom_patterns: no effect; a warning.
        custom_transform_applier_settings: no effect; a warning.
        opaque_blobs: blobs by name that are written next to the executable; texts are encoded as
            UTF-8.
        use_128bit_conv_unit_load: whether weights of convolutions are loaded at double speed.
        enable_multi_stage_reduce: no effect.
        enable_fast_reduce: no effect.
        enable_outlining: whether equal nodes share their code.
        group_host_sync: no effect.
        rearrange_streams_on_host: no effect.
        rearrange_anchors_on_host: no effect.
        outline_threshold: no effect.
        enable_non_stable_softmax: no effect.
        enable_pipelining: whether the IPUs work on consecutive batches in parallel.
        enable_engine_caching: whether to keep executables as `cache_path`/HASH.popef and reuse
            them.
        cache_path: folder of the kept executables.
        constant_weights: whether weights are part of the program; else they are streamed at load.
        subgraph_copying_strategy: no effect; 0 is PopART's OnEnterAndExit, 1 is JustInTime.
        virtual_graph_mode: how layers are assigned to IPUs: off, auto or manual.
        virtual_graph_split_ratios: share of the model for each IPU; the sum is 1.
        time_limit_scheduler: no effect.
        swap_limit_scheduler: no effect.
        transitive_closure_optimization_threshold: no effect.
        create_host_transferable_tensor_with_offset: no effect.
        enable_efficient_overlap_io_topo_cons: no effect.
        allow_out_of_memory: whether to compile models that are estimated not to fit into a tile's
            memory (Poplar's debug.allowOutOfMemory; the name is ours).
        only_ipu_operators: whether to reject operators that the IPU's compiler lacks; by default
            they only cause a warning (ours).
        skip_dry_run: whether to omit the dry run, which loads the executable and runs it once
            (ours).

    Raises:
        AttributeError: for an unknown name.
        CompileError: for a value that an option cannot have.

    Example:
        >>> import poprt
        >>> options = poprt.CompilerOptions(partials_type="float")
        >>> options.num_ipus = 2
        >>> options.changed()
        (('num_ipus', '2'), ('partials_type', 'float'))
    """

    num_ipus: Annotated[int, Rule(minimum=1, maximum=MAX_IPUS)] = 1
    ipu_version: Annotated[str, Rule(check=_check_chip)] = ""
    batches_per_step: Annotated[int, Rule(minimum=1, maximum=_MAX_INT32)] = 1
    partials_type: Annotated[str, Rule(choices=("half", "float"))] = "half"
    available_memory_proportion: Annotated[float, Rule(minimum=0, maximum=1)] = 0.6
    num_io_tiles: Annotated[int, Rule(minimum=0, maximum=MAX_TILES_PER_IPU)] = 0
    enable_model_fusion: bool = False
    enable_prefetch_datastreams: Annotated[bool, _CODE] = True
    stream_buffering_depth: Annotated[int, Rule(minimum=1, maximum=_MAX_INT32)] = 1
    enable_pad_conv_channel: Annotated[bool, _CODE] = False
    serialize_ir: Annotated[bool, _IR] = False
    serialized_ir_dest: Annotated[str, _IR] = ""
    enable_gather_simplifier: Annotated[bool, _CODE] = True
    engine_options: Annotated[dict[str, str], Rule(entries=(str,))] = field(default_factory=dict)
    show_compilation_progress_bar: Annotated[bool, _UNRECORDED] = True
    compilation_progress_logger: Annotated[Callable[[int, int], Any] | None, _UNRECORDED] = None
    """Callback that receives the progress of the compiler and its total, which is 100."""
    custom_patterns: Annotated[list[str], _LIBRARIES] = field(default_factory=list)
    custom_transform_applier_settings: Annotated[
        dict[str, list[str]], replace(_LIBRARIES, entries=(list, tuple))
    ] = field(default_factory=dict)
    opaque_blobs: Annotated[
        dict[str, bytes], Rule(entries=(bytes,), convert=_encode, recorded=False)
    ] = field(default_factory=dict)
    """Blobs that are written next to the executable. Texts are encoded as UTF-8."""
    use_128bit_conv_unit_load: bool = False
    enable_multi_stage_reduce: Annotated[bool, _CODE] = True
    enable_fast_reduce: Annotated[bool, _CODE] = False
    enable_outlining: bool = True
    group_host_sync: Annotated[bool, _CODE] = False
    rearrange_streams_on_host: Annotated[bool, _CODE] = False
    rearrange_anchors_on_host: Annotated[bool, _CODE] = True
    outline_threshold: Annotated[float, _CODE] = 1.0
    enable_non_stable_softmax: Annotated[bool, _CODE] = False
    enable_pipelining: bool = False
    enable_engine_caching: Annotated[bool, _UNRECORDED] = False
    """Keep compiled executables as `cache_path`/HASH.popef and reuse them."""
    cache_path: Annotated[str, _UNRECORDED] = ""
    constant_weights: bool = True
    subgraph_copying_strategy: Annotated[int, replace(_CODE, minimum=0, maximum=1)] = 0
    """0 and 1 are PopART's OnEnterAndExit and JustInTime."""
    virtual_graph_mode: Annotated[str, Rule(choices=("off", "auto", "manual"))] = "off"
    virtual_graph_split_ratios: Annotated[list[float], Rule(check=_check_shares)] = field(
        default_factory=list
    )
    time_limit_scheduler: Annotated[float, _SCHEDULER] = 1e9
    swap_limit_scheduler: Annotated[float, _SCHEDULER] = 1e9
    transitive_closure_optimization_threshold: Annotated[int, _SCHEDULER] = 100_000
    create_host_transferable_tensor_with_offset: Annotated[bool, _CODE] = False
    enable_efficient_overlap_io_topo_cons: Annotated[bool, _CODE] = False
    allow_out_of_memory: Annotated[bool, _OURS] = False
    """Compile models that are estimated not to fit into a tile's memory (Poplar's
    debug.allowOutOfMemory; the name is ours)."""
    only_ipu_operators: Annotated[bool, _OURS] = False
    """Reject operators that the IPU's compiler lacks; by default they only cause a warning (the
    option is ours)."""
    skip_dry_run: Annotated[bool, Rule(recorded=False, ours=True)] = False
    """Compile without the dry run, which loads the executable and runs it once (ours)."""

    if not TYPE_CHECKING:  # type checkers would take every name for an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name in _KINDS:
                value = _check(name, value)
            object.__setattr__(self, name, value)

    def check(self) -> None:
        """Check options against each other and log warnings for unsupported ones.

        Raises:
            CompileError: for options that do not go together, or that were changed in place to
                invalid values.
        """
        for name in _KINDS:
            setattr(self, name, getattr(self, name))
        ratios = self.virtual_graph_split_ratios
        if ratios and (len(ratios) != self.num_ipus or abs(sum(ratios) - 1) > _ROUNDING):
            raise CompileError(
                "compiler option virtual_graph_split_ratios: expected one share for each of the "
                f"num_ipus={self.num_ipus} with the sum 1, found {_quote(ratios)}"
            )
        if self.enable_engine_caching and not self.cache_path:
            raise CompileError(
                "compiler option enable_engine_caching requires cache_path, a folder"
            )
        for name, rule in RULES.items():
            if rule.warned and getattr(self, name):
                logging.getLogger("poprt").warning(
                    "compiler option %s changes nothing: %s", name, rule.no_effect
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CompilerOptions:
        """Return options from names and values.

        Args:
            values: values by name; a text is parsed as a Python literal.

        Returns:
            The options.

        Raises:
            CompileError: for an unknown name, or a value that an option cannot have.
        """
        known = {entry.name: entry for entry in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise CompileError(
                f"compiler option {unknown[0]!r} is not known{did_you_mean(unknown[0], known)}; "
                "`help(poprt.CompilerOptions)` prints the known ones"
            )
        options = cls(**{name: _read(name, value) for name, value in values.items()})
        options.check()
        return options

    def target(self) -> Target:
        """Return the chip, with the number of IPUs."""
        return find_target(self.ipu_version or DEFAULT_CHIP, self.num_ipus)

    def numerics(self) -> Numerics:
        """Return the settings of half precision.

        They depend on `partials_type` and the engine options debug.nanOverflowException and
        debug.floatPointOpException. These are false by default, as in the public frameworks'
        configurations.

        Raises:
            CompileError: for a value that is neither true nor false, and for stochastic rounding,
                which is not supported.
        """
        nan_on_overflow, raises, is_random = map(self._read_switch, _NUMERIC_SWITCHES)
        if is_random:
            raise CompileError(
                f"engine option {_NUMERIC_SWITCHES[-1]}: expected false, found true; results are "
                "rounded to the nearest here (docs/precision.md says why)"
            )
        return Numerics(self.partials_type == "half", nan_on_overflow, raises)

    def _read_switch(self, name: str) -> bool:
        """Return the value of an engine option that is true or false."""
        found = str(self.engine_options.get(name, "false")).lower()
        if found not in ("true", "false"):
            raise CompileError(f"engine option {name}: expected true or false, found {found!r}")
        return found == "true"

    def changed(self) -> tuple[tuple[str, str], ...]:
        """Return the options that the executable records: changed ones, as sorted text.

        All names of a chip are recorded as Poplar's name.
        """
        defaults = CompilerOptions()
        changed = {
            name: str(getattr(self, name))
            for name in sorted(_KINDS)
            if RULES[name].recorded and getattr(self, name) != getattr(defaults, name)
        }
        if self.ipu_version:
            changed["ipu_version"] = self.target().name
        return tuple(changed.items())


def take_io_tiles(model: onnx.ModelProto, options: CompilerOptions) -> CompilerOptions:
    """Return the options with the I/O tiles that the pass overlap_io has written into the model.

    Options that set I/O tiles themselves stay as they are. Raises CompileError if the model's entry
    is not a valid number of tiles.
    """
    written = next((entry.value for entry in model.metadata_props if entry.key == IO_TILES), None)
    if written is None or options.num_io_tiles:
        return options
    if not re.fullmatch("[0-9]{1,4}", written):
        raise CompileError(
            f"the model's metadata {IO_TILES}: expected a number of I/O tiles, 0 to "
            f"{MAX_TILES_PER_IPU}, found {_quote(written)}"
        )
    return replace(options, num_io_tiles=int(written))


def _find_kind(entry: dataclasses.Field[Any]) -> type:
    factory = entry.default_factory
    return type(entry.default if factory is dataclasses.MISSING else factory())


_READERS: Mapping[str, Callable[[Any], Any]] = {
    name: _find_note(hint, _keep)
    for name, hint in get_type_hints(ConverterOptions, include_extras=True).items()
}
"""Function that reads each of Converter's arguments."""
_KINDS: dict[str, type] = {
    entry.name: _find_kind(entry) for entry in dataclasses.fields(CompilerOptions)
}
"""Type of each option, which is the type of its default; the type of None stands for functions."""
RULES: Mapping[str, Rule] = {
    name: _find_note(hint, Rule())
    for name, hint in get_type_hints(CompilerOptions, include_extras=True).items()
}
"""Rule of each option."""


def _read(name: str, value: Any) -> Any:
    """Return the value that a text stands for, unless the option is a text itself."""
    kind = _KINDS[name]
    if not isinstance(value, str) or kind is str:
        return value
    if kind is list and not value.startswith("["):
        return [part for each in value.split(",") if (part := each.strip())]
    text = value.capitalize() if value.lower() in ("true", "false") else value
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise _mismatch(name, value) from None


def _check(name: str, value: Any) -> Any:
    """Return the value converted to the option's type.

    Raises CompileError for a value that the option cannot have.
    """
    rule, kind = RULES[name], _KINDS[name]
    value = _convert(name, value)
    fits = value is None or callable(value) if kind is type(None) else isinstance(value, kind)
    if not fits or (kind is not bool and isinstance(value, bool)):
        raise _mismatch(name, value)
    if rule.choices and value not in rule.choices:
        supported = ", ".join(map(repr, rule.choices))
        raise CompileError(
            f"compiler option {name}={_quote(value)} is not supported; supported: {supported}"
        )
    if (
        rule.minimum is not None
        and rule.maximum is not None
        and not rule.minimum <= value <= rule.maximum
    ):
        raise CompileError(
            f"compiler option {name}: expected {rule.minimum} to {rule.maximum}, found "
            f"{_quote(value)}"
        )
    if rule.entries and not all(
        isinstance(k, str) and isinstance(v, rule.entries) for k, v in value.items()
    ):
        raise CompileError(
            f"compiler option {name}: expected a {rule.entries[0].__name__} for each name, found "
            f"{_quote(value)}"
        )
    return value if rule.check is None else rule.check(value)


def _convert(name: str, value: Any) -> Any:
    """Return the value converted to the option's type, if it has a compatible other type."""
    kind = _KINDS[name]
    if isinstance(value, np.generic):
        value = value.item()
    if kind is bool and value in (0, 1):
        return bool(value)
    if kind is float and type(value) is int and abs(value) < 2**63:
        return float(value)
    if kind is list and isinstance(value, tuple):
        return list(value)
    convert = RULES[name].convert
    return value if convert is None else convert(value)


def _mismatch(name: str, value: Any) -> CompileError:
    kind = "function" if _KINDS[name] is type(None) else _KINDS[name].__name__
    return CompileError(
        f"compiler option {name}: expected {'an' if kind == 'int' else 'a'} {kind}, found "
        f"{_quote(value)}"
    )


def _quote(value: Any) -> str:
    try:
        return escape(repr(value), 200)
    except ValueError:  # Python does not print numbers with thousands of digits
        return "a number that is too long to be written"
