"""Models that can be profiled, and their profiles under requested settings: target, batch size,
precision, options.

A model is an ONNX file, whose weights may be missing, or a PopEF file that this project compiled.
Either may be in a folder, which is a model of a Triton repository or just holds a model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from google.protobuf.message import DecodeError
from model_runtime import read_model
from onnxgraph import find_folders, find_inputs, has_data, iter_nodes
from poprt import CompilerOptions, Converter
from poprt.compile import cost_options
from poprt.frontend import OnnxFrontend, check_standard, describe_invalid
from poprt.passes import check_names, get_pass
from poprt.performance import Profile, find_precision, make_profile
from poprt.triton import read_config
from simipu import (
    DEFAULT_CHIP,
    CompileError,
    SimulatedExecutable,
    find_target,
    read_graph,
    read_static,
)
from simipu.cost import CostOptions

from popef._tools.file_kinds import name_models
from popef._tools.text import escape, name_some
from poplar_triton.profile.weightless import strip_weights

_NAMES = ("executable.popef", "model.onnx")
"""File names that Triton's models and exporters use. If one exists, no other file of the folder is
considered."""
_SUFFIXES = (".popef", ".onnx")
_MAX_NAMED = 5
_MAX_GRAPHS = 8
"""Maximum number of converted graphs that are kept. A search returns to some of them; without large
weights each takes a few MB."""


def find_model_file(path: Path) -> Path:
    """Return the model's file at a path: the path itself if it is no folder.

    In a Triton model's folder it is the executable of the newest version, as config.pbtxt names it.
    In another folder it is executable.popef or model.onnx, or else the only model file. Raises
    CompileError if there is none or more than one; the message names the files there.
    """
    if not path.is_dir():
        return path
    version = _find_newest_version(path)
    places = [version, path] if version else [path]
    if model_file := _find_configured(path, places):
        return model_file
    for folder in places:
        if model_file := next(
            (folder / name for name in _NAMES if (folder / name).is_file()), None
        ):
            return model_file
    for folder in places:
        files = sorted(
            file for file in folder.iterdir() if file.suffix in _SUFFIXES and file.is_file()
        )
        if len(files) == 1:
            return files[0]
        if files:
            names = ", ".join(file.name for file in files[:_MAX_NAMED])
            raise CompileError(
                escape(f"folder {path} must hold exactly one model, found {names}; name the file")
            )
    raise CompileError(
        escape(
            f"folder {path}: expected {' or '.join(_NAMES)}, another file that ends in "
            f"{' or '.join(_SUFFIXES)}, or a Triton model folder with a version such as 1 that "
            f"contains one; found none; name the file{_name_models(path)}"
        )
    )


def _name_models(folder: Path) -> str:
    """Return files with models further down in a folder, to end an error with; or ""."""
    models = name_models(folder, *_SUFFIXES)
    return f": {name_some(models)}" if models else ""


def _find_newest_version(path: Path) -> Path | None:
    """Return the newest of the folders that Triton takes for versions, which are those named by a
    number."""
    versions = [folder for folder in path.iterdir() if folder.name.isdecimal() and folder.is_dir()]
    return max(versions, key=lambda folder: int(folder.name), default=None)


def _find_configured(path: Path, places: list[Path]) -> Path | None:
    """Return the first file that `executable_path` of config.pbtxt names, in the version's folder
    or the model's."""
    file = path / "config.pbtxt"
    if not file.is_file():
        return None
    parameters = read_config(file).parameters
    if "executable_path" not in parameters:
        return None
    name = parameters["executable_path"].string_value.partition(",")[0].strip()
    executable = next((folder / name for folder in places if (folder / name).is_file()), None)
    if name and executable is None:
        raise CompileError(
            escape(f"{file}: executable_path {name!r} does not exist; name the file to profile")
        )
    return executable


