"""ConverterOptions and CompilerOptions: the real tool's names, defaults and spellings."""

from __future__ import annotations

import ast
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from simipu import CompileError, LoadError
from simipu.numerics import Numerics
from simipu.target import MAX_IPUS, MAX_TILES_PER_IPU, find_target, known_chips

from popef._tools.text import escape
from poprt.passes.chip.overlap import IO_TILES
from poprt.passes.packing.packed_transformer import PackArgs
from poprt.passes.precision.eight_bits import Fp8Params

_SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "virtual_graph_mode": ("off", "auto", "manual"),
    "partials_type": ("half", "float"),
}
"""Supported values of options whose other values would change what the program does. Other values
are rejected rather than ignored."""
_NUMERIC_SWITCHES = (
    "debug.nanOverflowException",
    "debug.floatPointOpException",
    "prng.enableStochasticRounding",
)
"""Engine options that change numeric results, or end a run because of them."""
_MAX_INT32 = 2**31 - 1
_BOUNDS = {
    "num_ipus": (1, MAX_IPUS),
    "batches_per_step": (1, _MAX_INT32),
    "num_io_tiles": (0, MAX_TILES_PER_IPU),
    "stream_buffering_depth": (1, _MAX_INT32),
    "subgraph_copying_strategy": (0, 1),
    "available_memory_proportion": (0, 1),
}
"""Smallest and largest value of each integer option. 0 and 1: PopART's OnEnterAndExit and
JustInTime."""
_ENTRIES: Mapping[str, type | tuple[type, ...]] = {
    "engine_options": str,
    "opaque_blobs": bytes,
    "custom_transform_applier_settings": (list, tuple),
}
"""Types of the values in options that are dicts, by option."""
_UNRECORDED = frozenset(
    "opaque_blobs compilation_progress_logger show_compilation_progress_bar enable_engine_caching cache_path "
    "serialize_ir serialized_ir_dest skip_dry_run".split()
)
"""Options that do not affect the program: an executable does not record them."""
_ROUNDING = 1e-3
"""Tolerance for the sum of shares that are written in decimal."""
_WARNED = ": a warning"
"""Suffix of the reason of an option that requests something unsupported, so that a warning is
logged."""
WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        "enable_prefetch_datastreams enable_pad_conv_channel enable_gather_simplifier "
        "enable_multi_stage_reduce enable_fast_reduce outline_threshold group_host_sync "
        "rearrange_streams_on_host rearrange_anchors_on_host enable_non_stable_softmax "
        "subgraph_copying_strategy create_host_transferable_tensor_with_offset "
        "enable_efficient_overlap_io_topo_cons".split(),
        "steers the real compiler's code; recorded in the executable, not modelled",
    ),
    **dict.fromkeys(
        "time_limit_scheduler swap_limit_scheduler transitive_closure_optimization_threshold".split(),
        "steers the real compiler's scheduler; recorded in the executable, not modelled",
    ),
    **dict.fromkeys(
        "serialize_ir serialized_ir_dest".split(), "the IR that PopART writes is not public: a warning"
    ),
    **dict.fromkeys(
        "custom_patterns custom_transform_applier_settings".split(),
        "PopART's patterns and transforms are libraries of its own, which cannot be loaded here: a warning",
    ),
}
"""Options that are accepted and change nothing here, with the reason; all other options have an
effect."""


PRECISIONS = ("fp32", "fp16", "fp8", "fp8_weight")


