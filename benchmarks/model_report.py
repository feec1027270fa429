"""The tables of the real models, for the terminal and as the document docs/models.md."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import report
from model_answers import FLOAT_TOLERANCE, HALF_TOLERANCE
from model_results import Result, judge
from rich.markup import escape
from rich.table import Table as RichTable

MIB = 1 << 20
PACKAGES = ("onnxruntime", "onnx", "numpy", "nvidia-pytriton")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts, a title, and a note."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    texts: frozenset[str] = frozenset()
    """Columns that are no figures; the first never is one."""

    def to_rich(self) -> RichTable:
        """Return the table for a terminal."""
        table = report.make_table(self.title, *self.columns)
        for column in table.columns:
            column.justify = "left" if column.header in self.texts else "right"
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def to_markdown(self) -> str:
        """Return the table as a section of a document."""
        figures = [
            "---" if column in self.texts or not number else "---:"
            for number, column in enumerate(self.columns)
        ]
        rows = [self.columns, tuple(figures), *self.rows]
        lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
        return "\n".join(
            [f"## {self.title}", "", *([self.note, ""] if self.note else []), *lines, ""]
        )


def make_tables(results: Sequence[Result], compared: list[tuple[str, ...]]) -> list[Table]:
    """Return the tables of answers, costs, refusals, sources, and throughput if it was measured."""
    compiled = [result for result in results if not result.refusal]
    tables = [make_answers(compiled), make_costs(compiled)]
    if refused := [result for result in results if result.refusal]:
        tables.append(make_refusals(refused))
    if compared:
        columns = ("model", "clients", "ONNX Runtime, requests/s", "poplar, requests/s", "ratio")
        note = (
            "Over gRPC, medians of interleaved rounds (least..greatest). ONNX Runtime's side is a "
            "Python model of a few lines."
        )
        tables.append(
            Table("Throughput of recurrent models beside ONNX Runtime", columns, compared, note)
        )
    return [*tables, make_sources(results)]


def make_answers(results: Sequence[Result]) -> Table:
    """Return the table of the answers' errors."""
    columns = (
        "model",
        "batch",
        "requests",
        "fp32: error",
        "labels",
        "fp16: error",
        "of the largest",
        "labels",
        "rows",
    )
    note = (
        "Errors are the largest of all answers, in fp32 over max(1, largest value) (allowed: "
        f"{FLOAT_TOLERANCE}), in fp16 as it is and over the output's largest value (allowed "
        f"without a warning of poprt's: {HALF_TOLERANCE}; `w`: it warned). Labels: how many of the "
        "classes with the largest value agree. Rows: along which axis requests may have any number "
        "of rows, or why the compiled batch is computed whole."
    )
    rows = [(*_describe_answers(pair), _describe_rows(pair)) for pair in _pairs(results)]
    return Table("Answers", columns, rows, note, frozenset({"rows"}))


def _describe_answers(pair: dict[str, Result]) -> tuple[str, ...]:
    model = next(iter(pair.values())).model
    cells = [
        model.name,
        str(model.batch),
        str(sum(result.differences.requests for result in pair.values())),
    ]
    wide, half = pair.get("fp32"), pair.get("fp16")
    cells += (
        [f"{_short(wide.differences.scaled)}{_mark(wide)}", _labels(wide)] if wide else ["", ""]
    )
    if half is None:
        return (*cells, "", "", "")
    worst = half.differences.worst()
    return (
        *cells,
        f"{_short(worst.error)}{_mark(half)}",
        f"{worst.relative:.2%}{' w' * bool(half.warnings)}",
        _labels(half),
    )


def _short(error: float) -> str:
    return f"{error:.1e}" if error else "0"


def _mark(result: Result) -> str:
    return " **!**" if judge(result) else ""


def _labels(result: Result) -> str:
    agreement = result.differences.agreement
    return "" if agreement is None else f"{agreement * 100:.4g} %"


def _describe_rows(pair: dict[str, Result]) -> str:
    result = next(iter(pair.values()))
    where = "as compiled" if result.axis is None else f"axis {result.axis}"
    return where if result.rows == "independent" else f"{where}; {result.rows}"


