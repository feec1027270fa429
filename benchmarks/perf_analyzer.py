"""Triton's perf_analyzer, out of the newest tritonclient wheel whose build runs on Debian 12 and Ubuntu 22.04."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from triton_poplar.server import find_triton

PACKAGE = "tritonclient==2.50.0"
CACHE = Path(__file__).parents[1] / ".cache" / "perf_analyzer"
LIBRARIES = ("libb64", "libcudart")
"""What the program links beside the system's; the server's wheel has both under mangled names."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What perf_analyzer saw at one concurrency."""

    per_second: float
    p50_us: float
    p99_us: float


def prepare() -> Path:
    """The program, downloaded and unpacked once."""
    program = CACHE / "perf_analyzer"
    if program.exists():
        return program
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = CACHE.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("/perf_analyzer"))
        program.write_bytes(archive.read(member))
    program.chmod(0o755)
    wheel_libraries = find_triton().parent.parent / "nvidia_pytriton.libs"
    for name, soname in zip(LIBRARIES, ("libb64.so.0d", "libcudart.so.12"), strict=True):
        (mangled,) = wheel_libraries.glob(f"{name}-*")
        (CACHE / soname).unlink(missing_ok=True)
        (CACHE / soname).symlink_to(mangled)
    return program


def measure(
    url: str, model: str, concurrency: int, *, rows: int = 1, seconds: float = 2, options: tuple[str, ...] = ()
) -> Measurement:
    """Load `model` over gRPC with random inputs for about three windows of `seconds`."""
    result = CACHE / "result.csv"
    command = [
        *(str(prepare()), "-m", model, "-u", url, "-i", "grpc", "-b", str(rows)),
        *("--concurrency-range", str(concurrency), "-p", str(int(seconds * 1000)), "-r", "3", "-s", "999"),
        *("-f", str(result), *options),
    ]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(CACHE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"perf_analyzer: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    with result.open() as file:
        (row,) = csv.DictReader(file)
    return Measurement(float(row["Inferences/Second"]), float(row["p50 latency"]), float(row["p99 latency"]))
