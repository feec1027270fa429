"""Converter: a trained ONNX model becomes one that the compiler can take: static, folded, in the chip's
types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx
from onnxgraph import name_nodes, without_weights
from onnxgraph.weights import is_outlined
from simipu import CompileError
from simipu.numerics.lowering import OLDEST_OPSET

from poprt.checks import admit, check_operators, check_static
from poprt.fixed_inputs import fix_inputs
from poprt.folding import fold
from poprt.half import float_to_half, half_to_float, has_halves, is_half
from poprt.integers import int64_to_int32
from poprt.quarter import Fp8Params, float_to_fp8
from poprt.shapes import fix_input_shapes

PRECISIONS = ("fp32", "fp16", "fp8", "fp8_weight")
MINIMUM_IR_VERSION = 8
"""ONNX IR 4 made initializers independent of inputs, on which every pass here relies; every supported ONNX
Runtime reads 8."""
MAXIMUM_IR_VERSION = 10
"""The newest that the oldest supported ONNX Runtime (1.18) reads; what came later describes things not
compiled here."""


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
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        if precision not in PRECISIONS:
            raise CompileError(f"precision {precision!r} is not supported; choose {', '.join(PRECISIONS)}")
        self.input_shape = dict(input_shape or {})
        self.convert_version = convert_version
        self.precision = precision
        self.fp16_skip_op_types = _names(fp16_skip_op_types)
        self.fp16_skip_op_names = _names(fp16_skip_op_names)
        self.fp8_params = Fp8Params() if fp8_params is None else Fp8Params.parse(fp8_params)
        self.fp8_skip_op_names = _names(fp8_skip_op_names)
        self.batch_size = batch_size
        self.batch_axis = batch_axis
        self.remove_outputs = frozenset(remove_outputs)
        self.fix_inputs = dict(fix_inputs or {})
        self._on_step = on_step

    def convert(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A new model; `model` itself is not changed. Raises CompileError naming what cannot be compiled, and
        why."""
        prepared, narrow = self._prepare(model)
        return self._narrow(prepared) if narrow else self._check(prepared)

    def convert_beside_float(self, model: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
        """The same, and what it was before its precision was converted, for `Compiler` to compare with
        (ours); None where it computes in float."""
        prepared, narrow = self._prepare(model)
        if not narrow:
            return self._check(prepared), None
        whole = onnx.ModelProto()
        whole.CopyFrom(prepared)
        return self._narrow(prepared), whole

    def _prepare(self, model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
        """A static model in float, folded and with all nodes named, and whether it is to be brought to
        half."""
        self._on_step("check operators")
        check_operators(model.graph)
        converted = onnx.ModelProto()
        converted.CopyFrom(model)
        admit(converted)
        narrow = self.precision != "fp32" or is_half(converted)
        version = self._version(converted, narrow)
        if version is not None:
            converted = _convert_version(converted, version)
        converted.ir_version = min(max(converted.ir_version, MINIMUM_IR_VERSION), MAXIMUM_IR_VERSION)
        self._remove_outputs(converted.graph)
        self._on_step("fix shapes")
        fix_inputs(converted, self.fix_inputs, self.input_shape)
        shapes = {name: shape for name, shape in self.input_shape.items() if name not in self.fix_inputs}
        fix_input_shapes(converted, shapes, self.batch_size, self.batch_axis)
        if narrow and has_halves(converted):
            half_to_float(converted)
        self._on_step("fold constants")
        fold(converted)
        name_nodes(converted.graph)
        self._on_step(f"convert to {self.precision}")
        int64_to_int32(converted)
        return converted, narrow

    def _narrow(self, model: onnx.ModelProto) -> onnx.ModelProto:
        float_to_half(model, self.fp16_skip_op_types, self.fp16_skip_op_names)
        if self.precision in ("fp8", "fp8_weight"):
            weights_only = self.precision == "fp8_weight"
            float_to_fp8(model, self.fp8_params, self.fp8_skip_op_names, weights_only=weights_only)
        return self._check(model)

    def _check(self, model: onnx.ModelProto) -> onnx.ModelProto:
        self._on_step("infer shapes")
        check_static(model)
        return model

    def _version(self, model: onnx.ModelProto, narrow: bool) -> int | None:
        """The opset to convert to, None for the model's own."""
        found = next(
            (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), OLDEST_OPSET
        )
        if self.convert_version is None and narrow and found < OLDEST_OPSET:
            return OLDEST_OPSET
        return self.convert_version

    def _remove_outputs(self, graph: onnx.GraphProto) -> None:
        names = [value.name for value in graph.output]
        unknown = sorted(self.remove_outputs - set(names))
        if unknown:
            raise CompileError(
                f"remove_outputs names {unknown[0]!r}; the model's outputs are {', '.join(names)}"
            )
        kept = [value for value in graph.output if value.name not in self.remove_outputs]
        if not kept:
            raise CompileError("remove_outputs leaves no output; keep at least one of " + ", ".join(names))
        del graph.output[:]
        graph.output.extend(kept)


def _names(names: Collection[str] | str | None) -> frozenset[str]:
    """What a user lists, as text with commas between or one by one; blanks around the names are no part of
    them."""
    listed = names.split(",") if isinstance(names, str) else names or ()
    return frozenset(stripped for name in listed if (stripped := name.strip()))


def _convert_version(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """The converter of onnx would carry weights to and fro: the large ones wait outside, as inputs."""
    outlined = {tensor.name: tensor for tensor in model.graph.initializer if is_outlined(tensor)}
    given = {value.name for value in model.graph.input}
    try:
        converted = onnx.version_converter.convert_version(without_weights(model, set(outlined)), version)
    except (onnx.version_converter.ConvertError, RuntimeError) as error:
        raise CompileError(
            f"the model cannot be converted to opset {version}: {' '.join(str(error).split())}"
        ) from error
    inputs = [value for value in converted.graph.input if value.name in given or value.name not in outlined]
    del converted.graph.input[:]
    converted.graph.input.extend(inputs)
    converted.graph.initializer.extend(outlined.values())
    return converted
