"""The errors of the runtime."""


class ModelRuntimeError(Exception):
    """A model cannot be bound to a device, loaded or fed; the message says what was expected and found."""
