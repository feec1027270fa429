"""The errors of the simulated IPU, sorted by whose fault they are."""


class SimIpuError(Exception):
    """Base of everything that this room raises on purpose."""


class CompileError(SimIpuError):
    """The graph cannot become an executable: the message names the node, its operator and why."""


class LoadError(SimIpuError):
    """An executable cannot be loaded: damaged, of another version, or not for this device."""


class RunError(SimIpuError):
    """A program run failed: a stream is not connected, or delivered something else than its shape."""
