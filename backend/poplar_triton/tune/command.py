"""Arguments of `poplar-triton tune`, the order of its measurements, and what it prints and
writes."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from poprt.terminal import make_console, show_progress
from poprt.triton import ModelConfig, encode_config, new_config, read_config
from rich.table import Table

from popef._tools.arguments import Parser, positive, whole_number
from popef._tools.console import naming, print_line
from popef._tools.staging import StagedFile
from popef._tools.text import did_you_mean, escape, name_some
from popef._tools.zero_requests import ZeroInput, make_inputs
from poplar_triton import doctor
from poplar_triton.errors import CommandError, ServerError
from poplar_triton.profile.bulk import usable_cores
from poplar_triton.serving.repository import MODEL_FILE, is_model_folder
from poplar_triton.serving.server import TritonServer
from poplar_triton.trials import Attempt, Trials
from poplar_triton.tune.candidates import (
    COLUMNS,
    ONNXRUNTIME,
    Candidate,
    find_engines,
    list_layouts,
    list_modes,
    read_candidate,
)
from poplar_triton.tune.load import MAX_CLIENTS, NUM_WINDOWS, Load, measure
from poplar_triton.tune.obstacles import find_obstacle

EXAMPLES = (
    "poplar-triton tune models/magika",
    "poplar-triton tune models/magika --clients 1 --budget-seconds 60",
    "poplar-triton tune models/magika --latency-limit-ms 20 --write",
)
_MIN_GAIN = 1.05
"""Minimum throughput of a winner relative to the current configuration, measured in turn: less is
noise."""
_WARM_UP_SECONDS = 0.3
"""Time of requests before those that count."""
_MEASURED_SHARE, _FIRST_SHARE = 0.4, 0.7
"""Share of the budget that is spent on measuring, while the rest is for loads; and share after
which no other candidate is measured, so that the fastest can be compared with the current one."""
_NUM_DUELS = 3
"""Maximum number of comparisons of the fastest with the current one, of which the median counts."""
_MAX_IN_TABLE = 40
"""Maximum length of a reason in the table."""
_MIN_WINDOW_SECONDS, _MAX_WINDOW_SECONDS = 0.2, 5.0
"""Bounds of the length of a window, whatever the budget."""


@dataclass(slots=True)
class Tuning:
    """All measurements, the fastest candidate, and its throughput relative to the current
    configuration."""

    results: list[Attempt[Candidate, Load]]
    winner: Candidate | None = None
    gain: float = 1.0
    left_out: dict[str, str] = field(default_factory=dict)
    """Engines that cannot compute the model, with the reason; they are not tried, or only once."""
    is_limit_met: bool = True
    """Whether the winner is within the latency limit."""

    def list_reasons(self) -> list[str]:
        """Return why engines and configurations were not measured, each reason once and whole."""
        reasons = [f"{engine} is left out: {reason}" for engine, reason in self.left_out.items()]
        failed = dict.fromkeys(
            (result.candidate.engine, result.reason)
            for result in self.results
            if len(result.reason) > _MAX_IN_TABLE
        )
        return reasons + [
            f"{engine} failed: {reason}"
            for engine, reason in failed
            if self.left_out.get(engine) != reason
        ]


def add_arguments(parser: Parser) -> None:
    """Give `parser` the arguments that `run` reads."""
    add = parser.add_argument
    model_help = "model folder of a Triton repository"
    parser.add_path(
        "model", folder=True, reads="folder", type=Path, metavar="MODEL", help=model_help
    )
    budget_help = "time for all measurements and loads, in seconds (default: %(default)d)"
    add("--budget-seconds", type=positive, default=120, metavar="N", help=budget_help)
    clients_help = "number of clients that send requests at once (default: %(default)d)"
    clients = whole_number(1, MAX_CLIENTS)
    add("--clients", type=clients, default=8, metavar="N", help=clients_help)
    limit_help = "choose among the configurations whose 99th percentile is within this latency"
    add("--latency-limit-ms", type=positive, metavar="MS", help=limit_help)
    add("--write", action="store_true", help="write the fastest configuration into config.pbtxt")
    add("--json", action="store_true", help="machine-readable")


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, and write the winner if asked to."""
    doctor.require()
    folder, file = options.model, options.model / MODEL_FILE
    if not folder.is_dir() or not (is_model_folder(folder) or file.exists()):
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        model_names = [entry.name for entry in entries if entry.is_dir() and is_model_folder(entry)]
        actual = (
            f"a repository; name one of its models: {name_some(model_names)}"
            if model_names
            else "none"
        )
        raise CommandError(f"{escape(folder)}: expected a model folder, found {actual}")
    config = read_config(file) if file.exists() else new_config()
    config.name = config.name or folder.resolve().name
    if config.backend not in ("", "poplar"):
        raise CommandError(
            f'{escape(file)}: expected backend "poplar", found {escape(config.backend)!r}'
            f"{did_you_mean(config.backend, ['poplar'])}"
        )
    config.backend = "poplar"
    current = read_candidate(config)
    start = time.monotonic()
    with _serve(folder, config.name) as server:
        tuner = _Tuner(server, config, options, start)
        tuning = tuner.tune(current, _find_left_out(folder, config, current))
    paths = []
    if options.write and tuning.winner is not None and tuning.winner != current:
        paths = _write(file, tuning.winner.apply(config))
    if options.json:
        print(json.dumps(_as_json(tuning) | {"written": list(map(str, paths))}, indent=2))
        return 0
    _print(options, tuning, current)
    for path in paths:
        note = "" if path == file else ": the file before, whose comments are lost"
        print_line(f"wrote {path}{note}")
    return 0


