"""What a session says of itself: cycles, reports and its graph. All times are modelled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
import pva
from onnx import helper
from poprt import CompilerOptions
from poprt.compile import MAIN_PROGRAM, Executable, profile_executable, summarize_executable
from poprt.profiling import tiles_of

from popart.errors import popart_runtime_error

ENGINE_VARIABLE: Final = "POPLAR_ENGINE_OPTIONS"
"""Environment variable of the options of Poplar's engine."""
_ASKING: Final = (
    "autoReport.all",
    "autoReport.outputGraphProfile",
    "autoReport.outputExecutionProfile",
)
_DIRECTORY: Final = "autoReport.directory"
_NESTED: Final = (dict, list)


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
    engine = {**engine, **_read_variable()}
    if not any(engine.get(asking) == "true" for asking in _ASKING):
        return None
    profile, *_ = profile_executable(executable, options, name, model)
    folder = Path(engine.get(_DIRECTORY, "."), name)
    texts = {
        "profile.json": json.dumps(profile.as_json(), indent=2) + "\n",
        "profile.pop": json.dumps(tiles_of(profile).as_json()),
    }
    for file, text in texts.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.joinpath(file).write_text(text)
        except OSError as error:
            raise popart_runtime_error(
                f"the profile {folder / file} cannot be written: {error}"
            ) from error
    return folder


def _read_variable() -> dict[str, str]:
    """Return the options of the engine in the environment, which come before those of the model."""
    text = os.environ.get(ENGINE_VARIABLE, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _variable_error(text, "a JSON object", error) from error
    if not isinstance(found, dict) or any(isinstance(each, _NESTED) for each in found.values()):
        raise _variable_error(text, "a JSON object of texts")
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
    }


def _variable_error(
    text: str, expected: str, cause: Exception | None = None
) -> popart_runtime_error:
    why = f": {cause}" if cause else ""
    return popart_runtime_error(
        f"{ENGINE_VARIABLE}: expected {expected}, found {text[:100]!r}{why}"
    )


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
            "inputs": [{"name": each} for each in node.input],
            "outputs": [{"name": each} for each in node.output],
            "attributes": {
                each.name: str(helper.get_attribute_value(each))
                for each in node.attribute
                if each.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.TENSOR)
            },
        }
        for node in graph.node
    ]
    for node in graph.node:
        for each in node.attribute:
            if each.type == onnx.AttributeProto.GRAPH:
                _collect(each.g, each.g.name or f"{node.name}/{each.name}", graphs)
