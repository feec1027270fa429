"""Sessions, by the names of the real tool's first releases: a model under ONNX Runtime, or compiled and run
on the simulated IPU. Most of its scripts use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxgraph import find_inputs, infer_shapes
from onnxgraph.edit import forget_values
from onnxgraph.weights import inline
from simipu import CompileError
from simipu.libraries import registered_libraries
from simipu.numerics.lowering import lower

from poprt.backends import Array, Backend, Info
from poprt.compiler import Compiler, CompilerOptions
from poprt.frontend import read_model
from poprt.passes import get_pass

__all__ = ["Session", "get_session"]

_BACKENDS = ("poprt", "onnxruntime")


class Session:
    """A model that can be run; `load` makes it ready. Settings are for before that."""

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
        """Compile with these; of a dict, with the others' defaults."""
        self._options = CompilerOptions.from_dict(options) if isinstance(options, Mapping) else options

    def set_output_dir(self, output_dir: str | Path) -> None:
        """Write there what is exported."""
        self._output_dir = Path(output_dir)

    def set_input_names(self, names: Sequence[str]) -> None:
        """Of TensorFlow models, for which there is no session."""
        raise CompileError(f"input names {list(names)}: an ONNX model has its own")

    def set_output_names(self, names: Sequence[str]) -> None:
        """Of TensorFlow models, for which there is no session."""
        raise CompileError(f"output names {list(names)}: an ONNX model has its own; use add_checkpoints")

    def load(self) -> Session:
        """Make the model ready; the session itself."""
        raise NotImplementedError

    def get_io_info(self) -> tuple[Info, Info]:
        """Shapes and types of the inputs and of the outputs, by name."""
        raise NotImplementedError

    def get_outputs(self) -> list[str]:
        """Names of the outputs, in order."""
        return [value.name for value in self._model.graph.output]

    def compile_and_export(self, path: str | Path) -> None:
        """Compile, and write the PopEF file."""
        Compiler.compile_and_export(self._model, None, path, self._options)

    def run(self, output_names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs of those names (None: all), in that order."""
        found = self._run(inputs)
        names = list(output_names or self.get_outputs())
        unknown = sorted(set(names) - found.keys())
        if unknown:
            raise CompileError(f"output {unknown[0]!r}: the model's are {', '.join(found)}")
        if not self._align:
            return [found[name] for name in names]
        types = {value.name: value.type.tensor_type.elem_type for value in self._model.graph.output}
        return [found[name].astype(onnx.helper.tensor_dtype_to_np_dtype(types[name])) for name in names]

    def _run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        raise NotImplementedError


def _session_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    for library in registered_libraries():
        options.register_custom_ops_library(library.path)
    return options


class _OrtSession(Session):
    """The model under ONNX Runtime, operators of the chip by their bodies."""

    _session: onnxruntime.InferenceSession | None = None

    def load(self) -> Session:
        for tensor in self._model.graph.initializer:
            inline(tensor)
        model = lower(get_pass("limit_ir_version")(self._model), None)
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), _session_options(), providers=["CPUExecutionProvider"]
        )
        return self

    def get_io_info(self) -> tuple[Info, Info]:
        # Scripts add inner tensors to the outputs by name alone: what those are is inferred, which takes that
        # nothing is said of them elsewhere.
        bare = onnx.ModelProto()
        bare.CopyFrom(self._model)
        forget_values(bare.graph)
        outputs = infer_shapes(bare).graph.output
        return _describe(find_inputs(self._model.graph)), _describe(outputs)

    def _run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if self._session is None:
            self.load()
        assert self._session is not None
        names = [value.name for value in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))


class _PopRTSession(Session):
    """The model compiled and run on the simulated IPU."""

    _backend: Backend | None = None

    def load(self) -> Session:
        self._backend = Backend(
            self._model,
            export_popef=self._output_dir / "executable.popef" if self._export else None,
            compiler_options=self._options,
        ).load()
        return self

    def get_io_info(self) -> tuple[Info, Info]:
        return self._loaded().get_io_info()

    def _run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        names = self.get_outputs()
        return dict(zip(names, self._loaded().run(names, inputs), strict=True))

    def _loaded(self) -> Backend:
        if self._backend is None:
            self.load()
        assert self._backend is not None
        return self._backend


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
    """A session of an ONNX model. `backend`: poprt (compiled; `num_devices` IPUs and `batches_per_step`, or
    `options`) or onnxruntime. `export_popef` writes output_dir/executable.popef; `align_output_dtype` gives
    outputs the types that the model says. Raises CompileError for another backend."""
    if backend not in _BACKENDS:
        raise CompileError(f"backend {backend!r}: there are {', '.join(_BACKENDS)}")
    kind = _PopRTSession if backend == "poprt" else _OrtSession
    return kind(
        path_or_bytes, num_devices, output_dir, options, batches_per_step, export_popef, align_output_dtype
    )


def _describe(values: Sequence[onnx.ValueInfoProto]) -> Info:
    return {
        value.name: (
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
        )
        for value in values
    }
