"""popef's files beside a program's alternatives: safetensors, a plain mapping, plain writes,
pycapnp.

Every round measures all rows, the rival before and after popef. A ratio is popef's figure over the
geometric mean of the rival's two; the rival's second over its first is the resolution. All files
are in the page cache.
"""

from __future__ import annotations

import argparse
import gc
import io
import itertools
import math
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import capnp
import numpy as np
import report
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rounds import Goal, parse_options
from safetensors import safe_open
from safetensors.numpy import save_file

import popef

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "tests" / "popef" / "popef.capnp"
NUM_TENSORS, NUM_ANCHORS = 400, 1000
SHAPE, QUICK_SHAPE, SMALL_SHAPE = (4, 312_500), (4, 31_250), (4, 3125)
"""Shape of each float32 tensor, for files of 2 GB, 200 MB and 20 MB.

None has more of Python's shared small integers.
"""
ROUNDS, QUICK_ROUNDS = 11, 3
SECONDS, QUICK_SECONDS = 0.3, 0.1
MIN_CALLS = 5
"""Minimum calls of a measurement: a virtual machine may first have to get pages from its host,
which takes longer than the work."""
KIB, MIB = 1 << 10, 1 << 20

Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Contest:
    """Work that popef and a rival both do."""

    what: str
    rival: str
    goal: Goal
    """Goal for the ratio of times if it is an upper bound, otherwise for that of throughputs."""
    ours: Call
    theirs: Call
    num_bytes: int = 0
    """Bytes of the data; if given, figures are throughputs."""
    clean: Call = lambda: None
    """Function that removes the files of both; not timed."""

    def ratio(self, ours: float, theirs: float) -> float:
        """Return popef's figure over the rival's, from two times."""
        return ours / theirs if self.goal.at_most else theirs / ours

    def describe(self, seconds: float) -> str:
        """Format a time, or its throughput."""
        return (
            f"{self.num_bytes / seconds / 1e9:.2f} GB/s"
            if self.num_bytes
            else f"{seconds * 1e3:.2f} ms"
        )


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of one call."""

    before: float
    ours: float
    after: float

    @property
    def theirs(self) -> float:
        """The rival's."""
        return math.sqrt(self.before * self.after)


@dataclass(frozen=True, slots=True)
class Opening:
    """Costs of opening a file and listing its tensors in a separate process."""

    read_bytes: int
    """Copied out of the file, by the kernel's count."""
    mapped_bytes: int
    """Bytes of the file's mapping, in memory while the reader is open."""
    resident_bytes: int
    """The process's peak."""
    traced_bytes: int
    """Peak of the memory that Python allocated for it."""


def make_tensors(shape: tuple[int, int]) -> Tensors:
    """Return tensors of the same shape with different values."""
    values = np.random.default_rng(0).random((NUM_TENSORS, *shape), dtype=np.float32)
    return {f"model.layers.{index:03}.mlp.weight": tensor for index, tensor in enumerate(values)}


def write_popef(path: Path, tensors: Tensors) -> None:
    """Write a file of tensor blobs."""
    with popef.Writer(path) as writer:
        for name, tensor in tensors.items():
            info = popef.TensorInfo(shape=tensor.shape, dataType=popef.DataType.F32)
            with writer.createTensorData(popef.TensorDataInfo(name=name, tensorInfo=info)) as blob:
                blob.write(tensor)


def write_plain(path: Path, tensors: Tensors) -> None:
    """Write the values alone, to the disk: `popef.Writer`, too, ends when they are there."""
    with open(path, "wb") as file:
        for tensor in tensors.values():
            file.write(tensor.data)
        file.flush()
        os.fsync(file.fileno())


def list_popef(path: Path) -> list[Any]:
    """Name, shape and type of each tensor."""
    with popef.Reader() as reader:
        return parse_and_list(reader, path)


def parse_and_list(reader: popef.Reader, path: Path) -> list[Any]:
    """Name, shape and type of each tensor; leaves the file open."""
    reader.parseFile(path)
    infos = (tensor.info for tensor in reader.tensors())
    return [(info.name, info.tensorInfo.shape, info.tensorInfo.dataType) for info in infos]


