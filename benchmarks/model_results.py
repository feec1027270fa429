"""Measured result of a real model in a precision, and its judgement."""

from __future__ import annotations

from dataclasses import dataclass, field

from children import Child
from model_answers import FLOAT_TOLERANCE, HALF_TOLERANCE, Differences
from model_table import Model


@dataclass(slots=True)
class Result:
    """Measured result of a model in a precision.

    `rows` says whether its rows are independent. `axis` is the axis of its first tensor along which
    they may be any number. `private_bytes` is the memory of its process after it had answered.
    """

    model: Model
    precision: str
    compiled: Child | None = None
    session: Child | None = None
    refusal: str = ""
    warnings: list[str] = field(default_factory=list)
    rows: str = ""
    load_seconds: float = 0.0
    private_bytes: int = 0
    axis: int | None = None
    differences: Differences = field(default_factory=Differences)
    failure: str = ""

    @property
    def name(self) -> str:
        """The served model's."""
        return f"{self.model.name}_{self.precision}"


def judge(result: Result) -> str:
    """Return what is wrong with a result, "" if all is well."""
    if result.precision in result.model.refused:
        return "" if result.refusal else "is expected to be refused, and compiles"
    if problem := result.refusal or result.failure or result.differences.problem:
        return problem
    if not result.differences.requests:
        return "was never asked"
    if result.precision == "fp32":
        error = result.differences.scaled
        return (
            "" if error <= FLOAT_TOLERANCE else f"differs by {error:.2g} of max(1, largest value)"
        )
    error = result.differences.worst().relative
    if error > HALF_TOLERANCE and not result.warnings:
        return f"differs by {error:.2g} of the largest value, and poprt gave no warning"
    return ""
