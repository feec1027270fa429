"""Arguments of `poplar-triton profile`, and the work that it does with them."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from poprt import PRECISIONS, STEPS
from poprt.cli import (
    FLAG,
    LIMITS,
    NUMBER,
    OPTIONS,
    Form,
    Option,
    Use,
    iter_profile_options,
    read_chip,
    read_compiler_fields,
    read_converter_arguments,
    read_shape,
    supervised,
)
from poprt.performance import Profile, print_profile, print_tile_mapping, tiles_of
from poprt.terminal import make_console, show_progress
from simipu import CompileError, known_chips

from popef._tools.arguments import Parser, count, positive, whole_number
from popef._tools.console import UsageError, naming, print_line
from popef._tools.paths import did_you_mean_path
from popef._tools.text import did_you_mean
from poplar_triton.profile import bulk
from poplar_triton.profile.cases import Shard
from poplar_triton.profile.compare import compare_as_json, print_comparison, print_sweep
from poplar_triton.profile.report import Content, make_report
from poplar_triton.profile.search import (
    MAX_NODES,
    MAX_PROFILES,
    ProfileTrials,
    Search,
    Suggestion,
    default_limit,
)
from poplar_triton.profile.source import Estimator, ProfileSettings, open_source, quietly
from poplar_triton.profile.space import GOALS, THROUGHPUT
from poplar_triton.profile.suggest import (
    BATCH_SIZES,
    Advice,
    Batches,
    advise,
    list_changes,
    print_advice,
    profile_batches,
)
from poplar_triton.profile.trace import make_trace
from poplar_triton.trials import Trials

EXAMPLES = (
    "poplar-triton profile model.onnx --batch_size 8 --target c600",
    "poplar-triton profile model.onnx --sweep batch_size=1,2,4 --sweep target=c600,bow --json",
    "poplar-triton profile model.onnx --batch_size 8 --html report.html --trace trace.json",
    "poplar-triton profile model.onnx --batch_size 8 --compare precision=fp8 --suggest",
    "poplar-triton profile models --sweep batch_size=1,2,4 --sweep target=c600,bow --output "
    "results",
)
_CONVERTER_STEPS = len(STEPS) + 1
"""Maximum number of steps that the converter and the estimator report for a point."""

_MAX_IPUS = 64
"""Maximum number of IPUs for --suggest: those of a Pod64."""
_FUSED = Option("fused_attention", "the same as --passes fused_attention", FLAG)
"""Option of its own for a pass; its name is that of the pass."""
_SHARED = ("available_memory_proportion", "num_io_tiles", "batches_per_step")
_number = partial(Option, takes=NUMBER, use=Use.COMPILER)
_flag = partial(Option, takes=FLAG, use=Use.COMPILER)
_PARTIALS = "type of partial sums (default: half)"
_CHIP = (
    Option("partials_type", _PARTIALS, use=Use.COMPILER, choices=("half", "float")),
    *(OPTIONS[name] for name in _SHARED),
    _number("stream_buffering_depth", "batches that are buffered on the host (default: 1)"),
    _flag("use_128bit_conv_unit_load", "load convolution weights twice as fast"),
    _FUSED,
    _number("num_ipus", "number of IPUs to distribute the layers over (default: 1)"),
    _flag("enable_pipelining", "let the IPUs work on consecutive batches in parallel"),
    _number(
        "replication_factor", "number of copies of the model, which share the host (default: 1)"
    ),
)
"""Options of the chip and its compiler, in the order of the help."""
_COST = {option.name: option for option in _CHIP if Use.COMPILER in option.use}
"""Options of the chip that are fields of CostOptions, by name."""

_SUGGEST = ("suggest", "goal", "max_profiles", "max_ipus")
_OUTPUT = ("json", "html", "trace", "tiles", "print_tile_mapping")
"""Options that only say what a command for one model writes."""

Axis = tuple[str, tuple[str | int, ...]]


def add_input_shape(parser: Parser) -> None:
    """Give `parser` the option for the shapes of inputs."""
    parser.add_argument(
        "--input_shape",
        type=read_shape,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=d0,d1",
        help="shapes of inputs, with -1 first for the batch size; repeatable",
    )


def add_arguments(parser: Parser) -> None:
    """Give `parser` the arguments that `run` reads."""
    add = parser.add_argument
    model_help = (
        "ONNX file (weights may be missing), PopEF file compiled by poprt, or model folder of a "
        "Triton repository; with --output, several of them and folders of models"
    )
    parser.checks_paths_itself = True
    parser.add_path("model", reads="path", type=Path, nargs="+", metavar="MODEL", help=model_help)
    chip_help = f"chip: {known_chips()} (default: c600; PopEF: the compiled one)"
    precision_help = (
        "type of weights and arithmetic, as for poprt; fp32 keeps the model's own types "
        "(default: fp32; PopEF: its own)"
    )
    for option in (
        replace(OPTIONS["ipu_version"], name="target", aliases=("--ipu_version",), help=chip_help),
        OPTIONS["batch_size"],
        replace(OPTIONS["precision"], default=None, help=precision_help),
        *iter_profile_options(),
    ):
        option.add_to(parser)
    for option in _CHIP:
        option.add_to(parser)
    add_input_shape(parser)
    sweep_help = (
        "values to combine: batch_size=1,2,4, target=c600,bow or precision=fp16,fp32; repeatable"
    )
    add("--sweep", type=_axis, action="append", default=[], metavar="NAME=A,B", help=sweep_help)
    _add_bulk_arguments(parser)
    top_help = "number of most expensive nodes to list (default: %(default)s)"
    add("--top", type=positive, default=10, metavar="N", help=top_help)
    add("--json", action="store_true", help="machine-readable")
    _add_suggest_arguments(parser)
    compare_help = (
        "compare with another model, or with other settings NAME=VALUE[,NAME=VALUE], "
        "such as target=bow"
    )
    add("--compare", metavar="MODEL|NAME=VALUE", help=compare_help)
    html_help = "write an HTML report with charts; for a sweep, of its first point"
    parser.add_path("--html", writes="file", type=Path, metavar="FILE", help=html_help)
    trace_help = "write a trace of the supersteps for Perfetto; for a sweep, of its first point"
    parser.add_path("--trace", writes="file", type=Path, metavar="FILE", help=trace_help)
    _add_tile_arguments(parser)
    for option in LIMITS:
        option.add_to(parser)


def _add_tile_arguments(parser: Parser) -> None:
    tiles_help = (
        "write what each tile holds and does as JSON: memory by tile, mapping and lifetime of "
        "every tensor, exchange, vertices, program and timeline; for a sweep, of its first point"
    )
    parser.add_path("--tiles", writes="file", type=Path, metavar="FILE", help=tiles_help)
    mapping_help = (
        "print how many elements of a tensor each tile has: of the tensors that the model's "
        "PrintTileMapping operators read, or of all; for a sweep, of its first point"
    )
    parser.add_argument("--print_tile_mapping", action="store_true", help=mapping_help)


def _add_suggest_arguments(parser: Parser) -> None:
    add = parser.add_argument
    suggest_help = (
        "try other options, alone and together, and print those that help, the best command, and "
        "the Pareto front of latency, throughput and memory"
    )
    add("--suggest", action="store_true", help=suggest_help)
    goal_help = (
        "what the options of --suggest and of the report are to improve, if the model fits: the "
        "latency of a call, the throughput while batches are queued, or the memory of the fullest "
        f"tile (default: {THROUGHPUT})"
    )
    add("--goal", choices=GOALS, help=goal_help)
    most_help = (
        "maximum number of further profiles for --suggest and the report's batch sizes "
        f"(default: {MAX_PROFILES}, fewer for more than {MAX_NODES // MAX_PROFILES:,} nodes)"
    )
    add("--max_profiles", type=positive, metavar="N", help=most_help)
    ipus_help = (
        "maximum number of IPUs that --suggest may use (default: those of --num_ipus, or twice as "
        "many if the model does not fit)"
    )
    add("--max_ipus", type=whole_number(1, _MAX_IPUS), metavar="N", help=ipus_help)


def _add_bulk_arguments(parser: Parser) -> None:
    add = parser.add_argument
    parser.add_path(
        "--output",
        writes="path",
        type=Path,
        metavar="NAME",
        help="write a row per model and setting into NAME.jsonl and NAME.csv; resumes after an "
        "interruption",
    )
    jobs_help = "number of concurrent processes, with --output (default: number of cores)"
    add("--jobs", type=positive, metavar="N", help=jobs_help)
    shard_help = (
        "with --output: run this part of the work, from 0/N to (N-1)/N, as one of N machines"
    )
    add("--shard", type=_shard, metavar="I/N", help=shard_help)
    retry_help = "with --output: retry the cases with an error in NAME.jsonl"
    add("--retry_failed", action="store_true", help=retry_help)


def run(options: argparse.Namespace) -> int:
    """Run the command: profile one model in this process, or many models in child processes."""
    points = _points(options)
    if options.output is None:
        _refuse(options, ("jobs", "shard", "retry_failed"), "requires --output")
        if not (options.suggest or options.html):
            _refuse(options, _SUGGEST[1:], "requires --suggest or --html")
        if options.json and options.print_tile_mapping:
            raise UsageError(
                "--print_tile_mapping prints a table; with --json write the mappings with --tiles"
            )
        if len(options.model) > 1:
            raise UsageError(f"expected one MODEL without --output, found {len(options.model)}")
        if options.compare is not None and not os.path.lexists(options.compare):
            _change(points[0], options)  # raise a usage error before any work
        options.parser.check_paths(options)
        return supervised(_run_one)(options)
    _refuse(
        options,
        (*_OUTPUT, *_SUGGEST, "compare"),
        "applies to one model and cannot be combined with --output",
    )
    options.parser.check_paths(options)
    return bulk.run(options, points)


def _refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    for name in names:
        if getattr(options, name):
            raise UsageError(f"--{name} {why}")


def _run_one(options: argparse.Namespace) -> int:
    """Profile one model and print the result. Raises CompileError, LoadError, PopefError or OSError
    for bad input."""
    points = _points(options)
    num_steps = _count_points(options, len(points)) * _CONVERTER_STEPS
    with show_progress("read model", num_steps) as on_step:
        estimator = Estimator(open_source(options.model[0], dict(options.input_shape)), on_step)
        profiles = [estimator.profile(point) for point in points]
        other = _profile_other(options, estimator, points[0], on_step)
        advice, batches = _try_further(options, estimator, points, profiles)
    tiles = tiles_of(profiles[0]).as_json() if options.html or options.tiles else None
    if options.html:
        content = Content(profiles[0], batches, profiles[1:] and profiles, advice, other, tiles)
        _write(options.html, make_report(content))
    if options.trace:
        _write(options.trace, json.dumps(make_trace(profiles[0])))
    if options.tiles:
        _write(options.tiles, json.dumps(tiles))
    _print(profiles, other, advice if options.suggest else None, options)
    return 0


def _count_points(options: argparse.Namespace, num_points: int) -> int:
    """Return the maximum number of profiles, for the progress bar."""
    num_points += bool(options.compare)
    further = options.max_profiles or MAX_PROFILES
    return num_points + (int(further) if options.html or options.suggest else 0)


def _try_further(
    options: argparse.Namespace,
    estimator: Estimator,
    points: Sequence[ProfileSettings],
    profiles: Sequence[Profile],
) -> tuple[Advice | None, Batches]:
    """Profile the changes of --suggest and the report's batch sizes: those of the sweep if it has
    several, with those advised for the first point, which is the report's subject."""
    if not (options.suggest or options.html):
        return None, Batches()
    # Neither the subject's own batch size nor a point of the sweep is profiled again.
    profiled = [
        (replace(point, batch_size=profile.batch_size), profile)
        for point, profile in zip(points, profiles, strict=True)
    ]
    limit = options.max_profiles or default_limit(profiles[0])
    trials = Trials(estimator.profile, CompileError, limit=limit, known=profiled)
    with quietly():
        search = Search(
            trials, points[0], profiles[0], options.goal or THROUGHPUT, options.max_ipus
        )
        search.try_changes()
        batches = Batches()
        if options.html:
            batches = _profile_batches(trials, points[0], profiles, list_changes(search))
        search.try_combinations()
    return advise(search, partial(_write_command, options, points[0])), batches


