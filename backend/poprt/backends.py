"""Backends, under the real tool's names: an ONNX model that is compiled when it is first needed,
and run from Python.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from simipu import CompileError

from popef._tools.arrays import Array
from poprt.compile.compiler import Compiler
from poprt.frontend.frontends import Model, read_model
from poprt.options import CompilerOptions
from poprt.runtime import AnyConfig, RuntimeConfig
from poprt.runtime.runners import Underneath, open_runner

Info = dict[str, tuple[list[int], np.dtype[Any]]]
"""Shape and type of each tensor, by name."""


def choose_outputs(
    made: Mapping[str, Array], names: Sequence[str], model: onnx.ModelProto, *, align: bool
) -> list[Array]:
    """Return the outputs in the order of the names.

    Args:
        made: arrays by output name.
        names: names of the outputs.
        model: the model, which declares the types of the outputs.
        align: whether outputs get the types that the model declares.

    Returns:
        The outputs.

    Raises:
        CompileError: for an unknown name.
    """
    unknown = sorted(set(names) - made.keys())
    if unknown:
        raise CompileError(f"output {unknown[0]!r}: expected one of {', '.join(made)}")
    if not align:
        return [np.asarray(made[name]) for name in names]
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    return [
        np.asarray(made[name]).astype(onnx.helper.tensor_dtype_to_np_dtype(types[name]))
        for name in names
    ]


class Backend:
    """Compiles and runs a converted ONNX model, when it is first needed.

    Args:
        path_or_bytes: the model: a ModelProto, its bytes, or a file.
        export_popef: PopEF file to write; None means no file.
        compiler_options: options of the compiler; None means the defaults.
        runtime_options: configuration of the runner; None means the defaults.
        align_output_dtype: whether outputs get the types that the ONNX model declares.
        logger: the logger; None means poprt's.
    """

    def __init__(
        self,
        path_or_bytes: Model,
        *,
        export_popef: str | Path | None = None,
        compiler_options: CompilerOptions | None = None,
        runtime_options: AnyConfig | None = None,
        align_output_dtype: bool = False,
        logger: logging.Logger | None = None,
    ) -> None:
        self.logger = logger or logging.getLogger("poprt")
        self.model = read_model(
            path_or_bytes.read() if hasattr(path_or_bytes, "read") else path_or_bytes
        )
        self.export_popef = export_popef
        self.compiler_options = compiler_options or CompilerOptions()
        self.runtime_options: AnyConfig = runtime_options or RuntimeConfig()
        self._align = align_output_dtype
        self._runner: Underneath | None = None

    def set_opaque_blobs(self, blobs: Mapping[str, str | bytes]) -> None:
        """Add these blobs to the executable; must be called before the model is compiled."""
        merged: dict[str, Any] = {**self.compiler_options.opaque_blobs, **blobs}
        self.compiler_options.opaque_blobs = merged

    def load(self) -> Backend:
        """Compile the model, export it if requested, make it ready, and return this backend."""
        executable = Compiler.compile(self.model, None, self.compiler_options)
        if self.export_popef is not None:
            Path(self.export_popef).parent.mkdir(parents=True, exist_ok=True)
            executable.export(self.export_popef)
        self._runner = open_runner(executable.getPopefModel(), self.runtime_options)
        return self

    def get_io_info(self) -> tuple[Info, Info]:
        """Return shapes and types, by name, of the inputs and of the outputs of one compiled
        batch."""
        runner = self._loaded()
        inputs, outputs = (
            {entry.name: (list(entry.shape), entry.numpy_data_type()) for entry in described}
            for described in (runner.getExecuteInputs(), runner.getExecuteOutputs())
        )
        return inputs, outputs

    def run(
        self,
        output_names: Sequence[str] | None,
        inputs: Mapping[str, Array],
        align_output_dtype: bool = False,
    ) -> list[Array]:
        """Compute a request and return the outputs.

        Args:
            output_names: names of the outputs; None means all.
            inputs: arrays by input name, of one compiled batch.
            align_output_dtype: whether outputs get the types that the ONNX model declares; also if
                the constructor requests it.

        Returns:
            The outputs in the order of the names.

        Raises:
            CompileError: for an unknown name, or if the model cannot be compiled.
            ModelRuntimeError: for inputs that do not fit.

        Example:
            >>> import numpy as np
            >>> import onnx
            >>> import poprt
            >>> converted = poprt.Converter(batch_size=2).convert(onnx.load("model.onnx"))
            >>> backend = poprt.Backend(converted)
            >>> backend.run(["y"], {"x": np.ones((2, 4), np.float32)})[0].tolist()
            [[2.0, 2.0, 2.0, 2.0], [2.0, 2.0, 2.0, 2.0]]
        """
        results = self._loaded().execute(inputs)
        align = self._align or align_output_dtype
        return choose_outputs(results, output_names or list(results), self.model, align=align)

    def _loaded(self) -> Underneath:
        if self._runner is None:
            self.load()
        assert self._runner is not None
        return self._runner


class ORTBackend(Backend):
    """Backend with the arguments of onnxruntime.InferenceSession.

    Args:
        path_or_bytes: the model: a ModelProto, its bytes, or a file.
        sess_options: no effect.
        providers: no effect.
        provider_options: no effect.
        lazy_load: whether to compile the model when it is first needed, instead of at once.
        options: keyword arguments of Backend.
    """

    def __init__(
        self,
        path_or_bytes: Model,
        sess_options: Any = None,  # noqa: ARG002
        providers: Any = None,  # noqa: ARG002
        provider_options: Any = None,  # noqa: ARG002
        lazy_load: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(path_or_bytes, **options)
        if not lazy_load:
            self.load()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Array],
        run_options: Any = None,  # noqa: ARG002
    ) -> list[Array]:
        """Return the named outputs, as `Backend.run` does."""
        return super().run(output_names, input_feed)
