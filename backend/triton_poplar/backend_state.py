"""BackendState: the backend's options and the simulated machine that they describe, shared by all
models of a server.

Triton passes the options of `--backend-config=poplar,KEY=VALUE` only to native backends, so they
are read from the server's command line. If that cannot be read, and for options that are not on it,
environment variables count: `POPLAR_` and the name in capitals.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from triton_poplar.parameters import BackendOptions, parse_backend_options

_FLAG = "--backend-config"
_BACKEND = "poplar,"


class BackendState:
    """Options of the backend. Raises ModelConfigError naming an option with a bad value."""

    def __init__(
        self, command_line: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        environ = os.environ if environ is None else environ
        given = {
            p.name: environ[variable]
            for p in fields(BackendOptions)
            if (variable := environment_variable(p.name)) in environ
        }
        self.options: BackendOptions = parse_backend_options(
            {**given, **find_options(command_line)}
        )

    @staticmethod
    def of_server() -> BackendState:
        """Return the options of the tritonserver whose child process this is."""
        return BackendState(read_command_line(os.getppid()))


def environment_variable(option: str) -> str:
    """Return the name of an option's environment variable; sim_num_IPUs is POPLAR_SIM_NUM_IPUS."""
    return f"POPLAR_{option.upper()}"


def read_command_line(pid: int) -> list[str]:
    """Return the command-line arguments of a process, or an empty list if /proc does not show
    them."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(argument) for argument in raw.split(b"\0")]


def find_options(command_line: Sequence[str]) -> dict[str, str]:
    """Return the poplar options in a server's arguments, in both spellings of the flag. The last
    value of a name wins."""
    found = {}
    for index, argument in enumerate(command_line):
        value = argument.removeprefix(f"{_FLAG}=")
        if argument == _FLAG:
            value = command_line[index + 1] if index + 1 < len(command_line) else ""
        elif value == argument:
            continue
        if value.startswith(_BACKEND) and "=" in value:
            name, _, text = value.removeprefix(_BACKEND).partition("=")
            found[name] = text
    return found
