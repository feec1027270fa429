"""Names of a computation's values in its program, as the real library gives them.

The n-th feed of a walk through the program is called `infeed_n.k` or `outfeed_n.k`; infeeds and
outfeeds are counted together, from 1. An argument is called after its tensor, a variable after its
handle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorflow_ipu.plan import Dequeue, Enqueue, Plan, Slot


def name_slots(plan: Plan, inputs: Sequence[str], outputs: Sequence[str]) -> dict[int, str]:
    """Return names of the slots that come from the host or go there, by their numbers.

    Args:
        plan: The plan.
        inputs: Names of its inputs, as the caller counts them: input n has slot n.
        outputs: Names of its outputs.

    Returns:
        The names; a slot that leaves twice has the name of its feed.
    """
    names: dict[int, str] = {}
    feed = 0
    for item in plan.iter_items():
        if isinstance(item, (Dequeue, Enqueue)):
            feed += 1
            kind = "infeed" if isinstance(item, Dequeue) else "outfeed"
            for place, slot in enumerate(item.slots):
                names.setdefault(slot.number, f"{kind}_{feed}.{place}")
    for number, name in enumerate(inputs):
        names.setdefault(number, name)
    for slot, name in zip(plan.outputs, outputs, strict=True):
        names.setdefault(slot.number, name)
    return _make_unique(names)


def _make_unique(names: Mapping[int, str]) -> dict[int, str]:
    seen: dict[str, int] = {}
    unique = {}
    for number, name in names.items():
        count = seen.get(name, 0)
        seen[name] = count + 1
        unique[number] = f"{name}.{count}" if count else name
    return unique


def slot_name(names: Mapping[int, str], slot: Slot) -> str:
    """Return the name of a slot; those within the computation are numbered."""
    return names.get(slot.number, f"value_{slot.number}")