def open_source(path: Path, input_shape: Mapping[str, Sequence[int]] | None = None) -> Source:
    """Open the model in a file, or in a folder (`find_model_file`): PopEF by the suffix .popef,
    else ONNX.

    Raises CompileError, LoadError or PopefError naming what is wrong with it.
    """
    file = find_model_file(path)
    if file.suffix == ".popef" and input_shape:
        raise CompileError(
            f"{file} is already compiled for its shapes; --input_shape is for ONNX models"
        )
    source: Source = (
        PopefSource(file) if file.suffix == ".popef" else OnnxSource(file, dict(input_shape or {}))
    )
    if file != path:
        source.name = path.resolve().name or source.name
    return source


@dataclass(slots=True)
class OnnxSource:
    """ONNX model; only the shapes of its weights matter."""

    path: Path
    input_shape: dict[str, Sequence[int]]
    name: str = field(init=False)
    file: Path = field(init=False)
    """ONNX file at the path."""
    target: str = DEFAULT_CHIP
    precision: str = "fp32"
    """Precision of the estimate; fp32 keeps the model's own types, as in poprt."""
    options: CostOptions = field(default_factory=CostOptions)
    _model: onnx.ModelProto = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.file = file = Path(OnnxFrontend(self.path).get_onnx_name())
        self.name = file.stem
        try:
            self._model = onnx.load(file, format="protobuf", load_external_data=False)
        except DecodeError as error:
            raise CompileError(describe_invalid(file, error)) from error
        if not self._model.HasField("graph"):  # as of an empty file, which protobuf reads
            raise CompileError(describe_invalid(file, "it has no graph"))
        for name in ("spell_domains", "inline_custom_operators", "check_operators"):
            self._model = get_pass(name)(self._model)
        strip_weights(self._model, find_folders(file))
        check_names(self._model, self.input_shape)
        get_pass("admit")(self._model)
        self._check()

    def convert(
        self,
        batch_size: int | None,
        precision: str,
        on_step: Callable[[str], None],
        **converter: Any,
    ) -> onnx.ModelProto:
        """Return the converter's result, with large weights left without data. Raises CompileError
        like the converter."""
        converter_object = Converter(
            input_shape=self.input_shape,
            batch_size=batch_size,
            precision=precision,
            disable_progress_bar=True,
            **converter,
        )
        return converter_object.convert(self._model, on_step)

    @property
    def input_types(self) -> dict[str, int]:
        """Element types of the model's inputs by name."""
        inputs = find_inputs(self._model.graph)
        return {value.name: value.type.tensor_type.elem_type for value in inputs}

    def take_shapes(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Use those of `shapes` that belong to the model's inputs."""
        names = {value.name for value in find_inputs(self._model.graph)}
        self.input_shape = {name: shape for name, shape in shapes.items() if name in names}

    def _check(self) -> None:
        empty = {tensor.name for tensor in self._model.graph.initializer if not has_data(tensor)}
        try:
            check_standard(self._model, empty)
        except (onnx.checker.ValidationError, ValueError) as error:
            raise CompileError(describe_invalid(self.file, error)) from error


@dataclass(slots=True)
class PopefSource:
    """PopEF file: the graph of its main program, with the target and the options that the
    executable records."""

    path: Path
    name: str = field(init=False)
    target: str = field(init=False)
    precision: str = field(init=False)
    options: CostOptions = field(init=False)
    _executable: SimulatedExecutable = field(init=False, repr=False)
    _main: int = field(init=False)

    def __post_init__(self) -> None:
        model = read_model(self.path)
        self._executable = SimulatedExecutable.deserialize(model.executable.executable())
        mains = list(model.metadata.programFlow().main())
        if len(mains) != 1:
            raise CompileError(
                f"{self.path} has {len(mains)} main programs; only an executable with one can be "
                "profiled"
            )
        self._main = mains[0]
        self.name = _popef_name(self.path)
        self.target = self._executable.target.name
        self.precision = find_precision(read_graph(self._executable.program(self._main)))
        self.options = cost_options(
            CompilerOptions.from_dict(dict(self._executable.compile_options))
        )

    def convert(
        self,
        batch_size: int | None,
        precision: str,
        on_step: Callable[[str], None],
        **converter: Any,
    ) -> onnx.ModelProto:
        """Return the main program's graph. Another batch size is possible if the rows are
        independent."""
        on_step("read graph")
        if converter:
            raise CompileError(
                f"{self.path} is already converted; {', '.join(converter)} is for ONNX models"
            )
        if precision != self.precision:
            raise CompileError(
                f"{self.path} is compiled in {self.precision}; profile its ONNX model for "
                f"{precision}"
            )
        program = self._executable.program(self._main)
        compiled = program.batch_size
        if batch_size not in (None, compiled) and not (program.row_independent and compiled):
            raise CompileError(
                f"{self.path} is compiled for batch size {compiled or 'none'} and its rows are not "
                f"independent; profile its ONNX model for {batch_size}"
            )
        return _undo_rows(read_static(program, batch_size))


Source: TypeAlias = OnnxSource | PopefSource
"""Model that can be converted to a batch size and a precision. `target` is its default target."""


def _undo_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Restore the graph that was compiled.

    Nodes that compute the number of rows, to allow any number, become constants again. Copies of
    one constant for several nodes become one constant again.
    """
    if any(node.op_type == "Shape" for node in iter_nodes(model.graph)):
        model = get_pass("constant_folding")(model)
    return get_pass("remove_duplicated_initializer")(model)


def _popef_name(path: Path) -> str:
    """Return the model's name. In a Triton model repository the file is
    MODEL/VERSION/executable.popef."""
    version = path.resolve().parent
    is_in_repository = path.stem == "executable" and version.name.isdigit()
    return (version.parent.name if is_in_repository else "") or path.stem


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Requested settings; None means the source's own."""

    target: str | None = None
    batch_size: int | None = None
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of CostOptions by name, where they differ from the source's."""
    converter: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the Converter by name, where they differ from its defaults."""

    @property
    def graph(self) -> tuple[int | None, str | None, str]:
        """Part of the settings that determines the converted graph."""
        return self.batch_size, self.precision, repr(sorted(self.converter.items()))


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings: each further profile would repeat those of the first."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


class Estimator:
    """Profiles one source under many settings; equal graphs are converted once."""

    def __init__(self, source: Source, on_step: Callable[[str], None] = lambda _step: None) -> None:
        self.source = source
        self._on_step = on_step
        self._converted: dict[tuple[int | None, str, str], onnx.ModelProto] = {}

    def profile(self, settings: ProfileSettings) -> Profile:
        """Estimate what the model of the source costs under `settings`. Raises CompileError naming
        what cannot be compiled, and why."""
        target = find_target(settings.target or self.source.target)
        options = replace(self.source.options, **settings.options)
        if not 0 <= options.num_io_tiles < target.tiles_per_ipu:
            raise CompileError(
                f"num_io_tiles must be at least 0 and below the {target.tiles_per_ipu} tiles of "
                f"{target.label}, found {options.num_io_tiles}"
            )
        model = self.convert(settings)
        self._on_step("plan operators")
        precision = settings.precision or self.source.precision
        return make_profile(
            self.source.name, precision, model, target, options, settings.batch_size
        )

    def convert(self, settings: ProfileSettings) -> onnx.ModelProto:
        """Return the static graph of these settings, kept for further settings that share it.
        Raises CompileError like `profile`."""
        precision = settings.precision or self.source.precision
        key = (settings.batch_size, precision, settings.graph[-1])
        model = self._converted.pop(key, None)
        if model is None:
            model = self.source.convert(
                settings.batch_size, precision, self._on_step, **settings.converter
            )
        self._converted[key] = model  # last: the most recent one
        if len(self._converted) > _MAX_GRAPHS:
            del self._converted[next(iter(self._converted))]
        return model
