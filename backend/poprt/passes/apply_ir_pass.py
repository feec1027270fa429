"""Pass that runs several passes of the real tool's ONNX IR family."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from simipu import CompileError

from poprt.rewrite.base import Pass, get_pass, register
from poprt.rewrite.manager import IR_PASSES


@register("apply_ir_pass")
class ApplyIrPass(Pass):
    """Run the passes with the given names, one after the other."""

    def __init__(self, passes: Sequence[str] = ()) -> None:
        """Create the passes. Raise CompileError for a name outside the family."""
        for name in passes:
            if name not in IR_PASSES:
                raise CompileError(
                    f"apply_ir_pass: pass {name!r} is not of the IR family, which is "
                    f"{', '.join(sorted(IR_PASSES))}; run it by itself"
                )
        self._passes = [get_pass(name) for name in passes]

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Run the passes in the order of their names."""
        for graph_pass in self._passes:
            model = graph_pass(model)
        return model
