"""CompilerOptions: the real tool's fields, defaults and spellings."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simipu import CompileError
from simipu.numerics import Numerics

_SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "virtual_graph_mode": ("off", "auto"),
    "partials_type": ("half", "float"),
    "ipu_version": ("", "ipu1", "ipu2", "ipu21", "bow"),
}
"""Options whose other values would change what the program does; refused rather than ignored."""


@dataclass(slots=True)
class CompilerOptions:
    """How to compile. Options that only steer the real compiler's search are recorded in the executable and change
    nothing else here; several IPUs, pipelining and I/O tiles change the modelled time and memory, never the results;
    `ipu_version` "" means ipu2, and knows ipu1 and bow besides the real ipu2 and ipu21."""

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
    """Compile what, by the model, does not fit into a tile's memory (Poplar's debug.allowOutOfMemory; the name is ours)."""
    only_ipu_operators: bool = False
    """Refuse operators that the IPU's compiler lacks, which are only warned of otherwise (the option is ours)."""

    def __post_init__(self) -> None:
        for name, allowed in _SUPPORTED_VALUES.items():
            if getattr(self, name) not in allowed:
                raise CompileError(
                    f"compiler option {name}={getattr(self, name)!r} is not supported; "
                    f"supported: {', '.join(repr(value) for value in allowed)}"
                )
        for name, least in (("num_ipus", 1), ("num_io_tiles", 0), ("batches_per_step", 1)):
            if getattr(self, name) < least:
                raise CompileError(f"compiler option {name} must be at least {least}, found {getattr(self, name)}")
        if self.enable_pipelining and self.batches_per_step % self.num_ipus:
            raise CompileError(
                f"compiler option batches_per_step must be a multiple of the {self.num_ipus} stages of the pipeline, "
                f"found {self.batches_per_step}"
            )
        if not 0 < self.available_memory_proportion <= 1:
            raise CompileError(
                f"compiler option available_memory_proportion must lie in (0, 1], found {self.available_memory_proportion}"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CompilerOptions:
        """Options from names and values; text is read as a Python literal. CompileError lists the known names."""
        known = {entry.name: entry for entry in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise CompileError(f"compiler option {unknown[0]!r} is not known; known are {', '.join(sorted(known))}")
        defaults = cls()
        return cls(**{name: _read(name, value, type(getattr(defaults, name))) for name, value in values.items()})

    def numerics(self) -> Numerics:
        """What half precision does, of `partials_type` and the engine option debug.nanOverflowException.

        That option's default is false, as it is in the public frameworks' configurations (nanoo). Raises CompileError for a
        value that is neither true nor false.
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


def _read(name: str, value: Any, kind: type) -> Any:
    if isinstance(value, str) and kind is not str:
        text = value.capitalize() if value.lower() in ("true", "false") else value
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise CompileError(f"compiler option {name}: expected a {kind.__name__}, found {value!r}") from None
    if kind is bool and value in (0, 1):
        value = bool(value)
    if kind is float and isinstance(value, int):
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise CompileError(f"compiler option {name}: expected a {kind.__name__}, found {value!r}")
    return value
