"""Entry points of this distribution's commands; see `popef._tools.start`."""

import _signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False  # see popef/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable


def _exit(*_: object) -> None:
    os._exit(130)


# As in `popef._tools.start`, which takes longer to find than all that is done here.
for _number in (_signal.SIGINT, _signal.SIGTERM):
    if _signal.getsignal(_number) != _signal.SIG_IGN:
        _signal.signal(_number, _exit)


def poplar_triton() -> int:
    """Run the command `poplar-triton`."""
    return _start("poplar_triton.cli", _describe_poplar_triton)


def poprt() -> int:
    """Run the command `poprt`."""
    return _start("poprt.cli", _describe_poprt)


def poprt_exec() -> int:
    """Run the command `poprt_exec`."""
    return _start("poprt.cli.exec_command", _describe_poprt)


def _start(module: str, describe_version: "Callable[[], str]") -> int:
    # Imported here and below, where an interrupt ends without a traceback.
    from popef._tools.start import start

    return start(module, describe_version)


def _describe_poplar_triton() -> str:
    from popef._tools.version import __version__

    return f"poplar-triton {__version__}"


def _describe_poprt() -> str:
    from simipu.version import describe_poprt

    return describe_poprt()