def _profile_batches(
    trials: ProfileTrials,
    point: ProfileSettings,
    profiles: Sequence[Profile],
    suggestions: Sequence[Suggestion],
) -> Batches:
    swept = {profile.batch_size for profile in profiles}
    sizes = swept if len(swept) > 1 else {*BATCH_SIZES, *swept}
    batches = profile_batches(trials, point, suggestions, sizes)
    if len(swept) > 1:
        others = [profile for profile in profiles if profile not in batches.profiles]
        batches = replace(batches, profiles=[*batches.profiles, *others])
    return batches


def _write_command(
    options: argparse.Namespace, point: ProfileSettings, suggestion: Suggestion
) -> str:
    """Return the command line that profiles a suggestion for `point`, the first of the sweep."""
    parser: Parser = options.parser
    swept = [f"--{name}={getattr(point, name)}" for name, _ in options.sweep]
    others = {f"--{name}" for name in (*_OUTPUT, *_SUGGEST, "compare", "sweep", "top")}
    own_words = parser.drop_options(
        options.given_words, {*others, *(f"--{name}" for name, _ in options.sweep)}
    )
    common_words = parser.drop_options([*own_words, *swept], suggestion.words)
    words = [str(options.model[0]), *common_words, *suggestion.words]
    return shlex.join([*parser.prog.split(), *words])