@dataclass(frozen=True, slots=True)
class ConverterOptions:
    """Options of a conversion; `Converter` describes each. Lists of names are always lists here."""

    input_shape: Mapping[str, Sequence[int]] = field(default_factory=dict)
    convert_version: int | None = None
    precision: str = "fp32"
    checkpoints: Sequence[str] = ()
    eightbitsio: bool = False
    fp16_skip_op_types: Collection[str] = ()
    fp16_skip_op_names: Collection[str] = ()
    skip_passes: Collection[str] = ()
    used_passes: Sequence[str] = ()
    check: bool = False
    disable_fast_norm: bool = False
    pack_args: PackArgs | None = None
    fp8_params: Fp8Params = field(default_factory=Fp8Params)
    fp8_skip_op_names: Collection[str] = ()
    quantize: bool = False
    enable_insert_remap: bool = False
    remap_mode: Sequence[str] = ("after_matmul",)
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
    remove_outputs: Collection[str] = ()
    fold_periodic_initializer: bool = False
    enable_compress_pattern: bool = False
    merge_if_with_same_cond: bool = False
    apply_hcsr: Sequence[Sequence[Any]] = ()
    """Groups of inputs: type, shape, and the number of inputs if given."""
    fix_inputs: Mapping[str, Any] = field(default_factory=dict)
    origin_model: onnx.ModelProto | None = None
    """Source model, for passes that compare with it; the pipeline sets it."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise CompileError(
                f"precision {self.precision!r} is not supported; choose {', '.join(PRECISIONS)}"
            )
        if self.quantize and not self.precision.startswith("fp8"):
            raise CompileError(
                f"quantize makes a model ready for 8 bits: expected precision fp8 or fp8_weight, found "
                f"{self.precision!r}"
            )

    @property
    def widens(self) -> bool:
        """Return whether the pass widen_batch runs; it can widen a batch that is fixed at 1."""
        return self.batch_size is not None

    @property
    def shapes_left(self) -> dict[str, Sequence[int]]:
        """Return `input_shape` of the inputs that stay inputs."""
        return {name: shape for name, shape in self.input_shape.items() if name not in self.fix_inputs}


@dataclass(slots=True)
class CompilerOptions:
    """Options of a compilation: the real tool's options with its defaults, checked when they are
    assigned.

    Options that only affect the real compiler (`WITHOUT_EFFECT`) are recorded in the executable and
    change nothing else here. Several IPUs, pipelining and I/O tiles change the modelled time and
    memory, never the results.

    `ipu_version` "" means ipu21, the C600. It accepts ipu1 and bow in addition to the real ipu2 and
    ipu21, and names such as c600 and mk2 for them. An unknown name raises AttributeError; a value
    that an option cannot have raises CompileError.
    """

    num_ipus: int = 1
    ipu_version: str = ""
    batches_per_step: int = 1
    partials_type: str = "half"
    available_memory_proportion: float = 0.6
    num_io_tiles: int = 0
    enable_model_fusion: bool = False
    enable_prefetch_datastreams: bool = True
    stream_buffering_depth: int = 1
    enable_pad_conv_channel: bool = False
    serialize_ir: bool = False
    serialized_ir_dest: str = ""
    enable_gather_simplifier: bool = True
    engine_options: dict[str, str] = field(default_factory=dict)
    show_compilation_progress_bar: bool = True
    compilation_progress_logger: Callable[[int, int], Any] | None = None
    """Callback that receives the progress of the compiler and its total, which is 100."""
    custom_patterns: list[str] = field(default_factory=list)
    custom_transform_applier_settings: dict[str, list[str]] = field(default_factory=dict)
    opaque_blobs: dict[str, bytes] = field(default_factory=dict)
    """Blobs that are written next to the executable. Texts are encoded as UTF-8."""
    use_128bit_conv_unit_load: bool = False
    enable_multi_stage_reduce: bool = True
    enable_fast_reduce: bool = False
    enable_outlining: bool = True
    group_host_sync: bool = False
    rearrange_streams_on_host: bool = False
    rearrange_anchors_on_host: bool = True
    outline_threshold: float = 1.0
    enable_non_stable_softmax: bool = False
    enable_pipelining: bool = False
    enable_engine_caching: bool = False
    """Keep compiled executables as `cache_path`/HASH.popef and reuse them."""
    cache_path: str = ""
    constant_weights: bool = True
    subgraph_copying_strategy: int = 0
    virtual_graph_mode: str = "off"
    virtual_graph_split_ratios: list[float] = field(default_factory=list)
    time_limit_scheduler: float = 1e9
    swap_limit_scheduler: float = 1e9
    transitive_closure_optimization_threshold: int = 100_000
    create_host_transferable_tensor_with_offset: bool = False
    enable_efficient_overlap_io_topo_cons: bool = False
    allow_out_of_memory: bool = False
    """Compile models that are estimated not to fit into a tile's memory (Poplar's
    debug.allowOutOfMemory; the name is ours)."""
    only_ipu_operators: bool = False
    """Reject operators that the IPU's compiler lacks; by default they only cause a warning (the
    option is ours)."""
    skip_dry_run: bool = False
    """Compile without the dry run, which loads the executable and runs it once (ours)."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _KINDS:
            value = _check(name, value)
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """Check options against each other and log warnings for unsupported ones.

        Raises CompileError for options that do not go together, or that were changed in place to
        invalid values.
        """
        for name in _KINDS:
            setattr(self, name, getattr(self, name))
        ratios = self.virtual_graph_split_ratios
        if ratios and (len(ratios) != self.num_ipus or abs(sum(ratios) - 1) > _ROUNDING):
            raise CompileError(
                f"compiler option virtual_graph_split_ratios must be one share for each of the num_ipus="
                f"{self.num_ipus}, 1 in all, found {_quote(ratios)}"
            )
        if self.enable_engine_caching and not self.cache_path:
            raise CompileError("compiler option enable_engine_caching needs cache_path, a folder")
        for name, why in WITHOUT_EFFECT.items():
            if why.endswith(_WARNED) and getattr(self, name):
                logging.getLogger("poprt").warning(
                    "compiler option %s changes nothing: %s", name, why.removesuffix(_WARNED)
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CompilerOptions:
        """Return options from names and values; text is parsed as a Python literal.

        Raises CompileError for an unknown name; the message lists the known names.
        """
        known = {entry.name: entry for entry in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise CompileError(
                f"compiler option {unknown[0]!r} is not known; known are {', '.join(sorted(known))}"
            )
        options = cls(**{name: _read(name, value) for name, value in values.items()})
        options.check()
        return options

    def numerics(self) -> Numerics:
        """Return the settings of half precision.

        They depend on `partials_type` and the engine options debug.nanOverflowException and
        debug.floatPointOpException. These are false by default, as in the public frameworks'
        configurations. Raises CompileError for a value that is neither true nor false, and for
        stochastic rounding, which is not supported.
        """
        nan_on_overflow, raises, is_random = map(self._read_switch, _NUMERIC_SWITCHES)
        if is_random:
            raise CompileError(
                f"engine option {_NUMERIC_SWITCHES[-1]}: expected false, found true; results are rounded to "
                "the nearest here (docs/precision.md says why)"
            )
        return Numerics(self.partials_type == "half", nan_on_overflow, raises)

    def _read_switch(self, name: str) -> bool:
        """Return the value of an engine option that is true or false."""
        found = str(self.engine_options.get(name, "false")).lower()
        if found not in ("true", "false"):
            raise CompileError(f"engine option {name}: expected true or false, found {found!r}")
        return found == "true"

    def changed(self) -> tuple[tuple[str, str], ...]:
        """Return the options that the executable records: changed ones, as sorted text."""
        defaults = CompilerOptions()
        return tuple(
            (name, str(getattr(self, name)))
            for name in sorted(_KINDS.keys() - _UNRECORDED)
            if getattr(self, name) != getattr(defaults, name)
        )


def take_io_tiles(model: onnx.ModelProto, options: CompilerOptions) -> CompilerOptions:
    """Return the options with the I/O tiles that the pass overlap_io has written into the model.

    Options that set I/O tiles themselves stay as they are. Raises CompileError if the model's entry
    is not a valid number of tiles.
    """
    written = next((entry.value for entry in model.metadata_props if entry.key == IO_TILES), None)
    if written is None or options.num_io_tiles:
        return options
    least, most = _BOUNDS["num_io_tiles"]
    if not written.isascii() or not written.isdecimal() or len(written) > len(str(most)):
        raise CompileError(
            f"the model's metadata {IO_TILES}: expected a number of I/O tiles, {least} to {most}, found "
            f"{_quote(written)}"
        )
    return dataclasses.replace(options, num_io_tiles=int(written))


def _find_kind(entry: dataclasses.Field[Any]) -> type:
    factory = entry.default_factory
    return type(entry.default if factory is dataclasses.MISSING else factory())


_KINDS: dict[str, type] = {entry.name: _find_kind(entry) for entry in dataclasses.fields(CompilerOptions)}
"""Type of each option, which is the type of its default; the type of None stands for functions."""


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
    value = _convert(name, value)
    _check_kind(name, value)
    if name in _SUPPORTED_VALUES and value not in _SUPPORTED_VALUES[name]:
        supported = ", ".join(map(repr, _SUPPORTED_VALUES[name]))
        raise CompileError(f"compiler option {name}={_quote(value)} is not supported; supported: {supported}")
    if name == "ipu_version" and value:
        return _find_chip(value)
    if name in _BOUNDS:
        least, most = _BOUNDS[name]
        if not least <= value <= most:
            raise CompileError(f"compiler option {name} must be {least} to {most}, found {_quote(value)}")
    if name in _ENTRIES and not all(
        isinstance(k, str) and isinstance(v, _ENTRIES[name]) for k, v in value.items()
    ):
        wanted = {"engine_options": "str", "opaque_blobs": "bytes"}.get(name, "list")
        raise CompileError(
            f"compiler option {name}: expected a {wanted} for each name, found {_quote(value)}"
        )
    if name == "virtual_graph_split_ratios" and not all(
        isinstance(each, (int, float)) and 0 < each < 1 for each in value
    ):
        raise CompileError(f"compiler option {name}: expected numbers in (0, 1), found {_quote(value)}")
    return value


def _find_chip(name: str) -> str:
    try:
        return find_target(name).name
    except LoadError as error:
        text = f"compiler option ipu_version={_quote(name)} is not supported; supported: {known_chips()}"
        raise CompileError(text) from error


def _convert(name: str, value: Any) -> Any:
    """Return the value converted to the option's type, if it has a compatible other type."""
    kind = _KINDS[name]
    if isinstance(value, np.generic):
        value = value.item()
    if kind is bool and value in (0, 1):
        return bool(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    if kind is list and isinstance(value, tuple):
        return list(value)
    if name == "opaque_blobs" and isinstance(value, dict):
        return {key: each.encode() if isinstance(each, str) else each for key, each in value.items()}
    return value


def _check_kind(name: str, value: Any) -> None:
    kind: Any = _KINDS[name]
    if kind is type(None):
        if value is not None and not callable(value):
            raise _mismatch(name, value)
    elif not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise _mismatch(name, value)


def _mismatch(name: str, value: Any) -> CompileError:
    kind = "function" if _KINDS[name] is type(None) else _KINDS[name].__name__
    return CompileError(
        f"compiler option {name}: expected {'an' if kind == 'int' else 'a'} {kind}, found {_quote(value)}"
    )


def _quote(value: Any) -> str:
    try:
        return escape(repr(value), 200)
    except ValueError:  # Python does not print numbers with thousands of digits
        return "a number that is too long to be written"
