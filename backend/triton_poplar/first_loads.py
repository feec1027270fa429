"""The first load of a model's files, in a child process within the model's limits of time and
memory.

ONNX's checks and inference, this project's lowering and parts of ONNX Runtime cannot be
interrupted. An untrusted file may make them run for ever, use all memory, or end the process. Files
that have loaded once are known by their digest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from model_runtime import ModelRuntimeError
from simipu import GraphOptions, LoadError
from simipu.errors import LoadMemoryError, LoadTimeoutError, SimIpuError
from simipu.isolation import Trial, try_in_child
from simipu.known_files import KNOWN_FILES, LoadLimits

import popef
from triton_poplar.backend_state import BackendState
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState

Load = Callable[[ModelState], object]
"""Function that loads everything of a model; it can be pickled."""
_REFUSALS = (ModelConfigError, ModelRuntimeError, SimIpuError, popef.PopefError)
_TRIAL_PARAMETERS = {
    "sim_isolation": {"string_value": "none"},
    "sim_timing": {"string_value": "fast"},
}
"""Parameters of a model that the child process loads but does not serve."""

_log = logging.getLogger("triton_poplar")


def load_first(state: ModelState, options: GraphOptions, load: Load) -> None:
    """Load the model with `load` in a child process, unless its files are known. Raises
    ModelConfigError for a model that does not load within the limits of `options`."""
    if not _needs_trial_load(state):
        return
    files = [*state.executable_files, *state.weights_files]
    limits = LoadLimits(options.ready_seconds, options.memory_bytes)
    try:
        # The files that a graph of sim_graph_path refers to are known only after it is read.
        is_whole = state.graph_file is None
        if is_whole and KNOWN_FILES.have_loaded(files, limits):
            return
        held_bytes = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise ModelConfigError(f"model {state.name!r}: {error}") from error
    start = time.monotonic()
    work = partial(_load_quietly, load, state.config, state.version_folder, state.backend)
    named = f"model {state.name!r}"
    try:
        try_in_child(Trial(work, held_bytes, _find_folders(state)), options, named)
    except LoadError as error:
        text = str(error)
        raise ModelConfigError(text if text.startswith(named) else f"{named}: {text}") from error
    _log.info(
        "model %r was loaded first in a child process: %.1f s", state.name, time.monotonic() - start
    )
    if is_whole:
        with suppress(OSError):
            KNOWN_FILES.remember_files(files, limits)


def _find_folders(state: ModelState) -> tuple[str, ...]:
    """Return the folders of a model's files: its own folders, and those to which links in them
    lead."""
    folders = {state.version_folder.parent, state.version_folder}
    files = {*state.executable_files, *state.weights_files, *state.version_folder.iterdir()}
    folders |= {file.resolve().parent for file in files}
    if state.graph_file is not None:
        folders.add(state.graph_file.resolve().parent)
    return tuple(map(str, folders))


def _needs_trial_load(state: ModelState) -> bool:
    """Return whether a child process loads the model first.

    The child process of sim_isolation loads a graph anyway. But the work that makes one graph of
    several files is done in this process.
    """
    if state.parameters.sim_isolation == "process" and not (state.graph_file or state.holds_inputs):
        return False
    return state.parameters.sim_first_load


def _load_quietly(
    load: Load, config: Mapping[str, Any], version_folder: Path, backend: BackendState
) -> None:
    """Load the model in the child process with the log switched off, because the later load for
    service logs the same messages."""
    logging.disable(logging.ERROR)
    config = {**config, "parameters": {**config.get("parameters", {}), **_TRIAL_PARAMETERS}}
    try:
        load(ModelState(config, version_folder, backend))
    except (LoadTimeoutError, LoadMemoryError, MemoryError):
        raise
    except Exception as error:  # work that lacks memory must not be retried without limits
        told = str(error) if isinstance(error, _REFUSALS) else f"{type(error).__name__}: {error}"
        raise LoadError(told) from error
