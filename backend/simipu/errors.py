"""Exceptions of the simulated IPU, grouped by the cause of the failure."""


class SimIpuError(Exception):
    """Base class of all exceptions that this package raises on purpose."""


class CompileError(SimIpuError, RuntimeError):
    """The graph cannot be compiled into an executable. The message names the node, its operator and
    the reason.

    It is also a RuntimeError, as are all errors that the real compiler raises in Python.
    """


class OutOfMemoryError(CompileError):
    """The model is estimated not to fit into a tile's memory. The message says what the tile would
    hold, and where it is fullest."""


class CompileTimeoutError(CompileError):
    """A model could not be compiled, or profiled, within its time limit."""


class CompileMemoryError(CompileError):
    """Compiling or profiling a model needs more memory than its limit allows."""


class LoadError(SimIpuError):
    """An executable cannot be loaded: it is damaged, of another version, or not for this device."""


class ForeignExecutableError(LoadError):
    """The executable was made by another program, such as the real Poplar."""


class LoadTimeoutError(LoadError):
    """An executable could not be prepared to run within its time limit."""


class LoadMemoryError(LoadError):
    """An executable needs more memory than its limit allows."""


class LoadLostError(LoadError):
    """The process that loads an executable was killed from outside, or stalled, each time that it
    was tried. The executable may be sound."""


class AcceleratorError(LoadError):
    """An accelerator is not known, not installed, or cannot compute a graph. The message names what
    it lacks."""


class RunError(SimIpuError):
    """A program run failed: a stream is not connected or delivered another shape than its own, or
    an operator rejected its values. The state of the device is unchanged."""


class RunMemoryError(RunError):
    """A run asked for more memory than its limit allows."""


class DeviceLostError(SimIpuError):
    """The device stopped in the middle of a run. The run's rows are lost; the engine is ready to
    run again.

    `how` describes the end of its process. `by_signal` says that a signal ended or stopped the
    process, and `from_outside` that the signal was none by which a process ends itself. `began` is
    false if the process had not read the whole request: it had computed nothing of it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        how: str = "",
        by_signal: bool = False,
        from_outside: bool = False,
        began: bool = True,
    ) -> None:
        super().__init__(message)
        self.how, self.by_signal, self.from_outside = how, by_signal, from_outside
        self.began = began


class RunTimeoutError(DeviceLostError):
    """A run exceeded its time limit and was ended."""


class RunCancelledError(SimIpuError):
    """A run was cancelled, or never started, because its session is stopped. No run can follow
    it."""


class RunUnwantedError(SimIpuError):
    """A run was ended because nobody waits for its results any more. Later runs are as before."""


UNWANTED = "the run was ended: its clients have cancelled"
CANCELLED = "the run was cancelled: its session was stopped"


def describe_limit(seconds: float) -> str:
    """Return the error message of a run that was ended by its time limit."""
    return (
        f"a run took longer than its limit of {seconds:g} s and was ended (the limit is "
        "target.hostSyncTimeout of POPLAR_RUNTIME_OPTIONS)"
    )


def describe_memory(limit_bytes: int) -> str:
    """Return the error message of a run that ran out of memory."""
    return (
        f"a run needed more than its limit of {limit_bytes} bytes of memory, or than is free, "
        "and was ended (the limit is sim_memory_mib)"
    )
