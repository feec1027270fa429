"""Run one of the examples of bulk inference, with its own predictor or another: python bulk_runs.py
ENGINE PREDICTOR MODEL SOURCE TARGET NOTES CORES.

PREDICTOR is `own`, `plain` (a loop of ONNX Runtime's in the runner's place) or `killed` (a worker
is, once). NOTES is a folder for what workers leave. Prints a JSON object: `seconds` of the run,
`model_seconds` that all workers spent in the model, and `model_cpu_seconds`, for comparisons on a
machine with other things to do.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

CALLS_BEFORE_DEATH = 1


def note(name: str, text: str) -> None:
    """Add a line to a file of this process in the folder of notes."""
    with open(Path(os.environ["BULK_NOTES"], f"{name}.{os.getpid()}"), "a") as file:
        file.write(f"{text}\n")


class PlainRunner:
    """Plain loop over ONNX Runtime, with its defaults, in place of a runner."""

    def __init__(self, model: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        file = Path(model).with_suffix(".onnx")
        self._session = onnxruntime.InferenceSession(
            file, options, providers=["CPUExecutionProvider"]
        )

    def execute(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """Execute in batches of as many rows as the model was compiled for."""
        x, rows = feeds["x"], int(os.environ["BULK_BATCH"])
        parts = [
            self._session.run(["y"], {"x": x[i : i + rows]})[0] for i in range(0, len(x), rows)
        ]
        return {"y": np.concatenate(parts)}


class TimedRunner:
    """Notes how long each call of a runner takes, by the clock and by the processor's."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def execute(self, feeds: dict[str, Any]) -> Any:
        """Execute with the wrapped runner and note the time."""
        start, cpu_start = time.perf_counter(), time.process_time()
        answers = self._runner.execute(feeds)
        note("seconds", f"{time.perf_counter() - start} {time.process_time() - cpu_start}")
        return answers


class MortalRunner:
    """A runner whose process is killed in the second call of a run, by whichever runner it is
    made."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def execute(self, feeds: dict[str, Any]) -> Any:
        """Execute with the wrapped runner, but kill the process once after a number of calls."""
        note("calls", "1")
        folder = Path(os.environ["BULK_NOTES"])
        calls = sum(len(file.read_text().split()) for file in folder.glob("calls.*"))
        if calls > CALLS_BEFORE_DEATH and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._runner.execute(feeds)


def make_predictor(base: type, kind: str) -> type:
    """Return the predictor class of an example with another runner inside."""

    def open_model(self: Any, model: str) -> None:
        if kind == "plain":
            self.runner = TimedRunner(PlainRunner(model))
            return
        base.__init__(self, model)  # type: ignore[misc]
        self.runner = (MortalRunner if kind == "killed" else TimedRunner)(self.runner)

    return type("Predictor", (base,), {"__init__": open_model})


def main() -> None:
    """Run, and print the times."""
    engine, kind, model, source, target, notes, cores = sys.argv[1:]
    os.environ["BULK_NOTES"] = notes
    example = importlib.import_module(f"bulk_{engine}")
    if engine == "ray":  # whose servers listen on all addresses otherwise
        example.ray.init = partial(
            example.ray.init, _node_ip_address="127.0.0.1", include_dashboard=False
        )
    start = time.perf_counter()
    example.run(model, source, target, int(cores), make_predictor(example.Predictor, kind))
    seconds = time.perf_counter() - start
    lines = [line.split() for file in Path(notes).glob("seconds.*") for line in file.open()]
    model_seconds, cpu_seconds = (sum(float(line[place]) for line in lines) for place in (0, 1))
    figures = {"seconds": seconds, "model_seconds": model_seconds, "model_cpu_seconds": cpu_seconds}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
