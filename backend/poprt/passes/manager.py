"""Runs passes one after the other, in an order that their constraints allow. Which passes, and in which
order, is `poprt.pipeline`'s to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx
from onnxgraph import remember_inferences
from simipu import CompileError

from poprt.passes.base_pass import Pass, get_pass


class PassManager:
    """A list of passes to be run on a model, given by name or made already."""

    def __init__(self, used_passes: Iterable[str | Pass] = ()) -> None:
        self._passes: list[Pass] = []
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
            for each in self._passes:
                on_pass(each.name)
                model = each(model)
        return model


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
