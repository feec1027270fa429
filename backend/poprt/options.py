"""ConverterOptions and CompilerOptions: the real tool's names, defaults and spellings.

An option of a conversion is an entry of `option_table`, with the option of the command. An option
of a compilation is a field here: name, type, default, and how a value is read and checked.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

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

from popef._tools.options import (
    Kind,
    MismatchError,
    Option,
    Settings,
    Wording,
    function,
    make_table,
    option_field,
    options_of,
    quote,
)
from poprt.option_table import OPTIONS
from poprt.passes.chip.transfers import IO_TILES

_NUMERIC_SWITCHES = (
    "debug.nanOverflowException",
    "debug.floatPointOpException",
    "prng.enableStochasticRounding",
)
"""Engine options that change numeric results, or end a run because of them."""
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
"""Largest whole number that is converted to a float; one with hundreds of digits has none."""
_ROUNDING = 1e-3
"""Tolerance for the sum of shares that are written in decimal."""
_READ_BY_CONVERTER = {"disable_progress_bar"}
"""Arguments of Converter that it reads itself."""


class ConverterOptions(Settings):
    """Options of a conversion, by the names of Converter's arguments; `Converter` describes each.

    An argument of Converter may have more forms than one. The kind of the option's entry turns each
    of them into the form that is read here.
    """

    WORDING: ClassVar = Wording(
        CompileError, "{name}{why}", AttributeError, "{owner} has no option {quoted}{hint}"
    )
    OPTIONS: ClassVar = make_table(
        *(
            entry.make_argument()
            for entry in OPTIONS.values()
            if entry.argument and entry.argument not in _READ_BY_CONVERTER
        ),
        Option("origin_model", "source model, for passes that compare with it"),
    )

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self.quantize and not self.precision.startswith("fp8"):
            raise CompileError(
                "quantize prepares a model for 8 bits: expected precision fp8 or fp8_weight, "
                f"found {self.precision!r}"
            )

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ConverterOptions:
        """Return the options that arguments of Converter set, in any form that it accepts. Other
        names are ignored. Raise CompileError for a value of another type."""
        return cls(**{name: arguments[name] for name in cls.OPTIONS if name in arguments})

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
class CompilerOption(Option):
    """Facts about a field of CompilerOptions."""

    recorded: bool = True
    """Whether an executable records the option: whether it affects the program."""
    no_effect: str = ""
    """Reason why the option is accepted and changes nothing here."""
    warned: bool = False
    """Whether an option without effect is warned of when it is set, because it requests something
    unsupported."""
    ours: bool = False
    """Whether the real tool lacks the option."""


def _plain(kind: type, convert: Callable[[Any], Any] | None = None) -> Kind:
    """Return the kind of the values of a type, and of those that `convert` turns into it."""
    expected = f"{'an' if kind is int else 'a'} {kind.__name__}"

    def read(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if convert is not None:
            value = convert(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise MismatchError(expected, value)
        return value

    return Kind(kind.__name__, read)


_BOOL = _plain(bool, lambda value: bool(value) if value in (0, 1) else value)
_TEXT, _INT = _plain(str), _plain(int)
_FLOAT = _plain(
    float,
    lambda value: float(value) if type(value) is int and abs(value) <= _MAX_INT64 else value,
)
_LIST = _plain(list, lambda value: list(value) if isinstance(value, tuple) else value)


def _within(least: float, most: float, kind: Kind = _INT) -> Kind:
    """Return the kind of numbers within bounds, both included."""

    def read(value: Any) -> Any:
        number = kind.read(value)
        if not least <= number <= most:
            raise MismatchError(f"{least} to {most}", number)
        return number

    return Kind(kind.name, read)


def _unsupported(value: Any, supported: str) -> MismatchError:
    """Return the error of a value that would change what the program does. Such values are rejected
    rather than ignored."""
    return MismatchError(text=f"={quote(value)} is not supported; supported: {supported}")


def _word(*words: str) -> Kind:
    """Return the kind of some words."""

    def read(value: Any) -> Any:
        if _TEXT.read(value) not in words:
            raise _unsupported(value, ", ".join(map(repr, words)))
        return value

    return Kind("str", read)


def _by_name(*kinds: type, convert: Callable[[Any], Any] | None = None) -> Kind:
    """Return the kind of dicts from texts to values of one of these types."""
    mapping = _plain(dict, convert)

    def read(value: Any) -> Any:
        values = mapping.read(value)
        if not all(isinstance(k, str) and isinstance(v, kinds) for k, v in values.items()):
            raise MismatchError(f"a {kinds[0].__name__} for each name", values)
        return values

    return Kind("dict", read)


def _read_chip(value: Any) -> Any:
    name = _TEXT.read(value)
    try:
        return find_target(name).given_name if name else name
    except LoadError as error:
        raise _unsupported(name, known_chips()) from error


def _read_shares(value: Any) -> Any:
    shares = _LIST.read(value)
    if not all(isinstance(share, (int, float)) and 0 < share < 1 for share in shares):
        raise MismatchError("numbers in (0, 1)", shares)
    return shares


def _encode(blobs: Any) -> Any:
    if not isinstance(blobs, dict):
        return blobs
    return {
        name: content.encode() if isinstance(content, str) else content
        for name, content in blobs.items()
    }


def _option(kind: Kind, default: Any, **facts: Any) -> Any:
    """Return the field of an option of CompilerOptions."""
    return option_field(kind, default, make=CompilerOption, **facts)


_CODE = "steers the real compiler's code; recorded in the executable, not modelled"
_SCHEDULER = _CODE.replace("code", "scheduler")
_IR: dict[str, Any] = {
    "no_effect": "the IR that PopART writes is not public",
    "warned": True,
    "recorded": False,
}
_LIBRARIES: dict[str, Any] = {
    "no_effect": "PopART's patterns and transforms are libraries of its own, which cannot be "
    "loaded here",
    "warned": True,
}


@dataclass(slots=True)
class CompilerOptions:
    """Options of a compilation: the real tool's options with its defaults, checked when they are
    assigned.

    Options that only affect the real compiler (`CompilerOption.no_effect`) are recorded in the
    executable and change nothing else here. Several IPUs, pipelining and I/O tiles change the
    modelled time and memory, never the results.

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

    num_ipus: int = _option(_within(1, MAX_IPUS), 1)
    ipu_version: str = _option(Kind("str", _read_chip), "")
    batches_per_step: int = _option(_within(1, _MAX_INT32), 1)
    partials_type: str = _option(_word("half", "float"), "half")
    available_memory_proportion: float = _option(_within(0, 1, _FLOAT), 0.6)
    num_io_tiles: int = _option(_within(0, MAX_TILES_PER_IPU), 0)
    enable_model_fusion: bool = _option(_BOOL, False)
    enable_prefetch_datastreams: bool = _option(_BOOL, True, no_effect=_CODE)
    stream_buffering_depth: int = _option(_within(1, _MAX_INT32), 1)
    enable_pad_conv_channel: bool = _option(_BOOL, False, no_effect=_CODE)
    serialize_ir: bool = _option(_BOOL, False, **_IR)
    serialized_ir_dest: str = _option(_TEXT, "", **_IR)
    enable_gather_simplifier: bool = _option(_BOOL, True, no_effect=_CODE)
    engine_options: dict[str, str] = _option(_by_name(str), {})
    show_compilation_progress_bar: bool = _option(_BOOL, True, recorded=False)
    compilation_progress_logger: Callable[[int, int], Any] | None = _option(
        function("a function"), None, recorded=False
    )
    """Callback that receives the progress of the compiler and its total, which is 100."""
    custom_patterns: list[str] = _option(_LIST, [], **_LIBRARIES)
    custom_transform_applier_settings: dict[str, list[str]] = _option(
        _by_name(list, tuple), {}, **_LIBRARIES
    )
    opaque_blobs: dict[str, bytes] = _option(_by_name(bytes, convert=_encode), {}, recorded=False)
    """Blobs that are written next to the executable. Texts are encoded as UTF-8."""
    use_128bit_conv_unit_load: bool = _option(_BOOL, False)
    enable_multi_stage_reduce: bool = _option(_BOOL, True, no_effect=_CODE)
    enable_fast_reduce: bool = _option(_BOOL, False, no_effect=_CODE)
    enable_outlining: bool = _option(_BOOL, True)
    group_host_sync: bool = _option(_BOOL, False, no_effect=_CODE)
    rearrange_streams_on_host: bool = _option(_BOOL, False, no_effect=_CODE)
    rearrange_anchors_on_host: bool = _option(_BOOL, True, no_effect=_CODE)
    outline_threshold: float = _option(_FLOAT, 1.0, no_effect=_CODE)
    enable_non_stable_softmax: bool = _option(_BOOL, False, no_effect=_CODE)
    enable_pipelining: bool = _option(_BOOL, False)
    enable_engine_caching: bool = _option(_BOOL, False, recorded=False)
    """Keep compiled executables as `cache_path`/HASH.popef and reuse them."""
    cache_path: str = _option(_TEXT, "", recorded=False)
    constant_weights: bool = _option(_BOOL, True)
    subgraph_copying_strategy: int = _option(_within(0, 1), 0, no_effect=_CODE)
    """0 and 1 are PopART's OnEnterAndExit and JustInTime."""
    virtual_graph_mode: str = _option(_word("off", "auto", "manual"), "off")
    virtual_graph_split_ratios: list[float] = _option(Kind("list", _read_shares), [])
    time_limit_scheduler: float = _option(_FLOAT, 1e9, no_effect=_SCHEDULER)
    swap_limit_scheduler: float = _option(_FLOAT, 1e9, no_effect=_SCHEDULER)
    transitive_closure_optimization_threshold: int = _option(_INT, 100_000, no_effect=_SCHEDULER)
    create_host_transferable_tensor_with_offset: bool = _option(_BOOL, False, no_effect=_CODE)
    enable_efficient_overlap_io_topo_cons: bool = _option(_BOOL, False, no_effect=_CODE)
    allow_out_of_memory: bool = _option(_BOOL, False, ours=True)
    """Compile models that are estimated not to fit into a tile's memory (Poplar's
    debug.allowOutOfMemory; the name is ours)."""
    only_ipu_operators: bool = _option(_BOOL, False, ours=True)
    """Reject operators that the IPU's compiler lacks; by default they only cause a warning (the
    option is ours)."""
    skip_dry_run: bool = _option(_BOOL, False, recorded=False, ours=True)
    """Compile without the dry run, which loads the executable and runs it once (ours)."""

    if not TYPE_CHECKING:  # type checkers would take every name for an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name in COMPILER_OPTIONS:
                value = _WORDING.read(COMPILER_OPTIONS[name], value)
            object.__setattr__(self, name, value)

    def check(self) -> None:
        """Check options against each other and log warnings for unsupported ones.

        Raises:
            CompileError: for options that do not go together, or that were changed in place to
                invalid values.
        """
        for name in COMPILER_OPTIONS:
            setattr(self, name, getattr(self, name))
        ratios = self.virtual_graph_split_ratios
        if ratios and (len(ratios) != self.num_ipus or abs(sum(ratios) - 1) > _ROUNDING):
            raise CompileError(
                "compiler option virtual_graph_split_ratios: expected one share for each of the "
                f"num_ipus={self.num_ipus} with the sum 1, found {quote(ratios)}"
            )
        if self.enable_engine_caching and not self.cache_path:
            raise CompileError(
                "compiler option enable_engine_caching requires cache_path, a folder"
            )
        for name, entry in COMPILER_OPTIONS.items():
            if entry.warned and getattr(self, name):
                logging.getLogger("poprt").warning(
                    "compiler option %s changes nothing: %s", name, entry.no_effect
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
        for name in sorted(set(values) - set(COMPILER_OPTIONS)):
            _WORDING.refuse(name, COMPILER_OPTIONS)
        options = cls(**{name: _read_text(name, value) for name, value in values.items()})
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
        switch = str(self.engine_options.get(name, "false")).lower()
        if switch not in ("true", "false"):
            raise CompileError(f"engine option {name}: expected true or false, found {switch!r}")
        return switch == "true"

    def changed(self) -> tuple[tuple[str, str], ...]:
        """Return the options that the executable records: changed ones, as sorted text.

        All names of a chip are recorded as Poplar's name.
        """
        defaults = CompilerOptions()
        changed = {
            name: str(getattr(self, name))
            for name, entry in sorted(COMPILER_OPTIONS.items())
            if entry.recorded and getattr(self, name) != getattr(defaults, name)
        }
        if self.ipu_version:
            changed["ipu_version"] = self.target().name
        return tuple(changed.items())


def take_io_tiles(model: onnx.ModelProto, options: CompilerOptions) -> CompilerOptions:
    """Return the options with the I/O tiles that the pass overlap_io has written into the model.

    Options that set I/O tiles themselves stay as they are. Raises CompileError if the model's entry
    is not a valid number of tiles.
    """
    text = next((entry.value for entry in model.metadata_props if entry.key == IO_TILES), None)
    if text is None or options.num_io_tiles:
        return options
    if not re.fullmatch("[0-9]{1,4}", text):
        raise CompileError(
            f"the model's metadata {IO_TILES}: expected a number of I/O tiles, 0 to "
            f"{MAX_TILES_PER_IPU}, found {quote(text)}"
        )
    return replace(options, num_io_tiles=int(text))


COMPILER_OPTIONS: Mapping[str, CompilerOption] = options_of(CompilerOptions)
"""Options of a compilation by name."""
_WORDING = Wording(
    CompileError,
    "compiler option {name}{why}",
    CompileError,
    "compiler option {name!r} is not known{hint}; `help(poprt.CompilerOptions)` prints the known "
    "ones",
)


def _read_text(name: str, value: Any) -> Any:
    """Return the value that a text stands for, unless the option is a text itself. A text that
    stands for nothing is no value of the option, which its kind says."""
    kind = type(COMPILER_OPTIONS[name].default)
    if not isinstance(value, str) or kind is str:
        return value
    if kind is list and not value.startswith("["):
        return [stripped for part in value.split(",") if (stripped := part.strip())]
    text = value.capitalize() if value.lower() in ("true", "false") else value
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
