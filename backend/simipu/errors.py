"""The errors of the simulated IPU, sorted by whose fault they are."""


class SimIpuError(Exception):
    """Base of everything that this room raises on purpose."""


class CompileError(SimIpuError, RuntimeError):
    """The graph cannot become an executable: the message names the node, its operator and why.

    A RuntimeError too, as all that the real compiler raises in Python is.
    """


class OutOfMemoryError(CompileError):
    """The model says that a tile's memory is too small: the message says what it would hold, and where it is
    fullest."""


class CompileTimeoutError(CompileError):
    """A model could not be compiled, or profiled, within its limit of time."""


class CompileMemoryError(CompileError):
    """A model asks the compiler, or the profiler, for more memory than its limit allows."""


class LoadError(SimIpuError):
    """An executable cannot be loaded: damaged, of another version, or not for this device."""


class ForeignExecutableError(LoadError):
    """The executable was made by something else, such as the real Poplar."""


class LoadTimeoutError(LoadError):
    """An executable could not be made ready to run within its limit of time."""


class LoadMemoryError(LoadError):
    """An executable asks for more memory than its limit allows."""


class RunError(SimIpuError):
    """A program run failed: a stream is not connected or delivered something else than its shape, or an
    operator refused its values. The device is as it was."""


class RunMemoryError(RunError):
    """A run asked for more memory than its limit allows."""


class DeviceLostError(SimIpuError):
    """The device stopped in the middle of a run, whose rows are lost; the engine is ready to run again."""


class RunTimeoutError(DeviceLostError):
    """A run took longer than its limit and was ended."""


class RunCancelledError(SimIpuError):
    """A run was ended, or not begun, because nobody wants its rows any more: its session is stopped. Nothing
    runs after it."""


CANCELLED = "the run was ended: its session was stopped"


def describe_limit(seconds: float) -> str:
    """What a run that was ended is told."""
    return (
        f"a run took longer than its limit of {seconds:g} s and was ended (the limit is "
        "target.hostSyncTimeout of POPLAR_RUNTIME_OPTIONS)"
    )


def describe_memory(limit_bytes: int) -> str:
    """What a run is told that ran out of memory."""
    return (
        f"a run asked for more than its limit of {limit_bytes} bytes of memory and was ended (the "
        "limit is sim_memory_mib)"
    )
