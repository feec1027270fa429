"""How metrics of several replicas become one result."""

from __future__ import annotations

import enum


class ReplicatedMetricReductionMethod(enum.Enum):
    """What is returned for a metric, or a prediction, that each replica has.

    * NONE: the value of the last replica.
    * LIST: the values of all replicas, in a list.
    * SUM: the sum of all values.
    * MEAN: their mean.
    """

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4

    @classmethod
    def parse(cls, value: object) -> ReplicatedMetricReductionMethod:
        """Return the member for a member or its name, in upper or lower case.

        Raises:
            ValueError: There is no such member.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        raise ValueError(
            f"Cannot parse {value} as a ReplicatedMetricReductionMethod. Valid values are: "
            f"{', '.join(cls.__members__)}."
        )
