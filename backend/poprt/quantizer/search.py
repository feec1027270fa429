"""Finds the 8-bit format and scale in which values lose least: all are tried, none is skipped.

Values are halves, of which there are 65,536: a loss is computed of how often each occurs, however many values
there were, and is the loss of the values themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from simipu.numerics.quarter import FORMATS, QuarterFormat, decode, encode

from poprt.calibration.errors import ERRORS
from poprt.calibration.statistics import HalfCounts

Array = npt.NDArray[Any]

SCALES = range(-14, 10)
"""Scales that are tried. Beyond them no half comes out nearer: at -14 the steps of F143 are those of the
smallest halves, at 9 it reaches beyond the largest; F152, with more exponents, gets there sooner. The
published sweep, -5 to 2 (graphcore/PopRT, examples/fp8_quantization_onnxruntime), is among them."""
KLD_BINS = 2048
"""Of the histograms that kld compares; ours, the real tool's is not public."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A format and a scale."""

    quarter: QuarterFormat
    scale: int

    def quantise(self, values: Array) -> npt.NDArray[np.float64]:
        """The nearest values in it, as the chip rounds."""
        return decode(encode(values, self.quarter, self.scale), self.quarter, self.scale).astype(np.float64)

    def __str__(self) -> str:
        return f"{self.quarter.name},{self.scale}"


CANDIDATES = tuple(
    Candidate(quarter, scale) for quarter in FORMATS.values() for scale in sorted(SCALES, key=abs)
)
"""All that are tried; of equal losses the first wins: F143, and the scale nearest to 0."""


@dataclass(frozen=True, slots=True)
class Values:
    """What a tensor holds: its values, rising, and how often each occurs."""

    values: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]

    @staticmethod
    def of(counts: HalfCounts) -> Values:
        """Those that were counted and are finite."""
        return Values(*counts.distribution())

    def quantise(self, candidate: Candidate) -> npt.NDArray[np.float64]:
        """What becomes of each value."""
        table = _table(candidate)
        halves: npt.NDArray[np.uint16] = np.abs(self.values).astype(np.float16).view(np.uint16)
        return np.copysign(table[halves], self.values)

    def histogram(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Middles of the bins that hold any value, of 2048 equal ones about 0 as far as the largest
        magnitude, and the share of values in each."""
        most = float(np.abs(self.values).max(initial=0))
        if not most:
            return np.zeros(1), np.ones(1)
        found, edges = np.histogram(self.values, KLD_BINS, (-most, most), weights=self.counts)
        held = found > 0
        return ((edges[:-1] + edges[1:]) / 2)[held], found[held] / found.sum()


@cache
def _table(candidate: Candidate) -> npt.NDArray[np.float64]:
    """What becomes of each finite half that is not negative, by its code."""
    return candidate.quantise(np.arange(0x7C00, dtype=np.uint16).view(np.float16))


def kld(values: Values, candidate: Candidate) -> float:
    """The information that is lost: the divergence of Kullback and Leibler, in nats, of the values' histogram
    from what can be told of it afterwards.

    Bins whose middles become one 8-bit value cannot be told apart any more, so that each of them that holds
    any value gets an even part of what they hold together. This is how such losses are usually taken of
    integers; what the real tool does is not public.
    """
    middles, shares = values.histogram()
    _, group = np.unique(candidate.quantise(middles), return_inverse=True)
    group = group.ravel()
    even = np.bincount(group, shares) / np.bincount(group)
    return max(0.0, float(shares @ np.log(shares / even[group])))


def _by_error(error: Callable[..., float]) -> Callable[[Values, Candidate], float]:
    return lambda values, candidate: error(values.values, values.quantise(candidate), values.counts)


LOSSES: Mapping[str, Callable[[Values, Candidate], float]] = {
    **{name: _by_error(error) for name, error in ERRORS.items()},
    "kld": kld,
}
"""By the real tool's names; gptq is none of a format and scale."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate of least loss, and the losses of all, in the order of `CANDIDATES`."""

    best: Candidate
    losses: Mapping[Candidate, float]
    remarks: tuple[str, ...] = ()
    """Further lines for the log."""

    @property
    def loss(self) -> float:
        """The least."""
        return self.losses[self.best]


def search(values: Values, loss: str) -> Choice:
    """The candidate in which `values` lose least by that measure; of no values the first."""
    measure = LOSSES[loss]
    losses = {candidate: measure(values, candidate) for candidate in CANDIDATES}
    return Choice(min(CANDIDATES, key=lambda candidate: losses[candidate]), losses)
