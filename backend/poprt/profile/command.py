"""The arguments of `poplar-triton profile`, and what it does with them."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from simipu import CompileError
from simipu.target import TARGETS

from poprt.converter import PRECISIONS
from poprt.profile.model import ALIASES, Profile, Profiler, Settings
from poprt.profile.report import BATCH_SIZES, make_report, require_matplotlib
from poprt.profile.source import open_source
from poprt.profile.table import make_console, print_profile, print_sweep
from poprt.profile.trace import make_trace

_OPTIONS = (
    "partials_type",
    "available_memory_proportion",
    "num_io_tiles",
    "batches_per_step",
    "use_128bit_conv_unit_load",
    "fused_attention",
    "num_ipus",
    "enable_pipelining",
    "replication_factor",
)
_CONVERTER_STEPS = 6
"""Steps that the converter and the profiler announce for a point."""

Axis = tuple[str, tuple[str | int, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the arguments that `run` reads."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="ONNX file (weights may be missing), or a PopEF file compiled by poprt")
    add("--target", type=_target, metavar="NAME", help=f"the chip: {_known_targets()} (default: c600; PopEF: its own)")
    add("--batch_size", type=_positive, metavar="N", help="batch size of all inputs")
    add("--precision", choices=PRECISIONS, help="type of weights and arithmetic (default: fp16; PopEF: its own)")
    add("--input_shape", type=_shape, action="append", default=[], metavar="NAME=d0,d1", help="sizes of an input; repeatable")
    add("--partials_type", choices=("half", "float"), help="type of partial sums (default: half)")
    add("--available_memory_proportion", type=_proportion, metavar="F", help="tile memory for products (default: 0.6)")
    add("--num_io_tiles", type=_count, metavar="N", help="tiles that only do I/O, so that it overlaps (default: 0)")
    add("--batches_per_step", type=_positive, metavar="N", help="batches run per return to the host (default: 1)")
    add("--use_128bit_conv_unit_load", action="store_true", default=None, help="load weights twice as fast")
    add("--fused_attention", action="store_true", default=None, help="as with PopRT's pass of that name")
    add("--num_ipus", type=_positive, metavar="N", help="IPUs to spread the layers over (default: 1)")
    add("--enable_pipelining", action="store_true", default=None, help="IPUs work on batches that follow one another")
    add("--replication_factor", type=_positive, metavar="N", help="copies of the model, which share the host (default: 1)")
    sweep_help = "batch_size=1,2,4, target=c600,bow or precision=fp16,fp32; repeatable: all combinations"
    add("--sweep", type=_axis, action="append", default=[], metavar="NAME=A,B", help=sweep_help)
    add("--top", type=_positive, default=10, metavar="N", help="how many of the dearest nodes to list (default: %(default)s)")
    add("--json", action="store_true", help="machine-readable")
    add("--html", type=Path, metavar="FILE", help="write a report with plots (needs matplotlib); of the first point of a sweep")
    add(
        "--trace", type=Path, metavar="FILE", help="write a trace of the supersteps for Perfetto; of the first point of a sweep"
    )


def run(options: argparse.Namespace) -> int:
    """Profile as asked and print. Raises CompileError, LoadError, PopefError or OSError for bad input."""
    if options.html:
        require_matplotlib()
    points = _points(options)
    with _progress(len(points) + (len(BATCH_SIZES) if options.html else 0)) as on_step:
        profiler = Profiler(open_source(options.model, dict(options.input_shape)), on_step)
        profiles = [profiler.profile(point) for point in points]
        if options.html:
            sizes = dict(options.sweep).get("batch_size", BATCH_SIZES)
            batches = [_try_profile(profiler, replace(points[0], batch_size=size)) for size in sizes]
            report = make_report(profiles[0], [each for each in batches if each is not None], profiles[1:] and profiles)
            options.html.write_text(report, encoding="utf-8")
    if options.trace:
        options.trace.write_text(json.dumps(make_trace(profiles[0])), encoding="utf-8")
    _print(profiles, options)
    return 0


def _print(profiles: Sequence[Profile], options: argparse.Namespace) -> None:
    if options.json:
        found = [profile.as_json() for profile in profiles]
        print(json.dumps(found if options.sweep else found[0], indent=2))
        return
    console = make_console()
    if options.sweep:
        print_sweep(profiles, console)
    else:
        print_profile(profiles[0], console, options.top)
    for file in filter(None, (options.html, options.trace)):
        console.print(f"wrote {file}", markup=False, soft_wrap=True)


def _points(options: argparse.Namespace) -> list[Settings]:
    """The settings asked for, and their combinations with those of --sweep."""
    changed = {name: getattr(options, name) for name in _OPTIONS if getattr(options, name) is not None}
    base = Settings(options.target, options.batch_size, options.precision, changed)
    names = [name for name, _ in options.sweep]
    if len(set(names)) < len(names):
        raise CompileError(f"--sweep names one of {', '.join(names)} twice; give all its values at once")
    combinations = itertools.product(*(values for _, values in options.sweep))
    points = [replace(base, **dict(zip(names, values, strict=True))) for values in combinations]
    # Neighbours share the converted graph: only the target may change between them.
    return sorted(points, key=lambda point: (point.precision or "", point.batch_size or 0)) if len(names) > 1 else points


def _try_profile(profiler: Profiler, settings: Settings) -> Profile | None:
    """A point of the report's batch sizes; None where the model cannot have that size."""
    try:
        return profiler.profile(settings)
    except CompileError:
        return None


@contextmanager
def _progress(points: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr; nothing where it is no terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("read model", total=points * _CONVERTER_STEPS)

        def on_step(step: str) -> None:
            progress.update(task, description=step, advance=1)

        yield on_step


def _known_targets() -> str:
    return ", ".join(sorted({*TARGETS, *ALIASES}))


def _target(text: str) -> str:
    name = ALIASES.get(text.lower(), text.lower())
    if name not in TARGETS:
        raise argparse.ArgumentTypeError(f"target {text!r} is not known; known are {_known_targets()}")
    return name


def _axis(text: str) -> Axis:
    name, separator, values = text.partition("=")
    if not separator or name not in _AXES:
        raise argparse.ArgumentTypeError(f"expected {', '.join(_AXES)} and =VALUE,VALUE, found {text!r}")
    try:
        return name, tuple(_AXES[name](value) for value in values.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name}: expected whole numbers with commas between, found {values!r}") from None


def _precision(text: str) -> str:
    if text not in PRECISIONS:
        raise argparse.ArgumentTypeError(f"precision {text!r} is not known; known are {', '.join(PRECISIONS)}")
    return text


def _shape(text: str) -> tuple[str, list[int]]:
    name, separator, value = text.rpartition("=")
    try:
        sizes = [int(size) for size in value.strip("[]").split(",") if size]
    except ValueError:
        separator = ""
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=d0,d1,..., found {text!r}")
    return name, sizes


def _proportion(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected more than 0 and at most 1, found {text}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, found {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, found {text}")
    return value


_AXES: dict[str, Callable[[str], str | int]] = {"batch_size": _positive, "target": _target, "precision": _precision}