def list_safetensors(path: Path) -> list[Any]:
    """Name, shape and type of each tensor."""
    with safe_open(path, framework="np") as file:
        slices = ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118 - it is no dict
        return [(name, tensor.get_shape(), tensor.get_dtype()) for name, tensor in slices]


def touch(tensor: np.ndarray[Any, Any]) -> int:
    """Read every byte of it."""
    return int(np.add.reduce(tensor.reshape(-1).view(np.uint64)))


def read_popef(path: Path) -> list[int]:
    """Open the file and touch all tensors."""
    with popef.Reader() as reader:
        reader.parseFile(path)
        return [touch(tensor.data()) for tensor in reader.tensors()]


def read_mapping(path: Path, places: Sequence[tuple[int, tuple[int, ...]]]) -> list[int]:
    """Map the file and touch the tensors at known places: offset and shape."""
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return [
        touch(np.frombuffer(mapping, np.float32, math.prod(shape), offset).reshape(shape))
        for offset, shape in places
    ]


def find_places(path: Path) -> list[tuple[int, tuple[int, ...]]]:
    """Return offset and shape of each tensor."""
    with popef.Reader() as reader:
        reader.parseFile(path)
        return [
            (blob.payload_start, tuple(blob.structure.tensorInfo.shape)) for blob in reader.blobs()
        ]


def make_metadata() -> tuple[bytes, bytes]:
    """Return a file with only the metadata of many anchors, and the Cap'n Proto message in it."""
    info = popef.TensorInfo(shape=(16, 224, 224, 3), dataType=popef.DataType.F16)
    kinds = (popef.TensorType.INPUT, popef.TensorType.OUTPUT)
    anchors = [
        popef.Anchor(
            name=f"model/layer_{i:04}:0",
            handle=f"h2d_{i:04}",
            tensorInfo=info,
            type=kinds[i % 2],
            programs=[1],
        )
        for i in range(NUM_ANCHORS)
    ]
    file = io.BytesIO()
    with popef.Writer(file) as writer:
        flow = popef.ProgramFlow(load=[0], main=[1], save=[2])
        writer.writeMetadata(
            popef.Metadata(anchors=anchors, executable="executable", programFlow=flow)
        )
    with popef.Reader() as reader:
        reader.parseStream(io.BytesIO(file.getvalue()))
        (blob,) = reader.blobs()
        return file.getvalue(), file.getvalue()[blob.structure_start :]


def parse_popef(file: bytes) -> list[Any]:
    """Read every field of every anchor with popef."""
    with popef.Reader() as reader:
        reader.parseStream(io.BytesIO(file))
        (metadata,) = reader.metadata()
        return [
            (
                *(
                    anchor.name,
                    anchor.handle,
                    anchor.type,
                    anchor.isPerReplica,
                    list(anchor.programs),
                ),
                *(list(anchor.tensorInfo.shape), anchor.tensorInfo.dataType),
            )
            for anchor in metadata.anchors
        ]


def parse_pycapnp(schema: Any, message: bytes) -> list[Any]:
    """Read every field of every anchor with pycapnp, enumerants as ordinals."""
    with schema.Metadata.from_bytes(message) as metadata:
        return [
            (
                *(
                    anchor.name,
                    anchor.handle,
                    anchor.type.raw,
                    anchor.isPerReplica,
                    list(anchor.programs),
                ),
                *(list(anchor.tensorInfo.shape), anchor.tensorInfo.dataType.raw),
            )
            for anchor in metadata.anchors
        ]


def parse_to_dict(schema: Any, message: bytes) -> Any:
    """Return the whole message as plain data."""
    with schema.Metadata.from_bytes(message) as metadata:
        return metadata.to_dict()


def import_module(name: str) -> None:
    """Import a module in a separate interpreter, from its start to its end."""
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True, cwd=ROOT)


