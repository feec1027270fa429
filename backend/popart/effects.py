"""Effects of operators that act beside computing: PrintTensor, Abort and CopyVarUpdate.

Each has an output of the program that no caller asks for. After each run the session acts on its
value.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from popart.errors import poplar_application_runtime_error
from popart.lowering import Effect, EffectKind
from popef._tools.arrays import Array


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
                print(f"{effect.target}: {_format(value)}", file=sys.stderr)
            case EffectKind.ABORT:
                if np.any(value):
                    raise poplar_application_runtime_error("Abort Program")
            case EffectKind.UPDATE:
                updates[effect.target] = value
    return updates


def _format(value: Array) -> str:
    return np.array2string(value, threshold=1000, edgeitems=3, separator=" ")
