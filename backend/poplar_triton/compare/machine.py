"""This machine as a system: the model is measured in a child process with ONNX Runtime, on the CPU
and on a GPU if ONNX Runtime can use one.

The child process (`stopwatch`) is limited in time, and in memory by the limit of this process,
which it inherits. Only one runs at a time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from poprt.comparing import make_up

from popef._tools.arrays import Array
from popef._tools.child import run_python
from popef._tools.text import escape
from poplar_triton.compare.stopwatch import PLAN, RESULTS
from poplar_triton.compare.systems import MEASURED, Point, Spread, System

RAPL = Path("/sys/class/powercap")
"""Folder in which Linux shows the energy counters of processors."""
_CPU_INFO = Path("/proc/cpuinfo")
_CODE = "from poplar_triton.compare.stopwatch import main; main()"
_START_SECONDS = 120.0
"""Maximum time to load a model; large ones take ten seconds."""
_PATIENCE = 3.0
"""How many times `--seconds` a batch size may take, as a call cannot be interrupted."""
_MAX_REASON = 500
_NO_RAPL = (
    f"unknown: this machine does not show this user the energy counters of its processor (RAPL, "
    f"{RAPL}/intel-rapl:*)"
)


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """Part of this machine that ONNX Runtime can use."""

    name: str
    title: str
    provider: str
    """Name of ONNX Runtime's execution provider."""
    energy_reason: str
    """Why its energy is unknown if nothing was measured."""
    rapl: Path
    """Folder of the energy counters; an empty path for none."""


def find_cpu() -> MeasuredDevice:
    """Return this machine's CPU."""
    return MeasuredDevice("cpu", f"CPU, {_name_cpu()}", "CPUExecutionProvider", _NO_RAPL, RAPL)


def find_gpu() -> MeasuredDevice:
    """Return this machine's GPU, whether ONNX Runtime can use it or not."""
    reason = "unknown: the power of GPUs is not read"
    return MeasuredDevice("gpu", "GPU, by CUDA", "CUDAExecutionProvider", reason, Path("none"))


def _name_cpu() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unnamed"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return escape(next(names, "unnamed"), 100)


class Feeds:
    """Inputs of a model by batch size, as files in a folder."""

    def __init__(self, folder: Path, types: Mapping[str, int]) -> None:
        self.sizes: list[int] = []
        self._folder = folder
        self._types = types
        """Element types of the given model's inputs by name."""
        self._files: list[dict[str, str]] = []

    def add(self, batch_size: int, model: onnx.ModelProto) -> None:
        """Write random inputs of the shapes that a static model has: indices are within their
        tables."""
        files = {}
        for number, (name, values) in enumerate(make_up(model).items()):
            file = self._folder / f"batch{batch_size}-{number}.npy"
            np.save(file, self._cast(name, values), allow_pickle=False)
            files[name] = str(file)
        self.sizes.append(batch_size)
        self._files.append(files)

    def describe(self) -> list[dict[str, Any]]:
        """Return the batches for the plan of the child process."""
        return [
            {"size": size, "inputs": files}
            for size, files in zip(self.sizes, self._files, strict=True)
        ]

    def _cast(self, name: str, values: Array) -> Array:
        """Return values in the given model's type: the converted model may have another."""
        if name not in self._types:
            return values
        return values.astype(onnx.helper.tensor_dtype_to_np_dtype(self._types[name]))


@dataclass(frozen=True, slots=True)
class Effort:
    """How a device is measured."""

    seconds: float
    """Time for each batch size."""
    threads: int
    """Number of ONNX Runtime's threads on the CPU."""


def measure(
    device: MeasuredDevice, model: Path, feeds: Feeds, effort: Effort, folder: Path
) -> System:
    """Measure a model on a device at each batch size of the feeds, one call after another."""
    threads = "1 thread" if effort.threads == 1 else f"{effort.threads} threads"
    notes = [
        f"one call after another, {threads}, up to {effort.seconds:g} s for each batch size; "
        f"ONNX Runtime {onnxruntime.__version__}, the model's own types",
        *_warn_of_load(),
    ]

    def fail(reason: str, missing: Mapping[int, str] | None = None) -> System:
        return System(device.name, device.title, MEASURED, reason=reason, missing=missing or {})

    if device.provider not in onnxruntime.get_available_providers():
        return fail(
            f"not measured: ONNX Runtime {onnxruntime.__version__} here has no "
            f"{device.provider}; it needs the package onnxruntime-gpu and a GPU with its driver"
        )
    results, fault = _run(device, model, feeds, effort, folder)
    if results and "error" in results[0]:
        return fail(_shorten(f"ONNX Runtime cannot load the model: {results[0]['error']}"))
    if not results:
        return fail(fault)
    if device.provider not in results[0]["providers"]:
        return fail(f"not measured: ONNX Runtime could not start its {device.provider}")
    points, missing = _read_results(results[1:], feeds.sizes, effort, fault)
    if not points:
        return fail(next(iter(missing.values())), missing)
    return System(
        device.name,
        device.title,
        MEASURED,
        points,
        missing,
        notes=notes,
        energy_reason=device.energy_reason,
    )


def _warn_of_load() -> Iterable[str]:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        yield (
            f"this machine was busy before the measurement (load average {load:.1f} on {cores} "
            "cores): idle, it is faster"
        )


def _run(
    device: MeasuredDevice, model: Path, feeds: Feeds, effort: Effort, folder: Path
) -> tuple[list[dict[str, Any]], str]:
    """Run the child process. Return its results, and why they are incomplete; "" if it finished."""
    plan = {
        "model": str(model.resolve()),
        "provider": device.provider,
        "threads": effort.threads,
        "seconds": effort.seconds,
        "rapl": str(device.rapl),
        "batches": feeds.describe(),
    }
    (folder / PLAN).write_text(json.dumps(plan), encoding="utf-8")
    (folder / RESULTS).unlink(missing_ok=True)
    limit = _START_SECONDS + _PATIENCE * effort.seconds * len(feeds.sizes)
    fault = ""
    try:
        child = run_python(_CODE, seconds=limit, cwd=folder, capture_output=True)
        if child.returncode:
            fault = f"ONNX Runtime crashed ({_name_status(child.returncode)})"
    except subprocess.TimeoutExpired:
        fault = f"not measured: it took more than {limit:.0f} s in all; --seconds raises the limit"
    file = folder / RESULTS
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")], fault


def _name_status(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def _read_results(
    results: Sequence[Mapping[str, Any]], sizes: Sequence[int], effort: Effort, fault: str
) -> tuple[list[Point], dict[int, str]]:
    points, missing = [], {}
    for result in results:
        size = result["batch_size"]
        if "error" in result:
            missing[size] = _shorten(f"ONNX Runtime cannot run it: {result['error']}")
        else:
            points.append(_make_point(size, result))
    missing_sizes = [
        size for size in sizes if size not in {result["batch_size"] for result in results}
    ]
    for size in missing_sizes:
        missing[size] = fault or (
            f"not measured: a call of batch {results[-1]['batch_size']} takes longer than "
            f"{effort.seconds:g} s; --seconds raises the limit"
        )
    return points, missing


def _make_point(size: int, result: Mapping[str, Any]) -> Point:
    samples = size * result["calls"]
    joules = result["joules"]
    return Point(
        size,
        result["median_seconds"],
        samples / result["total_seconds"],
        spread=Spread(result["calls"], result["p10_seconds"], result["p90_seconds"]),
        joules_per_sample=None if joules is None else joules / samples,
    )


def _shorten(text: str) -> str:
    return escape(text, _MAX_REASON)
