"""Answers of models that may end the process: a child computes them as a server would, in a bounded time."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from simipu.computed import GraphOptions, Lowered, lower_model, make_graph
from simipu.errors import SimIpuError
from simipu.numerics import Numerics

Array = npt.NDArray[Any]
Case = tuple[onnx.ModelProto, Mapping[str, Array]]
"""A model in float or half, and what it is fed."""
LIMIT_SECONDS = 60.0


def compute_in_child(
    cases: Mapping[str, Case], folder: Path, numerics: Numerics | None = None
) -> dict[str, list[Array] | str]:
    """The outputs of each model, or the error that it raised, by the name of the case.

    Raises AssertionError with the name of the case that ended the child.
    """
    lowered = {name: (_lower(model, numerics), dict(feeds)) for name, (model, feeds) in cases.items()}
    source, result = folder / "cases.pickle", folder / "answers.pickle"
    source.write_bytes(pickle.dumps(lowered))
    command = [sys.executable, __file__, str(source), str(result)]
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    ended = subprocess.run(
        command, env=path, timeout=LIMIT_SECONDS, capture_output=True, text=True, check=False
    )
    last = ended.stdout.splitlines()[-1:]
    assert ended.returncode == 0, f"case {last} ended the child with {ended.returncode}: {ended.stderr}"
    found: dict[str, list[Array] | str] = pickle.loads(result.read_bytes())
    return found


def _lower(model: onnx.ModelProto, numerics: Numerics | None) -> tuple[bytes, dict[str, Array], list[str]]:
    lowered, weights = lower_model(model, {}, numerics)
    return lowered.SerializeToString(), weights, [value.name for value in model.graph.output]


def _compute(model: bytes, weights: dict[str, Array], names: list[str], feeds: dict[str, Array]) -> Any:
    try:
        graph = make_graph(Lowered(model, weights), GraphOptions(num_threads=1), "of a test")
        return graph.run(names, feeds)
    except SimIpuError as error:
        return f"{type(error).__name__}: {error}"


def main(source: Path, result: Path) -> None:
    """Compute all cases; the last line printed is the one that ended the process."""
    found = {}
    for name, ((model, weights, outputs), feeds) in pickle.loads(source.read_bytes()).items():
        print(name, flush=True)
        found[name] = _compute(model, weights, outputs, feeds)
    result.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
