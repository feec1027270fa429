"""Effects of operators that act beside computing: PrintTensor, Abort and CopyVarUpdate.

Each has an output of the program that no caller asks for. After each run the session acts on its
value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
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


def _format(value: Array, attributes: Mapping[str, Any]) -> str:
    """Return a value as PrintTensor's attributes ask for.

    Their meaning is that of graphcore/popart, willow/include/popart/printtensorfmt.hpp. 0 turns a
    limit off. Characters are attributes with their codes.
    """
    digits, kind = attributes.get("digits", 8), attributes.get("floatFormat", _AUTO)
    text = np.array2string(
        value,
        threshold=attributes.get("summariseThreshold", 1000) or sys.maxsize,
        edgeitems=max(attributes.get("edgeItems", 3), 1),
        max_line_width=attributes.get("maxLineWidth", 75) or sys.maxsize,
        separator=chr(attributes.get("separator", ord(" "))),
        formatter={"float_kind": _float_format(value, digits, kind)},
    )
    names = {"[": "openBracket", "]": "closeBracket"}
    return text.translate({ord(each): attributes.get(name, each) for each, name in names.items()})


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
