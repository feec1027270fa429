"""Options that `--suggest` tries with their values, and the combinations of them.

An axis is an option with the values to try. A combination gives some axes a value; the other
options stay as the command has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from poprt.performance import TRANSFORMERS, Profile, kind_of

from poplar_triton.profile.source import ProfileSettings

LATENCY, THROUGHPUT, MEMORY = "latency", "throughput", "memory"
GOALS = (LATENCY, THROUGHPUT, MEMORY)
FIT = "fit"
"""Goal for a model that does not fit, whatever the user's goal is."""
_PROPORTIONS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
"""Proportions of tile memory for products to try: PopART's users go from 0.1 to 1."""
_IO_TILES = (0, 32, 64)
"""Numbers of I/O tiles to try: none, the fewest that PopART takes, and twice as many."""
_NARROWER = {"fp32": ("fp16", "fp8", "fp8_weight"), "fp16": ("fp8", "fp8_weight")}
_PASSES = ("fused_attention", "attention_padding", "pre_scale", "matmul_rotary_embedding")
"""Passes of the converter that a user lists for a transformer. Each is an axis."""
_IPUS = "num_ipus"
"""Axis whose values are a number of IPUs and whether they are pipelined."""
_INEXACT = ("precision", "partials_type")
"""Options that change the model's results."""

Choice: TypeAlias = tuple[str, Any]
"""Axis and value."""
Combination: TypeAlias = tuple[Choice, ...]
"""Choices of different axes, in the order of the axes."""


def is_exact(combination: Combination) -> bool:
    """Return whether a combination keeps the model's results."""
    return not any(axis in _INEXACT for axis, _ in combination)


@dataclass(frozen=True, slots=True)
class Space:
    """Options to try for one model, by axis; the values of an axis do not include its own."""

    settings: ProfileSettings
    """Settings of the command."""
    axes: Mapping[str, Sequence[Any]]
    """Axes that keep the converted graph come first, because they cost no conversion."""

    def iter_choices(self) -> Iterator[Choice]:
        """Yield each value of each axis."""
        for axis, values in self.axes.items():
            for value in values:
                yield axis, value

    def change(self, combination: Combination, choice: Choice) -> Combination:
        """Return the combination with another value of one axis."""
        chosen = {**dict(combination), choice[0]: choice[1]}
        return tuple((axis, chosen[axis]) for axis in self.axes if axis in chosen)

    def make_settings(self, combination: Combination) -> ProfileSettings:
        """Return the command's settings with those of a combination."""
        options, converter = dict(self.settings.options), dict(self.settings.converter)
        changed: dict[str, Any] = {}
        for axis, value in combination:
            if axis in _PASSES:
                converter["used_passes"] = self._list_passes(combination)
            elif axis in ("batch_size", "precision"):
                changed[axis] = value
            elif axis == _IPUS:
                options[_IPUS], pipelined = value
                options |= {"enable_pipelining": True} if pipelined else {}
            else:
                options[axis] = value
        return replace(self.settings, options=options, converter=converter, **changed)

    def make_words(self, combination: Combination) -> list[str]:
        """Return the words of the command line that make the same change."""
        words: list[str] = []
        for axis, value in combination:
            if axis == _IPUS:
                number, pipelined = value
                words += [f"--{_IPUS}", str(number), *(["--enable_pipelining"] * pipelined)]
            elif axis not in _PASSES:
                words += [f"--{axis}"] if value is True else [f"--{axis}", str(value)]
        passes = self._list_passes(combination)
        own = self.settings.converter.get("used_passes", ())
        return words if len(passes) == len(own) else [*words, "--passes", ",".join(passes)]

    def _list_passes(self, combination: Combination) -> list[str]:
        own = self.settings.converter.get("used_passes", ())
        return [*own, *(axis for axis, _ in combination if axis in _PASSES)]


def make_space(
    settings: ProfileSettings, base: Profile, goal: str, max_ipus: int | None = None
) -> Space:
    """Return the options to try for the model of `base`.

    Args:
        settings: Settings of the command.
        base: Profile under these settings.
        goal: One of `GOALS`, or `FIT`.
        max_ipus: Maximum number of IPUs; None for as many as the command has, or twice as many if
            the model does not fit.

    Returns:
        The axes that have a value to try.
    """
    options = base.estimate.options
    axes: dict[str, Sequence[Any]] = {
        "partials_type": ("half",) if options.partials_type == "float" else (),
        "available_memory_proportion": _PROPORTIONS,
        "num_io_tiles": _IO_TILES,
        "use_128bit_conv_unit_load": (True,),
        _IPUS: _list_ipus(base, max_ipus),
        **dict.fromkeys(_list_passes(settings, base), (True,)),
        "batch_size": _list_batch_sizes(base.batch_size, goal),
        "precision": [
            precision
            for precision in _NARROWER.get(base.precision, ())
            if base.target.quarter_macs or not precision.startswith("fp8")
        ],
    }
    tried = {
        axis: tuple(value for value in values if value != getattr(options, axis, None))
        for axis, values in axes.items()
    }
    return Space(settings, {axis: values for axis, values in tried.items() if values})


def _list_passes(settings: ProfileSettings, base: Profile) -> list[str]:
    used_passes = settings.converter.get("used_passes", ())
    is_transformer = kind_of(base.estimate) in TRANSFORMERS
    return [name for name in _PASSES if is_transformer and name not in used_passes]


def _list_batch_sizes(size: int, goal: str) -> list[int]:
    """Return the batch sizes to try: smaller ones need less time and memory, larger ones have more
    throughput."""
    larger = {size // 2, *(size << shift for shift in range(1, 5))}
    sizes = larger if goal == THROUGHPUT else {1, size // 4, size // 2}
    return sorted(sizes - {0, size}, reverse=goal != THROUGHPUT)


def _list_ipus(base: Profile, max_ipus: int | None) -> list[tuple[int, bool]]:
    """Return numbers of IPUs, from the half of the command's to the maximum by doubling, each
    without and with pipelining. A pipeline cannot be turned off by an option."""
    options = base.estimate.options
    if options.virtual_graph_mode == "manual" or options.virtual_graph_split_ratios:
        return []  # the model's placement is for its own number of IPUs
    own = options.num_ipus
    most = max_ipus or (own if base.estimate.fits else 2 * own)
    numbers = [own // 2] if own > 1 else []
    while own <= most:
        numbers.append(own)
        own *= 2
    pairs = [(number, pipelined) for number in numbers for pipelined in (False, True)]
    same = options.num_ipus, options.enable_pipelining
    return [
        (num_ipus, pipelined)
        for num_ipus, pipelined in pairs
        if (num_ipus, pipelined) != same
        and (pipelined == (num_ipus > 1) or not (pipelined or same[1]))
    ]
