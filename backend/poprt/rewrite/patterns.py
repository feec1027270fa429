"""Patterns of subgraphs, as expressions of operators over named tensors.

    x = Var("x")
    GELU = Times(0.5, Once(Once(Op("Erf", Times(0.5**0.5, x))) + 1.0), x)

When to use which:

- `NodeRule`: a pass that replaces single nodes, and looks at most at their neighbours.
- `GraphRule`: a pass that looks at several nodes, in both directions, or changes nodes in place. It
  searches for a pattern, if what it replaces is a fixed formula (`Pattern.find`).
- `Pass`: a pass that looks at a whole model: its inputs and outputs, names, types, or versions.
- `PatternMatcher` (`poprt.passes.pattern_helper`): search by path strings, for scripts of users.

A pattern describes how a tensor is made, from its maker back to its sources. The operands of
commutative operators match in both orders. A number in a pattern matches a constant of one element.
A Cast of a tensor to its own type counts as no node. A search takes a bounded number of steps, so
that a pass takes time linear in the number of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxgraph import GraphEditor, GraphView, attribute, is_operator
from simipu.operators import operator_of

_TOLERANCE = 1e-3
"""Relative tolerance of the number in a product: exporters round constants, some to half."""
_MAX_STEPS = 4
"""Maximum number of products one inside the other that `Times` flattens; known formulas have 2."""
_MAX_POWER = 3
"""Largest exponent of a Pow that counts as a product: the tanh form of GELU has a cube."""

Check = Callable[[GraphView, str], bool]
"""Function that returns whether a tensor, given by its name, fits."""


@dataclass(frozen=True, slots=True)
class Match:
    """Tensors of a graph that match the names in a pattern."""

    view: GraphView
    tensors: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, key: str) -> str:
        """Return the tensor that matches a name of the pattern; "" if that name was not met."""
        return self.tensors.get(key, "")

    def bind(self, key: str, name: str) -> Iterator[Match]:
        """Yield the match with a tensor bound to `key`, unless another tensor is."""
        bound = self.tensors.get(key)
        if bound is None:
            yield Match(self.view, {**self.tensors, key: name})
        elif _skip_cast(self.view, bound) == _skip_cast(self.view, name):
            yield self


class Pattern:
    """Description of a tensor. Arithmetic on patterns gives patterns; `a | b` matches either."""

    def match(self, name: str, found: Match) -> Iterator[Match]:
        """Yield the ways in which a tensor matches, each an extension of `found`."""
        raise NotImplementedError

    def find(self, name: str, view: GraphView) -> Match | None:
        """Return the first way in which a tensor matches; None if it does not."""
        return next(self.match(name, Match(view)), None)

    def named(self, key: str) -> Pattern:
        """Return the pattern with a name for its tensor. A tensor that is named twice is the same
        in both places."""
        return _Named(self, key)

    def __or__(self, other: Pattern) -> Pattern:
        return AnyOf(self, other)

    def __add__(self, other: Operand) -> Pattern:
        return Op("Add", self, other)

    def __sub__(self, other: Operand) -> Pattern:
        return Op("Sub", self, other)

    def __mul__(self, other: Operand) -> Pattern:
        return Op("Mul", self, other)

    def __truediv__(self, other: Operand) -> Pattern:
        return Op("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Pattern:
        return Op("Div", other, self)

    def __rsub__(self, other: Operand) -> Pattern:
        return Op("Sub", other, self)


Operand = Pattern | float


def _as_pattern(operand: Operand) -> Pattern:
    return operand if isinstance(operand, Pattern) else Number(operand)


def _skip_cast(view: GraphView, name: str) -> str:
    """Return the name of a tensor before a Cast to its own type. Exporters of half models widen
    the squared tensor of a norm; in a float model that Cast does nothing."""
    node = view.maker(name)
    if node is None or not is_operator(node, "Cast"):
        return name
    return node.input[0] if view.type(node.input[0]) == view.type(name) != 0 else name


@dataclass(frozen=True, slots=True)
class Var(Pattern):
    """Any tensor that fits. It is the same tensor wherever its name occurs."""

    key: str
    check: Check = lambda _view, _name: True

    def match(self, name: str, found: Match) -> Iterator[Match]:
        """Yield the match with this tensor."""
        if name and self.check(found.view, name):
            yield from found.bind(self.key, name)


@dataclass(frozen=True, slots=True)
class Number(Pattern):
    """Constant of one element and of that value."""

    value: float

    def match(self, name: str, found: Match) -> Iterator[Match]:
        """Yield the match if the tensor is that number."""
        if found.view.number(name) == self.value:
            yield found


@dataclass(frozen=True, slots=True)
class _Named(Pattern):
    """Pattern with a name for its tensor."""

    pattern: Pattern
    key: str

    def match(self, name: str, found: Match) -> Iterator[Match]:
        for inner in self.pattern.match(name, found):
            yield from inner.bind(self.key, name)


class AnyOf(Pattern):
    """Tensor that matches one of several patterns."""

    def __init__(self, *patterns: Pattern) -> None:
        self._patterns = patterns

    def match(self, name: str, found: Match) -> Iterator[Match]:
        """Yield the matches of each pattern, in their order."""
        for pattern in self._patterns:
            yield from pattern.match(name, found)


class Op(Pattern):
    """Result of an operator. Its inputs match in order; inputs behind those given match anything.

    Keyword arguments are attributes of the node. `check` decides on the name of its result.
    """

    def __init__(
        self,
        op_type: str,
        *inputs: Operand,
        domain: str = "",
        check: Check | None = None,
        **attributes: Any,
    ) -> None:
        self._op_type, self._domain, self._check = op_type, domain, check
        self._inputs, self._attributes = [_as_pattern(source) for source in inputs], attributes

    def match(self, name: str, found: Match) -> Iterator[Match]:
        """Yield the ways in which the operator's inputs match."""
        view = found.view
        node = view.maker(name)
        if node is not None and node.op_type == "Cast" != self._op_type:
            name = _skip_cast(view, name)
            node = view.maker(name)
        if node is None or not is_operator(node, self._op_type, domain=self._domain):
            return
        if any(attribute(node, key) != value for key, value in self._attributes.items()):
            return
        if self._check is not None and not self._check(view, name):
            return
        yield from _match_all(self._inputs, node.input, found)
        if operator_of(node).commutes:
            yield from _match_all(self._inputs, node.input[::-1], found)


