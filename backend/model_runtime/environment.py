"""Environment variables of the real runtime that have an effect here."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

HOST_SYNC_TIMEOUT_SECONDS = 300.0
"""Default of Poplar's runtime option target.hostSyncTimeout, in seconds."""

_log = logging.getLogger("model_runtime")


def host_sync_timeout_seconds(environ: Mapping[str, str] | None = None) -> float:
    """Return the maximum duration of one run.

    It is `target.hostSyncTimeout` of the JSON object in POPLAR_RUNTIME_OPTIONS. A value that cannot
    be read is logged, and the default is used.

    Args:
        environ: the environment variables; None means those of this process.

    Returns:
        The duration in seconds.

    Example:
        >>> import model_runtime
        >>> options = {"POPLAR_RUNTIME_OPTIONS": '{"target.hostSyncTimeout": "20"}'}
        >>> model_runtime.host_sync_timeout_seconds(options)
        20.0
    """
    text = (os.environ if environ is None else environ).get("POPLAR_RUNTIME_OPTIONS", "{}")
    try:
        seconds = float(json.loads(text).get("target.hostSyncTimeout", HOST_SYNC_TIMEOUT_SECONDS))
        if seconds > 0:
            return seconds
    except (ValueError, TypeError, AttributeError):
        pass
    _log.warning(
        'POPLAR_RUNTIME_OPTIONS: expected a JSON object such as {"target.hostSyncTimeout":"300"}, '
        "a positive number, found %r; the default counts",
        text,
    )
    return HOST_SYNC_TIMEOUT_SECONDS
