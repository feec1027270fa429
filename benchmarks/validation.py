"""The cost model beside published measurements of real IPUs, and beside Graphcore's own simulator.

Every fitted constant is chosen anew for each network on all other networks; the printed predictions
of a network use those. Two baselines that know no chip are fitted in the same way, so that a reader
sees the value of the model. With --docs, --plot and --errors the results are written to their
files.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import memory_cases
import numpy as np
from figures import C600, Point, iter_points
from poprt.performance import kind_of
from poprt.performance.kinds import layer_shares
from poprt.performance.model_profile import CloseVerdicts
from report import make_document, make_markdown
from rich.console import Console
from rich.progress import track
from rich.table import Table
from simipu.cost import CALIBRATION, Calibration

_NEAR, _CLOSE = 0.25, 0.1
"""Errors up to which a prediction counts as right, and as good."""
_CONSIDERABLE = 0.02
"""Share of a network's time from which a kind of layer counts as validated with it."""
_SWEEPS, _GAIN = 5, 0.001
"""Maximum number of sweeps over the constants, and minimum gain to accept a value."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of `Calibration` that was fitted, and the values that are tried for it."""

    name: str
    values: tuple[float, ...]
    fitted_on: str


CONSTANTS = (
    Constant("planned_cycles", (400, 600, 800, 1_000, 1_300), "all networks with products"),
    Constant("phase_cycles", (300, 400, 500, 600), "all networks"),
    Constant("fp8_block_cycles", (200, 280, 360), "ResNet-50 and BERT in fp8"),
    Constant("pow_cycles", (30, 45, 60), "BERT with the unfused GELU"),
    Constant("host_batch_seconds", (80e-6, 100e-6, 120e-6), "Wide&Deep"),
    Constant("host_call_seconds", (130e-6, 160e-6), "an empty graph"),
)
"""Every one. `reduction_cycles` is fitted too, but on the simulator's reductions alone, which no
network knows."""

Chosen = dict[str, float]


def chosen_calibration(chosen: Chosen) -> Calibration:
    """Return the calibration with those values."""
    numbers: dict[str, Any] = {
        name: int(value) if name.endswith("_cycles") else value for name, value in chosen.items()
    }
    return replace(CALIBRATION, **numbers)


@dataclass(frozen=True, slots=True)
class Responses:
    """Every figure with one constant at another value.

    The effect of several constants is taken as the sum of their changes, so that they are chosen
    with regard to each other.
    """

    usual: list[Point]
    changes: dict[tuple[str, float], np.ndarray[Any, np.dtype[np.float64]]]
    """Changes of the predicted time over the measured one."""

    @staticmethod
    def measure() -> Responses:
        """Measure every value of every constant, alone."""
        usual = [point for point in iter_points() if not point.is_simulated]
        ratios = np.array([point.ratio for point in usual])
        tried = [(constant.name, value) for constant in CONSTANTS for value in constant.values]
        changes = {}
        for name, value in track(tried, "try constants"):
            points = iter_points(chosen_calibration({name: value}), _is_chip)
            changes[name, value] = np.array([point.ratio for point in points]) - ratios
        return Responses(usual, changes)

    def choose(self, without: str = "") -> Chosen:
        """Return the constants with the least loss over all networks except `without`.

        The search starts from the present constants and changes one after the other, until there is
        no improvement.
        """
        chosen: Chosen = {
            constant.name: getattr(CALIBRATION, constant.name) for constant in CONSTANTS
        }
        best = self.loss(chosen, without)
        for _ in range(_SWEEPS):
            before = dict(chosen)
            for constant in CONSTANTS:
                for value in constant.values:
                    loss = self.loss(chosen | {constant.name: value}, without)
                    if loss < best - _GAIN:
                        best, chosen = loss, chosen | {constant.name: value}
            if chosen == before:
                break
        return chosen

    def loss(self, chosen: Chosen, without: str) -> float:
        """Return the loss: the median error plus the share of errors above 25 %, both of which
        should be small.

        It is the mean over families, so that a family's number of rows does not count.
        """
        ratios = np.array([point.ratio for point in self.usual])
        for item in chosen.items():
            ratios = ratios + self.changes.get(item, 0.0)
        families: dict[str, list[float]] = {}
        for point, ratio in zip(self.usual, ratios, strict=True):
            if point.network != without:
                families.setdefault(point.family, []).append(abs(float(ratio) - 1))
        return statistics.mean(
            statistics.median(errors) + statistics.mean(error > _NEAR for error in errors)
            for errors in families.values()
        )


