"""Meaning of tritonserver's options for its supervisor: the last value of a name counts, in both
spellings, `--name=value` and `--name value`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

DEFAULT_EXIT_SECONDS = 30
"""Default of Triton's --exit-timeout-secs."""
_PATH_OPTIONS = frozenset(
    f"--{name}"
    for name in (
        "backend-directory cache-directory grpc-root-cert grpc-server-cert grpc-server-key "
        "log-file model-repository model-store repoagent-directory trace-file"
    ).split()
)
"""Options of tritonserver with the path of a file or a folder."""
_PATH_SETTINGS = {
    ("--trace-config", "triton", "file"): "",
    ("--backend-config", "tensorrt", "plugins"): ";",
}
"""Settings with a path, with the separator of several: option, part before the comma, setting."""
_PATH_LISTS = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
"""Environment variables with paths that tritonserver, its stubs or their shell read."""
_PATH_VARIABLES = (
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HOME",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TRITON_CLOUD_CREDENTIAL_PATH",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
)
"""Environment variables with one path each that they read."""
_GRPC_HEADER = "triton-grpc-protocol-"
"""Prefix of the key of a restricted protocol, in the metadata of a call."""


def find_option(options: Sequence[str], name: str) -> str | None:
    """Return the last value of an option in `options`, or None if it is not given."""
    return next(reversed(find_all(options, name)), None)


def find_all(options: Sequence[str], name: str) -> list[str]:
    """Return all values of an option in `options`, in their order."""
    values = []
    for place, word in enumerate(options):
        option, separator, value = word.partition("=")
        if option == name:
            values.append(value if separator else next(iter(options[place + 1 :]), ""))
    return values


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
    keys = []
    for value in find_all(options, name):
        key, separator, secret = value.partition(":")[2].partition("=")
        if separator:
            keys.append((key, secret))
    return keys


def make_absolute(options: Sequence[str]) -> list[str]:
    """Return the options for a server in another working directory: relative paths become absolute
    ones. Addresses of remote stores stay as they are."""
    words = list(options)
    for place, word in enumerate(words):
        name, separator, value = word.partition("=")
        if separator:
            words[place] = f"{name}={_make_value_absolute(name, value)}"
        elif place + 1 < len(words):
            words[place + 1] = _make_value_absolute(name, words[place + 1])
    return words


def make_variables_absolute(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a server in another working directory. An empty entry of a
    list means the working directory, by accident more often than not, and stays empty."""
    changed = dict(environment)
    for names, separator in ((_PATH_LISTS, os.pathsep), (_PATH_VARIABLES, "")):
        for name in names:
            if environment.get(name):
                changed[name] = _join_absolute(environment[name], separator)
    return changed


def _make_value_absolute(option: str, value: str) -> str:
    if option in _PATH_OPTIONS:
        return _join_absolute(value)
    setting, separator, path = value.partition("=")
    between = _PATH_SETTINGS.get((option, *setting.partition(",")[::2]))
    return value if between is None else f"{setting}{separator}{_join_absolute(path, between)}"


def _join_absolute(value: str, separator: str = "") -> str:
    """Return a path, or several of them, as absolute ones."""
    paths = value.split(separator) if separator else [value]
    return separator.join(
        path if not path or "://" in path else os.path.abspath(path) for path in paths
    )
