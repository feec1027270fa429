"""The errors of graphs. Who loads, compiles or profiles one says so with an error of its own."""


class GraphError(Exception):
    """A graph is refused unseen: it refers to something outside itself, or is damaged."""


class GraphTooLargeError(GraphError):
    """A graph asks for more time or memory than the limits allow."""
