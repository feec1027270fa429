"""Sessions, under the names of the real tool's first releases: a model that runs under ONNX
Runtime, or is compiled and run on the simulated IPU. Most of the real tool's scripts use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxgraph import find_inputs, forget_values, infer_shapes, inline
from simipu import CompileError, registered_libraries
from simipu.numerics import lower

from popef._tools.arrays import Array
from poprt.backends import Backend, Info, choose_outputs
from poprt.compile.compiler import Compiler
from poprt.frontend.frontends import read_model
from poprt.options import CompilerOptions
from poprt.passes import get_pass

_BACKENDS = ("poprt", "onnxruntime")


class Session:
    """A model that is compiled and run on the simulated IPU.

    Settings must be made before `load`, which makes the model ready.

    Args:
        path_or_bytes: the ONNX file, or its bytes.
        num_devices: number of IPUs.
        output_dir: folder for executable.popef.
        options: compiler options, or their values by name; they take precedence.
        batches_per_step: number of batches in a run.
        export_popef: whether `load` writes executable.popef.
        align_output_dtype: whether outputs get the types that the model declares.

    Raises:
        CompileError: for a model that is not valid, or an option that is not supported.
    """

    _backend: Backend | None = None

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        num_devices: int = 1,
        output_dir: str | Path = "./",
        options: CompilerOptions | Mapping[str, Any] | None = None,
        batches_per_step: int = 1,
        export_popef: bool = False,
        align_output_dtype: bool = False,
    ) -> None:
        self._model = read_model(path_or_bytes)
        self._output_dir, self._export = Path(output_dir), export_popef
        self._align = align_output_dtype
        counts = {"num_ipus": num_devices, "batches_per_step": batches_per_step}
        self._options = CompilerOptions.from_dict(counts)
        if options is not None:
            self.set_options({**counts, **options} if isinstance(options, Mapping) else options)

    def set_options(self, options: CompilerOptions | Mapping[str, Any]) -> None:
        """Set the compiler options; options that a dict lacks get their defaults."""
        self._options = (
            CompilerOptions.from_dict(options) if isinstance(options, Mapping) else options
        )

    def set_output_dir(self, output_dir: str | Path) -> None:
        """Set the folder for exported files."""
        self._output_dir = Path(output_dir)

    def set_input_names(self, names: Sequence[str]) -> None:
        """Raise CompileError: this method is for TensorFlow models, which have no session."""
        raise CompileError(f"input names {list(names)}: an ONNX model has its own")

    def set_output_names(self, names: Sequence[str]) -> None:
        """Raise CompileError: this method is for TensorFlow models, which have no session."""
        raise CompileError(
            f"output names {list(names)}: an ONNX model has its own; use add_checkpoints"
        )

    def load(self) -> Session:
        """Make the model ready and return the session itself."""
        self._backend = Backend(
            self._model,
            export_popef=self._output_dir / "executable.popef" if self._export else None,
            compiler_options=self._options,
        ).load()
        return self

    def get_io_info(self) -> tuple[Info, Info]:
        """Return shapes and types of the inputs and of the outputs, by name."""
        return self._loaded().get_io_info()

    def get_outputs(self) -> list[str]:
        """Return the names of the outputs, in order."""
        return [value.name for value in self._model.graph.output]

    def compile_and_export(self, path: str | Path) -> None:
        """Compile the model and write the PopEF file."""
        Compiler.compile_and_export(self._model, None, path, self._options)

    def run(self, output_names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the named outputs (None: all), in that order."""
        names = output_names or self.get_outputs()
        return choose_outputs(self._run(inputs), names, self._model, align=self._align)

    def _run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        names = self.get_outputs()
        return dict(zip(names, self._loaded().run(names, inputs), strict=True))

    def _loaded(self) -> Backend:
        if self._backend is None:
            self.load()
        assert self._backend is not None
        return self._backend


class _OrtSession(Session):
    """Session under ONNX Runtime; operators of the chip run as their function bodies."""

    _session: onnxruntime.InferenceSession | None = None

    def load(self) -> Session:
        for tensor in self._model.graph.initializer:
            inline(tensor)
        options = onnxruntime.SessionOptions()
        for library in registered_libraries():
            options.register_custom_ops_library(library.path)
        model = lower(get_pass("limit_ir_version")(self._model), None)
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return self

    def get_io_info(self) -> tuple[Info, Info]:
        # Scripts add inner tensors to the outputs by name alone. Their types are inferred, which
        # requires that the graph does not describe them elsewhere.
        bare = deepcopy(self._model)
        forget_values(bare.graph)
        outputs = infer_shapes(bare).graph.output
        return _describe(find_inputs(self._model.graph)), _describe(outputs)

    def _run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if self._session is None:
            self.load()
        assert self._session is not None
        names = [value.name for value in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))


def get_session(
    path_or_bytes: str | Path | bytes,
    num_devices: int = 1,
    backend: str = "poprt",
    output_dir: str | Path = "./",
    options: CompilerOptions | Mapping[str, Any] | None = None,
    batches_per_step: int = 1,
    export_popef: bool = False,
    align_output_dtype: bool = False,
) -> Session:
    """Return a session of an ONNX model.

    Args:
        path_or_bytes: the ONNX file, or its bytes.
        num_devices: number of IPUs.
        backend: poprt, which compiles the model, or onnxruntime.
        output_dir: folder for executable.popef.
        options: compiler options, or their values by name; they take precedence.
        batches_per_step: number of batches in a run.
        export_popef: whether `load` writes executable.popef.
        align_output_dtype: whether outputs get the types that the model declares.

    Returns:
        The session, which is not loaded yet.

    Raises:
        CompileError: for another backend.
    """
    if backend not in _BACKENDS:
        raise CompileError(f"backend: expected {' or '.join(_BACKENDS)}, found {backend!r}")
    kind = Session if backend == "poprt" else _OrtSession
    return kind(
        path_or_bytes,
        num_devices,
        output_dir,
        options,
        batches_per_step,
        export_popef,
        align_output_dtype,
    )


def _describe(values: Sequence[onnx.ValueInfoProto]) -> Info:
    return {
        value.name: (
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
        )
        for value in values
    }
