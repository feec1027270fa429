"""Runs cases of the sweep on the simulated IPU and compares them with PyTorch on the CPU.

The witness gets what the device has: inputs in 64 bits become 32 bits before they are computed.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import poptorch
import torch
from torch.utils._pytree import tree_leaves

from tests.poptorch.sweep.values import Case

RIGHT, REFUSED, WRONG, ESCAPED = "right", "refused", "wrong", "escaped"
ALLOWED = "allowed"
"""Computed, although PyTorch refuses it."""
_NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}
_TOLERANCE = {torch.half: (4e-3, 4e-3), torch.float: (2e-4, 1e-5)}
_HALF_MAX = 65504.0
GROUP = 48
"""Cases that are compiled together."""


class Group(torch.nn.Module):  # type: ignore[misc]
    """A module of many calls: compiling one is quicker than compiling each."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.functions = [case.function for case in cases]
        self.held = torch.nn.ModuleList(
            function for function in self.functions if isinstance(function, torch.nn.Module)
        )

    def forward(self, inputs: Any) -> Any:
        """Return the results of all calls."""
        pairs = zip(self.functions, inputs, strict=True)
        return [tree_leaves(function(*given)) for function, given in pairs]


def compute(cases: Sequence[Case]) -> Any:
    """Return the results of calls on the simulated IPU, flattened."""
    options = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(Group(cases).eval(), options)
    return model([case.inputs for case in cases])


def expect(case: Case) -> list[Any] | Exception:
    """Return what PyTorch computes on the CPU, or what it raises."""
    given = [x.to(_NARROW.get(x.dtype, x.dtype)) for x in case.inputs]
    try:
        return tree_leaves(case.function(*given))
    except Exception as narrow_error:  # noqa: BLE001 # indices must be long on the CPU
        try:
            return tree_leaves(case.function(*(x.clone() for x in case.inputs)))
        except Exception:  # noqa: BLE001 # whatever it raises is the answer
            return narrow_error


def differ(case: Case, found: Sequence[Any], expected: Sequence[Any]) -> str | None:
    """Return how results differ from the expected ones, or None."""
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    for mine, right in zip(found, expected, strict=True):
        if not isinstance(right, torch.Tensor):
            continue
        wanted = right.to(_NARROW.get(right.dtype, right.dtype))
        if (mine.dtype, mine.shape) != (wanted.dtype, wanted.shape):
            return f"{_describe(mine)}, expected {_describe(wanted)}"
        wrong = _find_wrong(mine, wanted)
        if wrong.any():
            place = wrong.reshape(-1).nonzero()[0].item()
            given = [x.reshape(-1)[place].item() for x in case.inputs if x.shape == wanted.shape]
            numbers = [x.reshape(-1)[place].item() for x in (mine, wanted)]
            return (
                f"{int(wrong.sum())} of {wrong.numel()}; at {place} {numbers[0]}, expected "
                f"{numbers[1]}, of {given}"
            )
    return None


def _find_wrong(mine: Any, wanted: Any) -> Any:
    """Return where results differ."""
    if not wanted.dtype.is_floating_point:
        return mine != wanted
    relative, absolute = _TOLERANCE.get(wanted.dtype, (0.0, 0.0))
    right = torch.isclose(mine, wanted, rtol=relative, atol=absolute, equal_nan=True)
    if wanted.dtype is torch.half:  # the chip's halves saturate
        clipped = wanted.float().clamp(-_HALF_MAX, _HALF_MAX)
        right |= torch.isinf(wanted) & (mine == clipped)
    return ~right


def _describe(tensor: Any) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def run(cases: Sequence[Case]) -> Iterator[tuple[Case, str, str]]:
    """Yield the outcome of each case and its cause; a group that fails is halved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {id(case): expect(case) for case in cases}
        sound = [case for case in cases if isinstance(expected[id(case)], list)]
        others = [case for case in cases if isinstance(expected[id(case)], Exception)]
        for start in range(0, len(sound), GROUP):
            yield from _run_group(sound[start : start + GROUP], expected)
        for case in others:
            yield from _run_refused(case, expected[id(case)])


def _run_group(cases: Sequence[Case], expected: dict[int, Any]) -> Iterator[tuple[Case, str, str]]:
    try:
        results = compute(cases)
    except Exception as error:  # noqa: BLE001 # whatever the call raises is its outcome
        if len(cases) > 1:
            middle = len(cases) // 2
            yield from _run_group(cases[:middle], expected)
            yield from _run_group(cases[middle:], expected)
            return
        outcome = REFUSED if isinstance(error, poptorch.Error) else ESCAPED
        if outcome == ESCAPED and _is_refused(cases[0]):
            outcome = RIGHT
        yield cases[0], outcome, f"{type(error).__name__}: {error}"
        return
    for case, found in zip(cases, results, strict=True):
        cause = differ(case, found, expected[id(case)])
        yield case, WRONG if cause else RIGHT, cause or ""


def _is_refused(case: Case) -> bool:
    """Return whether PyTorch refuses a call with the inputs as they are, in 64 bits."""
    try:
        case.function(*case.inputs)
    except Exception:  # noqa: BLE001 # whatever it raises is its refusal
        return True
    return False


def _run_refused(case: Case, error: Exception) -> Iterator[tuple[Case, str, str]]:
    """Yield the outcome of a case that PyTorch refuses: right where it is refused here, too."""
    try:
        compute([case])
    except Exception:  # noqa: BLE001 # it is refused
        yield case, RIGHT, ""
        return
    yield case, ALLOWED, f"computed, but PyTorch raises {type(error).__name__}: {error}"


def count(outcomes: Sequence[tuple[Case, str, str]]) -> Counter[str]:
    """Return how many cases have each outcome."""
    return Counter(outcome for _, outcome, _ in outcomes)
