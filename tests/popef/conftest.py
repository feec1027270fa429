"""Small files for every test of popef; the package's own writer builds them all."""

from __future__ import annotations

import io

import numpy as np
import pytest

import popef
from popef import Anchor, DataType, Metadata, ProgramFlow, TensorInfo, TensorType


def _anchor(name: str, shape: tuple[int, ...], kind: TensorType) -> Anchor:
    info = TensorInfo(shape=shape, dataType=DataType.F16)
    return Anchor(name=name, handle=name, tensorInfo=info, type=kind, isPerReplica=True)


@pytest.fixture
def listing_metadata() -> Metadata:
    """Return the metadata of Listing 1.1."""
    return Metadata(
        seedHandle="__seed_stream",
        anchors=[
            _anchor("infeed_1.0", (256, 8, 8, 1), TensorType.INPUT),
            _anchor("outfeed_2.0", (256, 3), TensorType.OUTPUT),
            _anchor("outfeed_2.1", (256, 1), TensorType.OUTPUT),
        ],
        executable="UNHASHED_EXECUTABLE",
        programFlow=ProgramFlow(load=[0], main=[1], save=[2]),
    )


@pytest.fixture
def small_file() -> bytes:
    """Return a file with one blob of each type, with every inferred field set."""
    info = TensorInfo(shape=(2, 3), dataType=DataType.S16)
    anchor = Anchor(
        name="w", handle="h2d_w", tensorInfo=info, type=TensorType.INPUT, programs=[1, 5]
    )
    metadata = Metadata(
        anchors=[anchor],
        executable="exe",
        engineOptions=[popef.Option(name="debug.x", value="true")],
        programFlow=ProgramFlow(load=[0], main=[5]),
        programsMap={0: "load", 1: "optimizer", 5: "main"},
        deviceIterations=4,
    )
    sink = io.BytesIO()
    with popef.Writer(sink) as writer:
        writer.writeMetadata(metadata)
        with writer.createExecutable("exe", compress=True) as blob:
            blob.write(b"IPU code " * 30)
        with writer.createOpaqueBlob("popart", "exe") as blob:
            blob.write(b"private")
        with writer.createTensorData(popef.TensorDataInfo(name="w", tensorInfo=info)) as blob:
            blob.write(np.arange(6, dtype=np.int16))
        with writer.createFeedData(
            popef.FeedDataInfo(name="w", tensorInfo=info, numTensors=2)
        ) as blob:
            blob.write(np.arange(12, dtype=np.int16))
    return sink.getvalue()
