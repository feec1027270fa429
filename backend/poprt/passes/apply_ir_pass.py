"""Pass that runs several passes of the real tool's ONNX IR family."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from simipu import CompileError

from poprt.rewrite.base import Pass, get_pass, register

IR_PASSES = frozenset(
    (
        "eliminate_deadend eliminate_duplicate_initializer eliminate_duplicate_nodes "
        "eliminate_identity eliminate_nop_arithmetic eliminate_nop_cast eliminate_nop_expand "
        "eliminate_nop_flatten eliminate_nop_if eliminate_nop_pad eliminate_nop_reshape "
        "eliminate_nop_transpose eliminate_unused_initializer extract_constant_to_initializer "
        "fuse_bn_into_conv fuse_consecutive_arithmetic fuse_consecutive_cast "
        "fuse_consecutive_reshape fuse_consecutive_squeeze fuse_consecutive_transpose "
        "fuse_consecutive_unsqueeze replace_einsum_with_matmul trace_folding unique_name_for_nodes"
    ).split()
)
"""Names of the passes of that family, from the real tool's list of its classes."""


@register("apply_ir_pass")
class ApplyIrPass(Pass):
    """Run the passes with the given names, one after the other."""

    def __init__(self, passes: Sequence[str] = ()) -> None:
        """Create the passes. Raise CompileError for a name outside the family."""
        super().__init__()
        for name in passes:
            if name not in IR_PASSES:
                raise CompileError(
                    f"apply_ir_pass: pass {name!r} is not of the IR family, which is "
                    f"{', '.join(sorted(IR_PASSES))}; run it by itself"
                )
        self._passes = [get_pass(name) for name in passes]

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Run the passes in the order of their names."""
        for each in self._passes:
            model = each(model)
        return model
