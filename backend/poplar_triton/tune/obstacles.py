"""Engines that a model's files rule out, found without computing: a load that must fail takes as
long as one that works."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.json_format import MessageToDict
from model_runtime import ModelRuntimeError
from onnxgraph import infer_shapes
from poprt.triton import ModelConfig
from simipu import CompileError, SimIpuError, find_fault, read_graph
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState, complete_config
from triton_poplar.sessions import make_graph_options, open_session

import popef

_ERRORS = (
    ModelConfigError,
    ModelRuntimeError,
    SimIpuError,
    CompileError,
    popef.PopefError,
    OSError,
    ValueError,
)


def find_obstacle(folder: Path, config: ModelConfig) -> str:
    """Return why the accelerator of a configuration cannot compute the model in `folder`; empty if
    its files do not tell, or cannot be read: a load says more then."""
    try:
        state = _open_state(folder, config)
        session = open_session(state)
    except _ERRORS:
        return ""
    try:
        options = make_graph_options(state)
        numerics = session.executable.numerics if options.exact else None
        for entry in session.plan:
            graph = read_graph(session.executable.program(entry[0]))
            if fault := find_fault(graph, infer_shapes(graph), numerics, options):
                return fault
        return ""
    except _ERRORS:
        return ""
    finally:
        session.stop()


def _open_state(folder: Path, config: ModelConfig) -> ModelState:
    """Return the state of the newest version. Raises ModelConfigError and others."""
    versions = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]
    version = folder / str(max(versions, default=1))
    document = MessageToDict(config, preserving_proto_field_name=True)
    state = ModelState({**document, **complete_config(document, version)}, version)
    state.validate()
    return state
