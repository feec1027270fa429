"""A compiled model: its MAIN program and PopEF metadata, the executable in memory, the PopEF files
that it is written to or read from, and the engine cache.

An executable holds the graph as it is before lowering. Merged 8-bit operands and copies between
IPUs change time and memory, which the estimate includes, but no value.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import onnx
import simipu
from simipu import (
    KNOWN_FILES,
    CompileError,
    Direction,
    FileLoad,
    LoadedFiles,
    LoadError,
    Program,
    ProgramKind,
    SimulatedExecutable,
    Stream,
    latency_of_call,
    package_hash,
    registered_libraries,
)
from simipu.cost import Estimate
from simipu.rows import take_rows

import popef
from popef._tools.arrays import Array
from popef._tools.staging import Staging
from poprt.comparing import Findings
from poprt.options import CompilerOptions

LOAD_PROGRAM, MAIN_PROGRAM = 0, 5
"""PopART's program indices of WeightsFromHost and Program."""


def make_main(
    index: int,
    model: onnx.ModelProto,
    streams: tuple[Stream, ...],
    cost: Estimate | None,
    batch_axis: int = 0,
    weights: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[Program, onnx.ModelProto]:
    """Return the MAIN program that computes `model`, and its graph.

    The program accepts any number of rows if they are proven independent. `batch_axis` is the axis
    of the batch in the inputs. `weights` has the values of initializers that the model holds
    without data. Without an estimate the program takes no cycles. Raises CompileError for a graph
    that no file can hold.
    """
    graph, streams, dependence = take_rows(model, streams, batch_axis, weights)
    program = Program(
        index,
        "main_program",
        ProgramKind.MAIN,
        streams,
        _serialize(graph),
        not dependence,
        cost.cycles if cost else 0,
        cost.interval_cycles if cost and cost.options.enable_pipelining else 0,
        bool(cost and cost.overlapped),
        dependence,
    )
    return program, graph


def _serialize(model: onnx.ModelProto) -> bytes:
    for node in model.graph.node:
        node.doc_string = ""
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except ValueError as error:
        raise CompileError(
            "the graph is larger than the 2 GiB that protobuf allows; compile with "
            "--compiler_options constant_weights=False"
        ) from error


def make_metadata(
    executable: simipu.SimulatedExecutable, options: CompilerOptions
) -> popef.Metadata:
    """Return the metadata of an executable of one replica with a LOAD and a MAIN program."""
    anchors = [
        popef.Anchor(
            name=stream.tensor,
            handle=stream.handle,
            tensorInfo=tensor_info(stream.shape, stream.dtype),
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
            popef.Option(name=name, value=value)
            for name, value in sorted(options.engine_options.items())
        ],
        deviceOptions=[],
        programFlow=popef.ProgramFlow(load=[LOAD_PROGRAM], main=[MAIN_PROGRAM], save=[]),
        programsMap={program.index: program.name for program in executable.programs},
        deviceIterations=options.batches_per_step,
    )


def tensor_info(shape: tuple[int, ...], dtype: np.dtype[Any]) -> popef.TensorInfo:
    """Return PopEF's description of an array."""
    return popef.TensorInfo(shape=shape, dataType=popef.numpyDTypeToPopefType(dtype))


class Executable:
    """A compiled model: the payload, its PopEF metadata, and the weights that are streamed at load.

    `Executable(path)`, or with several paths, reads it from PopEF files. The compiler uses
    `Executable.of`.
    """

    def __init__(self, popef_paths: str | Path | Sequence[str | Path]) -> None:
        """Read the model from PopEF files.

        Args:
            popef_paths: one path or several.

        Raises:
            CompileError: for files that hold no model of this project.
        """
        listed = [popef_paths] if isinstance(popef_paths, (str, Path)) else popef_paths
        paths = list(map(Path, listed))
        # Imported here: a compilation opens no session.
        from model_runtime import read_model

        try:
            model = read_model(paths)
            self.executable = SimulatedExecutable.deserialize(model.executable.executable())
            self.weights: dict[str, Array] = {
                str(tensor.info.name): tensor.data() for tensor in model.tensors
            }
        except (popef.PopefError, LoadError, OSError) as error:
            raise CompileError(
                f"{', '.join(map(str, paths))}: expected an executable of poprt, found: {error}"
            ) from error
        self.metadata = model.metadata
        self.opaque_blobs: dict[str, bytes] = {
            str(blob.name): bytes(blob.data())
            for blob in model.opaqueBlobs
            if blob.name != popef.ROWS_BLOB
        }
        self.findings = Findings()
        self.loads: tuple[FileLoad, ...] = ()
        """Loads of the executable that the dry run has made; none without a dry run."""
        self.from_file = True
        """Whether it was read from files, the engine cache's included."""

    @classmethod
    def of(
        cls,
        executable: SimulatedExecutable,
        metadata: popef.Metadata,
        weights: Mapping[str, Array],
        opaque_blobs: Mapping[str, bytes],
        findings: Findings,
    ) -> Executable:
        """Return an executable that the compiler has made.

        `findings` is how half precision affects the outputs, and the nodes whose results overflow
        half.
        """
        compiled = cls.__new__(cls)
        compiled.executable, compiled.metadata, compiled.findings = executable, metadata, findings
        compiled.weights, compiled.opaque_blobs = dict(weights), dict(opaque_blobs)
        compiled.loads, compiled.from_file = (), False
        return compiled

    @property
    def batch_size(self) -> int:
        """Number of rows of the compiled batch; 0 if the tensors have no batch."""
        return self.executable.program(MAIN_PROGRAM).batch_size

    @property
    def cycles(self) -> int:
        """Modelled cycles of one compiled batch."""
        return self.executable.cycles(MAIN_PROGRAM)

    @property
    def call_seconds(self) -> float:
        """Modelled seconds of a whole call with one compiled batch: the chip, the transfers over
        the host link, and the host's own work."""
        return latency_of_call(self.executable.program(MAIN_PROGRAM), self.executable.target)

    @property
    def rows(self) -> popef.RowFacts:
        """Facts on the rows of a batch: why they are not proven independent, and their axis."""
        main = self.executable.program(MAIN_PROGRAM)
        axes = {stream.tensor: stream.batch_axis for stream in main.streams if stream.batch_axis}
        return popef.RowFacts(None if main.row_independent else main.row_dependence, axes)

    def appendOpaqueBlobs(self, blobs: Mapping[str, bytes] | tuple[str, bytes]) -> None:
        """Add one or several blobs by name, which `export` writes next to the executable."""
        self.opaque_blobs.update(blobs if isinstance(blobs, Mapping) else [blobs])

    def getOpaqueBlobs(self) -> dict[str, bytes]:
        """Return the caller's blobs by name."""
        return dict(self.opaque_blobs)

    def getPopefModel(self) -> popef.Model:
        """Return the model in the form of a parsed PopEF file."""
        stream = io.BytesIO()
        self.export(stream)
        stream.seek(0)
        reader = popef.Reader()
        reader.parseStream(stream)
        return popef.ModelBuilder(reader).createModel()

    def export(
        self, filename: str | Path | BinaryIO, weights_filename: str | Path | BinaryIO | None = None
    ) -> None:
        """Write the PopEF file.

        The facts on rows come first, because a server reads them but can do without them. A
        truncated file is therefore rejected, or still has everything that a server reads.

        Args:
            filename: path or binary file of the executable.
            weights_filename: path or binary file of the streamed weights; None means the same file.
        """
        with popef.Writer(filename) as writer:
            with writer.createOpaqueBlob(popef.ROWS_BLOB, self.executable.name) as blob:
                blob.write(self.rows.encode())
            writer.writeMetadata(self.metadata)
            with writer.createExecutable(self.executable.name) as blob:
                for piece in self.executable.iter_serialized():
                    blob.write(piece)
            for name, payload in sorted(self.opaque_blobs.items()):
                with writer.createOpaqueBlob(name, self.executable.name) as blob:
                    blob.write(payload)
            if weights_filename is None:
                self.write_weights(writer)
        if weights_filename is not None and self.weights:
            with popef.Writer(weights_filename) as writer:
                self.write_weights(writer)
        files = [filename, weights_filename if self.weights else None]
        self.note_loadable([Path(file) for file in files if isinstance(file, (str, os.PathLike))])

    def note_loadable(self, files: Sequence[Path]) -> None:
        """Let this user's servers know these files, if the dry run has loaded the executable."""
        for load in self.loads if files else ():
            with suppress(OSError):
                KNOWN_FILES.remember_files(LoadedFiles.at(files), load)

    def write_weights(self, writer: popef.Writer) -> None:
        """Write the streamed weights as tensor data."""
        for name, value in self.weights.items():
            info = popef.TensorDataInfo(name=name, tensorInfo=tensor_info(value.shape, value.dtype))
            with writer.createTensorData(info) as blob:
                blob.write(np.ascontiguousarray(value).data)


_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class EngineCache:
    """Location of one cached executable.

    PopART names the file by the hash of its IR, in decimal. This hash covers everything that an
    executable depends on: graph, weights, options, outputs, and the version of the compiler.
    """

    file: Path

    @classmethod
    def of(
        cls,
        options: CompilerOptions,
        model: onnx.ModelProto,
        weights: Mapping[str, Array],
        outputs: Collection[str] | None,
        batch_axis: int,
    ) -> EngineCache | None:
        """Return the cache entry of a model with separate `weights`; None if caching is off."""
        if not options.enable_engine_caching:
            return None
        output_names = None if outputs is None else list(outputs)
        settings = (
            options.changed(),
            output_names,
            batch_axis,
            package_hash(),
            registered_libraries(),
        )
        types = [(name, value.dtype.str, value.shape) for name, value in sorted(weights.items())]
        # A digest of digests: where one piece ends and the next begins is part of it.
        graph = model.SerializeToString(deterministic=True)
        digest = hashlib.sha256(hashlib.sha256(graph).digest())
        digest.update(hashlib.sha256(repr((settings, types)).encode()).digest())
        for _, value in sorted(weights.items()):
            data = np.ascontiguousarray(value).view(np.uint8).data
            digest.update(hashlib.sha256(data).digest())
        number = int.from_bytes(digest.digest()[:8], "little")
        return cls(Path(options.cache_path, f"{number}.popef"))

    def find(self) -> Executable | None:
        """Return the cached executable, or None if there is none or it cannot be read."""
        if not self.file.exists():
            return None
        try:
            cached = Executable(self.file)
        except CompileError as error:
            _log.warning("the cached executable is compiled anew: %s", error)
            return None
        _log.info("read %s instead of compiling", self.file)
        return cached

    def keep(self, executable: Executable) -> None:
        """Write the executable to the cache atomically; log a warning if it cannot be written."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with Staging() as staging:
                executable.export(staging.open(self.file))
        except OSError as error:
            _log.warning("the executable is not cached: %s: %s", self.file, error.strerror)
