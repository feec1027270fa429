"""What the options that go to tritonserver mean for whoever supervises it: the last of a name counts, in both
spellings, `--name=value` and `--name value`."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_EXIT_SECONDS = 30
"""Triton's own --exit-timeout-secs."""
_GRPC_HEADER = "triton-grpc-protocol-"
"""Before the key of a restricted protocol, in the metadata of a call."""


def find_option(options: Sequence[str], name: str) -> str | None:
    """The last value that `options` have for a name; None for none."""
    return next(reversed(find_all(options, name)), None)


def find_all(options: Sequence[str], name: str) -> list[str]:
    """All values that `options` have for a name, in their order."""
    found = []
    for place, word in enumerate(options):
        option, separator, value = word.partition("=")
        if option == name:
            found.append(value if separator else next(iter(options[place + 1 :]), ""))
    return found


def is_on(options: Sequence[str], name: str) -> bool:
    """A switch of Triton's that is on unless `options` say otherwise."""
    return (find_option(options, name) or "true").lower() not in ("false", "0")


def find_exit_seconds(options: Sequence[str]) -> int:
    """How long Triton waits, when it is told to stop, for what is under way."""
    value = find_option(options, "--exit-timeout-secs") or ""
    return int(value) if value.isascii() and value.isdecimal() else DEFAULT_EXIT_SECONDS


def make_http_headers(options: Sequence[str]) -> dict[str, str]:
    """The keys of all restricted APIs, as who asks over HTTP has to send them."""
    return dict(_find_keys(options, "--http-restricted-api"))


def make_grpc_headers(options: Sequence[str]) -> dict[str, str]:
    """The keys of all restricted protocols, as who asks over gRPC has to send them."""
    keys = _find_keys(options, "--grpc-restricted-protocol")
    return {f"{_GRPC_HEADER}{key}".lower(): value for key, value in keys}


def _find_keys(options: Sequence[str], name: str) -> list[tuple[str, str]]:
    """Of `api,api:key=value`."""
    found = []
    for value in find_all(options, name):
        key, separator, secret = value.partition(":")[2].partition("=")
        if separator:
            found.append((key, secret))
    return found
