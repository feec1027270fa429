"""PopEF files in the form of another SDK: poprt's executables with other metadata."""

from __future__ import annotations

from pathlib import Path

import popef


def open_file(path: Path) -> popef.Model:
    """Return the one model of a file."""
    reader = popef.Reader()
    reader.parseFile(path)
    return popef.ModelBuilder(reader).createModel()


def rewrite(path: Path, metadata: popef.Metadata, payload: bytes) -> None:
    """Make a file hold this metadata and executable and nothing else."""
    with popef.Writer(path) as writer:
        writer.writeMetadata(metadata)
        with writer.createExecutable(metadata.executable()) as blob:
            blob.write(payload)


def replicate(path: Path, replicas: int, iterations: int) -> None:
    """Make the file's model one of several replicas: a leading dimension on every anchor."""
    model = open_file(path)
    payload = bytes(model.executable.executable())
    for anchor in model.metadata.anchors() if replicas > 1 else ():
        info = anchor.tensorInfo()
        anchor.setTensorInfo(
            popef.TensorInfo(shape=(replicas, *info.shape()), dataType=info.dataType())
        )
        anchor.setIsPerReplica(True)
    model.metadata.setReplicationFactor(replicas)
    model.metadata.setNumIpus(replicas)
    model.metadata.setDeviceIterations(iterations)
    rewrite(path, model.metadata, payload)
