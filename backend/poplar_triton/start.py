"""Entry points of this distribution's commands; see `popef._tools.start`."""

from popef._tools.start import start
from popef._tools.version import __version__


def poplar_triton() -> int:
    """Run the command `poplar-triton`."""
    return start("poplar_triton.cli", lambda: f"poplar-triton {__version__}")


def poprt() -> int:
    """Run the command `poprt`."""
    return start("poprt.cli", _describe_poprt)


def poprt_exec() -> int:
    """Run the command `poprt_exec`."""
    return start("poprt.cli.exec_command", _describe_poprt)


def _describe_poprt() -> str:
    # Imported here, where an interrupt ends without a traceback.
    from simipu.version import describe_poprt

    return describe_poprt()
