"""Sessions of models, opened on the machine that the backend's options describe.

The first load of a model's files is in a child process within the model's limits of time and
memory. ONNX's checks and inference, this project's lowering and parts of ONNX Runtime cannot be
interrupted. An untrusted file may make them run for ever, use all memory, or end the process. Files
that have loaded once are known by their digest, with the executable and the options that were
loaded.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import simipu
from model_runtime import (
    DIRECTIONS,
    DeviceManager,
    ModelRuntimeError,
    Session,
    SessionConfig,
    host_sync_timeout_seconds,
    model_target,
)
from simipu import (
    KNOWN_FILES,
    OWN_BYTES,
    FileLoad,
    ForeignExecutableError,
    GraphOptions,
    LoadedFiles,
    LoadError,
    LoadMemoryError,
    LoadTimeoutError,
    Numerics,
    OperatorLibrary,
    ProgramKind,
    SimIpuError,
    SimulatedExecutable,
    Stream,
)

import popef
from popef._tools.file_state import FileState
from popef._tools.memory import GROWTH, usable_memory_bytes
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState
from triton_poplar.parameters import BackendState
from triton_poplar.server_start import NOT_TRIED, ServerStart

_log = logging.getLogger("triton_poplar")


def open_session(state: ModelState) -> Session:
    """Open the session of a model on the machine that the backend's options describe."""
    parameters, options = state.parameters, state.backend.options
    if not options.use_sim_if_no_hw:
        raise ModelConfigError(
            f"model {state.name!r}: No IPU can be attached: this machine has none, and the "
            "backend option use_sim_if_no_hw is false; remove the option or set it to true to "
            "use the simulated IPU"
        )
    model = state.load_model()
    executable = _find_executable(state, model)
    _check_target(state, executable)
    config = SessionConfig(
        check_package_hash=parameters.check_package_hash,
        device_manager=DeviceManager(options.sim_num_IPUs),
        graph_options=make_graph_options(state),
        isolated=parameters.sim_isolation == "process",
        paced=parameters.sim_timing == "paced",
        executable=executable,
        join_dependent_rows=parameters.join_dependent_rows,
    )
    session = Session(model, config)
    _warn_of_dependent_rows(state, session)
    return session


def load_session(state: ModelState) -> Session:
    """Open the session of a model and load its weights, so that it is ready to run."""
    session = open_session(state)
    session.runLoadPrograms()
    return session


def make_graph_options(state: ModelState) -> GraphOptions:
    """Return the options that the model's parameters set for computing its graphs, with their
    limits. Raises ModelConfigError if the environment has none for a run."""
    try:
        limit_seconds = host_sync_timeout_seconds()
    except ModelRuntimeError as error:
        raise ModelConfigError(f"model {state.name!r}: {error}") from error
    parameters, start = state.parameters, state.backend.start
    # The child process of sim_isolation is the first that loads the files.
    limit = start.limit_first if parameters.sim_isolation == "process" else start.limit
    return GraphOptions(
        num_threads=state.num_threads,
        prepack=parameters.sim_prepack,
        limit_seconds=limit_seconds,
        exact=parameters.sim_numerics == "exact",
        index_check=parameters.sim_index_check,
        libraries=tuple(
            OperatorLibrary.parse(part) for part in parameters.sim_custom_ops.split(",") if part
        ),
        ready_seconds=limit(parameters.sim_load_sec),
        memory_bytes=_find_memory_limit(state),
        caches=parameters.sim_graph_cache,
        accelerators=state.accelerators,
        falls_back=parameters.sim_accelerator_fallback,
    )


def limit_growth(state: ModelState) -> None:
    """Limit the private memory of this process, whose model has been loaded, to its limit for a
    run and to what is free, of which each instance of the model may take an equal part at once. A
    child process of sim_isolation limits its own."""
    if state.parameters.sim_isolation == "none":
        GROWTH.start(_find_memory_limit(state) + OWN_BYTES, state.instance_count)


def _find_memory_limit(state: ModelState) -> int:
    # What is free now is no limit of the model: files that were loaded within it would be unknown
    # whenever less is free.
    return state.parameters.sim_memory_mib << 20 or usable_memory_bytes()


