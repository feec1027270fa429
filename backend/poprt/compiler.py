"""Compiler: a converted ONNX model becomes an executable with its metadata and, where they are streamed, its
weights."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import simipu
from google.protobuf.message import DecodeError
from onnx import TensorProto
from onnxgraph import iter_nodes, keep_outputs, remember_inferences, without_weights
from onnxgraph.tensors import count_bytes
from onnxgraph.weights import has_data, is_outlined, read_array
from simipu import (
    CompileError,
    Constant,
    Direction,
    GraphOptions,
    LoadError,
    OutOfMemoryError,
    Program,
    ProgramKind,
    Stream,
)
from simipu.cost import CostOptions, Estimate, estimate
from simipu.errors import LoadTimeoutError
from simipu.isolation import open_graph
from simipu.numerics import Numerics
from simipu.numerics.quarter import QUARTERS
from simipu.rows import take_rows
from simipu.target import Target, find_target

import popef
from poprt import pipeline
from poprt.calibration import READY_SECONDS, Findings, Side, calibrate
from poprt.frontend import OnnxFrontend
from poprt.memory import check_weights
from poprt.options import CompilerOptions
from poprt.passes import PassManager
from poprt.passes.precision import FloatToHalf
from poprt.passes.surgery import MAXIMUM_IR_VERSION
from poprt.pipeline import Step

__all__ = ["Compiler", "CompilerOptions", "Executable"]

LOAD_PROGRAM, MAIN_PROGRAM = 0, 5
"""PopART's program indices: WeightsFromHost and Program."""

_WEIGHT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, *QUARTERS)
_LEAST_NODES_TO_TRY = 50_000
"""Smaller graphs in float are ready in time (20,000 nodes take 5 to 19 s); those in half the calibration run
tries."""
_LEAST_CONSTANT_BYTES = 1024
"""Smaller frozen weights stay in the graph, where ONNX Runtime may fold them."""

