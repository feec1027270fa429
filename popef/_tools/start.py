"""Entry points of the commands. They import a command's modules only when they are needed, so that
`--version` answers at once. Only a process that is such a command imports this module: an interrupt
exits it at once from then on."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable

from .interrupts import INTERRUPTED, exit_at_once
from .lazy import importing
from .shortages import describe_last_line, name_limit
from .version import __version__

exit_at_once()


def start(module: str, describe_version: Callable[[], str]) -> int:
    """Run `main` of a module and return the exit status of the process."""
    if sys.argv[1:] in (["--version"], ["-v"]):
        print(describe_version())
        return 0
    try:
        with importing():
            run: Callable[[], int] = importlib.import_module(module).main
        return run()
    except KeyboardInterrupt:  # after the guard of the command, and before `raising` ends
        return INTERRUPTED
    except (ImportError, MemoryError, OSError) as error:
        limit = name_limit(f"{type(error).__name__}: {error}")
        if not limit:
            raise
        program = os.path.basename(sys.argv[0])
        print(f"{program}: error: {describe_last_line(error)}; {limit}", file=sys.stderr)
        return 1


def popef() -> int:
    """Run the command `popef`."""
    return start("popef.commands.cli", lambda: f"popef {__version__}")


def popef_dump() -> int:
    """Run the command `popef_dump`."""
    return start("popef.commands.dump", lambda: f"popef_dump {__version__}")
