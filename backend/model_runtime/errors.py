"""The errors of the runtime."""


class ModelRuntimeError(RuntimeError):
    """A model cannot be bound to a device, loaded or fed; the message says what was expected and
    found.

    It is a RuntimeError, which the real library's Python binding raises.
    """


class StoppedError(ModelRuntimeError):
    """A request was cancelled because its session or runner was stopped before its rows were
    computed."""
