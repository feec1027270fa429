"""Sessions of models, opened on the machine that the backend's options describe."""

from __future__ import annotations

import logging
from pathlib import Path

from model_runtime import DeviceManager, Session, SessionConfig, host_sync_timeout_seconds
from model_runtime.compiled_model import DIRECTIONS
from model_runtime.devices import model_target
from simipu import (
    ForeignExecutableError,
    GraphOptions,
    OperatorLibrary,
    ProgramKind,
    SimulatedExecutable,
    Stream,
)
from simipu.numerics import Numerics

import popef
from popef._tools.memory import usable_memory_bytes
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState

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
    limits."""
    parameters = state.parameters
    return GraphOptions(
        num_threads=state.num_threads,
        prepack=parameters.sim_prepack,
        limit_seconds=host_sync_timeout_seconds(),
        exact=parameters.sim_numerics == "exact",
        index_check=parameters.sim_index_check,
        libraries=_find_libraries(parameters.sim_custom_ops),
        ready_seconds=parameters.sim_load_sec,
        memory_bytes=parameters.sim_memory_mib << 20 or usable_memory_bytes(),
    )


def _find_libraries(text: str) -> tuple[OperatorLibrary, ...]:
    return tuple(OperatorLibrary.parse(each) for each in text.split(",") if each)


def _warn_of_dependent_rows(state: ModelState, session: Session) -> None:
    """Log a warning if a configuration batches a model whose rows are not proven to be independent.
    A generated configuration never does."""
    if not session.row_dependence or not state.max_batch_size:
        return
    told = (
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
        told,
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
    from poprt.compile.adoption import (
        adopt_graph,
    )  # a compiler: 0.2 s of import that few models need

    return adopt_graph(
        graph_file,
        model.executable.name,
        target,
        programs,
        _streams(metadata),
        state.names,
        numerics,
    )


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
    asked = {
        "sim_ipu_version": options.sim_ipu_version,
        "sim_tiles_per_IPU": options.sim_tiles_per_IPU,
    }
    for name, compiled in (
        ("sim_ipu_version", target.ipu_version),
        ("sim_tiles_per_IPU", target.tiles_per_ipu),
    ):
        if asked[name] not in (None, compiled):
            raise ModelConfigError(
                f"model {state.name!r}: backend option {name} is {asked[name]}, but the executable "
                f"was compiled for {compiled}; compile it for that machine, or remove the option"
            )
    if options.sim_num_IPUs is not None and options.sim_num_IPUs < target.num_ipus:
        raise ModelConfigError(
            f"model {state.name!r}: backend option sim_num_IPUs is {options.sim_num_IPUs}, but "
            f"the executable was compiled for {target.num_ipus}; compile it for fewer IPUs, or "
            "raise the option"
        )