def leave_out_each_network() -> tuple[list[Point], dict[str, Chosen], list[Point]]:
    """Predict every figure with all constants chosen on the other networks.

    Return these predictions, the choices (of "" on all networks), and every figure as predicted
    with the present constants.
    """
    usual, responses = list(iter_points()), Responses.measure()
    choices = {"": responses.choose()}
    points: list[Point] = []
    for network in track(dict.fromkeys(point.network for point in usual), "leave out"):
        choices[network] = responses.choose(network)
        points += iter_points(chosen_calibration(choices[network]), network.__eq__)
    return points, choices, usual


def _is_chip(network: str) -> bool:
    return not network.startswith("simulator")


@dataclass(frozen=True, slots=True)
class Baseline:
    """A prediction that knows nothing about the chip; it uses only the `features` of a network."""

    name: str
    features: Callable[[Point], list[float]]

    def errors(self, points: Sequence[Point]) -> list[float]:
        """Return the error of every figure, with coefficients fitted on the other networks by least
        relative squares."""
        usable = [
            point for point in points if point.modelled is not None and not point.is_simulated
        ]
        errors = []
        for network in dict.fromkeys(point.network for point in usable):
            others = [point for point in usable if point.network != network]
            rows = np.array([self.features(point) for point in others])
            measured = np.array([point.measured for point in others])
            weights = np.linalg.lstsq(rows / measured[:, None], np.ones(len(others)), rcond=None)[0]
            errors += [
                abs(float(np.dot(weights, self.features(point))) / point.measured - 1)
                for point in usable
                if point.network == network
            ]
        return errors


def _peak_seconds(point: Point) -> float:
    """Return the time of the products at the chip's peak rate, in their precision and partials."""
    seconds = point.modelled
    assert seconds is not None
    half = seconds.target.half_macs_half_partials
    if seconds.options.partials_type == "float":
        half = seconds.target.half_macs_float_partials
    rate = {"fp32": seconds.target.float_macs, "fp8": seconds.target.quarter_macs or half}
    macs = sum(operator.work.macs for operator in seconds.operators)
    cycles = macs / seconds.target.num_tiles / rate.get(point.precision, half)
    return cycles / seconds.target.clock_hz * seconds.target.num_ipus


BASELINES = (
    Baseline("peak rate times one efficiency", lambda point: [_peak_seconds(point)]),
    Baseline(
        "regression on products, bytes and calls",
        lambda point: [_peak_seconds(point), point.num_bytes / 1e12, 1e-3],
    ),
)