_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled model: the payload, what PopEF says of it, and the weights that are streamed at load."""

    executable: simipu.Executable
    metadata: popef.Metadata
    weights: dict[str, npt.NDArray[Any]]
    opaque_blobs: dict[str, bytes]
    findings: Findings = field(default_factory=Findings)
    """What half precision does to the outputs, and the nodes whose results it cannot hold."""

    @property
    def cycles(self) -> int:
        """Modelled cycles of one compiled batch."""
        return self.executable.cycles(MAIN_PROGRAM)

    @property
    def rows(self) -> popef.RowFacts:
        """Whether the rows of a batch are proven to be independent, or why not, and along which axis they
        lie."""
        main = self.executable.program(MAIN_PROGRAM)
        axes = {stream.tensor: stream.batch_axis for stream in main.streams if stream.batch_axis}
        return popef.RowFacts(None if main.row_independent else main.row_dependence, axes)

    def export(
        self, filename: str | Path | BinaryIO, weights_filename: str | Path | BinaryIO | None = None
    ) -> None:
        """Write the PopEF file; streamed weights go into it too, or into `weights_filename` where given."""
        with popef.Writer(filename) as writer:
            writer.writeMetadata(self.metadata)
            with writer.createExecutable(self.executable.name) as blob:
                for piece in self.executable.iter_serialized():
                    blob.write(piece)
            blobs = {popef.ROWS_BLOB: self.rows.encode(), **self.opaque_blobs}
            for name, payload in sorted(blobs.items()):
                with writer.createOpaqueBlob(name, self.executable.name) as blob:
                    blob.write(payload)
            if weights_filename is None:
                self._write_weights(writer)
        if weights_filename is not None and self.weights:
            with popef.Writer(weights_filename) as writer:
                self._write_weights(writer)

    def _write_weights(self, writer: popef.Writer) -> None:
        for name, value in self.weights.items():
            info = popef.TensorDataInfo(name=name, tensorInfo=_tensor_info(value.shape, value.dtype))
            with writer.createTensorData(info) as blob:
                blob.write(np.ascontiguousarray(value).data)


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
        on_step: Callable[[str], None] = lambda step: None,
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
        light, weights = _take_weights(loaded, _LEAST_CONSTANT_BYTES if options.constant_weights else 0)
        calibration = _Calibration(float_model, outputs, calibration_data)
        with remember_inferences():
            passes = pipeline.preparation(pipeline.PreparationOptions(outputs, options.only_ipu_operators))
            light = PassManager(passes).run(light, on_step)
            return _compile(light, weights, target, options, batch_axis, calibration, on_step)

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


@dataclass(frozen=True, slots=True)
class _Calibration:
    """What the calibration run needs beside the model in half."""

    float_model: onnx.ModelProto | None
    outputs: Collection[str] | None
    data: Mapping[str, npt.NDArray[Any]] | None

    def run(self, half: Side, main: Program) -> Findings:
        """Compare `half` with the model in float; `main` is its program."""
        inputs = [stream for stream in main.streams if stream.direction is Direction.HOST_TO_DEVICE]
        try:
            if self.float_model is None:
                return calibrate(half, None, inputs, main.batch_size, self.data)
            whole = self._split(self.float_model, None)
            in_quarters = any(tensor.data_type in QUARTERS for tensor in half.model.graph.initializer)
            renarrow = None if in_quarters else lambda types: self._narrow(half, types)
            return calibrate(half, whole, inputs, main.batch_size, self.data, renarrow)
        except LoadTimeoutError as error:
            raise _not_ready(error) from error

    def _split(self, model: onnx.ModelProto, numerics: Numerics | None) -> Side:
        light, weights = _take_weights(model, _LEAST_CONSTANT_BYTES)
        if self.outputs is not None:
            keep_outputs(light.graph, self.outputs)
        return Side(light, weights, numerics)

    def _narrow(self, half: Side, types: Collection[str]) -> Side:
        """The model in half with operators of those types in float."""
        assert self.float_model is not None
        model = onnx.ModelProto()
        model.CopyFrom(self.float_model)
        return self._split(FloatToHalf(types).run(model), half.numerics)


def _compile(
    model: onnx.ModelProto,
    given: Mapping[str, npt.NDArray[Any]],
    target: Target,
    options: CompilerOptions,
    batch_axis: int,
    calibration: _Calibration,
    on_step: Callable[[str], None],
) -> Executable:
    if options.num_io_tiles >= target.tiles_per_ipu:
        raise CompileError(
            f"compiler option num_io_tiles must be below the {target.tiles_per_ipu} tiles of {target.name}, "
            f"found {options.num_io_tiles}"
        )
    on_step(Step.ESTIMATE.value)
    cost = estimate(model, target, cost_options(options))
    _check_memory(cost, options)
    on_step(Step.ROWS.value)
    graph, streams, dependence = take_rows(model, _make_streams(model.graph), batch_axis, given)
    if dependence:
        _log.info("the compiled batch is always computed whole: %s", dependence)
    weights = {tensor.name: given[tensor.name] for tensor in graph.graph.initializer if tensor.name in given}
    streamed = {} if options.constant_weights else weights
    on_step(Step.BUILD.value)
    main = Program(
        MAIN_PROGRAM,
        "main_program",
        ProgramKind.MAIN,
        streams,
        _serialize(graph),
        not dependence,
        cost.cycles,
        cost.interval_cycles if options.enable_pipelining else 0,
        cost.overlapped,
        dependence,
    )
    on_step(Step.CALIBRATE.value)
    findings = calibration.run(Side(model, given, options.numerics()), main)
    if findings.comparison is None:
        _check_ready(main, weights, options)
    load = Program(
        LOAD_PROGRAM,
        "load_program",
        ProgramKind.LOAD,
        tuple(_weight_stream(n, v) for n, v in streamed.items()),
    )
    name = _hash_name(main.graph, weights, options)
    constants = () if streamed else tuple(_make_constant(name, value) for name, value in weights.items())
    executable = simipu.Executable(
        name,
        target,
        (load, main),
        compile_options=options.changed(),
        constants=constants,
        numerics=options.numerics(),
    )
    return Executable(
        executable, _make_metadata(executable, options), streamed, options.opaque_blobs, findings
    )


def _check_ready(main: Program, weights: Mapping[str, npt.NDArray[Any]], options: CompilerOptions) -> None:
    """Refuse a graph so large that ONNX Runtime would not have it ready in time; the calibration run has
    tried it already."""
    if sum(1 for _ in iter_nodes(onnx.load_model_from_string(main.graph).graph)) < _LEAST_NODES_TO_TRY:
        return
    try:
        open_graph(
            main, weights, GraphOptions(prepack=False, ready_seconds=READY_SECONDS), options.numerics()
        ).close()
    except LoadTimeoutError as error:
        raise _not_ready(error) from error
    except LoadError as error:
        raise CompileError(str(error)) from error


def _not_ready(error: LoadTimeoutError) -> CompileError:
    return CompileError(
        f"the model would not be ready to serve in time: {error}; in half, partials_type=float has fewer "
        "nodes to make ready, and fp32 the fewest"
    )


def _check_memory(cost: Estimate, options: CompilerOptions) -> None:
    if cost.fits:
        return
    parts = ", ".join(f"{name} {size}" for name, size in cost.by_memory().items())
    fullest = max(cost.operators, key=lambda operator: operator.live_bytes)
    text = (
        f"Out of memory: Cannot fit all variable data onto one or more tiles: {cost.peak_tile_bytes} bytes "
        f"used but tiles only have {cost.target.bytes_per_tile} bytes of memory (modelled; {parts}; fullest "
        f"at node {fullest.name!r})"
    )
    if not options.allow_out_of_memory:
        raise OutOfMemoryError(
            f"{text}; use a smaller batch, fp16, a smaller available_memory_proportion or allow_out_of_memory"
        )
    _log.warning("%s; compiled all the same, as allow_out_of_memory asks", text)


def cost_options(options: CompilerOptions) -> CostOptions:
    """The options of the compiler that time and memory depend on."""
    shared = {entry.name for entry in dataclasses.fields(CostOptions)} & {
        entry.name for entry in dataclasses.fields(options)
    }
    return CostOptions(**{name: getattr(options, name) for name in shared})


def _make_streams(graph: onnx.GraphProto) -> tuple[Stream, ...]:
    inputs = [_stream(value, f"h2d_{value.name}", Direction.HOST_TO_DEVICE) for value in graph.input]
    outputs = [_stream(value, f"anchor_d2h_{value.name}", Direction.DEVICE_TO_HOST) for value in graph.output]
    return (*inputs, *outputs)


def _stream(value: onnx.ValueInfoProto, handle: str, direction: Direction) -> Stream:
    tensor = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return Stream(handle, value.name, direction, dtype, tuple(dim.dim_value for dim in tensor.shape.dim))


def _weight_stream(name: str, value: npt.NDArray[Any]) -> Stream:
    return Stream(f"h2d_{name}", name, Direction.HOST_TO_DEVICE, value.dtype, value.shape)


def _make_constant(name: str, value: npt.NDArray[Any]) -> Constant:
    return Constant(name, value.dtype, value.shape, np.ascontiguousarray(value).view(np.uint8).data.cast("B"))


def _take_weights(
    model: onnx.ModelProto, least_bytes: int
) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]]:
    """A copy of the model without its floating-point weights of that size, and those: they are streamed, or
    mapped where they lie."""
    taken = {
        tensor.name: tensor
        for tensor in model.graph.initializer
        if tensor.data_type in _WEIGHT_TYPES and len(tensor.dims) > 0 and count_bytes(tensor) >= least_bytes
    }
    light = without_weights(model, set(taken), as_inputs=False)
    light.ir_version = min(light.ir_version, MAXIMUM_IR_VERSION)
    for tensor in taken.values():
        stub = TensorProto(
            name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL
        )
        stub.external_data.add(key="location", value="device")
        light.graph.initializer.append(stub)
    return light, {
        name: _codes(tensor) if tensor.data_type in QUARTERS else read_array(tensor)
        for name, tensor in taken.items()
    }


def _codes(tensor: TensorProto) -> npt.NDArray[np.uint8]:
    """The bytes of an 8-bit weight: numpy has no such type."""
    if is_outlined(tensor):
        return read_array(tensor)
    return np.frombuffer(tensor.raw_data, np.uint8).reshape(tensor.dims)


def _serialize(model: onnx.ModelProto) -> bytes:
    for node in model.graph.node:
        node.doc_string = ""
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except ValueError as error:
        raise CompileError(
            "the graph is larger than the 2 GiB that protobuf allows; compile with --compiler_options "
            "constant_weights=False"
        ) from error


def _hash_name(graph: bytes, weights: dict[str, npt.NDArray[Any]], options: CompilerOptions) -> str:
    """PopART names an executable by its IR hash, in decimal; here it is a hash of all that goes in."""
    digest = hashlib.sha256(graph)
    for value in weights.values():
        digest.update(np.ascontiguousarray(value).data)
    digest.update(repr(options.changed()).encode())
    return str(int.from_bytes(digest.digest()[:8], "little"))


def _make_metadata(executable: simipu.Executable, options: CompilerOptions) -> popef.Metadata:
    anchors = [
        popef.Anchor(
            name=stream.tensor,
            handle=stream.handle,
            tensorInfo=_tensor_info(stream.shape, stream.dtype),
            type=popef.TensorType.INPUT
            if stream.direction is Direction.HOST_TO_DEVICE
            else popef.TensorType.OUTPUT,
            isPerReplica=False,
            programs=[program.index],
        )
        for program in executable.programs
        for stream in program.streams
    ]
    return popef.Metadata(
        replicationFactor=1,
        numIpus=executable.target.num_ipus,
        seedHandle="",
        anchors=anchors,
        executable=executable.name,
        numProcesses=1,
        ipuVersion=executable.target.ipu_version,
        isPOD=False,
        isInference=True,
        engineOptions=[
            popef.Option(name=name, value=value) for name, value in sorted(options.engine_options.items())
        ],
        deviceOptions=[],
        programFlow=popef.ProgramFlow(load=[LOAD_PROGRAM], main=[MAIN_PROGRAM], save=[]),
        programsMap={program.index: program.name for program in executable.programs},
        deviceIterations=options.batches_per_step,
    )


def _tensor_info(shape: tuple[int, ...], dtype: np.dtype[Any]) -> popef.TensorInfo:
    return popef.TensorInfo(shape=shape, dataType=popef.numpyDTypeToPopefType(dtype))
