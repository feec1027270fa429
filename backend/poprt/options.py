"""ConverterOptions and CompilerOptions: the real tool's names, defaults and spellings."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from simipu import CompileError
from simipu.numerics import Numerics
from simipu.target import MOST_IPUS

from popef.text import escape
from poprt.passes.precision import Fp8Params

_SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "virtual_graph_mode": ("off", "auto"),
    "partials_type": ("half", "float"),
    "ipu_version": ("", "ipu1", "ipu2", "ipu21", "bow"),
}
"""Options whose other values would change what the program does; refused rather than ignored."""
_BOUNDS = {
    "num_ipus": (1, MOST_IPUS),
    "batches_per_step": (1, 2**31 - 1),
    "num_io_tiles": (0, 1472),
    "stream_buffering_depth": (1, 2**31 - 1),
}
"""1472: no chip has more tiles."""
_ENTRIES = {"engine_options": str, "opaque_blobs": bytes}
"""What the options that are dicts hold by name."""


PRECISIONS = ("fp32", "fp16", "fp8", "fp8_weight")


@dataclass(frozen=True, slots=True)
class ConverterOptions:
    """How to convert; what each means, `Converter` says. Lists of names are lists here, whatever they were
    given as."""

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
    pack_args: Mapping[str, Any] | None = None
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
    apply_hcsr: Mapping[str, Any] | None = None
    fix_inputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise CompileError(
                f"precision {self.precision!r} is not supported; choose {', '.join(PRECISIONS)}"
            )

    @property
    def shapes_left(self) -> dict[str, Sequence[int]]:
        """`input_shape` of the inputs that stay inputs."""
        return {name: shape for name, shape in self.input_shape.items() if name not in self.fix_inputs}


@dataclass(slots=True)
class CompilerOptions:
    """How to compile. Options that only steer the real compiler's search are recorded in the executable and
    change nothing else here; several IPUs, pipelining and I/O tiles change the modelled time and memory,
    never the results; `ipu_version` "" means ipu2, and knows ipu1 and bow besides the real ipu2 and ipu21."""

    num_ipus: int = 1
    ipu_version: str = ""
    batches_per_step: int = 1
    partials_type: str = "half"
    available_memory_proportion: float = 0.6
    num_io_tiles: int = 0
    constant_weights: bool = True
    enable_prefetch_datastreams: bool = True
    stream_buffering_depth: int = 1
    use_128bit_conv_unit_load: bool = False
    enable_multi_stage_reduce: bool = True
    enable_fast_reduce: bool = False
    enable_outlining: bool = True
    outline_threshold: float = 1.0
    group_host_sync: bool = False
    rearrange_streams_on_host: bool = False
    rearrange_anchors_on_host: bool = True
    enable_non_stable_softmax: bool = False
    enable_pipelining: bool = False
    virtual_graph_mode: str = "off"
    engine_options: dict[str, str] = field(default_factory=dict)
    opaque_blobs: dict[str, bytes] = field(default_factory=dict)
    show_compilation_progress_bar: bool = True
    allow_out_of_memory: bool = False
    """Compile what, by the model, does not fit into a tile's memory (Poplar's debug.allowOutOfMemory; the
    name is ours)."""
    only_ipu_operators: bool = False
    """Refuse operators that the IPU's compiler lacks, which are only warned of otherwise (the option is
    ours)."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign, in the constructor too. CompileError for a value that an option cannot have, whatever the
        others are."""
        object.__setattr__(self, name, _check(name, value) if name in _KINDS else value)

    def check(self) -> None:
        """Raise CompileError where options that are right each by itself do not go together."""
        if self.enable_pipelining and self.batches_per_step % self.num_ipus:
            raise CompileError(
                f"compiler option batches_per_step must be a multiple of the {self.num_ipus} stages of the "
                f"pipeline, found {self.batches_per_step}"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CompilerOptions:
        """Options from names and values; text is read as a Python literal. CompileError lists the known
        names."""
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
        """What half precision does, of `partials_type` and the engine option debug.nanOverflowException.

        That option's default is false, as it is in the public frameworks' configurations (nanoo). Raises
        CompileError for a value that is neither true nor false.
        """
        name = "debug.nanOverflowException"
        nan_on_overflow = str(self.engine_options.get(name, "false")).lower()
        if nan_on_overflow not in ("true", "false"):
            raise CompileError(f"engine option {name}: expected true or false, found {nan_on_overflow!r}")
        return Numerics(self.partials_type == "half", nan_on_overflow == "true")

    def changed(self) -> tuple[tuple[str, str], ...]:
        """The options that differ from their defaults, as text, sorted: what the executable records."""
        defaults = CompilerOptions()
        return tuple(
            (entry.name, str(getattr(self, entry.name)))
            for entry in sorted(dataclasses.fields(self), key=lambda entry: entry.name)
            if getattr(self, entry.name) != getattr(defaults, entry.name) and entry.name != "opaque_blobs"
        )


_KINDS: dict[str, type] = {
    entry.name: dict if entry.default is dataclasses.MISSING else type(entry.default)
    for entry in dataclasses.fields(CompilerOptions)
}
"""The type of each option, which is that of its default."""


def _read(name: str, value: Any) -> Any:
    """The value that a text stands for, where the option is none itself."""
    kind = _KINDS[name]
    if not isinstance(value, str) or kind is str:
        return value
    text = value.capitalize() if value.lower() in ("true", "false") else value
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise _mismatch(name, value) from None


def _check(name: str, value: Any) -> Any:
    """The value as the option's type has it; CompileError for one that the option cannot have."""
    kind: Any = _KINDS[name]
    if isinstance(value, np.generic):
        value = value.item()
    if kind is bool and value in (0, 1):
        value = bool(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise _mismatch(name, value)
    if name in _SUPPORTED_VALUES and value not in _SUPPORTED_VALUES[name]:
        supported = ", ".join(map(repr, _SUPPORTED_VALUES[name]))
        raise CompileError(f"compiler option {name}={_quote(value)} is not supported; supported: {supported}")
    if name in _BOUNDS:
        least, most = _BOUNDS[name]
        if not least <= value <= most:
            raise CompileError(f"compiler option {name} must be {least} to {most}, found {_quote(value)}")
    if name == "available_memory_proportion" and not 0 < value <= 1:
        raise CompileError(f"compiler option {name} must lie in (0, 1], found {value}")
    if name in _ENTRIES and not all(
        isinstance(k, str) and isinstance(v, _ENTRIES[name]) for k, v in value.items()
    ):
        raise CompileError(
            f"compiler option {name}: expected a {_ENTRIES[name].__name__} for each name, found "
            f"{_quote(value)}"
        )
    return value


def _mismatch(name: str, value: Any) -> CompileError:
    kind = _KINDS[name].__name__
    return CompileError(
        f"compiler option {name}: expected {'an' if kind == 'int' else 'a'} {kind}, found {_quote(value)}"
    )


def _quote(value: Any) -> str:
    try:
        return escape(repr(value), 200)
    except ValueError:  # Python writes no numbers of thousands of digits
        return "a number that is too long to be written"
