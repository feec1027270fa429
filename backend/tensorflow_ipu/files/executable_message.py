"""Message of feeds and signature that a PopEF file of TensorFlow for the IPU holds.

It is a PoplarExecutableProto (`messages/poplar_executable.proto`). Here it is made of a
description, and read from bytes that may come from strangers.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from simipu import package_hash

from tensorflow_ipu.files.executable_description import (
    ExecutableDescription,
    FeedDescription,
    TensorDescription,
)
from tensorflow_ipu.messages import poplar_executable_pb2 as pb
from tensorflow_ipu.messages.option_flag_pb2 import PoplarOptionFlag
from tensorflow_ipu.messages.poplar_feed_config_pb2 import PoplarFeedConfig

BLOB: Final = "tensorflow"
"""Name of the opaque blob with the message."""
MAX_MESSAGE_BYTES: Final = 128 << 20
"""Maximum size of the message; the real embedded runtime has the same limit."""
_ELEMENT_TYPES: Final = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
}
"""XLA's PrimitiveType by numpy's names (xla_data.proto)."""
_TUPLE_TYPE: Final = 13
_NUMPY_NAMES: Final = {number: name for name, number in _ELEMENT_TYPES.items()}
_TENSORFLOW_TYPES: Final = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "int64": 9,
    "bool": 10,
    "uint16": 17,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
"""TensorFlow's DataType by numpy's names (types.proto)."""


class ExecutableFileError(ValueError):
    """A file that holds no executable of TensorFlow for the IPU, or a damaged one."""


def decode_message(data: bytes | None, path: str | os.PathLike[str]) -> pb.PoplarExecutableProto:
    """Return the message in an opaque blob.

    Args:
        data: The blob's data, or None if the file has none.
        path: Path of the file, for errors.

    Returns:
        The message.

    Raises:
        ExecutableFileError: If there is none, or it cannot be parsed.
    """
    if data is None:
        raise missing_message(path)
    if len(data) > MAX_MESSAGE_BYTES:
        raise wrong_message(path, f"{len(data)} bytes")
    message = pb.PoplarExecutableProto()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise wrong_message(path, str(error)) from error
    return message


def missing_message(path: str | os.PathLike[str]) -> ExecutableFileError:
    """Return the error of a file without a message."""
    return ExecutableFileError(
        f"{os.fspath(path)}: No matching opaque blob found: expected one named {BLOB!r}, which "
        "TensorFlow for the IPU writes"
    )


def wrong_message(path: str | os.PathLike[str], what: str) -> ExecutableFileError:
    """Return the error of a file with another message than expected."""
    return ExecutableFileError(
        f"{os.fspath(path)}: Corrupted - Cannot parse the metadata: expected a message of at most "
        f"{MAX_MESSAGE_BYTES} bytes in its first opaque blob, found: {what}"
    )


def encode_description(description: ExecutableDescription, ipu_version: int) -> bytes:
    """Return the message of the opaque blob `tensorflow`.

    Args:
        description: The description of the executable.
        ipu_version: Number of the chip's version, such as 2.

    Returns:
        The serialized message; equal descriptions give equal bytes.
    """
    major, minor, version = _find_versions()
    message = pb.PoplarExecutableProto(
        replication_factor=description.replicas,
        infeeds=map(_encode_feed, description.infeeds),
        outfeeds=map(_encode_feed, description.outfeeds),
        option_flags=[
            PoplarOptionFlag(option=name, value=value)
            for name, value in sorted(description.options.items())
        ],
        embedded_runtime_config=pb.EmbeddedRuntimeConfig(
            signature=_encode_signature(description),
            num_IPUs=description.num_ipus,
            target_type="IPU",
            target_arch=f"ipu{ipu_version}",
            executable_can_stall=description.can_stall,
        ),
        tf_major_version=major,
        tf_minor_version=minor,
        tf_git_version=version,
        poplar_package_hash=package_hash(),
    )
    return bytes(message.SerializeToString(deterministic=True))


def _find_versions() -> tuple[int, int, str]:
    """Return the version of TensorFlow in this process, or zeros if it is not imported."""
    version: Any = getattr(sys.modules.get("tensorflow"), "version", None)
    if version is None:
        return 0, 0, ""
    major, minor = str(version.VERSION).split(".")[:2]
    return int(major), int(minor), str(version.GIT_VERSION)


def _encode_signature(description: ExecutableDescription) -> pb.Signature:
    return pb.Signature(
        inputs=[
            pb.Input(
                name=entry.name, handle=f"{i}.0", argument=i, shape=_encode_shape(entry.tensor)
            )
            for i, entry in enumerate(description.inputs)
        ],
        outputs=[
            pb.Output(name=entry.name, handle=f"out_{i}.0", shape=_encode_shape(entry.tensor))
            for i, entry in enumerate(description.outputs)
        ],
        streamed_inputs=[
            pb.Input(
                name=tensor.name,
                handle=tensor.name,
                argument=number,
                tuple_index=place,
                shape=_encode_shape(tensor),
            )
            for number, feed in enumerate(description.infeeds)
            for place, tensor in enumerate(feed.tensors)
        ],
        streamed_outputs=[
            pb.Output(
                name=tensor.name,
                handle=tensor.name,
                tuple_index=place,
                shape=_encode_shape(tensor),
            )
            for feed in description.outfeeds
            for place, tensor in enumerate(feed.tensors)
        ],
    )


def _encode_feed(feed: FeedDescription) -> pb.FeedConfig:
    mode = PoplarFeedConfig.GetLast if feed.get_last else PoplarFeedConfig.GetAll
    return pb.FeedConfig(
        config=PoplarFeedConfig(
            feed_id=feed.feed_id,
            mode=mode,
            tf_data_types=[_TENSORFLOW_TYPES[tensor.dtype.name] for tensor in feed.tensors],
            prefetch_depth=feed.prefetch_depth,
            optimise_latency=feed.optimise_latency,
        ),
        shape=pb.ShapeProto(
            element_type=_TUPLE_TYPE, tuple_shapes=map(_encode_shape, feed.tensors)
        ),
    )


def _encode_shape(tensor: TensorDescription) -> pb.ShapeProto:
    if tensor.dtype.name not in _ELEMENT_TYPES:
        raise ExecutableFileError(
            f"tensor {tensor.name!r}: [PopEF][ToMetadata]: Unsupported PrimitiveType: expected "
            f"{', '.join(_ELEMENT_TYPES)}, found {tensor.dtype.name}"
        )
    return pb.ShapeProto(element_type=_ELEMENT_TYPES[tensor.dtype.name], dimensions=tensor.shape)


def decode_tensor(
    name: str, shape: pb.ShapeProto, path: str | os.PathLike[str]
) -> TensorDescription:
    dtype = _NUMPY_NAMES.get(shape.element_type)
    if dtype is None or min(shape.dimensions, default=0) < 0:
        raise wrong_message(
            path, f"tensor {name!r} of type {shape.element_type} and shape {shape.dimensions}"
        )
    return TensorDescription(name, tuple(shape.dimensions), np.dtype(dtype))