def _profile_other(
    options: argparse.Namespace,
    estimator: Estimator,
    point: ProfileSettings,
    on_step: Callable[[str], None],
) -> Profile | None:
    """Profile what --compare names: the same model under other settings, or another model under the
    same settings."""
    if options.compare is None:
        return None
    if os.path.lexists(options.compare):
        source = open_source(Path(options.compare), dict(options.input_shape))
        return Estimator(source, on_step).profile(point)
    return estimator.profile(_change(point, options))


def _change(point: ProfileSettings, options: argparse.Namespace) -> ProfileSettings:
    """Return the point with the settings that --compare names, each read as the option of that
    name.

    Ends the process with status 2 and a line on stderr for what is neither a model nor settings.
    """
    if "=" not in options.compare:
        hint = did_you_mean_path(options.compare) or did_you_mean(options.compare, _COMPARED)
        raise UsageError(f"{_EXPECTED}; found {options.compare!r}{hint}")
    values = dict(_read_setting(pair, options.parser) for pair in options.compare.split(","))
    changed = {name: value for name, value in values.items() if name in _COST}
    axes = {name: value for name, value in values.items() if name in _AXES}
    return replace(point, options={**point.options, **changed}, **axes)


def _read_setting(pair: str, parser: Parser) -> tuple[str, Any]:
    """Return the name and the value of a setting of --compare."""
    name, _, value = pair.partition("=")
    if name not in _COMPARED:
        raise UsageError(f"{_EXPECTED}; found {pair!r}{did_you_mean(name, _COMPARED)}")
    if name in _COST and _COST[name].takes.form is Form.FLAG:
        if value != "true":
            raise UsageError(f"--compare: expected {name}=true, found {value!r}; omit it for false")
        return name, True
    try:
        return name, parser.read_value(f"--{name}", value)
    except argparse.ArgumentError as error:
        raise UsageError(f"--compare: {name}: {error.message}") from None


