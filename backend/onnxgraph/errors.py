"""The errors of graphs. Rooms that load, compile or profile a graph convert them to their own
errors."""


class GraphError(Exception):
    """A graph is rejected before use: it refers to something outside itself, or is damaged."""


class GraphTooLargeError(GraphError):
    """A graph needs more time or memory than the limits allow."""
