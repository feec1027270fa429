"""Meaning of tritonserver's options for its supervisor: the last value of a name counts, in both
spellings, `--name=value` and `--name value`."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_EXIT_SECONDS = 30
"""Default of Triton's --exit-timeout-secs."""
_GRPC_HEADER = "triton-grpc-protocol-"
"""Prefix of the key of a restricted protocol, in the metadata of a call."""


def find_option(options: Sequence[str], name: str) -> str | None:
    """Return the last value of an option in `options`, or None if it is not given."""
    return next(reversed(find_all(options, name)), None)


def find_all(options: Sequence[str], name: str) -> list[str]:
    """Return all values of an option in `options`, in their order."""
    found = []
    for place, word in enumerate(options):
        option, separator, value = word.partition("=")
        if option == name:
            found.append(value if separator else next(iter(options[place + 1 :]), ""))
    return found


def is_on(options: Sequence[str], name: str) -> bool:
    """Return whether `options` leave on a switch of Triton that is on by default."""
    return (find_option(options, name) or "true").lower() not in ("false", "0")


def find_exit_seconds(options: Sequence[str]) -> int:
    """Return how many seconds Triton waits for requests under way when it is told to stop."""
    value = find_option(options, "--exit-timeout-secs") or ""
    return int(value) if value.isascii() and value.isdecimal() else DEFAULT_EXIT_SECONDS


def make_http_headers(options: Sequence[str]) -> dict[str, str]:
    """Return the keys of all restricted APIs, as headers that an HTTP client has to send."""
    return dict(_find_keys(options, "--http-restricted-api"))


def make_grpc_headers(options: Sequence[str]) -> dict[str, str]:
    """Return the keys of all restricted protocols, as metadata that a gRPC client has to send."""
    keys = _find_keys(options, "--grpc-restricted-protocol")
    return {f"{_GRPC_HEADER}{key}".lower(): value for key, value in keys}


def _find_keys(options: Sequence[str], name: str) -> list[tuple[str, str]]:
    """Return the keys and values in options of the form `api,api:key=value`."""
    found = []
    for value in find_all(options, name):
        key, separator, secret = value.partition(":")[2].partition("=")
        if separator:
            found.append((key, secret))
    return found
