"""Model to export: its files and configuration as the server reads them, and the tensors of its
requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.json_format import MessageToDict, ParseDict
from model_runtime import Session
from poprt.triton import ModelConfig, new_config, read_config
from simipu import Program, Stream
from simipu.numerics import QUARTERS
from triton_poplar.model_state import ModelState, complete_config
from triton_poplar.sessions import load_session

from popef._tools.text import did_you_mean, escape
from poplar_triton.errors import ExportError

ROWS = -1
"""Size of an axis that may have any number of rows."""
KINDS = ("input", "output")
_CONFIG = "config.pbtxt"
_SETTINGS = {"sim_isolation": "none", "sim_timing": "fast"}
"""Parameters of the sessions that compute answers for the comparison."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output. Clients call it `name`; its graph calls it `stream.tensor`.

    `dims` are those of the configuration. `shape` is the shape in the graph, and `wire_shape` that
    of a request's tensor, batch included; both contain ROWS where any number of rows is accepted.
    """

    name: str
    stream: Stream
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    wire_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Model that can be exported: one main program of any number of rows, or of whole batches."""

    folder: Path | None
    """Model folder; None for a PopEF file alone."""
    version: int
    config: ModelConfig
    """Configuration as Triton completes it."""
    state: ModelState
    session: Session
    program: Program
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def name(self) -> str:
        """Name by which clients call the model."""
        return self.state.name

    @property
    def is_open(self) -> bool:
        """Whether the graph computes any number of rows."""
        return bool(self.program.batch_size) and self.program.row_independent

    @property
    def is_narrow(self) -> bool:
        """Whether the model has tensors of half or fp8."""
        graph = onnx.load_model_from_string(self.program.graph).graph
        kinds = {tensor.data_type for tensor in graph.initializer}
        kinds |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
        return bool(kinds & {onnx.TensorProto.FLOAT16, *QUARTERS})

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters of the configuration that are set."""
        return {name: value.string_value for name, value in self.config.parameters.items()}

    def open_session(self, numerics: str) -> Session:
        """Return another session of the model that computes with `numerics`, exact or fast."""
        settings = {**_SETTINGS, "sim_numerics": numerics}
        added = {name: {"string_value": text} for name, text in settings.items()}
        original = self.state.config
        config = {**original, "parameters": {**original.get("parameters", {}), **added}}
        return load_session(ModelState(config, self.state.version_folder))


def open_source(path: Path) -> ExportSource:
    """Open a model folder, of which the newest version counts, or a PopEF file.

    Raises ExportError for a model that has no counterpart in ONNX, ModelConfigError and others for
    one that the server would not load.
    """
    folder, version, config, place = _find_model(path)
    config = {**config, **complete_config(config, place)}
    state = ModelState(config, place)
    state.validate()
    session = load_session(state)
    program = _find_program(state, session)
    message = ParseDict(config, new_config(), ignore_unknown_fields=True)
    inputs, outputs = (tuple(_iter_ports(message, kind, state, session, program)) for kind in KINDS)
    return ExportSource(folder, version, message, state, session, program, inputs, outputs)


def _find_model(path: Path) -> tuple[Path | None, int, dict[str, Any], Path]:
    """Return the model folder, the version, the configuration in JSON form, and the folder of the
    files."""
    if not path.exists():
        raise ExportError(f"{escape(path)}: there is no such file or folder")
    if path.is_file():
        parameters = {"executable_path": {"string_value": str(path.resolve())}}
        return None, 1, {"name": path.stem, "parameters": parameters}, path.resolve().parent
    versions = [int(folder.name) for folder in path.iterdir() if _is_version(folder)]
    if not versions:
        raise ExportError(
            f"{escape(path)}: expected a model folder with a version such as 1, or a PopEF file; "
            "found neither"
        )
    file, version = path / _CONFIG, max(versions)
    config = (
        MessageToDict(read_config(file), preserving_proto_field_name=True) if file.exists() else {}
    )
    if config.get("backend", "poplar") != "poplar":
        raise ExportError(
            f'{escape(file)}: expected backend "poplar", found {escape(config["backend"])!r}'
            f"{did_you_mean(config['backend'], ['poplar']) or '; the model needs no export'}"
        )
    config.setdefault("name", path.resolve().name)
    return path, version, config, path / str(version)


def _is_version(entry: Path) -> bool:
    return entry.name.isdecimal() and not entry.name.startswith("0") and entry.is_dir()


def _find_program(state: ModelState, session: Session) -> Program:
    if len(session.plan) != 1:
        raise ExportError(
            f"model {state.name!r}: expected one main program, found {len(session.plan)}; a stock "
            "backend runs one graph"
        )
    program = session.executable.program(session.plan[0][0])
    if program.branches:
        raise ExportError(
            f"model {state.name!r} is fused of {len(program.branches)} models, of which a request "
            "is for one; export the PopEF files of its members instead"
        )
    if session.row_dependence and session.rows_per_run > program.batch_size:
        raise ExportError(
            f"model {state.name!r}: a run computes {session.rows_per_run} rows in batches of "
            f"{program.batch_size}, whose rows depend on each other ({session.row_dependence}); "
            "compile it without replicas and with batches_per_step 1"
        )
    if state.max_batch_size and state.rows.batch_axes:
        raise ExportError(
            f"model {state.name!r}: config.pbtxt has max_batch_size {state.max_batch_size}, but "
            "the rows do not lie along the first axis of all tensors; set max_batch_size to 0 and "
            "the whole shape in dims"
        )
    return program


def _iter_ports(
    config: ModelConfig, kind: str, state: ModelState, session: Session, program: Program
) -> Iterator[Port]:
    tensors: Mapping[str, Any] = getattr(state, f"{kind}s")
    anchors = {anchor.name(): anchor.handle() for anchor in session.popef_model.metadata.anchors()}
    streams = {stream.handle: stream for stream in program.streams}
    is_open = bool(program.batch_size) and program.row_independent
    for entry in getattr(config, kind):
        stream = streams[anchors[tensors[entry.name].anchor]]
        shape = list(stream.shape)
        if is_open:
            shape[stream.batch_axis] = ROWS
        wire = [shape[0], *entry.dims] if config.max_batch_size else list(entry.dims)
        yield Port(entry.name, stream, tuple(entry.dims), tuple(shape), tuple(wire))
