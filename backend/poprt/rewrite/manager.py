"""Runner of passes, in an order that their constraints allow. `poprt.pipeline` selects the passes
and their order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import onnx
from onnxgraph import remember_inferences
from simipu import CompileError

from poprt.rewrite.base import Pass, get_pass

IR_PASSES = frozenset(
    "eliminate_deadend eliminate_duplicate_initializer eliminate_duplicate_nodes "
    "eliminate_identity eliminate_nop_arithmetic eliminate_nop_cast eliminate_nop_expand "
    "eliminate_nop_flatten eliminate_nop_if eliminate_nop_pad eliminate_nop_reshape "
    "eliminate_nop_transpose eliminate_unused_initializer extract_constant_to_initializer "
    "fuse_bn_into_conv fuse_consecutive_arithmetic fuse_consecutive_cast fuse_consecutive_reshape "
    "fuse_consecutive_squeeze fuse_consecutive_transpose fuse_consecutive_unsqueeze "
    "replace_einsum_with_matmul trace_folding unique_name_for_nodes".split()
)
"""Passes that the real tool runs over its own form of a graph, several in one turn, from its list
of their classes. apply_ir_pass accepts them."""


class PassManager:
    """List of passes to run on a model.

    Args:
        used_passes: the passes, by name or as objects.
        gather_ir_passes: whether to join consecutive passes of the IR family into one.

    Example:
        >>> import onnx
        >>> import poprt
        >>> manager = poprt.PassManager(["remove_duplicated_initializer"])
        >>> manager.get_all_pass_names()
        ['remove_duplicated_initializer']
        >>> len(manager.run(onnx.load("model.onnx")).graph.node)
        1
    """

    def __init__(
        self, used_passes: Iterable[str | Pass] = (), gather_ir_passes: bool = False
    ) -> None:
        self._passes: list[Pass] = []
        self._gather = gather_ir_passes
        self.add_passes(used_passes)

    def add_passes(self, passes: Iterable[str | Pass]) -> None:
        """Add passes at the end. Raise CompileError for a name that is not registered."""
        self._passes += [
            get_pass(graph_pass) if isinstance(graph_pass, str) else graph_pass
            for graph_pass in passes
        ]

    def get_passes(self) -> list[Pass]:
        """Return the passes, in order."""
        return list(self._passes)

    def get_all_pass_names(self) -> list[str]:
        """Return the names of the passes, in order."""
        return [graph_pass.name for graph_pass in self._passes]

    def sort_passes(self) -> None:
        """Sort the passes so that their constraints hold, with as few moves as possible.

        Raises:
            CompileError: if there is no such order, or passes may not run together.
        """
        _check_company(self._passes)
        waiting, ordered = list(self._passes), []
        while waiting:
            free = next(
                (candidate for candidate in waiting if not _waits(candidate, waiting)), None
            )
            if free is None:
                raise CompileError(
                    f"passes {', '.join(waiter.name for waiter in waiting)} wait for each other"
                )
            waiting.remove(free)
            ordered.append(free)
        self._passes = ordered

    def run(
        self, model: onnx.ModelProto, on_pass: Callable[[str], None] = lambda _name: None
    ) -> onnx.ModelProto:
        """Run all passes.

        Args:
            model: the model, which the passes change in place.
            on_pass: called with each pass's name before it runs.

        Returns:
            The resulting model.
        """
        with remember_inferences():
            for graph_pass in gather_ir_passes(self._passes) if self._gather else self._passes:
                on_pass(graph_pass.name)
                model = graph_pass(model)
        return model


def gather_ir_passes(passes: Iterable[Pass]) -> list[Pass]:
    """Return the passes with consecutive ones of the IR family joined to one apply_ir_pass. It
    walks over the graph's names once instead of once for each pass."""
    gathered: list[Pass] = []
    for is_ir, consecutive in itertools.groupby(passes, lambda each: each.name in IR_PASSES):
        group = list(consecutive)
        gathered += (
            [get_pass("apply_ir_pass", [graph_pass.name for graph_pass in group])]
            if is_ir
            else group
        )
    return gathered


def _check_company(passes: Sequence[Pass]) -> None:
    names = {graph_pass.name for graph_pass in passes}
    for graph_pass in passes:
        enemies, missing = graph_pass.info.against & names, graph_pass.info.depend - names
        if enemies:
            raise CompileError(
                f"pass {graph_pass.name} may not run together with {', '.join(sorted(enemies))}"
            )
        if missing:
            raise CompileError(f"pass {graph_pass.name} needs {', '.join(sorted(missing))}; add it")


def _waits(one: Pass, others: Iterable[Pass]) -> bool:
    """Return whether `one` must come after one of the others."""
    return any(
        other.name in one.info.depend or one.name in other.info.before
        for other in others
        if other is not one
    )
