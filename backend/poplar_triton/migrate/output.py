"""Verdicts as a table for a terminal, as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from poprt.performance import add_row, describe_seconds, make_table
from poprt.terminal import cell
from rich.console import Console

from popef._tools.text import escape
from poplar_triton.migrate.check import Checked
from poplar_triton.migrate.graphs import SourceModel
from poplar_triton.migrate.matching import ModelMatch
from poplar_triton.migrate.repository import FoundModel, TensorDescription
from poplar_triton.migrate.verdicts import Judged
from poplar_triton.profile.report import make_page

_COLUMNS = (
    "model",
    "version|",
    "verdict",
    "graph",
    "made by",
    "for",
    "batch|",
    "chip's time|",
    "fits",
)
_MAX_TEXT = 2000
_MAX_MATCHES = 5
_METHOD = (
    "A model that runs was loaded, in a process with limits. Time and fit are modelled: no chip "
    "was used. The chip's time is that of a run, without the host and its link. A match is "
    "certain if all names, shapes and weights agree, likely if shapes and weights agree, or "
    "shapes and names of a file without weights, and else possible."
)


def print_all(judged: Sequence[Judged], faults: Sequence[SourceModel], console: Console) -> None:
    """Print a row for each model, and below what to do and what was seen."""
    table = make_table(*_COLUMNS)
    for model in judged:
        add_row(table, _make_row(model))
    console.print(table)
    for about, note in list_notes(judged, faults):
        console.print(cell(f"{about}: {note}"))


def _make_row(judged: Judged) -> list[str]:
    found_model, match = judged.found, judged.match
    graph = f"{match.graph.path.name} ({match.sureness.value})" if match else ""
    return [
        found_model.name,
        str(found_model.version or "-"),
        judged.verdict.value,
        graph or "-",
        describe_maker(found_model) or "-",
        found_model.target or "-",
        str(found_model.batch_size or "-"),
        "-" if judged.seconds is None else describe_seconds(judged.seconds),
        {True: "yes", False: "no", None: "-"}[judged.fits],
    ]


def describe_maker(model: FoundModel) -> str:
    """Return the framework, the SDK and its package hash, as far as they are known."""
    words = [model.framework, model.sdk]
    words += [f"package {model.package_hash}"] if model.package_hash else []
    return " ".join(filter(None, words))


def list_notes(judged: Sequence[Judged], faults: Sequence[SourceModel]) -> list[tuple[str, str]]:
    """Return the remarks and tasks, each after the model or file that it is about."""
    notes = [
        (f"{model.found.name}/{model.found.version}", text)
        for model in judged
        for text in _note(model)
    ]
    notes += [(f"{graph.describe()} cannot be read", graph.fault) for graph in faults]
    return [(escape(about, _MAX_TEXT), escape(note, _MAX_TEXT)) for about, note in notes]


def _note(judged: Judged) -> Iterator[str]:
    if judged.todo:
        yield judged.todo
    yield from judged.match.differences if judged.match else ()
    yield from judged.warnings
    others = [match for match in judged.matches if match.fits or not judged.verdict.is_good]
    for other_match in [other for other in others if other is not judged.match][:_MAX_MATCHES]:
        yield f"also possible: {other_match.graph.describe()}, {other_match.sureness.value}"
    if judged.fits is False:
        yield "it does not fit the memory of its chips (modelled)"


def encode(
    judged: Sequence[Judged],
    faults: Sequence[SourceModel],
    checked: Sequence[Checked],
    output: Path | None,
) -> dict[str, Any]:
    """Return everything as a JSON document."""
    return {
        "models": [_encode(model) for model in judged],
        "unreadable": [{"path": str(fault.path), "fault": fault.fault} for fault in faults],
        "checked": [check.encode() for check in checked],
        "output": None if output is None else str(output),
    }


def _encode(judged: Judged) -> dict[str, Any]:
    found_model = judged.found
    return {
        "model": found_model.name,
        "version": found_model.version,
        "framework": found_model.framework,
        "sdk": found_model.sdk,
        "package_hash": found_model.package_hash,
        "target": found_model.target,
        "batch_size": found_model.batch_size,
        "inputs": [_encode_tensor(source) for source in found_model.inputs],
        "outputs": [_encode_tensor(result) for result in found_model.outputs],
        "weights": len(found_model.weights),
        "verdict": judged.verdict.value,
        "todo": judged.todo,
        "graph": None if judged.match is None else str(judged.match.graph.path),
        "matches": [_encode_match(match) for match in judged.matches],
        "modelled_seconds": judged.seconds,
        "fits": judged.fits,
        "warnings": judged.warnings,
    }


def _encode_tensor(tensor: TensorDescription) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "client_name": tensor.alias,
        "type": None if tensor.dtype is None else str(tensor.dtype),
        "shape": None if tensor.shape is None else list(tensor.shape),
    }


def _encode_match(match: ModelMatch) -> dict[str, Any]:
    return {
        "path": str(match.graph.path),
        "kind": match.graph.kind.value,
        "sureness": match.sureness.value,
        "score": round(match.score, 3),
        "differences": list(match.differences),
        "renames": match.renames,
    }


def make_report(
    repository: Path,
    judged: Sequence[Judged],
    faults: Sequence[SourceModel],
    checked: Sequence[Checked],
) -> str:
    """Return the HTML page, which refers to no other resource."""
    good = sum(model.verdict.is_good for model in judged)
    document = {
        "title": escape(repository, _MAX_TEXT),
        "subject": f"{good} of {len(judged)} models run",
        "columns": list(_COLUMNS),
        "rows": [[escape(text, _MAX_TEXT) for text in _make_row(model)] for model in judged],
        "notes": list_notes(judged, faults),
        "checks": [[escape(text, _MAX_TEXT) for text in model.row] for model in checked],
        "method": _METHOD,
    }
    return make_page(f"{repository}: migration", "Migration · modelled", ["migrate.js"], document)