def _print(
    profiles: Sequence[Profile],
    other: Profile | None,
    advice: Advice | None,
    options: argparse.Namespace,
) -> None:
    if options.json:
        documents = [profile.as_json() for profile in profiles]
        if advice is not None:
            documents[0]["advice"] = advice.as_json()
        if other is not None:
            documents[0]["comparison"] = compare_as_json(profiles[0], other)
        print(json.dumps(documents if options.sweep else documents[0], indent=2))
        return
    console = make_console()
    if options.sweep:
        print_sweep(profiles, console)
    elif other is None:
        print_profile(profiles[0], console, options.top)
    if other is not None:
        print_comparison(profiles[0], other, console)
    if advice is not None:
        print_advice(advice, console)
    if options.print_tile_mapping:
        print_tile_mapping(profiles[0], console)
    for file in filter(None, (options.html, options.trace, options.tiles)):
        print_line(f"wrote {file}")


def _write(file: Path, text: str) -> None:
    with naming(file):
        file.write_text(text, encoding="utf-8")


def _points(options: argparse.Namespace) -> list[ProfileSettings]:
    """Return the requested settings and their combinations with those of --sweep."""
    changed = read_compiler_fields(_COST.values(), options)
    converter = _converter_arguments(options)
    base = ProfileSettings(
        options.target, options.batch_size, options.precision, changed, converter
    )
    names = [name for name, _ in options.sweep]
    if len(set(names)) < len(names):
        raise UsageError(
            f"--sweep names one of {', '.join(names)} twice; give all of its values in one option"
        )
    combinations = itertools.product(*(values for _, values in options.sweep))
    points = [replace(base, **dict(zip(names, values, strict=True))) for values in combinations]
    # Neighbours share the converted graph: only the target may change between them.
    if len(names) > 1:
        points.sort(key=lambda point: (point.precision or "", point.batch_size or 0))
    return points


