"""Time until a model is ready to compute: in half beside fp32, from its PopEF file, in this process
and interleaved."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import report
from compared import NETWORKS, compile_network
from poprt.compile.executable import MAIN_PROGRAM, Executable
from rounds import Goal, parse_options
from simipu import GraphOptions
from simipu.engines.opening import open_graph

MODELS = ("resnet50", "bert_base")
PRECISIONS = ("fp32", "half")
GOAL = Goal(1.5, at_most=True)


def time_load(folder: Path) -> float:
    """Return the seconds from the files to a graph that can be run."""
    start = time.perf_counter()
    executable = Executable(sorted((folder / "1").glob("*.popef")))
    simulated = executable.executable
    weights = {
        constant.name: constant.array() for constant in simulated.constants
    } | executable.weights
    graph = open_graph(simulated.program(MAIN_PROGRAM), weights, GraphOptions(), simulated.numerics)
    seconds = time.perf_counter() - start
    graph.close()
    return seconds


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options = parse_options(parser)
    console = report.make_console()
    columns = ("model", "fp32, s", "half, s", "half / fp32", "goal")
    table = report.make_table(f"load, medians of {options.rounds} rounds", *columns)
    for model in MODELS:
        with tempfile.TemporaryDirectory() as name:
            network = NETWORKS[model](Path(name))
            folders = [
                compile_network(network, precision, Path(name, precision, model))
                for precision in PRECISIONS
            ]
            for folder in folders:
                time_load(folder)  # brings the files into memory
            rounds = [[time_load(folder) for folder in folders] for _ in range(options.rounds)]
        ratios = [half / fp32 for fp32, half in rounds]
        seconds = [statistics.median(column) for column in zip(*rounds, strict=True)]
        described = (report.describe_ratio(ratios, GOAL), report.describe_goal(ratios, GOAL))
        table.add_row(model, *(f"{number:.2f}" for number in seconds), *described)
    console.print(table)


if __name__ == "__main__":
    main()
