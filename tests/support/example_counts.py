"""How many random examples hypothesis tries.

The environment variable EXAMPLES is a factor of all counts: 0.2 in the fast tests, whose tests of
this kind `make test-more` repeats with 1; 50 for a search of an hour.
"""

from __future__ import annotations

import os

_FACTOR = float(os.environ.get("EXAMPLES", "1"))


def examples(count: int) -> int:
    """Return the number of examples that a test tries where `count` are usual."""
    return max(1, round(count * _FACTOR))