def make_file_contests(folder: Path, tensors: Tensors) -> list[Contest]:
    """Return the contests of opening, reading and writing."""
    ours, theirs = folder / "tensors.popef", folder / "tensors.safetensors"
    write_popef(ours, tensors)
    save_file(tensors, theirs)
    os.sync()  # else the disk is still busy with them in the first rounds
    places, size = find_places(ours), sum(tensor.nbytes for tensor in tensors.values())
    require_same(read_popef(ours), read_mapping(ours, places))
    names = (folder / f"written{number}" for number in itertools.count())
    writers = (lambda: write_popef(next(names), tensors), lambda: write_plain(next(names), tensors))
    open_and_list = (lambda: list_popef(ours), lambda: list_safetensors(theirs))
    read_all = (lambda: read_popef(ours), lambda: read_mapping(ours, places))
    return [
        Contest(
            f"open, list {NUM_TENSORS} tensors",
            "safetensors",
            Goal(1.0, at_most=True),
            *open_and_list,
        ),
        Contest("read all tensors", "mmap, np.frombuffer", Goal(0.9), *read_all, size),
        Contest(
            "write all tensors",
            "file.write, fsync",
            Goal(0.9),
            *writers,
            size,
            lambda: remove_written(folder),
        ),
    ]


def remove_written(folder: Path) -> None:
    """Delete the files of the writers."""
    for path in folder.glob("written*"):
        path.unlink()


def make_metadata_contests() -> list[Contest]:
    """Return the contests of parsing."""
    capnp.remove_import_hook()
    schema = capnp.load(str(SCHEMA))
    file, message = make_metadata()
    require_same(parse_popef(file), parse_pycapnp(schema, message))
    goal, what = Goal(2.0, at_most=True), f"parse {NUM_ANCHORS} anchors"
    return [
        Contest(
            what,
            "pycapnp, every field",
            goal,
            lambda: parse_popef(file),
            lambda: parse_pycapnp(schema, message),
        ),
        Contest(
            what,
            "pycapnp, to_dict",
            goal,
            lambda: parse_popef(file),
            lambda: parse_to_dict(schema, message),
        ),
    ]


def make_import_contest() -> Contest:
    """Return the contest of whole processes."""
    goal = Goal(2.0, at_most=True)
    return Contest(
        "import popef",
        "import numpy",
        goal,
        lambda: import_module("popef"),
        lambda: import_module("numpy"),
    )


def require_same(ours: object, theirs: object) -> None:
    """Stop where both sides do not do the same work."""
    if ours != theirs:
        raise SystemExit(
            "benchmarks: expected popef and its rival to read the same, got different values; mend "
            "popef"
        )


def run_rounds(
    contests: Sequence[Contest], options: argparse.Namespace, console: Console
) -> list[list[Round]]:
    """Run the rounds of each contest."""
    results: list[list[Round]] = [[] for _ in contests]
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("measuring", total=options.rounds * len(contests))
        for contest in contests:  # warm up
            run_round(contest, 0)
        for _ in range(options.rounds):
            for contest, rounds in zip(contests, results, strict=True):
                progress.update(task, description=contest.what)
                rounds.append(run_round(contest, options.seconds))
                progress.advance(task)
    return results


def run_round(contest: Contest, seconds: float) -> Round:
    """Time the rival, popef, and the rival again."""
    return Round(
        *(
            time_call(call, contest.clean, seconds)
            for call in (contest.theirs, contest.ours, contest.theirs)
        )
    )


def time_call(call: Call, clean: Call, seconds: float) -> float:
    """Return the least seconds of one call, of MIN_CALLS or more that together take at least
    `seconds`."""
    gc.collect()
    times_ns: list[int] = []
    while len(times_ns) < MIN_CALLS or sum(times_ns) < seconds * 1e9:
        start_ns = time.perf_counter_ns()
        call()
        times_ns.append(time.perf_counter_ns() - start_ns)
        clean()
    return min(times_ns) / 1e9


