"""The operator table: every operator of the ONNX standard up to opset 24, and our own.

If an operator has no row rule, no formula of its own or cannot run on the chip, its entry gives the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx
from onnxgraph import CHIP_DOMAIN, STANDARD_DOMAINS

from simipu.operators.entries.elementwise import ELEMENTWISE
from simipu.operators.entries.moving import IPU_COPY as IPU_COPY
from simipu.operators.entries.moving import MAKING, MOVING
from simipu.operators.entries.others import BODIES, GUESSED, REFUSED, TAKEN_APART
from simipu.operators.entries.products import PRODUCTS
from simipu.operators.entries.reducing import REDUCING
from simipu.operators.entry import Operator
from simipu.operators.graphcore_domain import CHIP_OPERATORS

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        **ELEMENTWISE,
        **PRODUCTS,
        **REDUCING,
        **MOVING,
        **MAKING,
        **GUESSED,
        **BODIES,
        **TAKEN_APART,
        **REFUSED,
    }
)
"""Entries of the standard's operators, by name."""
_UNKNOWN = Operator()
_TABLED = (*STANDARD_DOMAINS, CHIP_DOMAIN)
"""Domains whose operators are in the table; our own copy is in the chip's domain."""


_DOMAINS: dict[str, Operator] = {}
"""Entries of the domains of users' libraries, one for all operators of a domain."""


def register_domain(domain: str, entry: Operator) -> None:
    """Set the entry of all operators of `domain`, which must not be in the table."""
    assert domain not in _TABLED, "the operators of that domain have entries of their own"
    _DOMAINS[domain] = entry


def find_operator(op_type: str, domain: str = "") -> Operator:
    """Return the entry of an operator. An operator that is newer than the table, or a user's, gets
    a default that is always correct: the whole batch, a guessed cost, and rounding."""
    if domain == CHIP_DOMAIN and op_type != IPU_COPY:
        return CHIP_OPERATORS.get(op_type, _UNKNOWN)
    return OPERATORS.get(op_type, _UNKNOWN) if domain in _TABLED else _DOMAINS.get(domain, _UNKNOWN)


def operator_of(node: onnx.NodeProto) -> Operator:
    """Return the entry of a node's operator; its domain distinguishes operators of the same
    name."""
    return find_operator(node.op_type, node.domain)


def names_where(holds: Callable[[Operator], bool]) -> frozenset[str]:
    """Return the names of the operators whose entries satisfy `holds`."""
    return frozenset(name for name, operator in OPERATORS.items() if holds(operator))
