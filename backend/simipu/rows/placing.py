"""Places of the rows in the results of one node, by the rule of its operator."""

from __future__ import annotations

import math

from onnxgraph import iter_bodies

from simipu.operators import Operator, operator_of
from simipu.operators.rules.places import Node, NotIndependent, Rows


def place_rows(node: Node) -> dict[str, Rows]:
    """Return the place of the rows in each result of a node.

    Args:
        node: The node, the rows of its inputs, and what is known of its tensors. The rule adds to
            it what has to change for another number of rows.

    Raises:
        NotIndependent: The operator has no rule, or the rule cannot show that rows are independent
            of each other.
    """
    proto, operator = node.proto, operator_of(node.proto)
    if operator.rows is None or any(True for _ in iter_bodies(proto)):
        raise NotIndependent(operator.whole_batch)
    # The proof by induction: if each input's element belongs to the row that its place says, the
    # operator's rule says to which row each element of the results belongs. A place that the
    # compiled shape contradicts proves nothing.
    names = [name for name in proto.output if name]
    places = operator.rows(node)
    _check_others(node, operator)
    found: dict[str, Rows] = {}
    for name, shape, place in zip(names, node.results, places, strict=False):
        size = place.size(node.batch)
        if shape[place.axis : place.axis + 1] != (size,):
            raise NotIndependent(
                f"its result has shape {shape}, without {size} along axis {place.axis}"
            )
        found[name] = place
    return found


def _check_others(node: Node, operator: Operator) -> None:
    """Raise NotIndependent for an input without rows that neither the rule nor the operator's entry
    accounts for: it could have a part for every row."""
    apart = {*operator.apart, *operator.shaped_by, *node.settled}
    for index in range(len(node.rows)):
        if index in apart or node.carries(index) or not node.has(index):
            continue
        # One element is the same for all rows. Anything larger may be the compiled batch.
        if math.prod(node.shape(index)) != 1:
            raise NotIndependent(f"its rule does not say how rows meet input {index}")
