"""The precisions that are held against ONNX Runtime's fp32: what poprt is told, and the share of its speed
that each has to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rounds import Goal

_OPTIONS = "--compiler_options"
_PARTIALS = "partials_type="


@dataclass(frozen=True, slots=True)
class Precision:
    """What poprt is told of it; `partials` are the compiler's, or its default."""

    precision: str
    goal: Goal
    partials: str = ""


PRECISIONS = {
    "half": Precision("fp16", Goal(0.6)),
    "float": Precision("fp16", Goal(0.9), "float"),
    "fp8": Precision("fp8", Goal(0.5)),
    "fp32": Precision("fp32", Goal(1.0)),
}
"""The first two are by their partials: fp16 both."""


def with_precision(arguments: Sequence[str], name: str) -> list[str]:
    """poprt's arguments for a model, with those of another precision in place of their own."""
    chosen = PRECISIONS[name]
    kept = [each for each in arguments if not each.startswith(_PARTIALS)]
    for flag in ("--precision", _OPTIONS):
        if flag in kept and (flag != _OPTIONS or _takes_none(kept)):
            place = kept.index(flag)
            del kept[place : place + (1 if flag == _OPTIONS else 2)]
    kept += ["--precision", chosen.precision]
    if not chosen.partials:
        return kept
    if _OPTIONS not in kept:
        kept.append(_OPTIONS)
    place = kept.index(_OPTIONS) + 1
    return [*kept[:place], f"{_PARTIALS}{chosen.partials}", *kept[place:]]


def _takes_none(arguments: Sequence[str]) -> bool:
    """Whether nothing follows the flag of the compiler's options."""
    following = arguments[arguments.index(_OPTIONS) + 1 :]
    return not following or following[0].startswith("-")
