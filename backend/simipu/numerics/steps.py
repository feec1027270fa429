"""Writes the steps of a lowering: kernels' chains of one step, which are joined later, and the
nodes that round a result where there are no kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnxgraph import Tape

from simipu.numerics.blocks import Shape
from simipu.numerics.functions import Table, is_hard_swish
from simipu.numerics.kernels import (
    BINARY,
    CHAIN,
    ROUNDINGS,
    KernelStep,
    KnownFunction,
    StepKind,
    make_kernel,
)
from simipu.numerics.options import KernelUse, Numerics
from simipu.numerics.rounding import round_to_half
from simipu.numerics.tensors import Tensors
from simipu.operators import Rounding


@dataclass(slots=True)
class StepWriter:
    """Writer of steps for the tensors of one model."""

    tensors: Tensors
    numerics: Numerics | None
    kernels: KernelUse
    table_values: dict[str, npt.NDArray[np.float16]] = field(default_factory=dict)
    """Values of the lookup tables, by initializer."""

    @property
    def has_kernels(self) -> bool:
        """Return whether kernels are available, and there is something to round."""
        return (
            self.kernels is not KernelUse.NONE
            and self.tensors.is_narrow
            and self.numerics is not None
        )

    @property
    def is_fused(self) -> bool:
        """Return whether kernels include further steps."""
        return self.kernels is KernelUse.FUSED and self.has_kernels

    def flags(self) -> dict[str, int]:
        """Return the attributes of kernels that define the treatment of results that are too
        large."""
        assert self.numerics is not None
        return {
            "nan_on_overflow": int(self.numerics.nan_on_overflow),
            "raises": int(self.numerics.raises),
        }

    def step(self, source: str, step: KernelStep, result: str) -> onnx.NodeProto:
        """Return a chain of one step."""
        assert self.numerics is not None
        return make_kernel(CHAIN, [source], result, [step], **self.flags())

    def look_up(self, table: Table, result: str) -> onnx.NodeProto:
        """Return a chain of a lookup."""
        known = KnownFunction.HARD_SWISH if is_hard_swish(table.values) else KnownFunction.ANY
        step = KernelStep(StepKind.TABLE, operand=self.hold(table), number=float(known))
        return self.step(table.root, step, result)

    def hold(self, table: Table) -> str:
        """Return the name of the initializer that holds a table."""
        for name, values in self.table_values.items():
            if values is table.values:
                return name
        name = f"simipu/table/{len(self.table_values)}"
        self.table_values[name] = table.values
        return name

    def apply(self, op: Tape, op_type: str, left: str, right: str, shape: Shape | None) -> str:
        """Add an operator of a product and another operand, in float, which the node of the product
        can include."""
        if self.kernels is KernelUse.APART:
            return op.add(op_type, left, right)
        result = op.new_name()
        self.tensors.dims[result] = self.tensors.dims[left]
        if shape is not None:
            self.tensors.dims[right] = shape
        op.nodes.append(self.step(left, KernelStep(BINARY[op_type][0], operand=right), result))
        return result

    def round(
        self, op: Tape, source: str, rounding: Rounding = Rounding.ROUNDED, result: str = ""
    ) -> str:
        """Add the rounding of a result to half, and return the name of the rounded one."""
        assert self.numerics is not None
        if self.has_kernels:
            rounded = result or op.new_name()
            op.nodes.append(
                self.step(source, KernelStep(StepKind.NONE, ROUNDINGS[rounding]), rounded)
            )
            return rounded
        return round_to_half(
            op,
            source,
            nan_on_overflow=self.numerics.nan_on_overflow,
            bounded=rounding is Rounding.BOUNDED,
            growing=rounding is Rounding.GROWING,
            result=result,
        )
