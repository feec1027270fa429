"""Runs passes by name on a model, as scripts of older releases do."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import onnx

from poprt.passes import Pass, PassManager


class Optimizer:
    """Passes that run in the given order.

    Args:
        passes: names of registered passes, or passes.

    Raises:
        CompileError: for a name that is not registered.
    """

    def __init__(self, passes: Iterable[str | Pass] = ()) -> None:
        self._manager = PassManager(passes)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Run the passes.

        Args:
            model: the model, which is not changed.

        Returns:
            A new model.
        """
        return self._manager.run(deepcopy(model))
