"""Environment variables of the real runtime that have an effect here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from model_runtime.errors import ModelRuntimeError
from popef._tools.variables import ENGINE_OPTIONS, RUNTIME_OPTIONS, read_options

HOST_SYNC_TIMEOUT_SECONDS = 300.0
"""Default of Poplar's runtime option target.hostSyncTimeout, in seconds."""
_TIMEOUT = "target.hostSyncTimeout"


def host_sync_timeout_seconds(environ: Mapping[str, str] | None = None) -> float:
    """Return the maximum duration of one run.

    It is `target.hostSyncTimeout` of the JSON object in POPLAR_RUNTIME_OPTIONS.

    Args:
        environ: the environment variables; None means those of this process.

    Returns:
        The duration in seconds.

    Raises:
        ModelRuntimeError: if the variable is no JSON object, or the value no positive number.

    Example:
        >>> import model_runtime
        >>> options = {"POPLAR_RUNTIME_OPTIONS": '{"target.hostSyncTimeout": "20"}'}
        >>> model_runtime.host_sync_timeout_seconds(options)
        20.0
    """
    try:
        text = read_options(RUNTIME_OPTIONS, environ).get(_TIMEOUT, str(HOST_SYNC_TIMEOUT_SECONDS))
    except ValueError as error:
        raise ModelRuntimeError(str(error)) from error
    with suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise ModelRuntimeError(
        f"{RUNTIME_OPTIONS}: {_TIMEOUT}: expected a positive number of seconds, found {text!r}"
    )


def check_engine_options() -> None:
    """Check POPLAR_ENGINE_OPTIONS, which Poplar reads for each engine.

    Its options change what is compiled, and have no effect on an executable.

    Raises:
        ModelRuntimeError: if it is no JSON object of texts.
    """
    try:
        read_options(ENGINE_OPTIONS)
    except ValueError as error:
        raise ModelRuntimeError(str(error)) from error
