"""Arguments of `poplar-triton compare`, and the work that it does with them."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from poprt.cli import LIMITS, OPTIONS, supervised
from poprt.terminal import make_console, show_progress

from popef._tools.arguments import Parser, positive
from popef._tools.console import UsageError, naming, print_line
from popef._tools.text import did_you_mean
from poplar_triton.compare.chips import DEFAULT_CHIPS, ChipModel, read_list
from poplar_triton.compare.machine import Effort, Feeds, find_cpu, find_gpu, measure
from poplar_triton.compare.output import make_report, print_systems
from poplar_triton.compare.systems import MEASURED, System, SystemComparison
from poplar_triton.profile.bulk import usable_cores
from poplar_triton.profile.command import add_input_shape
from poplar_triton.profile.source import (
    Estimator,
    OnnxSource,
    ProfileSettings,
    open_source,
    quietly,
)

EXAMPLES = (
    "poplar-triton compare model.onnx --precision fp16",
    "poplar-triton compare model.onnx --latency-limit-ms 5 --html comparison.html",
    "poplar-triton compare model.onnx --systems c600,4xbow --price c600=1.2 --price 4xbow=4 "
    "--price cpu=0.3",
)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32)
_STEPS_PER_BATCH = 30
"""Approximate number of steps that converting and planning a batch size reports."""
_MAX_SECONDS = 600.0


def add_arguments(parser: Parser) -> None:
    """Give `parser` the arguments that `run` reads."""
    add = parser.add_argument
    model_help = "ONNX file, or PopEF file or model folder, which is not measured"
    parser.add_path("model", reads="path", type=Path, metavar="MODEL", help=model_help)
    systems_help = (
        "chips to model, separated by commas; 4xbow is four IPUs "
        f"(default: {','.join(DEFAULT_CHIPS)})"
    )
    default = read_list(",".join(DEFAULT_CHIPS))
    add("--systems", type=read_list, default=default, metavar="NAME,NAME", help=systems_help)
    sizes_help = f"batch sizes to compare (default: {','.join(map(str, _BATCH_SIZES))})"
    add("--batch_sizes", type=_sizes, default=_BATCH_SIZES, metavar="N,N", help=sizes_help)
    precision_help = (
        "precision of the chips; fp32 keeps the model's own types, with which this machine is "
        "measured in any case (default: fp32; PopEF: its own)"
    )
    replace(OPTIONS["precision"], default=None, help=precision_help).add_to(parser)
    add_input_shape(parser)
    limit_help = "choose the batch size with the most samples/s among those within this latency"
    add("--latency_limit_ms", type=_positive_number, metavar="MS", help=limit_help)
    price_help = (
        "price of an hour of a system, in any currency, for the cost of a million samples: "
        "c600=1.2, 4xbow=4, cpu=0.3; repeatable"
    )
    add("--price", type=_price, action="append", default=[], metavar="NAME=N", help=price_help)
    seconds_help = "time to measure each batch size on this machine (default: %(default)g)"
    add("--seconds", type=_seconds, default=2.0, metavar="N", help=seconds_help)
    threads_help = "number of threads to measure with (default: number of cores)"
    add("--threads", type=positive, metavar="N", help=threads_help)
    add("--json", action="store_true", help="machine-readable")
    html_help = "write an HTML page with the curves"
    parser.add_path("--html", writes="file", type=Path, metavar="FILE", help=html_help)
    for option in LIMITS:
        option.add_to(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command in a child process with limits."""
    _read_prices(options)  # raise a usage error before any work
    return supervised(_run)(options)


def _run(options: argparse.Namespace) -> int:
    comparison = _compare(options)
    if options.html:
        with naming(options.html):
            options.html.write_text(make_report(comparison), encoding="utf-8")
    if options.json:
        print(json.dumps(comparison.as_json(), indent=2))
        return 0
    print_systems(comparison, make_console())
    if options.html:
        print_line(f"wrote {options.html}")
    return 0


def _compare(options: argparse.Namespace) -> SystemComparison:
    source = open_source(options.model, dict(options.input_shape))
    onnx_source = source if isinstance(source, OnnxSource) else None
    num_steps = _STEPS_PER_BATCH * len(options.batch_sizes)
    with (
        tempfile.TemporaryDirectory(prefix="poplar-triton-") as scratch,
        show_progress("read model", num_steps) as on_step,
    ):
        estimator = Estimator(source, on_step)
        settings = ProfileSettings(precision=options.precision)
        chips = ChipModel(estimator, options.systems, settings)
        feeds = Feeds(Path(scratch), onnx_source.input_types if onnx_source else {})
        for size in _iter_sizes(chips, options.batch_sizes):
            if onnx_source:
                feeds.add(chips.batch_size, estimator.convert(replace(settings, batch_size=size)))
        machine = (
            _measure(options, onnx_source.file, feeds, Path(scratch)) if onnx_source else _skip()
        )
    return SystemComparison(
        source.name,
        options.precision or source.precision,
        [*chips.list_systems(), *machine],
        options.latency_limit_ms and options.latency_limit_ms / 1e3,
        _read_prices(options),
    )


def _iter_sizes(chips: ChipModel, sizes: Sequence[int]) -> Iterator[int | None]:
    """Yield the batch sizes that the model can have, each modelled on the chips; None is its own,
    if it can have no other."""
    fits_any = False
    for number, size in enumerate(sizes):
        with quietly() if number else nullcontext():  # each size would repeat the warnings
            if chips.add(size):
                fits_any = True
                yield size
    if not fits_any:
        chips.add_own()
        yield None


def _measure(
    options: argparse.Namespace, model: Path, feeds: Feeds, folder: Path
) -> Iterable[System]:
    effort = Effort(options.seconds, options.threads or usable_cores())
    return [measure(device, model, feeds, effort, folder) for device in (find_cpu(), find_gpu())]


def _skip() -> Iterable[System]:
    reason = (
        "not measured: ONNX Runtime needs the ONNX model, found a compiled one; name its ONNX file"
    )
    return [
        System(device.name, device.title, MEASURED, reason=reason)
        for device in (find_cpu(), find_gpu())
    ]


def _read_prices(options: argparse.Namespace) -> dict[str, float]:
    """Return the prices by the name of the system. Raises UsageError for an unknown name, and for
    one with two prices."""
    names = [*(system.name for system in options.systems), find_cpu().name, find_gpu().name]
    prices: dict[str, float] = {}
    for name, price in options.price:
        if name not in names:
            raise UsageError(
                f"--price: expected one of {', '.join(names)}, found {name!r}"
                f"{did_you_mean(name, names)}"
            )
        if name in prices:
            raise UsageError(f"--price: {name!r} has two prices; give one")
        prices[name] = price
    return prices


def _price(text: str) -> tuple[str, float]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected NAME=PRICE_OF_AN_HOUR, found {text!r}")
    return name.lower(), _positive_number(value)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(part) for part in text.split(",")}))


def _positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value


def _seconds(text: str) -> float:
    value = _positive_number(text)
    if value > _MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds up to {_MAX_SECONDS:g}, found {text!r}"
        )
    return value
