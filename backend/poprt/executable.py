"""A compiled model in memory, and the PopEF files that are written of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import simipu

import popef
from poprt.calibration import Findings
from poprt.metadata import tensor_info
from poprt.programs import MAIN_PROGRAM


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled model: the payload, what PopEF says of it, and the weights that are streamed at load."""

    executable: simipu.SimulatedExecutable
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
