"""Runs passes by name on a model, as scripts of older releases do."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from poprt.passes import Pass, PassManager


class Optimizer:
    """Passes, by name or as objects, to be run in the given order."""

    def __init__(self, passes: Iterable[str | Pass] = ()) -> None:
        """Look the passes up. Raises CompileError for a name that is not registered."""
        self._manager = PassManager(passes)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return a new model after all passes; the given model is not changed."""
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return self._manager.run(copy)