def watch_opening(path: Path) -> Opening:
    """Open the file and list its tensors, in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(open_and_watch, path).result()


def open_and_watch(path: Path) -> Opening:
    """Open the file and list its tensors, here."""
    with popef.Reader() as reader:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        first, second = count_read_bytes(), count_read_bytes()  # counting reads as well
        parse_and_list(reader, path)
        read_bytes = (count_read_bytes() - second) - (second - first)
        resident, mapped = (
            count_kilobytes("status", "VmHWM"),
            count_kilobytes("smaps", "Rss", str(path)),
        )
    tracemalloc.start()
    list_popef(path)
    return Opening(read_bytes, mapped * KIB, resident * KIB, tracemalloc.get_traced_memory()[1])


def count_read_bytes() -> int:
    """Return the bytes that this process has read from files, by the kernel's count, without a
    mapping's pages."""
    return int(Path("/proc/self/io").read_text().split()[1])


def count_kilobytes(file: str, field: str, mapping: str = "") -> int:
    """Return a field of a file in /proc/self, summed over the mappings of that path if one is
    given."""
    total, is_mapping = 0, not mapping
    for line in Path("/proc/self", file).read_text().splitlines():
        name, *rest = line.split(maxsplit=1)
        if not name.endswith(":"):
            is_mapping = line.endswith(mapping)
        elif is_mapping and name == f"{field}:":
            total += int(rest[0].split()[0])
    return total


def make_ratio_table(contests: Sequence[Contest], found: Sequence[Sequence[Round]]) -> Table:
    """Return a table with a row per contest."""
    title = f"popef's files; medians of {len(found[0])} interleaved rounds (least..greatest)"
    table = report.make_table(
        title, "work", "popef", "rival", "rival's", "ratio", "goal", "resolution"
    )
    for contest, rounds in zip(contests, found, strict=True):
        ratios = [contest.ratio(result.ours, result.theirs) for result in rounds]
        resolution = [contest.ratio(result.after, result.before) for result in rounds]
        times = (
            statistics.median(result.ours for result in rounds),
            statistics.median(result.theirs for result in rounds),
        )
        ours, theirs = map(contest.describe, times)
        verdict = (
            report.describe_ratio(ratios, contest.goal),
            report.describe_goal(ratios, contest.goal),
        )
        table.add_row(
            contest.what, ours, contest.rival, theirs, *verdict, report.describe_ratio(resolution)
        )
    return table


def make_opening_table(sizes: Sequence[int], openings: Sequence[Opening]) -> Table:
    """Return a table of the costs of opening a file, by its size."""
    columns = (f"{size / 1e6:.0f} MB" for size in sizes)
    table = report.make_table(
        f"opening {NUM_TENSORS} tensors in a fresh process", "", *columns, "goal"
    )
    rows = {
        "read from the file, KiB": [opening.read_bytes / KIB for opening in openings],
        "mapped file in memory, KiB": [opening.mapped_bytes / KIB for opening in openings],
        "peak of the process, MiB": [opening.resident_bytes / MIB for opening in openings],
        "peak that Python allocated, KiB": [opening.traced_bytes / KIB for opening in openings],
    }
    for name, figures in rows.items():
        table.add_row(name, *(f"{figure:.1f}" for figure in figures), "the same")
    return table


def read_options() -> argparse.Namespace:
    """Parse the options of all benchmarks, because `make bench` passes the same to each."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to make the temporary folder of the files (default: the system's)",
    )
    return parse_options(
        parser,
        rounds=ROUNDS,
        seconds=SECONDS,
        quick_rounds=QUICK_ROUNDS,
        quick_seconds=QUICK_SECONDS,
    )


def main() -> None:
    """Measure, and print the report."""
    options = read_options()
    console = report.make_console()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        small, large = folder / "small.popef", folder / "tensors.popef"
        write_popef(small, make_tensors(SMALL_SHAPE))
        tensors = make_tensors(QUICK_SHAPE if options.quick else SHAPE)
        contests = [
            *make_file_contests(folder, tensors),
            *make_metadata_contests(),
            make_import_contest(),
        ]
        results = run_rounds(contests, options, console)
        sizes = [path.stat().st_size for path in (small, large)]
        openings = [watch_opening(path) for path in (small, large)]
    report.show(console, {"popef files": make_ratio_table(contests, results)}, options.docs)
    console.print(
        "Ratios: of times where the goal is an upper bound, else of throughputs; popef's over the "
        "rival's."
    )
    console.print(make_opening_table(sizes, openings))


if __name__ == "__main__":
    main()
