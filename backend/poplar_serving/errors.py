"""Errors of this room, sorted by whose fault they are."""


class ServingError(Exception):
    """Base class of the errors of this room, except for errors that the real functions raise as
    TypeError and NotImplementedError."""


class ExportError(ServingError, ValueError):
    """Error of a model, a signature or a function that cannot become a SavedModel. The message
    names it, what was expected and found. It is a ValueError, like the error of the real
    functions."""


class BuildError(ServingError):
    """Error of operators that cannot be compiled here: TensorFlow or a compiler is missing, or the
    compiler fails."""


class LibraryError(ServingError):
    """Error of operators that are missing, or built for another TensorFlow. The message says how to
    build them."""


class FrameError(ServingError):
    """Error of data on the connection to the operators that is not a valid frame."""
