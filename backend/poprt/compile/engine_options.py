"""Options of Poplar's engine: what POPLAR_ENGINE_OPTIONS adds to those of a compilation, and the
profile that `autoReport` options ask for. All frontends read them here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simipu import CompileError

from popef._tools.variables import ENGINE_OPTIONS, read_options
from poprt.options import CompilerOptions

if TYPE_CHECKING:  # few compilations write a profile
    from poprt.performance import Profile

DEFAULT_NAME = "inference"
"""Folder of a profile: PopART's default for the name of a session."""
_REPORT = "autoReport."
_ASKING = tuple(
    f"{_REPORT}{name}" for name in ("all", "outputGraphProfile", "outputExecutionProfile")
)
_DIRECTORY = f"{_REPORT}directory"
_ALLOW_OUT_OF_MEMORY = "debug.allowOutOfMemory"
_TRUE, _FALSE = "true", "false"


def read_engine_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of an engine with those of the environment, which come before them.

    Raises CompileError for an environment variable that is no JSON object of texts, and for an
    `autoReport` option that is neither true nor false.
    """
    try:
        engine = {**options, **read_options(ENGINE_OPTIONS)}
    except ValueError as error:
        raise CompileError(str(error)) from error
    for name in (*_ASKING, _ALLOW_OUT_OF_MEMORY):
        if str(engine.get(name, _FALSE)).lower() not in (_TRUE, _FALSE):
            raise CompileError(
                f"engine option {name} ({ENGINE_OPTIONS} overrides the program's): expected true "
                f"or false, found {engine[name]!r}"
            )
    return engine


def add_engine_variable(options: CompilerOptions) -> CompilerOptions:
    """Return the options of a compilation with those of the environment that change the executable.
    It does not record where reports go. Raises CompileError as `read_engine_options` does."""
    engine = read_engine_options(options.engine_options)
    recorded = {
        name: value
        for name, value in engine.items()
        if name in options.engine_options or not name.startswith(_REPORT)
    }
    recorded |= {
        name: value for name, value in options.engine_options.items() if name.startswith(_REPORT)
    }
    allowed = str(engine.get(_ALLOW_OUT_OF_MEMORY, _FALSE)).lower() == _TRUE
    return replace(
        options,
        engine_options=recorded,
        allow_out_of_memory=options.allow_out_of_memory or allowed,
    )


def find_report_folder(options: Mapping[str, str], name: str = DEFAULT_NAME) -> Path | None:
    """Return the folder of a profile, or None if no option asks for one. Raises CompileError as
    `read_engine_options` does."""
    engine = read_engine_options(options)
    if not any(str(engine.get(asking, _FALSE)).lower() == _TRUE for asking in _ASKING):
        return None
    return Path(engine.get(_DIRECTORY, "."), name)


def write_profiles(folder: Path, profiles: Sequence[Profile]) -> list[Path]:
    """Write profiles into a folder, and return the folders: of a fused executable each model has
    its own.

    Each gets `profile.json`, the JSON of `poplar-triton profile`, and `profile.pop`, which pva
    opens. Raises CompileError if a file cannot be written.
    """
    # Imported here: few compilations write a profile.
    from poprt.performance import tiles_of

    folders = [folder, *(folder.with_name(f"{folder.name}_{i}") for i in range(1, len(profiles)))]
    for place, profile in zip(folders, profiles, strict=True):
        texts = {
            "profile.json": json.dumps(profile.as_json(), indent=2) + "\n",
            "profile.pop": json.dumps(tiles_of(profile).as_json()),
        }
        for file, text in texts.items():
            try:
                place.mkdir(parents=True, exist_ok=True)
                place.joinpath(file).write_text(text, encoding="utf-8")
            except OSError as error:
                raise CompileError(
                    f"the profile {place / file} cannot be written: {error}"
                ) from error
    return folders