def _converter_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the further arguments of the Converter that are requested."""
    arguments = read_converter_arguments(iter_profile_options(), options)
    if _FUSED.read(options):
        passes = arguments.get("used_passes", [])
        arguments["used_passes"] = passes if _FUSED.name in passes else [*passes, _FUSED.name]
    return arguments


def _shard(text: str) -> Shard:
    number, separator, total = text.partition("/")
    try:
        shard = Shard(count(number), positive(total))
    except argparse.ArgumentTypeError:
        shard = Shard(0, 0)
    if not separator or shard.number >= shard.count:
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N-1, found {text!r}")
    return shard


def _axis(text: str) -> Axis:
    name, separator, values = text.partition("=")
    if not separator or name not in _AXES:
        raise argparse.ArgumentTypeError(
            f"expected NAME=VALUE,VALUE with a name of {', '.join(_AXES)}, found {text!r}"
            f"{did_you_mean(name, _AXES)}"
        )
    try:
        return name, tuple(_AXES[name](value) for value in values.split(","))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{name}, values separated by commas: {error}") from None


def _precision(text: str) -> str:
    if text not in PRECISIONS:
        raise argparse.ArgumentTypeError(
            f"precision {text!r} is not known; known are {', '.join(PRECISIONS)}"
            f"{did_you_mean(text, PRECISIONS)}"
        )
    return text


_AXES: dict[str, Callable[[str], str | int]] = {
    "batch_size": positive,
    "target": read_chip,
    "precision": _precision,
}
_COMPARED = (*_AXES, *_COST)
"""Names of the settings that --compare takes."""
_EXPECTED = "--compare: expected an existing model, or NAME=VALUE[,NAME=VALUE] of " + ", ".join(
    _COMPARED
)
