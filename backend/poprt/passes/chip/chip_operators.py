"""Passes that replace standard operators by operators of the chip's own compiler, domain
ai.graphcore."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import ClassVar

import onnx
from onnx import TensorProto
from onnxgraph import (
    CHIP_DOMAIN,
    FLOAT_TYPES,
    GraphEditor,
    NameScope,
    Tape,
    attribute,
    is_operator,
    iter_bodies,
)
from onnxgraph.opsets import SOFTMAX_HAS_ONE_AXIS
from simipu import CompileError
from simipu.operators import OPERATORS

from poprt.rewrite.base import Stage, register
from poprt.rewrite.patterns import Once, Op, Var
from poprt.rewrite.rules import GraphRule


class _Renaming(GraphRule):
    """Base class of passes that rename an operator: the chip has the same one under another
    name."""

    renames: ClassVar[str]

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Rename the node if the chip's operator takes its type."""
        if self.takes(node, view):
            renamed = copy.deepcopy(node)
            renamed.op_type, renamed.domain = self.renames, CHIP_DOMAIN
            view.replace(node, [renamed])

    def takes(self, node: onnx.NodeProto, view: GraphEditor) -> bool:
        """Return whether the chip's operator computes the same as the node."""
        return view.type(node.input[0]) in FLOAT_TYPES


@register("replace_erf_with_erfv2")
class ReplaceErf(_Renaming):
    """Erf becomes ErfV2."""

    op_types = frozenset(("Erf",))
    renames = "ErfV2"


@register("replace_round")
class ReplaceRound(_Renaming):
    """Round becomes RoundV2; both round halves to even."""

    op_types = frozenset(("Round",))
    renames = "RoundV2"


@register("replace_isinf")
class ReplaceIsInf(_Renaming):
    """IsInf becomes IsInfV2."""

    op_types = frozenset(("IsInf",))
    renames = "IsInfV2"


@register("replace_softmax")
class ReplaceSoftmax(_Renaming):
    """Softmax along a last axis of odd length becomes SoftmaxV2: halves are then not read in
    pairs."""

    op_types = frozenset(("Softmax",))
    renames = "SoftmaxV2"

    def takes(self, node: onnx.NodeProto, view: GraphEditor) -> bool:
        """Return whether the node is along a last axis of odd length, and of a supported type."""
        shape = view.shape(node.input[0])
        default = -1 if view.opset >= SOFTMAX_HAS_ONE_AXIS else 1
        if not shape or shape[-1] % 2 == 0 or not super().takes(node, view):
            return False
        return int(attribute(node, "axis", default)) % len(shape) == len(shape) - 1

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace the node, with the last axis written out. It is the default of the chip's
        operator, but was not always the standard's."""
        if self.takes(node, view):
            op = view.start(node, "softmax")
            op.chip_as(node.output[0], self.renames, node.input[0], axis=-1)
            view.replace(node, op.nodes)


@register("replace_where_with_wherev2", stage=Stage.CHIP, default=True)
class ReplaceWhere(_Renaming):
    """Replace Where by WhereV2, which published passes for DeBERTa match."""

    op_types = frozenset(("Where",))
    renames = "WhereV2"

    def takes(self, node: onnx.NodeProto, view: GraphEditor) -> bool:
        """Return whether the node selects floats. A Where of integers computes shapes, and every
        pass can follow it."""
        return view.type(node.output[0]) in FLOAT_TYPES


