"""Expected error of the cost model for networks of a kind, from the validation.

`make validation` wrote `errors.json`. It left out each family of published measurements in turn
when it chose the constants, so the errors are those of networks that the model had not seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from simipu.cost import Estimate
from simipu.operators import Family, find_operator

FILE = "errors.json"
_MIN_FIGURES, _MIN_FAMILIES = 5, 2
"""Minimum numbers of figures and families of a group. Fewer figures, or those of one network, say
nothing of the next."""
_KINDS = {"vision": Family.CONVOLUTION, "recurrent": Family.RECURRENT}
"""Kinds of networks that do most of their arithmetic in one family of operators."""
_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Result of the validation for networks of a kind (or all) and a precision (or all)."""

    kind: str | None
    """Kind of network: transformer, vision, recurrent or other; None for all kinds."""
    precision: str | None
    """Precision of the networks; None for all precisions."""
    families: int
    """Number of networks, each left out in turn."""
    figures: int
    """Number of published measurements that were predicted."""
    median_error: float
    """Median of |modelled / measured - 1| of the measured times."""
    within_25: float
    """Share of the measurements that are at most 25 % off, 0 to 1."""

    def describe(self) -> str:
        """Return the error as a sentence."""
        kinds = {
            "transformer": "transformers",
            "vision": "vision networks",
            "recurrent": "recurrent networks",
        }
        of = kinds.get(
            self.kind or "", "networks of other kinds" if self.kind else "networks of all kinds"
        )
        words = f"{of} in {self.precision}" if self.precision else f"{of} in any precision"
        return (
            f"for {words} validation found a median error of {100 * self.median_error:.0f} %, "
            f"{100 * self.within_25:.0f} % within 25 % ({self.figures} figures of {self.families} "
            "networks, each left out)"
        )


def kind_of(estimate: Estimate) -> str:
    """Return the kind of network of a graph, by its operators.

    vision: convolutions do half of the multiply-adds or more. recurrent: LSTM, GRU and RNN do.
    transformer: a product follows a Softmax, or the graph has an attention operator. other: none of
    these.
    """
    macs: dict[str, int] = {}
    attends = softmax = False
    for operator in estimate.operators:
        softmax = softmax or operator.op_type == "Softmax"
        attends = (
            attends or operator.op_type in _ATTENTION or (softmax and operator.op_type == "MatMul")
        )
        macs[operator.op_type] = macs.get(operator.op_type, 0) + operator.work.macs
    total = sum(macs.values())
    for kind, family in _KINDS.items():
        in_family = sum(
            macs[op_type] for op_type in macs if find_operator(op_type).family is family
        )
        if total and in_family >= _HALF * total:
            return kind
    return "transformer" if attends else "other"


def find_error(estimate: Estimate, precision: str) -> ExpectedError | None:
    """Return the expected error of similar networks; None if nothing has been validated.

    Similar networks have the same kind and precision, else the same kind, else the same precision;
    otherwise all networks count.
    """
    return choose_error(_read_groups(), kind_of(estimate), precision)


def choose_error(
    groups: Sequence[ExpectedError], kind: str, precision: str
) -> ExpectedError | None:
    """Return the nearest of the groups that have enough figures."""
    found = {
        (each.kind, each.precision): each
        for each in groups
        if each.figures >= _MIN_FIGURES and each.families >= _MIN_FAMILIES
    }
    for key in ((kind, precision), (kind, None), (None, precision), (None, None)):
        if key in found:
            return found[key]
    return None


def parse_groups(document: Mapping[str, Any]) -> tuple[ExpectedError, ...]:
    """Return the groups in the document that `make validation` wrote."""
    return tuple(ExpectedError(**group) for group in document["groups"])


@cache
def _read_groups() -> tuple[ExpectedError, ...]:
    file = resources.files("poprt.profiling").joinpath(FILE)
    return parse_groups(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else ()
