"""Runs passes one after the other, in an order that their constraints allow. Which passes, and in which
order, is `poprt.pipeline`'s to say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import onnx
from onnxgraph import remember_inferences
from simipu import CompileError

from poprt.passes.base_pass import Pass, get_pass

IR_PASSES = frozenset(
    "eliminate_deadend eliminate_duplicate_initializer eliminate_duplicate_nodes eliminate_identity "
    "eliminate_nop_arithmetic eliminate_nop_cast eliminate_nop_expand eliminate_nop_flatten eliminate_nop_if "
    "eliminate_nop_pad eliminate_nop_reshape eliminate_nop_transpose eliminate_unused_initializer "
    "extract_constant_to_initializer fuse_bn_into_conv fuse_consecutive_arithmetic fuse_consecutive_cast "
    "fuse_consecutive_reshape fuse_consecutive_squeeze fuse_consecutive_transpose "
    "fuse_consecutive_unsqueeze replace_einsum_with_matmul trace_folding unique_name_for_nodes".split()
)
"""The passes that the real tool does over its own form of a graph, several in one turn: those that
apply_ir_pass takes."""


class PassManager:
    """A list of passes to be run on a model, given by name or made already."""

    def __init__(self, used_passes: Iterable[str | Pass] = (), gather_ir_passes: bool = False) -> None:
        self._passes: list[Pass] = []
        self._gather = gather_ir_passes
        self.add_passes(used_passes)

    def add_passes(self, passes: Iterable[str | Pass]) -> None:
        """Add passes at the end. Raises CompileError for a name that is not registered."""
        self._passes += [get_pass(each) if isinstance(each, str) else each for each in passes]

    def get_passes(self) -> list[Pass]:
        """The passes, in order."""
        return list(self._passes)

    def get_all_pass_names(self) -> list[str]:
        """Their names."""
        return [each.name for each in self._passes]

    def sort_passes(self) -> None:
        """Bring the passes into an order that their constraints allow, moving as little as is needed.

        Raises CompileError where there is none, and for passes that may not run together.
        """
        _check_company(self._passes)
        waiting, ordered = list(self._passes), []
        while waiting:
            free = next((each for each in waiting if not _waits(each, waiting)), None)
            if free is None:
                raise CompileError(f"passes {', '.join(each.name for each in waiting)} wait for each other")
            waiting.remove(free)
            ordered.append(free)
        self._passes = ordered

    def run(
        self, model: onnx.ModelProto, on_pass: Callable[[str], None] = lambda _name: None
    ) -> onnx.ModelProto:
        """The model after all passes, which change the one given in place; `on_pass` is told each one's name
        before it runs."""
        with remember_inferences():
            for each in gather_ir_passes(self._passes) if self._gather else self._passes:
                on_pass(each.name)
                model = each(model)
        return model


def gather_ir_passes(passes: Iterable[Pass]) -> list[Pass]:
    """The same with neighbours of the IR family joined to one apply_ir_pass each, which takes one turn over
    the graph's names where they take one each."""
    gathered: list[Pass] = []
    for is_ir, found in itertools.groupby(passes, lambda each: each.name in IR_PASSES):
        group = list(found)
        gathered += [get_pass("apply_ir_pass", [each.name for each in group])] if is_ir else group
    return gathered


def _check_company(passes: Sequence[Pass]) -> None:
    names = {each.name for each in passes}
    for each in passes:
        enemies, missing = each.info.against & names, each.info.depend - names
        if enemies:
            raise CompileError(f"pass {each.name} may not run together with {', '.join(sorted(enemies))}")
        if missing:
            raise CompileError(f"pass {each.name} needs {', '.join(sorted(missing))}; add it")


def _waits(one: Pass, others: Iterable[Pass]) -> bool:
    """Whether `one` has to come after one of the others."""
    return any(
        other.name in one.info.depend or one.name in other.info.before for other in others if other is not one
    )