@register("replace_consecutive_cast_with_notzero")
class ReplaceCastsWithNotZero(GraphRule):
    """A Cast to bool and one back become NotZero: 1 where there is something, 0 where not."""

    op_types = frozenset(("Cast",))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace the Casts if the second is to the first type."""
        match = _CAST_TO_BOOL_AND_ON.find(node.output[0], view)
        if match is not None and view.type(match["source"]) == attribute(node, "to"):
            op = view.start(node, "notzero")
            view.replace(node, op.finish(op.chip("NotZero", match["source"]), node.output))


_CAST_TO_BOOL_AND_ON = Op("Cast", Once(Op("Cast", Var("source"), to=TensorProto.BOOL)))
_BEFORE, _AFTER = "before_", "after_"


@register("auto_insert_remap", stage=Stage.LAYOUT, option="enable_insert_remap", takes="remap_mode")
class AutoInsertRemap(GraphRule):
    """Put a Remap, which lays a tensor out anew, before or behind operators.

    remap_mode: a text with commas, or a list, of before_ or after_ and an operator in lower case;
    blanks around them are no part of them. Before an operator its first input is laid out anew.
    Weights, and what is no float, are left as they are.
    """

    def __init__(self, remap_mode: str | Collection[str] = ("after_matmul",)) -> None:
        listed = remap_mode.split(",") if isinstance(remap_mode, str) else remap_mode
        modes = [mode.strip().lower() for mode in listed]
        self._before = {mode.removeprefix(_BEFORE) for mode in modes if mode.startswith(_BEFORE)}
        self._after = {mode.removeprefix(_AFTER) for mode in modes if mode.startswith(_AFTER)}
        names = {name.lower() for name in OPERATORS}
        for mode in modes:
            op_type = mode.partition("_")[2]
            if not mode.startswith((_BEFORE, _AFTER)) or not op_type:
                raise CompileError(
                    f"remap_mode {mode!r}: expected before_ or after_ and an operator in lower "
                    "case, such as after_matmul"
                )
            if op_type not in names:
                self.logger.warning("remap_mode %s: there is no such operator", mode)

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is one of the operators."""
        return node.op_type.lower() in self._before | self._after

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Insert Remaps around a node, on a copy of it."""
        if any(iter_bodies(node)):
            return
        name = node.op_type.lower()
        changed = copy.deepcopy(node)
        before = self._put_before(changed, view) if name in self._before else []
        after = self._put_after(changed, view) if name in self._after else []
        if before or after:
            view.rewrite(node, [*before, changed, *after], [node])

    def _put_before(self, node: onnx.NodeProto, view: GraphEditor) -> list[onnx.NodeProto]:
        """Insert a Remap before the first float input that is no weight. Other inputs stay:
        published passes for DeBERTa, converted with before_add, look for an Add whose second input
        is the residual itself."""
        op = view.start(node, "remap")
        floats = (
            place
            for place, name in enumerate(node.input)
            if name and view.type(name) in FLOAT_TYPES
        )
        index = next((place for place in floats if view.tensor(node.input[place]) is None), None)
        maker = view.makers.get(node.input[index]) if index is not None else None
        is_done = maker is not None and is_operator(maker, "Remap", domain=CHIP_DOMAIN)
        if index is not None and not is_done:
            laid_out = op.new_name()
            add_remap(op.nodes, node.input[index], laid_out, view.names, after_matmul=False)
            node.input[index] = laid_out
        return op.nodes

    def _put_after(self, node: onnx.NodeProto, view: GraphEditor) -> list[onnx.NodeProto]:
        nodes: list[onnx.NodeProto] = []
        for index, name in enumerate(node.output):
            is_done = view.reader(name, "Remap", domain=CHIP_DOMAIN) is not None
            if name and view.type(name) in FLOAT_TYPES and not is_done:
                node.output[index] = view.names.take(f"{name}/before_remap")
                add_remap(
                    nodes,
                    node.output[index],
                    name,
                    view.names,
                    after_matmul=node.op_type == "MatMul",
                )
        return nodes


def add_remap(
    nodes: list[onnx.NodeProto], source: str, result: str, names: NameScope, *, after_matmul: bool
) -> None:
    """Add a Remap with the attributes of the real tool's library, including those for training."""
    attributes = {
        f"{way}_{name}": value
        for way in ("fwd", "bwd")
        for name, value in (
            ("grain_size", _GRAIN_SIZE),
            ("clone_layout", 0),
            ("after_matmul", int(after_matmul and way == "fwd")),
        )
    }
    op = Tape(f"{result}/remap", names=names)
    op.chip_as(result, "Remap", source, **attributes, debug_str=result)
    nodes += op.nodes


_GRAIN_SIZE = 8
"""Number of elements that stay together; Remap's default."""
