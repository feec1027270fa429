"""Converter: turns a trained ONNX model into one that the compiler accepts.

The result is static, folded, and in the chip's types.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import onnx
from onnxgraph import holding_few_pages, inline, is_lent, lend_weights, remember_inferences
from simipu import CompileError

from poprt import pipeline
from poprt.compile.model_fusion import MFConverter
from poprt.option_entry import Names
from poprt.options import ConverterOptions
from poprt.passes import Pass, PassManager, Stage
from poprt.passes.lowering.placed import Sharder
from poprt.terminal import show_progress

__all__ = ["Converter", "MFConverter", "Sharder"]

OnStep = Callable[[str], None]
"""Callback that receives the name of each step before it runs."""


class Converter:
    """Turns an ONNX model into one that `Compiler` accepts.

    Names, defaults and meanings of the arguments are the real tool's unless stated otherwise. Lists
    of names may be lists or texts separated by commas; an empty list has no effect. docs/passes.md
    describes the passes.

    Args:
        input_shape: variable dimensions to fix, by input name; -1 leaves a dimension to
            `batch_size`. Unknown names cause a warning.
        convert_version: target opset; None (the default; the real tool's is 11) keeps the model's
            opset. ONNX Runtime takes any, but a model in half needs 11.
        precision: fp32 (the model's types, which may be half), fp16, fp8 (fp16 with 8-bit operands
            of products) or fp8_weight (8-bit weights, computed with in half).
        io_precision: type of the inputs and outputs of floats: model (those of the converted
            model), fp32 (which JSON requests can carry) or fp16 (ours).
        checkpoints: inner tensors that become outputs too.
        eightbitsio: whether images come as bytes and are scaled on the chip.
        fp16_skip_op_types: operators, by their names after conversion, that stay in fp32 in an fp16
            model.
        fp16_skip_op_names: nodes that stay in fp32 in an fp16 model (ours).
        skip_passes: passes to leave out.
        used_passes: additional passes, run in that order after the others; they override disable_*.
        check: whether to run the converted model on random data.
        disable_fast_norm: whether layer norms stay GroupNormalization.
        pack_args: arguments of the packing of samples, see PackArgs.
        fp8_skip_op_names: products that stay in fp16.
        fp8_params: formats and scales, see Fp8Params; None means its defaults.
        quantize: whether to leave the model in the form that poprt.quantizer.quantize expects.
        enable_insert_remap: whether to lay tensors out anew where `remap_mode` says.
        enable_erf_gelu: whether to use the chip's Gelu for the formula with Erf, too.
        serialize_matmul: number of pieces to cut a product into, by node name.
        serialize_matmul_add: the same for a product and the addition behind it.
        merge_matmul: two products of one input to join.
        merge_matmul_add: the same with the additions behind them.
        merge_moe: two experts, from node to node, to compute at once.
        remap_mode: before_ or after_ and an operator.
        max_tensor_size: maximum size in bytes of a tensor that folding may make; -1 means no limit.
        infer_shape_ahead: whether to fold constants and infer shapes before anything else.
        enable_avoid_overflow_patterns: whether float_to_half keeps patterns known to overflow in
            fp32.
        disable_progress_bar: whether to show no bar on a terminal.
        batch_size: size of the batch in all inputs.
        batch_axis: axis of the batch in all inputs; None means 0.
        remove_outputs: outputs to drop, with everything that only they need.
        fold_periodic_initializer: whether to keep one period of weights that repeat.
        enable_compress_pattern: unsupported, because its patterns are not public.
        merge_if_with_same_cond: whether to join Ifs of one condition.
        apply_hcsr: type, shape and number of inputs to join, which the host concatenates.
        fix_inputs: values by name of inputs that become constants; if they decide an If, only the
            taken branch is left (ours).
        logger: logger of the passes; None means poprt's.
    """

    def __init__(
        self,
        *,
        input_shape: Mapping[str, Sequence[int]] | None = None,
        convert_version: int | None = None,
        precision: str = "fp32",
        io_precision: str = "model",
        checkpoints: Names = None,
        eightbitsio: bool = False,
        fp16_skip_op_types: Names = None,
        fp16_skip_op_names: Names = None,
        skip_passes: Names = None,
        used_passes: Names = (),
        check: bool = False,
        disable_fast_norm: bool = False,
        pack_args: Mapping[str, Any] | None = None,
        fp8_skip_op_names: Names = None,
        fp8_params: str | Sequence[Any] | None = "F143,F143,0,0",
        quantize: bool = False,
        enable_insert_remap: bool = False,
        enable_erf_gelu: bool = False,
        serialize_matmul: Mapping[str, str] | None = None,
        serialize_matmul_add: Mapping[str, str] | None = None,
        merge_matmul: str | None = None,
        merge_matmul_add: str | None = None,
        merge_moe: str | None = None,
        remap_mode: Names = ("after_matmul",),
        max_tensor_size: int = -1,
        infer_shape_ahead: bool = False,
        enable_avoid_overflow_patterns: bool = False,
        disable_progress_bar: bool = False,
        batch_size: int | None = None,
        batch_axis: int | None = None,
        remove_outputs: Names = (),
        fold_periodic_initializer: bool = False,
        enable_compress_pattern: bool = False,
        merge_if_with_same_cond: bool = False,
        apply_hcsr: Mapping[str, Any] | Sequence[Sequence[Any]] | None = None,
        fix_inputs: Mapping[str, Any] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.options = ConverterOptions.from_arguments(locals())
        self.logger = logger or logging.getLogger("poprt")
        self.disable_progress_bar = disable_progress_bar

    def convert(self, model: onnx.ModelProto, on_step: OnStep | None = None) -> onnx.ModelProto:
        """Convert a model.

        Args:
            model: the model, which is not changed.
            on_step: called with the name of each step; None means no call.

        Returns:
            The converted model.

        Raises:
            CompileError: naming what cannot be compiled, and why.

        Example:
            >>> import onnx
            >>> import poprt
            >>> converter = poprt.Converter(precision="fp16", batch_size=4)
            >>> converted = converter.convert(onnx.load("model.onnx"))
            >>> shape = converted.graph.input[0].type.tensor_type.shape
            >>> [dimension.dim_value for dimension in shape.dim]
            [4, 4]
        """
        return self.convert_beside_float(model, on_step, beside=False)[0]

    def convert_beside_float(
        self, model: onnx.ModelProto, on_step: OnStep | None = None, *, beside: bool = True
    ) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
        """Convert the model like `convert`, for `Compiler`, which compares two precisions (ours).

        Args:
            model: the model, which is not changed.
            on_step: called with the name of each step.
            beside: whether to keep the model before its precision was converted.

        Returns:
            The converted model, and the model before its precision was converted; None if the model
            computes in float, or without `beside`.

        Raises:
            CompileError: as `convert` does.
        """
        if not isinstance(model, onnx.ModelProto):
            raise CompileError(
                f"model: expected onnx.ModelProto, found {type(model).__name__}; read a file with "
                "onnx.load(path)"
            )
        passes = pipeline.conversion(self.options, model)
        before = [graph_pass for graph_pass in passes if graph_pass.info.stage < Stage.PRECISION]
        after = passes[len(before) :]
        for graph_pass in passes:
            graph_pass.logger = self.logger
        hidden = self.disable_progress_bar
        with (
            show_progress("PopRT conversion", len(pipeline.STEPS), disabled=hidden) as show,
            holding_few_pages(),
            remember_inferences(),
            _begin(model, passes) as own,
        ):
            on_pass = _report_steps(passes, [show, on_step] if on_step else [show])
            converted = PassManager(before).run(own, on_pass)
            narrows = beside and any(
                graph_pass.info.stage is Stage.PRECISION for graph_pass in after
            )
            float_model = _end(deepcopy(converted)) if narrows else None
            final = _end(PassManager(after).run(converted, on_pass))
        if self.options.quantize:
            # Imported here: few models are quantized.
            from poprt.quantizer.quantizer import Notes

            Notes.leave(final, self.options.fp8_params, self.options.fp8_skip_op_names)
        return final, float_model


def _begin(
    model: onnx.ModelProto, passes: Sequence[Pass]
) -> AbstractContextManager[onnx.ModelProto]:
    """Return a copy of the model for the passes.

    Large weights stay where they are. User passes expect them in the initializers, so with such
    passes they are loaded.
    """
    if all(type(graph_pass).__module__.startswith("poprt.") for graph_pass in passes):
        return lend_weights(model)
    own = deepcopy(model)
    for tensor in own.graph.initializer:
        inline(tensor)
    return nullcontext(own)


def _end(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its own weights; weights in files stay there."""
    for tensor in model.graph.initializer:
        if is_lent(tensor):
            inline(tensor)
    return model


def _report_steps(passes: Sequence[Pass], listeners: Sequence[OnStep]) -> OnStep:
    """Return a function that is called with each pass that is about to run, and tells the listeners
    each of the five steps when its first pass comes."""
    stages = {graph_pass.name: graph_pass.info.stage for graph_pass in passes}
    steps = list(pipeline.STEPS)

    def on_pass(name: str) -> None:
        while steps and stages[name] >= steps[0][0]:
            _, title = steps.pop(0)
            for listener in listeners:
                listener(title)

    return on_pass
