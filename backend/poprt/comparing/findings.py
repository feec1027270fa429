"""Results of the calibration run, which every executable has; `calibration` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from poprt.comparing.outputs import Comparison

OWN_DATA = "Real inputs may differ from these: pass some with --data_preprocess"
"""Advice beside every figure that comes from made-up inputs and asks for a change."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """A node of a graph in half whose result, computed in float, is too large for half.

    `largest` is its largest magnitude.
    """

    node: str
    op_type: str
    largest: float


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of the calibration run; empty if the model computes in float or cannot run here."""

    comparison: Comparison | None = None
    overflows: tuple[Overflow, ...] = ()
