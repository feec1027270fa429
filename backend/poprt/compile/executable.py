"""A compiled model in memory, and the PopEF files that it is written to or read from."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from model_runtime.session import read_model
from simipu import CompileError, LoadError, SimulatedExecutable
from simipu.known_files import KNOWN_FILES, LoadLimits

import popef
from popef._tools.arrays import Array
from poprt.calibration import Findings
from poprt.compile.metadata import tensor_info
from poprt.compile.programs import MAIN_PROGRAM


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
        try:
            model = read_model(paths)
            self.executable = SimulatedExecutable.deserialize(model.executable.executable())
            self.weights: dict[str, Array] = {
                str(each.info.name): each.data() for each in model.tensors
            }
        except (popef.PopefError, LoadError, OSError) as error:
            raise CompileError(
                f"{', '.join(map(str, paths))}: no executable of poprt's: {error}"
            ) from error
        self.metadata = model.metadata
        self.opaque_blobs: dict[str, bytes] = {
            str(blob.name): bytes(blob.data())
            for blob in model.opaqueBlobs
            if blob.name != popef.ROWS_BLOB
        }
        self.findings = Findings()
        self.loaded_within: LoadLimits | None = None
        """Limits within which the dry run has loaded the executable; None without a dry run."""

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
        made = cls.__new__(cls)
        made.executable, made.metadata, made.findings = executable, metadata, findings
        made.weights, made.opaque_blobs = dict(weights), dict(opaque_blobs)
        made.loaded_within = None
        return made

    @property
    def batch_size(self) -> int:
        """Number of rows of the compiled batch; 0 if the tensors have no batch."""
        return self.executable.program(MAIN_PROGRAM).batch_size

    @property
    def cycles(self) -> int:
        """Modelled cycles of one compiled batch."""
        return self.executable.cycles(MAIN_PROGRAM)

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
                self._write_weights(writer)
        if weights_filename is not None and self.weights:
            with popef.Writer(weights_filename) as writer:
                self._write_weights(writer)
        files = (
            [filename, weights_filename]
            if self.weights and weights_filename is not None
            else [filename]
        )
        self.note_loadable([Path(file) for file in files if isinstance(file, (str, os.PathLike))])

    def note_loadable(self, files: Sequence[Path]) -> None:
        """Let this user's servers know these files, if the dry run has loaded the executable."""
        if files and self.loaded_within is not None:
            with suppress(OSError):
                KNOWN_FILES.remember_files(files, self.loaded_within)

    def _write_weights(self, writer: popef.Writer) -> None:
        for name, value in self.weights.items():
            info = popef.TensorDataInfo(name=name, tensorInfo=tensor_info(value.shape, value.dtype))
            with writer.createTensorData(info) as blob:
                blob.write(np.ascontiguousarray(value).data)
