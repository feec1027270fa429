"""The queue policy of a model configuration: the maximum time that a request may wait.

It is here because `poprt` writes configurations and the backend reads them.
"""

from __future__ import annotations

from typing import Any

UNBOUNDED_MICROSECONDS = 24 * 60 * 60 * 10**6
"""One day, longer than any request waits."""


def make_queue_policy(timeout_ms: int) -> dict[str, Any]:
    """Return the fields of `dynamic_batching.default_queue_policy`.

    Requests that wait longer than `timeout_ms` are rejected. A request's own `timeout` counts where
    it is shorter.
    """
    return {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": timeout_ms * 1000,
        "allow_timeout_override": True,
    }
