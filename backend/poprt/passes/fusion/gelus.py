"""Passes that find GELUs written out by exporters and replace them by the chip's operator."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto
from onnxgraph import attribute

from poprt.rewrite.base import Stage, register
from poprt.rewrite.editor import GraphEditor
from poprt.rewrite.rules import GraphRule

_TANH_FACTOR, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715
"""Constants of the tanh formula (Hendrycks and Gimpel): x / 2 (1 + tanh(factor (x + cube x^3)))."""
_SLACK = 1e-3
"""Relative tolerance of a constant: exporters round them, some to half."""
_MAX_STEPS = 4
"""Maximum number of consecutive products; the formulas have two."""
_MAX_POWER = 3


@dataclass(slots=True)
class _Product:
    """Product of a number and tensors, each with its power."""

    number: float = 1.0
    tensors: Counter[str] = field(default_factory=Counter)

    def is_of(self, number: float) -> bool:
        """Return whether its number equals `number`, within the rounding of exporters."""
        return math.isclose(self.number, number, rel_tol=_SLACK)


class _GeluPass(GraphRule):
    """Base class for both forms of GELU: x / 2 times 1 + f."""

    def _put(self, end: onnx.NodeProto, source: str, view: GraphEditor, *, exact: bool) -> None:
        fits = view.type(source) in (TensorProto.FLOAT, TensorProto.FLOAT16)
        if not fits or view.shape(end.output[0]) is None:
            return
        if view.shape(end.output[0]) == view.shape(source):
            made = view.start(end, "gelu")
            made.chip(end.output[0], "Gelu", source, **({"approximate": "none"} if exact else {}))
            view.replace(end, made.nodes)

    def _find_end(
        self, node: onnx.NodeProto, source: str, view: GraphEditor
    ) -> onnx.NodeProto | None:
        """Return the node that makes source / 2 (1 + f), where `node` makes f."""
        added = view.reader(node.output[0], "Add")
        if added is None or not any(view.number(name) == 1 for name in added.input):
            return None
        factor, end = added.output[0], added
        for _ in range(_MAX_STEPS):
            following = view.reader(end.output[0], "Mul", "Div")
            if following is None:
                return None
            end = following
            product = _multiply(end.output[0], {source, factor}, view)
            if product.tensors == Counter((source, factor)) and product.is_of(0.5):
                return end
        return None


@register("gelu_pattern", stage=Stage.PATTERNS, default=True)
class GeluPattern(_GeluPass):
    """Give GELUs in the tanh form, written out or the standard's, the chip's Gelu, which computes
    that form."""

    op_types = frozenset(("Gelu", "Tanh"))

    def look(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace the standard's operator, or the formula found at its tanh."""
        if node.op_type == "Gelu":
            if attribute(node, "approximate", b"none") == b"tanh":
                self._put(node, node.input[0], view, exact=False)
            return
        for source in _iter_candidates(node.input[0], view):
            if _is_inner(node.input[0], source, view):
                end = self._find_end(node, source, view)
                if end is not None:
                    self._put(end, source, view, exact=False)
                return


@register("erf_gelu_pattern", stage=Stage.PATTERNS, option="enable_erf_gelu")
class ErfGeluPattern(_GeluPass):
    """Give GELUs in the exact form, of the error function, written out or the standard's, the
    chip's Gelu.

    The chip has the tanh form only; here the answer stays the exact form's, which the attribute
    `approximate` (none) says.
    """

    op_types = frozenset(("Erf", "Gelu"))

    def look(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace the standard's operator, or the formula found at its error function."""
        if node.op_type == "Gelu":
            if attribute(node, "approximate", b"none") == b"none":
                self._put(node, node.input[0], view, exact=True)
            return
        scaled = view.maker(node.input[0], "Div", "Mul")
        for source in scaled.input if scaled is not None else ():
            product = _multiply(node.input[0], {source}, view)
            if product.tensors == Counter((source,)) and product.is_of(math.sqrt(0.5)):
                end = self._find_end(node, source, view)
                if end is not None:
                    self._put(end, source, view, exact=True)
                return


def _multiply(name: str, atoms: set[str], view: GraphEditor, steps: int = _MAX_STEPS) -> _Product:
    """Return a tensor as a product of numbers and tensors. Tensors in `atoms` are not split
    further."""
    number = view.number(name)
    if number is not None:
        return _Product(number)
    node = view.maker(name, "Mul", "Div", "Pow") if steps and name not in atoms else None
    if node is None:
        return _Product(1.0, Counter((name,)))
    left = _multiply(node.input[0], atoms, view, steps - 1)
    if node.op_type == "Mul":
        right = _multiply(node.input[1], atoms, view, steps - 1)
        return _Product(left.number * right.number, left.tensors + right.tensors)
    given = view.number(node.input[1])
    if node.op_type == "Div" and given:
        return _Product(left.number / given, left.tensors)
    if node.op_type == "Pow" and given is not None and given in range(1, _MAX_POWER + 1):
        power = int(given)
        return _Product(
            left.number**power, Counter({each: n * power for each, n in left.tensors.items()})
        )
    return _Product(1.0, Counter((name,)))


def _iter_candidates(name: str, view: GraphEditor) -> Iterator[str]:
    """Yield the tensors that may be the x of the tanh form's inner term."""
    waiting, seen = [(name, _MAX_STEPS)], set()
    while waiting:
        each, steps = waiting.pop(0)
        node = view.maker(each, "Mul", "Div", "Add") if steps else None
        if node is None:
            continue
        for taken in node.input:
            if taken not in seen and view.tensor(taken) is None:
                seen.add(taken)
                yield taken
                waiting.append((taken, steps - 1))


def _is_inner(name: str, source: str, view: GraphEditor) -> bool:
    """Return whether a tensor is factor (x + cube x^3), or factor x (1 + cube x^2)."""
    product = _multiply(name, {source}, view)
    if not product.is_of(_TANH_FACTOR):
        return False
    others = product.tensors - Counter((source,))
    power = product.tensors[source]
    if power > 1 or sum(others.values()) != 1:
        return False
    added = view.maker(next(iter(others)), "Add")
    return added is not None and _is_cubic(added, source, power, view)


def _is_cubic(added: onnx.NodeProto, source: str, power: int, view: GraphEditor) -> bool:
    """Return whether a sum times x^power is x + cube x^3."""
    for first, second in (added.input, tuple(reversed(added.input))):
        plain, cubic = (_multiply(name, {source}, view) for name in (first, second))
        if (
            plain.number == 1
            and plain.tensors == Counter({source: 1 - power} if power < 1 else {})
            and cubic.is_of(_TANH_CUBE)
            and cubic.tensors == Counter({source: 3 - power})
        ):
            return True
    return False
