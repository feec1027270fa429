"""Row rules of operators of the chip's own compiler that have no similar operator in the
standard."""

from __future__ import annotations

from simipu.operators.rules.places import Node, NotIndependent, Rows


def attention_mask(node: Node) -> list[Rows]:
    """Row rule of AttentionMask: the mask and its result have the batch first; of the scores only
    the shape counts."""
    rows = node.rows[0]
    if rows is None or rows.axis:
        raise NotIndependent("its mask does not carry rows along axis 0")
    return [rows]


def split_inputs(node: Node) -> list[Rows]:
    """Row rule of HCSR: inputs are stacked along axis 0, each with its rows along axis 1."""
    rows, width = node.only_rows(), int(list(node.attribute("shape"))[1])
    if rows.axis != 1 or rows.before != 1 or rows.block % width:
        raise NotIndependent("rows do not lie along its second axis")
    return [Rows(0, rows.block // width)] * len(node.results)
