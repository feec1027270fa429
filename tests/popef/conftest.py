"""The reference Cap'n Proto library, and the file of the published listing."""

from pathlib import Path

import capnp
import pytest

import popef

capnp.remove_import_hook()


@pytest.fixture(scope="session")
def reference():
    """The structures as the reference library sees them."""
    return capnp.load(str(Path(__file__).with_name("popef.capnp")))


@pytest.fixture
def listing_metadata():
    """The metadata of Listing 1.1."""

    def anchor(name, shape, kind):
        info = popef.TensorInfo(shape=shape, dataType=popef.DataType.F16)
        return popef.Anchor(name=name, handle=name, tensorInfo=info, type=kind, isPerReplica=True)

    return popef.Metadata(
        seedHandle="__seed_stream",
        executable="UNHASHED_EXECUTABLE",
        programFlow=popef.ProgramFlow(load=[0], main=[1], save=[2]),
        anchors=[
            anchor("infeed_1.0", (256, 8, 8, 1), popef.TensorType.INPUT),
            anchor("outfeed_2.0", (256, 3), popef.TensorType.OUTPUT),
            anchor("outfeed_2.1", (256, 1), popef.TensorType.OUTPUT),
        ],
    )


@pytest.fixture
def listing_file(tmp_path, listing_metadata):
    """The file of Listing 1.1, sizes and all; payloads are holes."""
    from popef.codec import encode
    from popef.enums import BlobType
    from popef.schema import BLOB_HEADER, EXECUTABLE, METADATA, OPAQUE_BLOB

    def header(kind, size):
        return encode(BLOB_HEADER, {"version": "", "type": kind, "size": size})

    path = tmp_path / "executable.popef"
    name = "UNHASHED_EXECUTABLE"
    with path.open("wb") as file:
        file.write(header(BlobType.OPAQUE, 432) + encode(OPAQUE_BLOB, {"name": "tensorflow", "executable": name}))
        file.seek(432)
        file.write(header(BlobType.POPLAR_EXECUTABLE, 38172251))
        file.write(encode(EXECUTABLE, {"name": name, "uncompressedSize": 361890868}))
        file.seek(38172683)
        file.write(header(BlobType.METADATA, 568) + encode(METADATA, listing_metadata.values()))
    return path
