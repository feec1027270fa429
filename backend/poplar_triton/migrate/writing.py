"""Writes a repository with the models that run: a copy of the given one, in which each model of a
chip has its graph. The given repository is not changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from poprt.triton import make_scratch_folder

from popef._tools.console import naming
from popef._tools.text import escape
from poplar_triton.errors import MigrationError
from poplar_triton.migrate.repository import BACKEND
from poplar_triton.migrate.verdicts import (
    DATA_FILE,
    GRAPH_FILE,
    PARAMETER,
    Judged,
    Verdict,
    write_copy,
)
from poplar_triton.serving.repository import MODEL_FILE

_SCRATCH = ".poplar-migrate-"
_ADDED = f"""
# Added by poplar-triton migrate: the graph that the machine code was compiled from.
parameters {{
  key: "{PARAMETER}"
  value: {{ string_value: "{GRAPH_FILE}" }}
}}
"""


def check_output(output: Path, repository: Path) -> None:
    """Raise MigrationError for an output that exists, or that is within the repository or around
    it."""
    if os.path.lexists(output) and not (output.is_dir() and not any(output.iterdir())):
        raise MigrationError(
            f"{escape(output)}: expected a folder that does not exist yet; name another"
        )
    real, real_repository = output.resolve(), repository.resolve()
    if (
        real == real_repository
        or real_repository in real.parents
        or real in real_repository.parents
    ):
        raise MigrationError(
            f"{escape(output)}: expected a folder outside of {escape(repository)}, which stays as "
            "it is"
        )


def write_repository(
    repository: Path, judged: Sequence[Judged], output: Path, *, links: bool
) -> list[Judged]:
    """Write the repository and return the versions that are in it. With `links` graphs are symbolic
    links, except those whose tensors get other names. Raises MigrationError, and OSError for what
    cannot be written."""
    good = [model for model in judged if model.verdict.is_good]
    with naming(output):
        output.absolute().parent.mkdir(parents=True, exist_ok=True)
        with make_scratch_folder(output.absolute().parent, _SCRATCH) as scratch:
            copy = scratch / "repository"
            _copy_repository(repository, judged, copy)
            for model in good:
                folder = _find_folder(repository, model, copy)
                if model.verdict is Verdict.WITH_GRAPH:
                    _add_graph(model, judged, folder, links=links)
                if model.verdict is not Verdict.OTHER:
                    _complete_config(model, folder)
            if output.exists():
                output.rmdir()
            copy.rename(output)
    return good


def _find_folder(repository: Path, judged: Judged, copy: Path) -> Path:
    """Return the model folder in the written repository: that of a model folder has its name."""
    is_one = judged.found.folder == repository
    return copy / (judged.found.name if is_one else judged.found.folder.name)


def _copy_repository(repository: Path, judged: Sequence[Judged], copy: Path) -> None:
    """Copy everything but versions that do not run, and models without another one."""
    skipped = {
        os.path.realpath(model.found.version_folder if model.found.version else model.found.folder)
        for model in judged
        if not model.verdict.is_good
    }
    running = {os.path.realpath(model.found.folder) for model in judged if model.verdict.is_good}
    skipped |= {
        real for model in judged if (real := os.path.realpath(model.found.folder)) not in running
    }
    is_one = any(model.found.folder == repository for model in judged)
    target = copy / judged[0].found.name if is_one and judged else copy
    _copy(repository, target, skipped, ())


def _copy(source: Path, target: Path, skipped: set[str], around: tuple[str, ...]) -> None:
    """Copy a folder with what its links lead to. A link to a folder around it is not followed."""
    real = os.path.realpath(source)
    if real in skipped or real in around:
        return
    target.mkdir(parents=True)
    for name in sorted(os.listdir(source)):
        inner = source / name
        if inner.is_dir():
            _copy(inner, target / name, skipped, (*around, real))
        elif inner.is_file():
            shutil.copy2(inner, target / name)


def _add_graph(judged: Judged, others: Sequence[Judged], folder: Path, *, links: bool) -> None:
    """Put the graph into the version's folder, and its name into the configuration."""
    match, version = judged.match, folder / str(judged.found.version)
    assert match is not None
    if links and not match.renames:
        (version / GRAPH_FILE).symlink_to(match.graph.path.resolve())
    else:
        write_copy(match, version)
    if any(_is_beside(other, judged) for other in others):
        # The parameter counts for every version: one that needs no graph finds this one, unread.
        for name in (GRAPH_FILE, DATA_FILE):
            if (version / name).exists() and not (folder / name).exists():
                shutil.copy2(version / name, folder / name)


def _complete_config(judged: Judged, folder: Path) -> None:
    """Add to the configuration what the model needs; every line that is there stays."""
    file = folder / MODEL_FILE
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    added = "" if judged.found.config.get("backend") else f'backend: "{BACKEND}"\n'
    added += _ADDED if judged.verdict is Verdict.WITH_GRAPH else ""
    if added and added not in text:
        before = text if not text or text.endswith("\n") else f"{text}\n"
        file.write_text(before + added, encoding="utf-8")


def _is_beside(other: Judged, judged: Judged) -> bool:
    """Return whether another version of the model runs without a graph."""
    return other.found.folder == judged.found.folder and other.verdict is Verdict.RUNS
