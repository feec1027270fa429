"""Answers of models that may end the process: a child computes them as a server would, in a bounded
time."""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from simipu.engines.computed import GraphOptions, Lowered, make_graph
from simipu.engines.program_graphs import lower_model
from simipu.errors import SimIpuError
from waiting import PATIENCE_SECONDS

Array = npt.NDArray[Any]
Case = tuple[onnx.ModelProto, Sequence[Mapping[str, Array]]]
"""A model in float, and the inputs of each run."""
Answer = list[Array] | str
"""The outputs of a run, or its error."""
MEMORY_BYTES, ADDRESS_BYTES = 1 << 30, 8 << 30
"""Memory limits of the graph, and of the child."""


def compute_in_child(cases: Mapping[str, Case], folder: Path) -> dict[str, list[Answer]]:
    """Return the answer of each run by the name of the case; one answer for a model that cannot be
    loaded.

    Raises AssertionError with the name of the case that ended the child.
    """
    lowered = {name: (_lower(model), list(feeds)) for name, (model, feeds) in cases.items()}
    source, result = folder / "cases.pickle", folder / "answers.pickle"
    source.write_bytes(pickle.dumps(lowered))
    command = [sys.executable, __file__, str(source), str(result)]
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    ended = subprocess.run(
        command, env=path, timeout=PATIENCE_SECONDS, capture_output=True, text=True, check=False
    )
    last = ended.stdout.splitlines()[-1:]
    assert ended.returncode == 0, (
        f"case {last} ended the child with {ended.returncode}: {ended.stderr}"
    )
    answers: dict[str, list[Answer]] = pickle.loads(result.read_bytes())
    return answers


def _lower(model: onnx.ModelProto) -> tuple[bytes, dict[str, Array], list[str]]:
    lowered, weights = lower_model(model, {}, None)
    return lowered.SerializeToString(), weights, [value.name for value in model.graph.output]


def _answer(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except SimIpuError as error:
        return f"{type(error).__name__}: {error}"


def main(source: Path, result: Path) -> None:
    """Compute all cases; the last line printed is of the run that ended the process."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    answers = {}
    for name, ((model, weights, outputs), runs) in pickle.loads(source.read_bytes()).items():
        lowered, options = (
            Lowered(model, weights),
            GraphOptions(num_threads=1, memory_bytes=MEMORY_BYTES),
        )
        print(name, flush=True)
        graph = _answer(partial(make_graph, lowered, options, "of a test"))
        if isinstance(graph, str):
            answers[name] = [graph]
            continue
        answers[name] = []
        for feeds in runs:
            print(
                name,
                {key: value.reshape(-1)[:8].tolist() for key, value in feeds.items()},
                flush=True,
            )
            answers[name].append(_answer(partial(graph.run, outputs, feeds)))
    result.write_bytes(pickle.dumps(answers))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
