"""Compilation of real models with the real command, measured beside creating an ONNX Runtime
session."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from children import Child, run_child
from model_results import Result
from poplar_triton.errors import RecipeError
from rich.progress import Progress

PRECISION_OPTIONS = {"fp16": ("--compiler_options", "partials_type=float")}
CREATE_SESSION = (
    "import sys, onnxruntime; onnxruntime.InferenceSession(sys.argv[1], "
    "providers=['CPUExecutionProvider'])"
)
WHOLE = "the rows of a batch are not proven to be independent: "

_WARNING = "poprt: warning: "


def compile_all(
    results: list[Result], repository: Path, seconds: float, progress: Progress
) -> None:
    """Compile everything, one after the other, and create a session on each file once."""
    sessions: dict[str, Child] = {}
    for result in progress.track(results, description="compiling"):
        name = result.model.name
        try:
            compile_model(result, repository, seconds)
        except RecipeError as error:
            result.refusal = str(error)
            continue
        if not result.refusal and name not in sessions:
            sessions[name] = run_child(
                [sys.executable, "-c", CREATE_SESSION, str(result.model.fetch())], seconds
            )
        result.session = sessions.get(name)


def compile_model(result: Result, repository: Path, seconds: float) -> None:
    """Compile into `repository` with the real command; record its costs, output and warnings."""
    model = result.model
    file = model.fetch()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "poprt",
            "--input_model",
            str(file),
            "--precision",
            result.precision,
        ]
        command += [*model.arguments(), *PRECISION_OPTIONS.get(result.precision, ())]
        command += ["--triton_model_dir", str(repository / result.name), "--output_dir", folder]
        result.compiled = run_child([*command, "--disable_compilation_progress_bar"], seconds)
    lines = result.compiled.errors.splitlines()
    result.warnings = [line.removeprefix(_WARNING) for line in lines if line.startswith(_WARNING)]
    remarks = [
        line.removeprefix(WHOLE)
        for line in result.compiled.output.splitlines()
        if line.startswith(WHOLE)
    ]
    said = [line.split(". The compiled batch")[0] for line in remarks]
    result.rows = said[0] if said else "independent"
    if result.compiled.status != 0:
        result.refusal = _refusal(result.compiled)


def _refusal(child: Child) -> str:
    if child.status is None:
        return f"poprt took longer than {child.seconds:.0f} s"
    lines = child.errors.strip().splitlines() or [f"poprt ended with status {child.status}"]
    return lines[-1].removeprefix("poprt: error: ")
