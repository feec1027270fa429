"""A compiled model in memory, and the PopEF files that are written of it or read into it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from model_runtime.session import read_model
from simipu import CompileError, LoadError, SimulatedExecutable

import popef
from poprt.calibration import Findings
from poprt.metadata import tensor_info
from poprt.programs import MAIN_PROGRAM


class Executable:
    """A compiled model: the payload, what PopEF says of it, and the weights that are streamed at load.

    `Executable(path)`, or of several paths, reads it from the PopEF files that hold it; the compiler makes
    one of its own.
    """

    def __init__(self, popef_paths: str | Path | Sequence[str | Path]) -> None:
        """Raises CompileError for files that hold no model of this project's."""
        listed = [popef_paths] if isinstance(popef_paths, (str, Path)) else popef_paths
        paths = list(map(Path, listed))
        try:
            model = read_model(paths)
            self.executable = SimulatedExecutable.deserialize(model.executable.executable())
            self.weights: dict[str, npt.NDArray[Any]] = {
                str(each.info.name): each.data() for each in model.tensors
            }
        except (popef.PopefError, LoadError, OSError) as error:
            raise CompileError(f"{', '.join(map(str, paths))}: no executable of poprt's: {error}") from error
        self.metadata = model.metadata
        self.opaque_blobs: dict[str, bytes] = {
            str(blob.name): bytes(blob.data()) for blob in model.opaqueBlobs if blob.name != popef.ROWS_BLOB
        }
        self.findings = Findings()

    @classmethod
    def of(
        cls,
        executable: SimulatedExecutable,
        metadata: popef.Metadata,
        weights: Mapping[str, npt.NDArray[Any]],
        opaque_blobs: Mapping[str, bytes],
        findings: Findings,
    ) -> Executable:
        """What the compiler has made. `findings`: what half precision does to the outputs, and the nodes
        whose results it cannot hold."""
        made = cls.__new__(cls)
        made.executable, made.metadata, made.findings = executable, metadata, findings
        made.weights, made.opaque_blobs = dict(weights), dict(opaque_blobs)
        return made

    @property
    def batch_size(self) -> int:
        """Rows of the compiled batch; 0 where the tensors have none."""
        return self.executable.program(MAIN_PROGRAM).batch_size

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

    def appendOpaqueBlobs(self, blobs: Mapping[str, bytes] | tuple[str, bytes]) -> None:
        """Add blobs of the caller's, one or several by name, which `export` writes beside the executable."""
        self.opaque_blobs.update(blobs if isinstance(blobs, Mapping) else [blobs])

    def getOpaqueBlobs(self) -> dict[str, bytes]:
        """The caller's blobs by name."""
        return dict(self.opaque_blobs)

    def getPopefModel(self) -> popef.Model:
        """The model as a PopEF file would have it."""
        stream = io.BytesIO()
        self.export(stream)
        stream.seek(0)
        reader = popef.Reader()
        reader.parseStream(stream)
        return popef.ModelBuilder(reader).createModel()

    def export(
        self, filename: str | Path | BinaryIO, weights_filename: str | Path | BinaryIO | None = None
    ) -> None:
        """Write the PopEF file; streamed weights go into it too, or into `weights_filename` where given.

        What a server reads and could do without, the facts on rows, comes first: a file that is cut off
        anywhere is refused, or lacks nothing that a server reads.
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

    def _write_weights(self, writer: popef.Writer) -> None:
        for name, value in self.weights.items():
            info = popef.TensorDataInfo(name=name, tensorInfo=tensor_info(value.shape, value.dtype))
            with writer.createTensorData(info) as blob:
                blob.write(np.ascontiguousarray(value).data)