def _warn_of_dependent_rows(state: ModelState, session: Session) -> None:
    """Log a warning if a configuration batches a model whose rows are not proven to be independent.
    A generated configuration never does."""
    if not session.row_dependence or not state.max_batch_size:
        return
    consequence = (
        "each request runs alone, padded with zeros, and a request with more rows is rejected"
        if session.runs_alone
        else (
            "join_dependent_rows puts rows of several requests into one batch, so answers can "
            "depend on other clients' rows"
        )
    )
    _log.warning(
        "model %r has max_batch_size %d, but the rows of its compiled batch of %d are not "
        "proven to be independent (%s): %s. To avoid this, set max_batch_size to 0 and the "
        "whole shape in dims, or compile the model for batch 1",
        state.name,
        state.max_batch_size,
        session.batch_size,
        session.row_dependence,
        consequence,
    )


def _find_executable(state: ModelState, model: popef.Model) -> SimulatedExecutable:
    try:
        return SimulatedExecutable.deserialize(
            model.executable.executable(), check_package_hash=state.parameters.check_package_hash
        )
    except ForeignExecutableError as error:
        if state.graph_file is None:
            raise ModelConfigError(
                f"model {state.name!r}, executable {model.executable.name!r} for IPU version "
                f"{model.metadata.ipuVersion()}: {error}"
            ) from error
    flow = model.metadata.programFlow()
    if len(flow.main()) != 1:
        raise ModelConfigError(
            f"model {state.name!r} has {len(flow.main())} main programs, expected 1; "
            "sim_graph_path can replace only one"
        )
    return _adopt(state, state.graph_file, model)


