"""The errors of this room, sorted by whose fault they are."""


class ServingError(Exception):
    """Everything that this room raises on purpose, but for what the real functions raise as TypeError and
    NotImplementedError."""


class ExportError(ServingError, ValueError):
    """A model, a signature or a function cannot become a SavedModel: the message names it, what was expected
    and found. A ValueError, which is what the real functions raise."""


class BuildError(ServingError):
    """The operators cannot be compiled here: no TensorFlow, no compiler, or it refuses."""


class LibraryError(ServingError):
    """The operators are not there, or not for this TensorFlow: the message says how to build them."""


class FrameError(ServingError):
    """What came over the connection to the operators is no frame of theirs."""
