"""What becomes of each model: it runs, runs with a graph that was found, is compiled again, or
needs a graph. What is said to run was loaded, in a child process with limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from shlex import join

import numpy as np
import onnx
from model_runtime import ModelRuntimeError, Session
from onnxgraph import GraphError, rename, write_with_data
from poprt import CompilerOptions
from poprt.compile import cost_options
from poprt.frontend import read_model
from poprt.performance import make_profile
from simipu import CompileError, SimIpuError, read_static
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState
from triton_poplar.sessions import load_first, load_session, make_graph_options, open_session

from poplar_triton.migrate.graphs import Graphs, SourceKind, SourceModel
from poplar_triton.migrate.matching import ModelMatch, find_matches
from poplar_triton.migrate.repository import FoundModel, TensorDescription, open_state

GRAPH_FILE, DATA_FILE = "graph.onnx", "graph.onnx.data"
"""Names of a graph and of its weights in a version folder."""
MAX_TRIED = 3
"""Maximum number of graphs that are loaded for one model: those that fit best."""
PARAMETER = "sim_graph_path"
_ERRORS = (ModelConfigError, ModelRuntimeError, SimIpuError, CompileError, GraphError, OSError)


class Verdict(Enum):
    """What becomes of a model; the value is the text that is printed."""

    RUNS = "runs"
    WITH_GRAPH = "runs with its graph"
    COMPILE = "compile again"
    NEEDS_GRAPH = "needs a graph"
    BROKEN = "cannot be read"
    OTHER = "not for this backend"

    @property
    def is_good(self) -> bool:
        """Whether nothing is left to do."""
        return self in (Verdict.RUNS, Verdict.WITH_GRAPH, Verdict.OTHER)


@dataclass(slots=True)
class Judged:
    """A model with its verdict. `graph` is the file to serve it with: that of the match, or a copy
    with other names. `seconds` is the modelled time of a run, `fits` whether it fits the chip; None
    if the model was not loaded. `todo` says what to do."""

    found: FoundModel
    verdict: Verdict
    todo: str = ""
    match: ModelMatch | None = None
    graph: Path | None = None
    matches: Sequence[ModelMatch] = ()
    seconds: float | None = None
    fits: bool | None = None
    warnings: list[str] = field(default_factory=list)


def judge_all(
    models: Iterable[FoundModel], graphs: Graphs, scratch: Path, threads: int
) -> list[Judged]:
    """Return all models with their verdicts, in order. Copies of graphs are written into `scratch`,
    `threads` models are loaded at a time."""
    models, graph_list = list(models), list(graphs)
    with ThreadPoolExecutor(threads) as pool:
        return list(
            pool.map(
                lambda numbered: judge(numbered[1], graph_list, scratch / str(numbered[0])),
                enumerate(models),
            )
        )


def judge(model: FoundModel, graphs: Sequence[SourceModel], scratch: Path) -> Judged:
    """Return a model with its verdict."""
    if model.other:
        return Judged(model, Verdict.OTHER, f"backend {model.other!r} serves it as before")
    if model.fault or model.state is None:
        return Judged(model, Verdict.BROKEN, model.fault)
    if not model.is_real or model.state.graph_file is not None:
        return _load_itself(model)
    matches = find_matches(model, graphs)
    judged = Judged(model, Verdict.NEEDS_GRAPH, matches=matches)
    usable = [match for match in matches if match.fits and match.graph.kind is SourceKind.ONNX]
    for match in usable[:MAX_TRIED]:
        try:
            file = _make_graph(match, scratch)
            _load(judged, file)
        except _ERRORS as error:
            judged.warnings.append(f"{match.graph.path}: {error}")
            continue
        judged.verdict, judged.match, judged.graph = Verdict.WITH_GRAPH, match, file
        judged.todo = f"{PARAMETER}: {match.graph.path}"
        return judged
    judged.match = next(iter(matches), None)
    source = next((match for match in matches if match.fits), judged.match)
    if source is None:
        judged.todo = describe_need(model)
    else:
        judged.match, judged.verdict = source, Verdict.COMPILE
        judged.todo = _advise(model, source)
    return judged


def _load_itself(model: FoundModel) -> Judged:
    judged = Judged(model, Verdict.RUNS)
    try:
        _load(judged, None)
    except _ERRORS as error:
        judged.verdict, judged.todo = Verdict.BROKEN, str(error)
    return judged


def _load(judged: Judged, graph: Path | None) -> None:
    """Load the model in a child process, and find what its modelled chip takes. Raises the errors
    of a model that does not load."""
    model = judged.found
    state = model.state if graph is None else open_with(model, graph)
    assert state is not None
    load_first(state, make_graph_options(state), load_session)
    session = open_session(state)
    try:
        judged.seconds = session.seconds
        judged.fits = _fits(session)
    finally:
        session.stop()


def open_with(model: FoundModel, graph: Path) -> ModelState:
    """Return the state of a model that `graph` stands for."""
    original_parameters = model.config.get("parameters", {})
    parameters = {**original_parameters, PARAMETER: {"string_value": str(graph.absolute())}}
    config = {"name": model.name, **model.config, "parameters": parameters}
    return open_state(config, model.version_folder)


def _fits(session: Session) -> bool | None:
    """Return whether the model fits the memory of its chips, or None for one without a cost."""
    program = session.executable.program(session.plan[0][0])
    if program.branches or not program.graph:
        return None
    target = session.executable.target
    try:
        profile = make_profile(
            "", "fp32", read_static(program), target, cost_options(CompilerOptions())
        )
    except _ERRORS:
        return None
    return profile.estimate.fits


def _make_graph(match: ModelMatch, folder: Path) -> Path:
    """Return the graph's file, or a copy in `folder` whose inputs and outputs have the names of the
    anchors."""
    if not match.renames:
        return match.graph.path
    folder.mkdir(parents=True, exist_ok=True)
    write_copy(match, folder)
    return folder / GRAPH_FILE


def write_copy(match: ModelMatch, folder: Path) -> None:
    """Write the graph into a folder, with the anchors' names for its inputs and outputs."""
    model = read_model(match.graph.path)
    _rename(model, match.renames)
    with (folder / GRAPH_FILE).open("wb") as file, (folder / DATA_FILE).open("wb") as data:
        write_with_data(model, file, data, DATA_FILE)
        is_empty = not data.tell()
    if is_empty:
        (folder / DATA_FILE).unlink()


