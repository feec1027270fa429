"""Effects of operators that act beside computing: PrintTensor, Abort and CopyVarUpdate.

Each has an output of the program that no caller asks for. After each run the session acts on its
value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from popart.errors import poplar_application_runtime_error
from popart.lowering import Effect, EffectKind
from popef._tools.arrays import Array

_AUTO, _FIXED, _NO_FORMAT = 0, 1, 3
"""Values of PrintTensor's floatFormat; 2 is the scientific notation."""


def act(effects: Mapping[str, Effect], values: Mapping[str, Array]) -> dict[str, Array]:
    """Act on the values of a run.

    Args:
        effects: Effects by output.
        values: Values by output.

    Returns:
        New values of weights, by weight.

    Raises:
        poplar_application_runtime_error: If the program ends itself.
    """
    updates = {}
    for name, effect in effects.items():
        value = values[name]
        match effect.kind:
            case EffectKind.PRINT:
                print(f"{effect.target}: {_format(value, effect.attributes)}", file=sys.stderr)
            case EffectKind.ABORT:
                if np.any(value):
                    raise poplar_application_runtime_error("Abort Program")
            case EffectKind.UPDATE:
                updates[effect.target] = value
    return updates


@dataclass(frozen=True, slots=True)
class _Layout:
    """Format of PrintTensor, but for that of its numbers."""

    threshold: int
    edge: int
    width: int
    separator: str
    brackets: tuple[str, str]

    def select(self, size: int, is_summarised: bool) -> list[int | None]:
        """Return the places that are shown of an axis; None stands for those left out."""
        if not is_summarised or size <= 2 * self.edge:
            return list(range(size))
        return [*range(self.edge), None, *range(size - self.edge, size)]


def _format(value: Array, attributes: Mapping[str, Any]) -> str:
    """Return a value as PrintTensor's attributes ask for.

    Their meaning is that of graphcore/popart, willow/include/popart/printtensorfmt.hpp. 0 turns a
    limit off. Characters are attributes with their codes. Rows stand in lines of their own, between
    the brackets of the axes around them:

        [
         [1 2]
         [3 4]
        ]
    """
    digits, kind = attributes.get("digits", 8), attributes.get("floatFormat", _AUTO)
    layout = _Layout(
        attributes.get("summariseThreshold", 1000) or sys.maxsize,
        max(attributes.get("edgeItems", 3), 1),
        attributes.get("maxLineWidth", 75) or sys.maxsize,
        chr(attributes.get("separator", ord(" "))),
        (
            chr(attributes.get("openBracket", ord("["))),
            chr(attributes.get("closeBracket", ord("]"))),
        ),
    )
    if value.dtype.kind == "f":
        write = _float_format(value, digits, kind)
    else:
        width = max((len(str(number)) for number in value.reshape(-1)), default=0) if digits else 0
        write = f"{{!s:>{width}}}".format if width else str
    return _nest(value, layout, write, value.size > layout.threshold, 0)


def _nest(
    value: Array, layout: _Layout, write: Callable[[Any], str], is_summarised: bool, depth: int
) -> str:
    """Return the text of a tensor that `depth` brackets stand around."""
    if not value.ndim:
        return write(value[()])
    left, right = layout.brackets
    places = layout.select(len(value), is_summarised)
    if value.ndim == 1:
        texts = ["..." if place is None else write(value[place]) for place in places]
        return left + _wrap(texts, layout, depth + 1) + right
    indent = " " * (depth + 1)
    parts = [
        "..." if place is None else _nest(value[place], layout, write, is_summarised, depth + 1)
        for place in places
    ]
    lines = f"{layout.separator.rstrip()}\n{indent}".join(parts)
    return f"{left}\n{indent}{lines}\n{' ' * depth}{right}"


def _wrap(texts: Sequence[str], layout: _Layout, indent: int) -> str:
    """Join the elements of a row; a line ends before it is too long."""
    line, lines = "", []
    for place, text in enumerate(texts):
        is_last = place == len(texts) - 1
        longer = text if not line else f"{line}{layout.separator}{text}"
        if line and indent + len(longer) + is_last > layout.width:
            lines.append(f"{line}{layout.separator.rstrip()}")
            longer = text
        line = longer
    return f"\n{' ' * indent}".join([*lines, line])


def _float_format(value: Array, digits: int, kind: int) -> Callable[[Any], str]:
    """Return a function that writes a number of `value`, aligned with the others.

    All numbers have as many digits: in fixed notation those of the largest number before the point
    and the rest behind it, in scientific notation one before it. If a number would become 0 in
    fixed notation, or the largest has too many digits, the automatic format is scientific.
    """
    sizes = np.abs(value[np.isfinite(value)].astype(np.float64))
    if digits <= 0 or kind == _NO_FORMAT or not sizes.size:
        return "{:g}".format
    decimals = digits - len(str(int(sizes.max())))
    smallest = min(sizes[sizes > 0], default=1.0)
    fits = decimals >= 0 and smallest >= 10.0**-decimals
    is_fixed = kind == _FIXED or (kind == _AUTO and fits)
    style = f".{max(decimals, 0)}f" if is_fixed else f".{digits - 1}e"
    width = max(len(format(end, style)) for end in (value.min(), value.max()))
    return f"{{:{width}{style}}}".format