def make_costs(results: Sequence[Result]) -> Table:
    """Return the table of the costs of compiling and loading; pairs are fp32, fp16."""
    columns = (
        "model",
        "ONNX MiB",
        "compile s",
        "x ORT",
        "peak MiB",
        "x ORT",
        "load s",
        "private MiB",
    )
    note = (
        "fp32 / fp16. Compiling is the whole command, from start to end; x ORT is that over a "
        "Python process that creates an ONNX Runtime session on the file and ends. Load: Triton's "
        "answer to a load request, one model at a time, those before it staying. Private: memory "
        "of the model's own process that no other shares, after it has answered."
    )
    return Table(
        "Time and memory", columns, [_describe_costs(pair) for pair in _pairs(results)], note
    )


def _describe_costs(pair: dict[str, Result]) -> tuple[str, ...]:
    results = list(pair.values())
    children = [
        (result.compiled, result.session)
        for result in results
        if result.compiled and result.session
    ]
    model = results[0].model
    return (
        model.name,
        f"{model.fetch().stat().st_size / MIB:.1f}",
        _join(f"{compiled.seconds:.1f}" for compiled, _ in children),
        _join(f"{compiled.seconds / session.seconds:.1f}" for compiled, session in children),
        _join(f"{compiled.peak_bytes / MIB:.0f}" for compiled, _ in children),
        _join(f"{compiled.peak_bytes / session.peak_bytes:.1f}" for compiled, session in children),
        _join(f"{child.load_seconds:.1f}" for child in results),
        _join(f"{child.private_bytes / MIB:.0f}" for child in results),
    )


def make_refusals(results: Sequence[Result]) -> Table:
    """Return the table of the models that do not compile, with the reasons."""
    rows = [
        (
            pair[next(iter(pair))].model.name,
            _join(pair),
            "yes" if result.precision in result.model.refused else "no",
            result.refusal,
        )
        for pair in _pairs(results)
        for result in [next(iter(pair.values()))]
    ]
    columns = ("model", "in", "expected", "poprt's reason")
    return Table("Not compiled", columns, rows, texts=frozenset(columns))


def make_sources(results: Sequence[Result]) -> Table:
    """Return the table of the files' sources."""
    models = {result.model.name: result.model for result in results}
    rows = [
        (
            name,
            f"{model.recipe.package} {model.version}",
            model.recipe.license,
            f"`{model.recipe.file}`",
            model.recipe.source,
        )
        for name, model in models.items()
    ]
    columns = ("model", "package", "licence", "file", "what it is")
    return Table("Sources", columns, rows, texts=frozenset(columns))


def make_document(tables: Sequence[Table], results: Sequence[Result]) -> str:
    """Return the whole document."""
    models = {result.model.name for result in results if not result.refusal}
    requests = sum(result.differences.requests for result in results)
    problems = {result.name: problem for result in results if (problem := judge(result))}
    head = f"""# Real models

`make models-check` compiles the real models that PyPI packages carry, with the `poprt` command, in fp32 and
in fp16 with float partials, loads all of a precision into one Triton server, asks each over gRPC and HTTP
from four clients at once, and compares every answer with ONNX Runtime on the original file. Requests have 1,
3, B and 2B + 1 rows of a compiled batch B, all different, or the compiled shape where rows are not
independent. What poprt warned of in fp16 it found with inputs that it made up.

This is what it wrote on {datetime.date.today()}: {len(models)} models, {requests} requests, {len(problems)}
with a problem. Machine: {_describe_machine()}. Software: {_describe_software()}.
"""
    lines = [f"- `{name}`: {problem}" for name, problem in problems.items()]
    problem_section = "\n".join(["## Problems", "", *lines, ""]) if lines else ""
    return "\n".join(
        [
            head,
            *([problem_section] if problem_section else []),
            *(table.to_markdown() for table in tables),
        ]
    )


def _describe_machine() -> str:
    name = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{name[1] if name else platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"{memory:.0f} GiB"
    )


def _describe_software() -> str:
    return ", ".join(
        [
            f"Python {platform.python_version()}",
            *(f"{name} {metadata.version(name)}" for name in PACKAGES),
        ]
    )


def _pairs(results: Sequence[Result]) -> Iterator[dict[str, Result]]:
    """Yield the results of each model by precision."""
    by_model: dict[str, dict[str, Result]] = {}
    for result in results:
        by_model.setdefault(result.model.name, {})[result.precision] = result
    yield from by_model.values()


def _join(texts: Iterable[str]) -> str:
    return " / ".join(texts)
