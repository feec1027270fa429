"""Entry points of the commands. They import a command's modules only when they are needed: so
`--version` answers at once, and Ctrl-C during the imports ends without a traceback."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .version import __version__

_INTERRUPTED = 130


def start(module: str, describe_version: Callable[[], str]) -> int:
    """Run `main` of a module and return the exit status of the process."""
    if sys.argv[1:] in (["--version"], ["-v"]):
        print(describe_version())
        return 0
    try:
        with importing():
            run: Callable[[], int] = importlib.import_module(module).main
    except KeyboardInterrupt:
        return _INTERRUPTED
    return run()


@contextmanager
def importing() -> Iterator[None]:
    """Import modules within this context without garbage collection.

    Modules are never garbage. To search them again and again takes a twentieth of their import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def popef() -> int:
    """Run the command `popef`."""
    return start("popef.commands.cli", lambda: f"popef {__version__}")


def popef_dump() -> int:
    """Run the command `popef_dump`."""
    return start("popef.commands.dump", lambda: f"popef_dump {__version__}")
