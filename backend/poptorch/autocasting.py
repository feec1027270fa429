"""Names of the automatic casting that PopTorch had until 3.0; accepted without effect."""

from __future__ import annotations

from typing import Any


class Policy:
    """Which operators run in half; accepted without effect."""

    def __init__(self, *lists: Any, **named: Any) -> None:
        self.lists = (*lists, *named.values())


default = Policy()
