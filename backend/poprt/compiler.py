"""Compiler: a converted ONNX model becomes an executable with its metadata and, where they are streamed, its
weights. How: `poprt.compiling`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnxgraph import remember_inferences
from onnxgraph.weights import has_data
from simipu import CompileError
from simipu.target import find_target

from poprt import pipeline
from poprt.capacity import check_weights
from poprt.compiling import CalibrationRun, compile_model
from poprt.constants import LEAST_CONSTANT_BYTES, take_weights
from poprt.executable import Executable
from poprt.frontend import OnnxFrontend
from poprt.options import CompilerOptions
from poprt.passes import PassManager

__all__ = ["Compiler", "CompilerOptions", "Executable"]


class Compiler:
    """The real tool's class: both methods are static and take the options last."""

    @staticmethod
    def compile(
        model: onnx.ModelProto | bytes | str | Path,
        outputs: Collection[str] | None = None,
        options: CompilerOptions | None = None,
        *,
        batch_axis: int = 0,
        float_model: onnx.ModelProto | None = None,
        calibration_data: Mapping[str, npt.NDArray[Any]] | None = None,
        on_step: Callable[[str], None] = lambda _step: None,
    ) -> Executable:
        """Compile a converted model (every shape static), or the ONNX file or bytes of one.

        `outputs` names those to keep; None keeps all. `batch_axis` is the axis of the batch in all inputs. A
        model in half is computed once, with `calibration_data` (rows by input name) or made-up inputs, beside
        `float_model`, the same before its precision was converted (None: itself, rounded nowhere): nodes
        whose results overflow, and outputs that part, are warned of. Raises CompileError naming the node, its
        operator and why.
        """
        options = options or CompilerOptions()
        options.check()
        loaded = _load(model)
        missing = next((tensor.name for tensor in loaded.graph.initializer if not has_data(tensor)), None)
        if missing is not None:
            raise CompileError(
                f"weight {missing!r} has no data; a model without its weights can be profiled, but not "
                "compiled"
            )
        target = find_target(options.ipu_version or "ipu2", options.num_ipus)
        check_weights(loaded.graph, target, allow_out_of_memory=options.allow_out_of_memory)
        light, weights = take_weights(loaded, LEAST_CONSTANT_BYTES if options.constant_weights else 0)
        calibration = CalibrationRun(float_model, outputs, calibration_data)
        with remember_inferences():
            passes = pipeline.preparation(pipeline.PreparationOptions(outputs, options.only_ipu_operators))
            light = PassManager(passes).run(light, on_step)
            return compile_model(light, weights, target, options, batch_axis, calibration, on_step)

    @staticmethod
    def compile_and_export(
        model: onnx.ModelProto | bytes | str | Path,
        outputs: Collection[str] | None,
        filename: str | Path,
        options: CompilerOptions | None = None,
    ) -> None:
        """Compile and write the PopEF file `filename`, streamed weights included."""
        Compiler.compile(model, outputs, options).export(filename)


def _load(model: onnx.ModelProto | bytes | str | Path) -> onnx.ModelProto:
    """A model of one's own, but for its large weights, which are read from where they are."""
    if isinstance(model, (str, Path)):
        return OnnxFrontend(model).open_model()
    if not isinstance(model, bytes):
        return model
    try:
        return onnx.load_model_from_string(model)
    except DecodeError as error:
        raise CompileError(f"{len(model)} bytes: expected a serialised ONNX model, found {error}") from error
