"""What a session says of itself: cycles, reports and its graph. All times are modelled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper
from poprt import CompilerOptions
from poprt.compile import MAIN_PROGRAM, Executable, summarize_executable


@dataclass(frozen=True, slots=True)
class Cycles:
    """Modelled cycles of a step: of all its batches, and of one."""

    outer: int
    inner: int


@dataclass(frozen=True, slots=True)
class TargetReport:
    """The chip that a program was compiled for."""

    architecture: str
    numIPUs: int
    numReplicas: int
    tilesPerIpu: int
    bytesPerTile: int
    clockFrequency: int
    """Clock frequency of the tiles, in hertz."""


@dataclass(frozen=True, slots=True)
class CompilationReport:
    """Facts about a compiled program."""

    target: TargetReport
    numNodes: int
    """Number of operators in the main graph."""


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """Modelled time of a step."""

    totalCycles: int
    cyclesPerBatch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Modelled time of a session, named as in libpva where it has the same figures."""

    compilation: CompilationReport
    execution: ExecutionReport


def count_cycles(executable: Executable, batches: int) -> Cycles:
    """Return the modelled cycles of a step; a pipeline works on several batches at once."""
    main = executable.executable.program(MAIN_PROGRAM)
    interval = main.interval_cycles or main.cycles
    return Cycles(main.cycles + interval * (batches - 1), main.cycles)


def make_report(executable: Executable, batches: int, replicas: int) -> Report:
    """Return the modelled time of a step, and what it was compiled for."""
    target, cycles = executable.executable.target, count_cycles(executable, batches)
    return Report(
        CompilationReport(
            TargetReport(
                target.name,
                target.num_ipus * replicas,
                replicas,
                target.tiles_per_ipu,
                target.bytes_per_tile,
                target.clock_hz,
            ),
            len(onnx.ModelProto.FromString(get_graph(executable)).graph.node),
        ),
        ExecutionReport(cycles.outer, cycles.inner, target.seconds(cycles.outer)),
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
