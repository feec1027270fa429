"""Names of tensors: how they are made, made unique, and which prefixes PopART reserves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping

RESERVED_PREFIXES = {
    "reservedGradientPrefix": "Gradient___",
    "reservedUpdatedVarPrefix": "UpdatedVar___",
    "reservedAccumPrefix": "Accum___",
    "reservedAcclPrefix": "Accl___",
    "reservedAccl1Prefix": "Accl1___",
    "reservedAccl2Prefix": "Accl2___",
    "reservedAccl3Prefix": "Accl3___",
    "reservedAcclFinalOutPrefix": "AcclOut___",
    "reservedStashedPrefix": "Stashed___",
    "reservedRestoredPrefix": "Restored___",
    "reservedRandomSeedPrefix": "randomSeed___",
}
"""Function of the module, and the prefix that it returns."""


def reserve_id(
    base: str,
    scopes: Iterable[str],
    is_taken: Callable[[str], bool],
    numbers: MutableMapping[str, int],
) -> str:
    """Return a tensor's id: its scopes and its base, joined with "/", with "/1", "/2" ... if taken.

    Args:
        base: Last part of the id, as "MatMul:0" or "input".
        scopes: Names of the scopes around it.
        is_taken: Function that tells whether an id belongs to another tensor.
        numbers: First number that may be free, by id without number; updated.

    Returns:
        An id that is not taken.
    """
    wanted = "/".join([*scopes, base])
    if not is_taken(wanted):
        return wanted
    number = numbers.get(wanted, 1)
    while is_taken(f"{wanted}/{number}"):
        number += 1
    numbers[wanted] = number + 1
    return f"{wanted}/{number}"
