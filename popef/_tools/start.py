"""Entry points of the commands. They import a command's modules only when they are needed, so that
`--version` answers at once. Only a process that is such a command imports this module: an interrupt
exits it at once from then on."""

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False  # see popef/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable


def _exit(*_: object) -> None:
    os._exit(130)


# An interrupt before this shows Python's traceback. So this is done before any file is opened,
# which takes milliseconds on a busy machine, with what Python has loaded: even `signal` is a file.
for _number in (_signal.SIGINT, _signal.SIGTERM):
    if _signal.getsignal(_number) != _signal.SIG_IGN:
        _signal.signal(_number, _exit)


def start(module: str, describe_version: "Callable[[], str]") -> int:
    """Run `main` of a module and return the exit status of the process."""
    import importlib

    _leave_out_working_folder(module)
    from .interrupts import INTERRUPTED, exit_at_once
    from .lazy import importing
    from .shortages import describe_last_line, name_limit

    exit_at_once()
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


def _leave_out_working_folder(module: str) -> None:
    """Remove the working directory from the beginning of the path, where `python -m` puts it,
    unless this project itself is there. A json.py in it is not the standard library's."""
    first = sys.path[0]
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return
    if first in ("", here):
        own = (module.partition(".")[0], __package__.partition(".")[0])
        if not any(os.path.isdir(os.path.join(first, name)) for name in own):
            del sys.path[0]


def popef() -> int:
    """Run the command `popef`."""
    return start("popef.commands.cli", lambda: f"popef {_read_version()}")


def popef_dump() -> int:
    """Run the command `popef_dump`."""
    return start("popef.commands.dump", lambda: f"popef_dump {_read_version()}")


def _read_version() -> str:
    from .version import __version__

    return __version__
