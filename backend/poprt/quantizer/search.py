"""Finds the 8-bit format and scale in which values lose least, by exhaustive search.

Values are halves, of which there are 65,536. A loss is computed from the number of occurrences of
each, however many values there are, and equals the loss of the values themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from simipu.numerics import FORMATS, QuarterFormat, decode, encode

from popef._tools.arrays import Array
from poprt.comparing.statistics import ERRORS, HalfCounts

SCALES = range(-14, 10)
"""Scales that are tried. Beyond them no half becomes more exact: at -14 the steps of F143 are those
of the smallest halves, and at 9 it reaches beyond the largest. F152, with more exponents, gets
there sooner. The published sweep, -5 to 2 (graphcore/PopRT, examples/fp8_quantization_onnxruntime),
is included."""
KLD_BINS = 2048
"""Number of bins of the histograms that kld compares. The choice is ours; the real tool's is not
public."""


_INFINITY_CODE = 0x7C00
"""Code of infinity in half; the codes below it are the finite values that are not negative."""


@dataclass(frozen=True, slots=True)
class ScaledFormat:
    """A format and a scale."""

    quarter: QuarterFormat
    scale: int

    def quantise(self, values: Array) -> npt.NDArray[np.float64]:
        """Return the nearest values in this format and scale, as the chip rounds."""
        return decode(encode(values, self.quarter, self.scale), self.quarter, self.scale).astype(
            np.float64
        )

    def __str__(self) -> str:
        return f"{self.quarter.name},{self.scale}"


CANDIDATES = tuple(
    ScaledFormat(quarter, scale)
    for quarter in FORMATS.values()
    for scale in sorted(SCALES, key=abs)
)
"""Candidates that are tried. Of equal losses the first wins: F143, and the scale nearest to 0."""


@dataclass(frozen=True, slots=True)
class Values:
    """Distribution of a tensor: its values in ascending order, and how often each occurs."""

    values: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]

    @staticmethod
    def of(counts: HalfCounts) -> Values:
        """Return the finite values that were counted."""
        return Values(*counts.distribution())

    def quantise(self, candidate: ScaledFormat) -> npt.NDArray[np.float64]:
        """Return the 8-bit approximation of each value."""
        table = _table(candidate)
        halves: npt.NDArray[np.uint16] = np.abs(self.values).astype(np.float16).view(np.uint16)
        return np.copysign(table[halves], self.values)

    def histogram(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the middles of the bins that hold any value, and the share of values in each.

        There are 2048 equal bins around 0, up to the largest magnitude.
        """
        most = float(np.abs(self.values).max(initial=0))
        if not most:
            return np.zeros(1), np.ones(1)
        counts, edges = np.histogram(self.values, KLD_BINS, (-most, most), weights=self.counts)
        is_filled = counts > 0
        return ((edges[:-1] + edges[1:]) / 2)[is_filled], counts[is_filled] / counts.sum()


@cache
def _table(candidate: ScaledFormat) -> npt.NDArray[np.float64]:
    """Return the 8-bit approximation of each finite half that is not negative, by its code."""
    return candidate.quantise(np.arange(_INFINITY_CODE, dtype=np.uint16).view(np.float16))


def kld(values: Values, candidate: ScaledFormat) -> float:
    """Return the lost information, in nats.

    It is the Kullback-Leibler divergence of the values' histogram from the histogram that the 8-bit
    values still determine. Bins whose middles become one 8-bit value cannot be distinguished any
    more. Each of them that holds any value therefore gets an even share of their sum. Such losses
    are usually computed like this for integers; the real tool's method is not public.
    """
    # p = share of a bin, q = mean share of the bins with the same 8-bit value: sum of p log(p / q).
    middles, shares = values.histogram()
    _, group = np.unique(candidate.quantise(middles), return_inverse=True)
    group = group.ravel()
    even = np.bincount(group, shares) / np.bincount(group)
    return max(0.0, float(shares @ np.log(shares / even[group])))


def _by_error(error: Callable[..., float]) -> Callable[[Values, ScaledFormat], float]:
    return lambda values, candidate: error(values.values, values.quantise(candidate), values.counts)


LOSSES: Mapping[str, Callable[[Values, ScaledFormat], float]] = {
    **{name: _by_error(error) for name, error in ERRORS.items()},
    "kld": kld,
}
"""Losses by the real tool's names; gptq is not included, because it is not a loss of a format and
scale."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate of least loss, and the losses of all, in the order of `CANDIDATES`."""

    best: ScaledFormat
    losses: Mapping[ScaledFormat, float]
    remarks: tuple[str, ...] = ()
    """Additional lines for the log."""

    @property
    def loss(self) -> float:
        """The smallest loss."""
        return self.losses[self.best]


def search(values: Values, loss: str) -> Choice:
    """Return the candidate in which `values` lose least; for no values the first.

    `loss` names the measure.
    """
    measure = LOSSES[loss]
    losses = {candidate: measure(values, candidate) for candidate in CANDIDATES}
    return Choice(min(CANDIDATES, key=lambda candidate: losses[candidate]), losses)
