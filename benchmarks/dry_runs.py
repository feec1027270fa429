"""Cost of the dry run in a compilation.

The four examples, ResNet-50 and BERT-base are compiled by the real command, with and without
`--skip_dry_run`, one after the other in each round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import report
import weighted
from children import run_child
from poplar_triton.recipes import default_cache, fetch, read_recipes
from rounds import parse_options

LIMIT_SECONDS = 600.0
MAX_SHARE, MAX_SECONDS = 0.1, 1.0
"""Goal: at most this share of the compilation, or this many seconds."""
BATCH = 4
REPOSITORY = Path(__file__).parents[1] / "model_repository"


def _find_models(folder: Path) -> dict[str, tuple[Path, Sequence[str]]]:
    """Return the models by name, each with its file and its arguments of poprt."""
    recipes = read_recipes(REPOSITORY)
    models: dict[str, tuple[Path, Sequence[str]]] = {
        recipe.model: (fetch(recipe, default_cache(REPOSITORY)), recipe.poprt) for recipe in recipes
    }
    files = {
        "ResNet-50": weighted.write_resnet50(folder / "resnet", BATCH),
        "BERT-base": weighted.write_bert_base(folder / "bert", BATCH),
    }
    for name, file in files.items():
        for precision in ("fp32", "fp16"):
            models[f"{name}, {precision}"] = file, ["--precision", precision]
    return models


def _measure(file: Path, arguments: Sequence[str], folder: Path) -> float:
    command = [sys.executable, "-m", "poprt", "--input_model", str(file), *arguments]
    run = run_child([*command, "--export_popef", "--output_dir", str(folder)], LIMIT_SECONDS)
    if run.status != 0:
        raise SystemExit(f"benchmarks: poprt: status {run.status}: {run.errors[-500:]}")
    return run.seconds


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options = parse_options(parser, rounds=3, quick_rounds=1)
    console = report.make_console()
    columns = ("model", "seconds without", "added seconds", "share", "goal")
    table = report.make_table(f"What the dry run adds, medians of {options.rounds}", *columns)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, (file, arguments) in _find_models(folder).items():
            pairs = [
                (
                    _measure(file, [*arguments, "--skip_dry_run"], folder / "out"),
                    _measure(file, arguments, folder / "out"),
                )
                for _ in range(options.rounds)
            ]
            without = statistics.median(first for first, _ in pairs)
            added = statistics.median(second - first for first, second in pairs)
            share = statistics.median(second / first - 1 for first, second in pairs)
            met = "met" if share <= MAX_SHARE or added <= MAX_SECONDS else "missed"
            table.add_row(model, f"{without:.1f}", f"{added:.2f}", f"{100 * share:.0f} %", met)
    console.print(table)


if __name__ == "__main__":
    main()
