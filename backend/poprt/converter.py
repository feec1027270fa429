"""Converter: a trained ONNX model becomes one that the compiler can take: static, folded, in the chip's
types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx

from poprt import pipeline
from poprt.options import ConverterOptions
from poprt.passes import PassManager, Stage
from poprt.passes.precision import Fp8Params

OnStep = Callable[[str], None]
"""Is told the name of each step before it is taken."""


def _ignore(_step: str) -> None:
    """Nobody looks on."""


class Converter:
    """Turns an ONNX model into one that `Compiler` accepts. Names and meanings of the arguments are the real
    tool's.

    input_shape: variable dimensions to fix, by input name. batch_size, batch_axis: the size, and the axis
    (default 0), of the batch in all inputs. precision: fp32 (what the model has, which may be half), fp16,
    fp8 (fp16 with 8-bit operands of products) or fp8_weight (8-bit weights, computed with in half).
    fp16_skip_op_types, fp16_skip_op_names (ours): operators and nodes that stay in fp32 in an fp16 model.
    fp8_params: formats and scales, see Fp8Params (None: its defaults). fp8_skip_op_names: products that stay
    in fp16. remove_outputs: outputs to drop with all that only they need. fix_inputs (ours): values by name
    of inputs that become constants; of an If that they decide only the branch taken is left. convert_version:
    target opset; None keeps the model's (the real tool's PopART wants 11, ONNX Runtime takes any), but a
    model in half needs 11.
    """

    def __init__(
        self,
        *,
        input_shape: Mapping[str, Sequence[int]] | None = None,
        convert_version: int | None = None,
        precision: str = "fp32",
        fp16_skip_op_types: Collection[str] | str | None = None,
        fp16_skip_op_names: Collection[str] | str | None = None,
        fp8_params: str | None = "F143,F143,0,0",
        fp8_skip_op_names: Collection[str] | str | None = None,
        batch_size: int | None = None,
        batch_axis: int | None = None,
        remove_outputs: Collection[str] = (),
        fix_inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self.options = ConverterOptions(
            input_shape=dict(input_shape or {}),
            convert_version=convert_version,
            precision=precision,
            fp16_skip_op_types=_names(fp16_skip_op_types),
            fp16_skip_op_names=_names(fp16_skip_op_names),
            fp8_params=Fp8Params() if fp8_params is None else Fp8Params.parse(fp8_params),
            fp8_skip_op_names=_names(fp8_skip_op_names),
            batch_size=batch_size,
            batch_axis=batch_axis,
            remove_outputs=frozenset(remove_outputs),
            fix_inputs=dict(fix_inputs or {}),
        )

    def convert(self, model: onnx.ModelProto, on_step: OnStep = _ignore) -> onnx.ModelProto:
        """A new model; `model` itself is not changed. Raises CompileError naming what cannot be compiled, and
        why."""
        return PassManager(pipeline.conversion(self.options, model)).run(_copy(model), on_step)

    def convert_beside_float(
        self, model: onnx.ModelProto, on_step: OnStep = _ignore
    ) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
        """The same, and what it was before its precision was converted, for `Compiler` to compare with
        (ours); None where it computes in float."""
        passes = pipeline.conversion(self.options, model)
        before = [each for each in passes if each.info.stage < Stage.PRECISION]
        after = passes[len(before) :]
        converted = PassManager(before).run(_copy(model), on_step)
        narrows = any(each.info.stage is Stage.PRECISION for each in after)
        whole = _copy(converted) if narrows else None
        return PassManager(after).run(converted, on_step), whole


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _names(names: Collection[str] | str | None) -> frozenset[str]:
    """What a user lists, as text with commas between or one by one; blanks around the names are no part of
    them."""
    listed = names.split(",") if isinstance(names, str) else names or ()
    return frozenset(stripped for name in listed if (stripped := name.strip()))
