"""MultiConv: independent convolutions that the IPU may compute at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poptorch.enums import MultiConvPlanType
from poptorch.errors import Error
from poptorch.operators.tracing import Trace, current_trace


class MultiConv:
    """Context whose independent convolutions may run at the same time; results do not change."""

    def availableMemoryProportions(self, value: float | Sequence[float] | None) -> MultiConv:
        """Set the proportion of tile memory of all or each of the convolutions: a hint.

        Args:
            value: A number, or one for each convolution.

        Raises:
            AssertionError: If it is another value.
        """
        _check_each("available memory proportion", value, float)
        return self

    def partialsTypes(self, value: Any) -> MultiConv:
        """Set the type of partial sums of all or each of the convolutions.

        Args:
            value: torch.float or torch.half, or one for each convolution.

        Raises:
            ValueError: If a type is another.
        """
        for kind in value if isinstance(value, (list, tuple)) else (value,):
            if kind not in (torch.float, torch.half):
                raise ValueError(
                    f"Invalid partials types. Expecting torch.float or torch.half, found {kind}"
                )
        return self

    def planType(self, value: MultiConvPlanType | None) -> MultiConv:
        """Set whether the convolutions run in parallel: a hint.

        Args:
            value: The type of plan.

        Raises:
            AssertionError: If it is no MultiConvPlanType.
        """
        if value is not None and not isinstance(value, MultiConvPlanType):
            raise AssertionError(
                f"Invalid plan type! Expecting a poptorch.MultiConvPlanType, found {value!r}"
            )
        return self

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Set the number of tiles that are kept for each convolution: a hint.

        Args:
            value: The number.

        Raises:
            AssertionError: If it is no integer.
        """
        assert isinstance(value, int), f"reserved tiles: expected an integer, found {value!r}"
        return self

    def cycleBackOff(self, value: float) -> MultiConv:
        """Set the proportion of cycles by which a plan may be slower: a hint.

        Args:
            value: The proportion.

        Raises:
            AssertionError: If it is no float.
        """
        assert isinstance(value, float), f"cycle back off: expected a float, found {value!r}"
        return self

    def enableConvDithering(self, value: bool | Sequence[bool] | None) -> MultiConv:
        """Set whether all or each of the convolutions start at another tile: a hint.

        Args:
            value: A truth value, or one for each convolution.

        Raises:
            ValueError: If it is another value.
        """
        flags = value if isinstance(value, (list, tuple)) else (value,)
        if value is not None and not all(isinstance(flag, bool) for flag in flags):
            raise ValueError(f"value must be bool or list of bools, found {value!r}")
        return self

    def __enter__(self) -> MultiConv:
        trace = current_trace()
        if trace is not None:
            if trace.multi_conv is not None:
                raise Error("Nested poptorch.MultiConv is not supported.", "poptorch_cpp_error")
            trace.multi_conv = 0
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        trace = current_trace()
        if trace is None:
            return
        count, trace.multi_conv = trace.multi_conv, None
        if not count and kind is None:
            raise Error(
                "Unexpected end_multi_conv, is the IR malformed? A poptorch.MultiConv needs at "
                "least one convolution",
                "poptorch_cpp_error",
            )


def note_convolution(trace: Trace | None) -> None:
    """Count a convolution of the block that is being captured, if there is one.

    Args:
        trace: The running capture's trace.
    """
    if trace is not None and trace.multi_conv is not None:
        trace.multi_conv += 1


def _check_each(name: str, value: Any, kind: type) -> None:
    """Check a value, or one for each convolution; None leaves the default."""
    values = value if isinstance(value, (list, tuple)) else [value]
    if value is not None and not (values and all(isinstance(item, kind) for item in values)):
        raise AssertionError(f"Invalid {name}! Expecting {kind.__name__}, found {value!r}")
