"""Runs passes by their names on a model, as scripts of older releases do."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from poprt.passes import Pass, PassManager


class Optimizer:
    """Passes, by name or made already, to be run in the order given."""

    def __init__(self, passes: Iterable[str | Pass] = ()) -> None:
        """Raises CompileError for a name that is not registered."""
        self._manager = PassManager(passes)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A new model; the one given is not changed."""
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return self._manager.run(copy)
