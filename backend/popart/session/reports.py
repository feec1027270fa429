"""What a session says of itself: cycles, reports and its graph. All times are modelled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pva
from onnx import helper
from poprt import CompilerOptions
from poprt.compile import (
    MAIN_PROGRAM,
    Executable,
    find_report_folder,
    profile_executable,
    summarize_executable,
    write_profiles,
)
from poprt.performance import tiles_of
from simipu import CompileError

from popart.errors import popart_runtime_error


@dataclass(frozen=True, slots=True)
class Cycles:
    """Modelled cycles of a step: of all its batches, and of one."""

    outer: int
    inner: int


def count_cycles(executable: Executable, batches: int) -> Cycles:
    """Return the modelled cycles of a step; a pipeline works on several batches at once."""
    main = executable.executable.program(MAIN_PROGRAM)
    interval = main.interval_cycles or main.cycles
    return Cycles(main.cycles + interval * (batches - 1), main.cycles)


def make_report(
    executable: Executable,
    options: CompilerOptions,
    name: str,
    model: onnx.ModelProto,
    replicas: int,
    runs: Sequence[str],
) -> pva.Report:
    """Return the profile of a batch of a lowered model, with the names of the runs."""
    profile, *_ = profile_executable(executable, options, name, model)
    document = {**tiles_of(profile).as_json(), "replication_factor": replicas}
    return pva.Report.from_profile(document, runs)


def write_profile(
    engine: Mapping[str, str],
    executable: Executable,
    options: CompilerOptions,
    name: str,
    model: onnx.ModelProto,
) -> Path | None:
    """Write the profile of a lowered model, if options of Poplar's engine ask for one.

    The folder `autoReport.directory`/NAME gets `profile.json`, the JSON of `poplar-triton profile`,
    and `profile.pop`, which pva opens. POPLAR_ENGINE_OPTIONS overrides the options.

    Args:
        engine: Options of the engine.
        executable: The compiled model.
        options: Options that it was compiled with.
        name: Name of the model.
        model: The model, whose nodes name their IPUs.

    Returns:
        The folder; None if no option asks for a profile.

    Raises:
        popart_runtime_error: If POPLAR_ENGINE_OPTIONS is not valid, or a file cannot be written.
    """
    try:
        folder = find_report_folder(engine, name)
        if folder is not None:
            write_profiles(folder, profile_executable(executable, options, name, model)[:1])
    except CompileError as error:
        raise popart_runtime_error(str(error)) from error
    return folder


def summarize(
    executable: Executable, options: CompilerOptions, name: str, model: onnx.ModelProto
) -> str:
    """Return a text about the modelled time and memory of a batch of a lowered model."""
    return summarize_executable(executable, options, name, model)


def get_graph(executable: Executable) -> bytes:
    """Return the graph of the main program, an ONNX model."""
    return executable.executable.program(MAIN_PROGRAM).graph


def serialize_ir(model: onnx.ModelProto) -> str:
    """Return the operators of a model's graphs as JSON, by the names of the graphs."""
    graphs: dict[str, list[dict[str, Any]]] = {}
    _collect(model.graph, model.graph.name or "maingraph", graphs)
    return json.dumps(graphs)


def _collect(graph: onnx.GraphProto, name: str, graphs: dict[str, list[dict[str, Any]]]) -> None:
    graphs[name] = [
        {
            "type": node.op_type,
            "name": node.name,
            "inputs": [{"name": tensor} for tensor in node.input],
            "outputs": [{"name": tensor} for tensor in node.output],
            "attributes": {
                entry.name: str(helper.get_attribute_value(entry))
                for entry in node.attribute
                if entry.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.TENSOR)
            },
        }
        for node in graph.node
    ]
    for node in graph.node:
        for entry in node.attribute:
            if entry.type == onnx.AttributeProto.GRAPH:
                _collect(entry.g, entry.g.name or f"{node.name}/{entry.name}", graphs)