def summarise(errors: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of errors, and the shares within 10 and 25 %."""
    close, near = (
        sum(error <= limit for error in errors) / len(errors) for limit in (_CLOSE, _NEAR)
    )
    return statistics.median(errors), close, near


def iter_rows(points: Sequence[Point], usual: Sequence[Point]) -> Iterable[tuple[str, ...]]:
    """Yield a row for each family: figures, median ratio, errors left out and as fitted."""
    for family in dict.fromkeys(point.family for point in points):
        left_out = [point for point in points if point.family == family]
        fitted = [point.error for point in usual if point.family == family]
        median, close, near = summarise([point.error for point in left_out])
        ratio = statistics.median(point.ratio for point in left_out)
        yield (
            family,
            str(len(left_out)),
            f"{ratio:.2f}",
            f"{median:.0%}",
            f"{close:.0%}",
            f"{near:.0%}",
            f"{statistics.median(fitted):.0%}",
        )


COLUMNS = ("family", "figures", "ratio", "median error", "within 10 %", "within 25 %", "as fitted")


def overall(points: Sequence[Point]) -> tuple[float, float, float]:
    """Summarise all real chips' families, each with the same weight: the median of medians, and the
    mean shares."""
    families: dict[str, list[float]] = {}
    for point in points:
        if not point.is_simulated:
            families.setdefault(point.family, []).append(point.error)
    rows = [summarise(errors) for errors in families.values()]
    medians, close, near = zip(*rows, strict=True)
    return statistics.median(medians), statistics.mean(close), statistics.mean(near)


def make_errors(points: Sequence[Point]) -> dict[str, Any]:
    """Return a profile's statements of its own error, by kind of network and precision, of the
    layers that were validated, and of verdicts near the limit."""
    real = [point for point in points if point.modelled is not None and not point.is_simulated]
    groups: dict[tuple[str, str | None], list[Point]] = {}
    layers: set[str] = set()
    for point in real:
        assert point.modelled is not None
        kind, shares = kind_of(point.modelled), layer_shares(point.modelled)
        layers |= {layer for layer, share in shares.items() if share >= _CONSIDERABLE}
        for key in ((kind, point.precision), (kind, None)):
            groups.setdefault(key, []).append(point)
    return {
        "source": "benchmarks/validation.py, every constant chosen without the network",
        "version": 3,
        "layers": sorted(layers),
        "memory": asdict(find_close_verdicts(list(memory_cases.iter_verdicts()))),
        "groups": [
            {
                "kind": kind,
                "precision": precision,
                "families": len({point.network for point in members}),
                "figures": len(members),
                "median_error": round(statistics.median(point.error for point in members), 3),
                "within_25": round(statistics.mean(point.error <= _NEAR for point in members), 3),
                "networks": list(dict.fromkeys(point.network for point in members)),
            }
            for (kind, precision), members in sorted(groups.items(), key=str)
        ],
    }


def find_close_verdicts(verdicts: Sequence[memory_cases.Verdict]) -> CloseVerdicts:
    """Return the range of a tile's memory in which verdicts were wrong, and how many of it."""
    shares = {verdict: verdict.tile_bytes / C600.bytes_per_tile for verdict in verdicts}
    wrong = [shares[verdict] for verdict in verdicts if verdict.predicted != verdict.published]
    least, most = round(min(wrong), 3), round(max(wrong), 3)
    inside = sum(least <= round(share, 3) <= most for share in shares.values())
    return CloseVerdicts(least, most, inside, len(wrong))


def plot(points: Iterable[Point], file: str) -> None:
    """Draw predicted over published seconds of real IPUs, with the lines of 25 % either way."""
    from matplotlib import pyplot

    real = [point for point in points if not point.is_simulated]
    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for marker, family in zip(
        "osv^Dp*Xh<>P8d1234", dict.fromkeys(point.family for point in real), strict=False
    ):
        members = [point for point in real if point.family == family]
        measured = [1e3 * point.measured for point in members]
        predicted = [1e3 * point.predicted for point in members]
        axes.loglog(measured, predicted, marker, alpha=0.7, label=f"{family} ({len(members)})")
    ends = [1e3 * bound(point.measured for point in real) for bound in (min, max)]
    for factor, style in ((1, "k-"), (1 - _NEAR, "k:"), (1 + _NEAR, "k:")):
        axes.loglog(ends, [factor * end for end in ends], style, linewidth=0.8)
    axes.set(
        xlabel="published, ms per batch",
        ylabel="modelled, ms per batch",
        title="Modelled and published times, each network left out (dotted: 25 %)",
    )
    axes.legend(fontsize="x-small")
    figure.savefig(file, metadata={"Date": None} if file.endswith(".svg") else None)


def make_sections(
    points: Sequence[Point], choices: dict[str, Chosen], usual: Sequence[Point]
) -> dict[str, str]:
    """Return the tables of docs/validation.md."""
    median, close, near = overall(points)
    baselines = [
        (baseline.name, *(f"{share:.0%}" for share in summarise(baseline.errors(points))))
        for baseline in BASELINES
    ]
    real = [
        point.error for point in points if point.modelled is not None and not point.is_simulated
    ]
    ours = ("the model", *(f"{share:.0%}" for share in summarise(real)))
    constants = [
        (
            f"`{constant.name}`",
            f"{getattr(CALIBRATION, constant.name):g}",
            f"{choices[''][constant.name]:g}",
            ", ".join(sorted({f"{choice[constant.name]:g}" for choice in choices.values()})),
            constant.fitted_on,
        )
        for constant in CONSTANTS
    ]
    misses = sorted(
        (point for point in points if not point.is_simulated and point.error > _NEAR),
        key=lambda point: -point.error,
    )
    verdicts = list(memory_cases.iter_verdicts())
    wrong = [verdict for verdict in verdicts if verdict.predicted != verdict.published]
    return {
        "families": make_markdown(COLUMNS, iter_rows(points, usual)),
        "overall": f"Families of real chips, each counting the same: median error {median:.0%}, "
        f"{close:.0%} within 10 %, {near:.0%} within 25 %. {len(CONSTANTS)} fitted constants, "
        f"{len({point.network for point in points if not point.is_simulated})} networks.",
        "misses": "\n".join(
            f"- {point.family}: {' '.join(point.name.split())}: {point.ratio:.2f}"
            for point in misses
        )
        or "None.",
        "baselines": make_markdown(
            ("prediction", "median error", "within 10 %", "within 25 %"), [ours, *baselines]
        ),
        "constants": make_markdown(
            ("constant", "value", "chosen on all", "chosen without a network", "fitted on"),
            constants,
        ),
        "verdicts": f"{len(verdicts) - len(wrong)} of {len(verdicts)} are right. Wrong: "
        + ("; ".join(verdict.name for verdict in wrong) or "none")
        + ".",
        "memory": make_markdown(
            ("profile", "category", "modelled, bytes a tile", "published"),
            [
                (case.name, case.category, f"{case.predicted:,.0f}", f"{case.published:,.0f}")
                for case in memory_cases.iter_categories()
            ],
        ),
    }


def main() -> int:
    """Print the tables, and write the requested files."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--points", action="store_true", help="print every figure too")
    parser.add_argument(
        "--fitted", action="store_true", help="with the constants as they are, only"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw predicted over published times (matplotlib)"
    )
    parser.add_argument(
        "--docs", type=Path, metavar="FILE", help="put the tables into this document"
    )
    parser.add_argument(
        "--errors", type=Path, metavar="FILE", help="write what profiles say of their error"
    )
    options = parser.parse_args()
    console = Console()
    if options.fitted:
        points = usual = list(iter_points())
        choices: dict[str, Chosen] = {}
    else:
        points, choices, usual = leave_out_each_network()
    if options.points:
        for point in points:
            console.print(
                f"{point.ratio:6.2f}  {point.predicted:12.6g}  {point.measured:12.6g}  "
                f"{point.family}: {point.name}"
            )
    table = Table(
        *COLUMNS, title=f"predicted over published, modelled ({C600.description} and others)"
    )
    for row in iter_rows(points, usual):
        table.add_row(*row)
    console.print(table)
    if choices:
        sections = make_sections(points, choices, usual)
        for name in ("overall", "misses", "baselines", "constants", "verdicts", "memory"):
            console.print(sections[name], markup=False)
        if options.docs:
            options.docs.write_text(make_document(options.docs.read_text(), sections))
    if options.plot:
        plot(points, options.plot)
    if options.errors:
        options.errors.write_text(json.dumps(make_errors(points), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