def _match_all(patterns: Sequence[Pattern], names: Sequence[str], found: Match) -> Iterator[Match]:
    if not patterns:
        yield found
    elif names:
        for first in patterns[0].match(names[0], found):
            yield from _match_all(patterns[1:], names[1:], first)


@dataclass(frozen=True, slots=True)
class Once(Pattern):
    """Tensor that only one node reads, so that it is not needed after the replacement."""

    pattern: Pattern

    def match(self, name: str, found: Match) -> Iterator[Match]:
        """Yield the matches of the pattern, unless the tensor is read elsewhere."""
        if isinstance(found.view, GraphEditor) and found.view.is_read_once(name):
            yield from self.pattern.match(name, found)


class Through(Pattern):
    """Tensor behind up to `most` operators of one data input, such as views."""

    def __init__(self, op_types: Sequence[str], pattern: Pattern, most: int = 8) -> None:
        self._op_types, self._pattern, self._most = op_types, pattern, most

    def match(self, name: str, found: Match) -> Iterator[Match]:
        """Yield the matches of the first tensor that none of these operators makes."""
        for _ in range(self._most):
            node = found.view.maker(name)
            if node is None or not is_operator(node, *self._op_types):
                break
            name = node.input[0]
        yield from self._pattern.match(name, found)


@dataclass(frozen=True, slots=True)
class _Factor:
    """Factor of a product. `is_alone`: it and the products that contain it are read once."""

    name: str
    is_alone: bool


class Times(Pattern):
    """Product of a number and tensors, written with Mul, Div and Pow in any order.

    A factor is a pattern; `Once` of a pattern includes the products that contain it.
    """

    def __init__(self, number: float, *factors: Pattern) -> None:
        self._number, self._factors = number, factors

    def match(self, name: str, found: Match) -> Iterator[Match]:
        """Yield the ways to assign the factors of the tensor to those of the pattern."""
        most = len(self._factors)
        for number, factors in _iter_products(_Factor(name, True), found.view, most, _MAX_STEPS):
            if len(factors) == most and math.isclose(number, self._number, rel_tol=_TOLERANCE):
                yield from _assign(self._factors, factors, found)


def _assign(
    patterns: Sequence[Pattern], factors: Sequence[_Factor], found: Match
) -> Iterator[Match]:
    if not patterns:
        yield found
        return
    first, *rest = patterns
    for place, factor in enumerate(factors):
        others = [*factors[:place], *factors[place + 1 :]]
        if isinstance(first, Once):
            matches = first.pattern.match(factor.name, found) if factor.is_alone else iter(())
        else:
            matches = first.match(factor.name, found)
        for match in matches:
            yield from _assign(rest, others, match)


def _iter_products(
    factor: _Factor, view: GraphView, most: int, steps: int
) -> Iterator[tuple[float, list[_Factor]]]:
    """Yield the ways to write a tensor as a number and at most `most` tensors: whole, or with its
    products taken apart."""
    number = view.number(factor.name)
    if number is not None:
        yield number, []
        return
    if most:
        yield 1.0, [factor]
    node = view.maker(factor.name) if steps else None
    if node is None or not is_operator(node, "Mul", "Div", "Pow"):
        return
    first_factor, right = (_read(name, factor, view) for name in node.input)
    exponent = view.number(right.name)
    for first, factors in _iter_products(first_factor, view, most, steps - 1):
        if node.op_type == "Mul":
            for second, more in _iter_products(right, view, most - len(factors), steps - 1):
                yield first * second, factors + more
        elif node.op_type == "Div" and exponent:
            yield first / exponent, factors
        elif node.op_type == "Pow" and exponent in range(1, _MAX_POWER + 1):
            power = int(exponent or 1)
            if power * len(factors) <= most:
                yield first**power, factors * power


def _read(name: str, reader: _Factor, view: GraphView) -> _Factor:
    is_alone = reader.is_alone and isinstance(view, GraphEditor) and view.is_read_once(name)
    return _Factor(name, is_alone)
