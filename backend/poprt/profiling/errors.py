"""How far off the model was for such networks: what the validation found, beside what it is said of.

`errors.json` is what `make validation` wrote: each family of published measurements in turn was left out of
what the constants were chosen on, and its errors are those of networks that the model had not seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from simipu.cost import Estimate

FILE = "errors.json"
_LEAST_FIGURES, _LEAST_FAMILIES = 5, 2
"""Of a group: fewer, or those of one network, say nothing of the next."""
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "DeformConv", "ConvInteger", "QLinearConv"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """What validation found for networks of a kind and a precision, or of all of either."""

    kind: str | None
    """transformer, vision, recurrent or other; None for all kinds."""
    precision: str | None
    """None for all precisions."""
    families: int
    """Networks, each left out in turn."""
    figures: int
    """Published measurements that were predicted."""
    median_error: float
    """Of |modelled / measured - 1| of their times."""
    within_25: float
    """The part of them that is at most 25 % off, 0 to 1."""

    def describe(self) -> str:
        """As a sentence."""
        kinds = {
            "transformer": "transformers",
            "vision": "vision networks",
            "recurrent": "recurrent networks",
        }
        of = kinds.get(self.kind or "", "networks of other kinds" if self.kind else "networks of all kinds")
        words = f"{of} in {self.precision}" if self.precision else f"{of} in any precision"
        return (
            f"for {words} validation found a median error of {100 * self.median_error:.0f} %, "
            f"{100 * self.within_25:.0f} % within 25 % ({self.figures} figures of {self.families} networks, "
            "each left out)"
        )


def kind_of(estimate: Estimate) -> str:
    """Which kind of network a graph is like, by what it is made of.

    vision: convolutions do half of the multiply-adds or more; recurrent: LSTM, GRU and RNN do; transformer: a
    product follows a Softmax, or it has an attention operator; other: none of it.
    """
    macs: dict[str, int] = {}
    attends = softmax = False
    for operator in estimate.operators:
        softmax = softmax or operator.op_type == "Softmax"
        attends = attends or operator.op_type in _ATTENTION or (softmax and operator.op_type == "MatMul")
        macs[operator.op_type] = macs.get(operator.op_type, 0) + operator.work.macs
    total = sum(macs.values())
    for kind, op_types in (("vision", _CONVOLUTIONS), ("recurrent", _RECURRENT)):
        if total and sum(macs.get(op_type, 0) for op_type in op_types) >= _HALF * total:
            return kind
    return "transformer" if attends else "other"


def find_error(estimate: Estimate, precision: str) -> ExpectedError | None:
    """What was found for such networks: of their kind and precision, else of their kind, else of all; None
    where nothing has been validated."""
    return choose_error(_read_groups(), kind_of(estimate), precision)


def choose_error(groups: Sequence[ExpectedError], kind: str, precision: str) -> ExpectedError | None:
    """The nearest of the groups that has figures enough."""
    found = {
        (each.kind, each.precision): each
        for each in groups
        if each.figures >= _LEAST_FIGURES and each.families >= _LEAST_FAMILIES
    }
    for key in ((kind, precision), (kind, None), (None, precision), (None, None)):
        if key in found:
            return found[key]
    return None


def parse_groups(document: Mapping[str, Any]) -> tuple[ExpectedError, ...]:
    """The groups of what `make validation` wrote."""
    return tuple(ExpectedError(**group) for group in document["groups"])


@cache
def _read_groups() -> tuple[ExpectedError, ...]:
    file = resources.files("poprt.profiling").joinpath(FILE)
    return parse_groups(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else ()
