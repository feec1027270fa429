"""Tensors that forward makes on the CPU: the IPU's operators do not read them.

PopTorch makes tensors of torch's functions on the IPU. Constructors such as `torch.LongTensor` and
`torch.from_numpy` are no functions that can be overridden, so that theirs stay on the CPU.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from poptorch.errors import Error
from poptorch.operators import scopes
from poptorch.translations.graph_text import name_type

aten = torch.ops.aten
_MOVES: Final = frozenset({"to", "_to_copy", "copy_", "_assert_tensor_metadata"})
"""Operators that move values between devices, or compute nothing."""


def check_devices(program: Any) -> None:
    """Check that no operator of the IPU reads a tensor that forward has made on the CPU.

    Args:
        program: The program of torch.export, whose operators are marked.

    Raises:
        Error: If one does.
    """
    on_cpu: set[Any] = set()
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is aten.lift_fresh_copy.default:
            if scopes.MARK not in node.meta.get("custom", {}):
                on_cpu.add(node)
            continue
        operands = [
            operand for operand in node.all_input_nodes if torch.is_tensor(operand.meta.get("val"))
        ]
        cpu_operands = [operand for operand in operands if operand in on_cpu]
        if not cpu_operands or _name(node) in _MOVES:
            continue
        if len(cpu_operands) < len(operands):
            raise Error(_describe(cpu_operands[0].meta["val"]))
        on_cpu.add(node)


def _name(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else ""


def _describe(tensor: Any) -> str:
    return (
        f"Expected an IPU tensor but got tensor(device=cpu, shape={list(tensor.shape)}, "
        f"dtype={name_type(tensor.dtype)}).\nConstant tensors should be moved explicitly to the "
        'IPU, via cpu_tensor.to("ipu").'
    )
