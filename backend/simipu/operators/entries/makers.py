"""Makers of entries: operators that differ in few fields share a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simipu.operators import extremes
from simipu.operators.counts import Count
from simipu.operators.entry import Formula, Indexing, Operator, Rounding
from simipu.operators.formulas import elementwise as ew
from simipu.operators.formulas import moving as moves
from simipu.operators.formulas import reducing
from simipu.operators.rules import computing as rows
from simipu.operators.rules.places import Rule

EXACT, BOUNDED, GROWING = Rounding.EXACT, Rounding.BOUNDED, Rounding.GROWING
PRODUCT = Rounding.PRODUCT
OF_OTHERS = "PopART makes it of others"
"""Text of `sdk` for operators that PopART rewrites. Whether PopRT translates the standard operator,
or only the formula of older opsets, is not public."""
ONE_SHAPE = "its inputs are sizes, one for the whole batch"


def family(
    names: str,
    rule: Rule | None = None,
    cost: Formula | None = ew.guess,
    rounding: Rounding = Rounding.ROUNDED,
    **entry: Any,
) -> dict[str, Operator]:
    """Return one entry for several operators: row rule, cost formula, rounding and other fields."""
    return dict.fromkeys(names.split(), Operator(rule, cost=cost, rounding=rounding, **entry))


def elementwise(
    names: str, cost: Any, rounding: Rounding = Rounding.ROUNDED, **entry: Any
) -> dict[str, Operator]:
    """Return entries of operators that compute each element alone."""
    return family(names, rows.elementwise, cost, rounding, **entry)


def product(
    names: str,
    rule: Rule,
    cost: Formula,
    count: Count,
    apart: Sequence[int],
    rounding: Rounding = Rounding.ROUNDED,
    **entry: Any,
) -> dict[str, Operator]:
    """Return entries of products: their row rule, cost on the chip, count of work and inputs
    that are not combined with rows."""
    return family(names, rule, cost, rounding, count=count, apart=apart, **entry)


def reading(
    name: str, rule: Rule, indexing: Indexing, cost: Any = moves.gather, **entry: Any
) -> dict[str, Operator]:
    """Return the entry of an operator that reads elements by indices."""
    return family(name, rule, cost, EXACT, indexing=indexing, **entry)


def writing(name: str, rule: Rule, indexing: Indexing, **entry: Any) -> dict[str, Operator]:
    """Return the entry of an operator that writes elements by indices."""
    return reading(name, rule, indexing, unguarded_indices=1, guard=extremes.scatter, **entry)


def reduced(names: str, rounding: Rounding = Rounding.ROUNDED, **entry: Any) -> dict[str, Operator]:
    """Return entries of reductions along axes, which are an attribute or input 1."""
    return family(names, rows.reduce, reducing.reduction, rounding, shaped_by=(1,), **entry)


def drawn(names: str, cost: Any, **entry: Any) -> dict[str, Operator]:
    """Return entries of operators that draw numbers."""
    reason = "its values are drawn for the whole batch"
    return family(names, whole_batch=reason, cost=cost, last_opset=21, is_random=True, **entry)


def counted(name: str, shaped_by: Sequence[int], **entry: Any) -> dict[str, Operator]:
    """Return the entry of an operator with as many results as the data have."""
    refusal = "as many results as the data have; gone where it is folded"
    return family(name, shaped_by=shaped_by, counts_data=True, refusal=refusal, **entry)
