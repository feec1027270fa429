"""Ways to reduce accumulated gradients: options that are kept, for training is not supported."""

from __future__ import annotations

import enum


class GradientAccumulationReductionMethod(enum.Enum):
    """How the gradients of several steps become one.

    * SUM: their sum.
    * MEAN: their sum, each divided by the number of steps.
    * RUNNING_MEAN: their mean, updated with each step.
    """

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse(cls, reduction_method: object) -> GradientAccumulationReductionMethod:
        """Return the member for a member or its name, in upper or lower case.

        Raises:
            ValueError: There is no such member.
        """
        if isinstance(reduction_method, cls):
            return reduction_method
        if isinstance(reduction_method, str) and reduction_method.upper() in cls.__members__:
            return cls[reduction_method.upper()]
        raise ValueError(
            f"Cannot parse {reduction_method} as one of GradientAccumulationReductionMethod. "
            f"Valid values are: {', '.join(cls.__members__)}."
        )