def _adopt(state: ModelState, graph_file: Path, model: popef.Model) -> SimulatedExecutable:
    """Return the executable of a graph that stands in for the model's one main program."""
    metadata = model.metadata
    flow = metadata.programFlow()
    programs = dict.fromkeys(flow.load(), ProgramKind.LOAD) | dict.fromkeys(
        flow.save(), ProgramKind.SAVE
    )
    programs[flow.main()[0]] = ProgramKind.MAIN
    # numIpus counts the IPUs of all replicas; an executable counts those of one replica.
    target = model_target(metadata)
    target = target.with_ipus(max(1, target.num_ipus // max(1, metadata.replicationFactor())))
    options = {option.name(): option.value() for option in metadata.engineOptions()}
    nan_on_overflow, raises = (
        options.get(f"debug.{name}", "").lower() == "true"
        for name in ("nanOverflowException", "floatPointOpException")
    )
    numerics = Numerics(nan_on_overflow=nan_on_overflow, raises=raises)
    # A compiler: 0.2 s of import that few models need.
    from poprt.compile import adopt_graph

    name, streams = model.executable.name, _streams(metadata)
    _log.warning(
        "model %r: %s holds machine code of a real IPU; the graph %s (sim_graph_path) is computed "
        "instead",
        state.name,
        state.executable_files[0],
        graph_file,
    )
    executable = adopt_graph(graph_file, name, target, programs, streams, state.names, numerics)
    state.check_graph_file()  # that was read
    return executable


def _streams(metadata: popef.Metadata) -> list[Stream]:
    """Return the streams behind the user's anchors, described by those anchors."""
    return [
        Stream(
            anchor.handle(),
            anchor.name(),
            direction,
            popef.popefTypeToNumpyDType(anchor.tensorInfo().dataType()),
            popef.replica_shape(metadata, anchor),
        )
        for kind, direction in DIRECTIONS.items()
        for anchor in popef.user_anchors(metadata, kind)
    ]


def _check_target(state: ModelState, executable: SimulatedExecutable) -> None:
    """Raise ModelConfigError if the backend's options describe other chips than those the
    executable was compiled for."""
    options, target = state.backend.options, executable.target
    for name, requested, compiled in (
        ("sim_ipu_version", options.sim_ipu_version, target.ipu_version),
        ("sim_tiles_per_IPU", options.sim_tiles_per_IPU, target.tiles_per_ipu),
    ):
        if requested not in (None, compiled):
            raise ModelConfigError(
                f"model {state.name!r}: backend option {name} is {requested}, but the executable "
                f"was compiled for {compiled}; compile it for that machine, or remove the option"
            )
    if options.sim_num_IPUs is not None and options.sim_num_IPUs < target.num_ipus:
        raise ModelConfigError(
            f"model {state.name!r}: backend option sim_num_IPUs is {options.sim_num_IPUs}, but "
            f"the executable was compiled for {target.num_ipus}; compile it for fewer IPUs, or "
            "raise the option"
        )


Load = Callable[[ModelState], object]
"""Function that loads everything of a model; it can be pickled."""
_REFUSALS = (ModelConfigError, ModelRuntimeError, SimIpuError, popef.PopefError)
_TRIAL_PARAMETERS = {
    "sim_isolation": {"string_value": "none"},
    "sim_timing": {"string_value": "fast"},
    "sim_graph_cache": {"string_value": "false"},
}
"""Parameters of a model that the child process loads but does not serve."""


def load_first(state: ModelState, options: GraphOptions, load: Load) -> None:
    """Load the model with `load` in a child process, unless its files are known. Raises
    ModelConfigError for a model that does not load within the limits of `options`, and for one
    that the server's start has no time for."""
    if not _needs_trial_load(state):
        if state.parameters.sim_isolation == "process":
            _check_time(state)
        return
    paths = [*state.executable_files, *state.weights_files]
    files = LoadedFiles(paths, state.file_states)
    file_load = FileLoad(state.executable_name, options)
    try:
        # The files that a graph of sim_graph_path refers to are known only after it is read.
        is_whole = state.graph_file is None
        if is_whole and KNOWN_FILES.have_loaded(files, file_load):
            return
        held_bytes = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise ModelConfigError(f"model {state.name!r}: {error}") from error
    _check_time(state)
    began = time.monotonic()
    _try(state, options, load, held_bytes)
    seconds = time.monotonic() - began
    _log.warning("model %r was loaded first in a child process: %.1f s", state.name, seconds)
    if is_whole:
        with suppress(OSError):
            KNOWN_FILES.remember_files(files, file_load.within(seconds))


def describe_failure(state: ModelState, error: LoadError, seconds: float) -> str:
    """Return the text of the error of a load that had `seconds`; the server's start may be why it
    had no more."""
    is_cut = isinstance(error, LoadTimeoutError) and seconds < state.parameters.sim_load_sec
    return f"{error}; {state.backend.start.describe_cut()}" if is_cut else str(error)


def _check_time(state: ModelState) -> None:
    """Raise ModelConfigError if the server's start has no time left for files that are not known,
    or that a child process loads each time."""
    start = state.backend.start
    if start.is_used_up:
        raise ModelConfigError(f"model {state.name!r} {NOT_TRIED}: {start.describe_cut()}")


def _try(state: ModelState, options: GraphOptions, load: Load, held_bytes: int) -> None:
    """Load the model in a child process. Raises ModelConfigError if that fails."""
    seconds = state.backend.start.limit_first(state.parameters.sim_load_sec)
    seconds = seconds if seconds < 1 else math.floor(seconds)  # for its messages
    work = partial(
        _load_quietly,
        load,
        state.config,
        state.version_folder,
        state.backend,
        file_states=state.file_states,
    )
    model = f"model {state.name!r}"
    trial = simipu.Trial(work, held_bytes, _find_folders(state))
    try:
        simipu.try_in_child(trial, replace(options, ready_seconds=seconds), model)
    except LoadError as error:
        text = describe_failure(state, error, seconds)
        raise ModelConfigError(text if text.startswith(model) else f"{model}: {text}") from error


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
    load: Load,
    config: Mapping[str, Any],
    version_folder: Path,
    backend: BackendState,
    *,
    file_states: Sequence[FileState | None],
) -> None:
    """Load the model in the child process with the log switched off, because the later load for
    service logs the same messages."""
    logging.disable(logging.ERROR)
    backend.start = ServerStart()  # the parent has set the limit, and ends this process at it
    config = {**config, "parameters": {**config.get("parameters", {}), **_TRIAL_PARAMETERS}}
    try:
        load(ModelState(config, version_folder, backend, file_states=file_states))
    except (LoadTimeoutError, LoadMemoryError, MemoryError):
        raise
    except Exception as error:  # work that lacks memory must not be retried without limits
        reason = str(error) if isinstance(error, _REFUSALS) else f"{type(error).__name__}: {error}"
        raise LoadError(reason) from error