def _find_left_out(folder: Path, config: ModelConfig, current: Candidate) -> dict[str, str]:
    """Return the engines that cannot compute the model, with the reasons."""
    others = [engine for engine in find_engines() if engine not in (ONNXRUNTIME, current.engine)]
    reasons = {
        engine: find_obstacle(folder, replace(current, engine=engine).apply(config))
        for engine in others
    }
    return {engine: reason for engine, reason in reasons.items() if reason}


@contextmanager
def _serve(folder: Path, name: str) -> Iterator[TritonServer]:
    """Run a server that loads models only on request, from a repository with this model."""
    with tempfile.TemporaryDirectory(prefix="poplar-triton-") as text:
        repository = Path(text, "repository")
        repository.mkdir()
        (repository / name).symlink_to(folder.resolve(), target_is_directory=True)
        options = ("--model-control-mode=explicit",)
        with TritonServer(repository, log=Path(text, "log"), options=options) as server:
            yield server


class _Tuner:
    """Measures candidates one after the other on a server, within a budget of time."""

    def __init__(
        self, server: TritonServer, config: ModelConfig, options: argparse.Namespace, start: float
    ) -> None:
        self._server, self._config = server, config
        self._clients, self._limit_ms = options.clients, options.latency_limit_ms
        self._budget_seconds = options.budget_seconds
        self._deadline = start + options.budget_seconds
        self._first_deadline = start + _FIRST_SHARE * options.budget_seconds
        self._window_seconds = _MIN_WINDOW_SECONDS

    def tune(self, current: Candidate, left_out: Mapping[str, str]) -> Tuning:
        """Return the measurements, without those engines. Raises ServerError if the current
        configuration does not load or answer."""
        trials = Trials(self._measure, ServerError, deadline=self._first_deadline)
        tuning = Tuning(trials.made, left_out=dict(left_out))
        engines = [engine for engine in find_engines() if engine not in left_out]
        layouts = list_layouts(current, usable_cores(), engines)
        num_runs = len(layouts) + 2 + 2 * _NUM_DUELS
        share = _MEASURED_SHARE * self._budget_seconds / (num_runs * NUM_WINDOWS)
        self._window_seconds = min(max(share, _MIN_WINDOW_SECONDS), _MAX_WINDOW_SECONDS)
        with show_progress("measure", num_runs) as on_step:
            self._try_all(tuning, trials, layouts, on_step)
            if tuning.results[0].result is None:
                raise ServerError(
                    f"model {self._config.name!r} cannot be measured as it is configured: "
                    f"{tuning.results[0].reason}"
                )
            best = self._find_best(tuning) or current
            modes = list_modes(best, may_batch=self._config.max_batch_size > 0)
            self._try_all(tuning, trials, modes, on_step)
            best = self._find_best(tuning) or current
            tuning.gain = self._compare(current, best, on_step) if best != current else 1.0
        # A slower configuration wins if only the current one exceeds the limit.
        is_met = {result.candidate: self._is_within(result) for result in tuning.results}
        wins = tuning.gain >= _MIN_GAIN or (is_met[best] and not is_met[current])
        tuning.winner = best if wins else current
        tuning.is_limit_met = is_met[tuning.winner]
        return tuning

    def _try_all(
        self,
        tuning: Tuning,
        trials: Trials[Candidate, Load],
        candidates: Sequence[Candidate],
        on_step: Callable[[str], None],
    ) -> None:
        for candidate in candidates:
            on_step(" ".join(candidate.cells()))
            if candidate.engine in tuning.left_out:
                continue
            trial = trials.run(candidate)
            if trial is None:
                tuning.results.append(Attempt(candidate, reason="the budget is spent"))
            elif trial.reason:
                self._leave_out(tuning, candidate.engine, trial.reason)

    @staticmethod
    def _leave_out(tuning: Tuning, engine: str, reason: str) -> None:
        """Leave out an engine that has failed, if nothing was measured with it: threads and
        instances are not the cause."""
        mine = [trial for trial in tuning.results if trial.candidate.engine == engine]
        if engine != tuning.results[0].candidate.engine and not any(trial.result for trial in mine):
            tuning.left_out[engine] = reason

    def _measure(self, candidate: Candidate) -> Load:
        name = self._config.name
        config = MessageToDict(candidate.apply(self._config), preserving_proto_field_name=True)
        remaining = max(10.0, self._deadline - time.monotonic())
        self._server.endpoint.load(name, config, remaining)
        inputs = self._find_inputs()
        return measure(
            self._server.http_url,
            name,
            inputs,
            self._clients,
            self._window_seconds,
            _WARM_UP_SECONDS,
        )

    def _find_inputs(self) -> list[ZeroInput]:
        served = self._server.endpoint.read_config(self._config.name)
        try:
            return make_inputs(served or {})
        except ValueError as error:
            raise CommandError(f"model {self._config.name!r} cannot be measured: {error}") from None

    def _find_best(self, tuning: Tuning) -> Candidate | None:
        """Return the candidate with the highest throughput among those within the latency limit;
        None if there is none."""
        fit = [
            (trial.result.per_second, number)
            for number, trial in enumerate(tuning.results)
            if trial.result and self._is_within(trial)
        ]
        return tuning.results[max(fit)[1]].candidate if fit else None

    def _is_within(self, trial: Attempt[Candidate, Load]) -> bool:
        """Return whether a configuration was measured to be within the latency limit."""
        if trial.result is None:
            return False
        return not self._limit_ms or trial.result.p99_ms <= self._limit_ms

    def _compare(
        self, current: Candidate, best: Candidate, on_step: Callable[[str], None]
    ) -> float:
        """Return the throughput of `best` relative to `current`, measured in turn at least once:
        the machine's speed drifts."""
        ratios: list[float] = []
        for _ in range(_NUM_DUELS):
            began = time.monotonic()
            on_step("the fastest and the current configuration in turn")
            ratios.append(self._measure(best).per_second / self._measure(current).per_second)
            if 2 * time.monotonic() - began > self._deadline:  # another one would end too late
                break
        return sorted(ratios)[len(ratios) // 2]


def _print(options: argparse.Namespace, tuning: Tuning, current: Candidate) -> None:
    table = Table(*COLUMNS, "requests/s (least..greatest)", "p99 ms", "")
    for trial in tuning.results:
        note = "current" if trial.candidate == current else ""
        if trial.candidate == tuning.winner != current:
            note = "fastest"
        cells, load = trial.candidate.cells(), trial.result
        if load is None:
            # A long reason is printed whole below the table.
            is_short = len(trial.reason) <= _MAX_IN_TABLE
            reason = escape(trial.reason) if is_short else "failed, see below"
            table.add_row(*cells, "not measured", "", reason)
            continue
        spread = f"{load.per_second:.0f} ({min(load.rates):.0f}..{max(load.rates):.0f})"
        table.add_row(*cells, spread, f"{load.p99_ms:.1f}", note)
    make_console().print(table)
    for reason in tuning.list_reasons():
        print_line(escape(reason))
    print_line(_describe_winner(options, tuning, current))
    if tuning.winner != current and not options.write:
        print_line("--write writes it into config.pbtxt")


def _describe_winner(options: argparse.Namespace, tuning: Tuning, current: Candidate) -> str:
    limit = f"--latency-limit-ms {options.latency_limit_ms}"
    if not tuning.is_limit_met:
        lowest = min(trial.result.p99_ms for trial in tuning.results if trial.result)
        return f"no configuration is within {limit}: the lowest 99th percentile is {lowest:.1f} ms"
    within = f" within {limit}" if options.latency_limit_ms else ""
    if tuning.winner == current:
        other = f"; the fastest other one reached {tuning.gain:.2f}" if tuning.gain != 1 else ""
        return f"the current configuration is as fast as any{within}{other}"
    slower = ", which exceeds it" if tuning.gain < _MIN_GAIN else ""
    return (
        f"the fastest{within} has {tuning.gain:.2f} times the throughput of the current one{slower}"
    )


def _as_json(tuning: Tuning) -> dict[str, Any]:
    def describe(trial: Attempt[Candidate, Load]) -> dict[str, Any]:
        measured = (
            {"reason": trial.reason}
            if trial.result is None
            else {"per_second": list(trial.result.rates), "p99_ms": trial.result.p99_ms}
        )
        return asdict(trial.candidate) | measured

    winner = asdict(tuning.winner) if tuning.winner else None
    return {
        "measured": list(map(describe, tuning.results)),
        "left_out": tuning.left_out,
        "winner": winner,
        "gain": tuning.gain,
        "limit_met": tuning.is_limit_met,
    }


def _write(file: Path, config: ModelConfig) -> list[Path]:
    """Replace a configuration, and return the files that are written. Comments are lost, so a file
    that may have some is kept beside it."""
    paths = [file]
    with naming(file):
        if file.exists() and b"#" in file.read_bytes():
            copy = file.with_name(f"{file.name}.before-tune")
            shutil.copy2(file, copy)
            paths.append(copy)
        staged = StagedFile(file)
        staged.stream.write(encode_config(config).encode())
        staged.finish()
        staged.commit()
    return paths