def _rename(model: onnx.ModelProto, renames: dict[str, str]) -> None:
    """Rename inputs and outputs in place. A tensor that has one of the new names gets another."""
    graph = model.graph
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    names |= {value.name for value in (*graph.input, *graph.output)}
    names |= {tensor.name for tensor in graph.initializer}
    changed = dict(renames)
    for new in renames.values():
        if new in names and new not in renames:
            spare = new
            while spare in names or spare in renames.values():
                spare += "_"
            changed[new] = spare
            names.add(spare)
    rename(graph, changed)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = changed.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = changed.get(tensor.name, tensor.name)


def describe_need(model: FoundModel) -> str:
    """Return what a graph for the model must look like."""
    inputs, outputs = (
        "; ".join(tensor.describe() for tensor in tensors) or "none"
        for tensors in (model.inputs, model.outputs)
    )
    sizes = sum(
        int(np.prod([size or 0 for size in weight.shape or ()])) for weight in model.weights
    )
    weights = f", and {len(model.weights)} weights of {sizes:,} numbers" if model.weights else ""
    return f"give an ONNX graph with inputs {inputs}, with outputs {outputs}{weights}"


def _advise(model: FoundModel, match: ModelMatch) -> str:
    """Return the command line that compiles the model again, or what to do before."""
    path = match.graph.path
    if match.graph.kind is SourceKind.PYTORCH:
        names = [source.alias or source.name for source in model.inputs]
        return (
            f"export the module of {path} to ONNX (torch.onnx.export, input_names={names}), and "
            "run this command again"
        )
    halves = any(tensor.dtype == np.float16 for tensor in (*model.inputs, *model.outputs))
    words = ["poprt", "--input_model", str(path)]
    if match.graph.kind is SourceKind.SAVED_MODEL:
        words += ["--framework", "tensorflow"]
    words += ["--batch_size", str(model.batch_size)] if model.batch_size else []
    words += ["--precision", "fp16"] if halves or _are_halves(model.weights) else []
    return join([*words, "--triton_model_dir", model.name])


def _are_halves(weights: Iterable[TensorDescription]) -> bool:
    return any(weight.dtype == np.float16 for weight in weights)
