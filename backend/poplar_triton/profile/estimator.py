"""Profiles of a source under requested settings: target, batch size, precision, options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from poprt.profiling.model_profile import Profile, make_profile
from simipu import CompileError
from simipu.target import TARGETS

from poplar_triton.profile.source import Source


@dataclass(frozen=True, slots=True)
class Settings:
    """Requested settings; None means the source's own."""

    target: str | None = None
    batch_size: int | None = None
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of CostOptions by name, where they differ from the source's."""
    converter: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the Converter by name, where they differ from its defaults."""

    @property
    def graph(self) -> tuple[int | None, str | None, str]:
        """Part of the settings that determines the converted graph."""
        return self.batch_size, self.precision, repr(sorted(self.converter.items()))


class Estimator:
    """Profiles one source under many settings; equal graphs are converted once."""

    def __init__(self, source: Source, on_step: Callable[[str], None] = lambda _step: None) -> None:
        self.source = source
        self._on_step = on_step
        self._converted: tuple[tuple[int | None, str, str], onnx.ModelProto] | None = None

    def profile(self, settings: Settings) -> Profile:
        """Estimate what the model of the source costs under `settings`. Raises CompileError naming
        what cannot be compiled, and why."""
        target = TARGETS[settings.target or self.source.target]
        options = replace(self.source.options, **settings.options)
        if not 0 <= options.num_io_tiles < target.tiles_per_ipu:
            raise CompileError(
                f"num_io_tiles must be at least 0 and below the {target.tiles_per_ipu} tiles of "
                f"{target.name}, found {options.num_io_tiles}"
            )
        model = self.convert(settings)
        self._on_step("plan operators")
        precision = settings.precision or self.source.precision
        return make_profile(
            self.source.name, precision, model, target, options, settings.batch_size
        )

    def convert(self, settings: Settings) -> onnx.ModelProto:
        """Return the static graph of these settings, kept for the next settings that share it.
        Raises CompileError like `profile`."""
        precision = settings.precision or self.source.precision
        key = (settings.batch_size, precision, settings.graph[-1])
        if self._converted is None or self._converted[0] != key:
            converted = self.source.convert(
                settings.batch_size, precision, self._on_step, **settings.converter
            )
            self._converted = key, converted
        return self._converted[1]
