"""PopEF files of compiled computations, in the layout of TensorFlow for the IPU.

The blobs are, in this order: an opaque blob `tensorflow` with a message about feeds and signature,
the executable, and the metadata. Load is program 0, main 1 and save 2. What only this project reads
comes last: the real embedded runtime takes the first opaque blob of a file, whatever its name is.

No module here imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from poprt.compile import LOAD_PROGRAM, MAIN_PROGRAM, Executable
from simipu import CompileError, Direction, Program, ProgramKind, SimulatedExecutable, Stream

import popef
from popef._tools.arrays import Array
from popef._tools.staging import Staging
from tensorflow_ipu.files.executable_description import (
    EntryDescription,
    EntryKind,
    ExecutableDescription,
    FeedDescription,
    TensorDescription,
    number_duplicates,
    unmangle_name,
)
from tensorflow_ipu.files.executable_message import (
    BLOB,
    MAX_MESSAGE_BYTES,
    ExecutableFileError,
    decode_message,
    decode_tensor,
    encode_description,
    missing_message,
    wrong_message,
)
from tensorflow_ipu.messages import poplar_executable_pb2 as pb
from tensorflow_ipu.messages.poplar_feed_config_pb2 import PoplarFeedConfig

OWN_PREFIX: Final = "sim_"
"""Beginning of the names of opaque blobs that only this project reads."""
_SEED_HANDLE: Final = "__seed_stream"
HOST_TO_DEVICE: Final = Direction.HOST_TO_DEVICE
LOAD, MAIN, SAVE = 0, 1, 2
"""Program indices in the file."""
_PROGRAM_NAMES: Final = {LOAD: "load_program", MAIN: "main_program", SAVE: "save_program"}
_INDICES: Final = {LOAD_PROGRAM: LOAD, MAIN_PROGRAM: MAIN}
"""Program indices in the file, by those of the compiler."""
_INPUT_PROGRAMS: Final = {
    EntryKind.STREAMED: (MAIN,),
    EntryKind.VARIABLE: (LOAD,),
    EntryKind.MODIFIED_VARIABLE: (LOAD, MAIN),
}
_OUTPUT_PROGRAMS: Final = {
    EntryKind.STREAMED: (MAIN,),
    EntryKind.MODIFIED_VARIABLE: (LOAD, MAIN),
    EntryKind.INITIALIZED_VARIABLE: (LOAD,),
}


@dataclass(frozen=True, slots=True)
class StoredExecutable:
    """A compiled computation with its description."""

    executable: Executable
    """Its programs have the compiler's indices."""
    description: ExecutableDescription
    own_blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Blobs by name that only this project reads; the names begin with `sim_`."""
    state_values: Mapping[str, Array] = field(default_factory=dict)
    """Values by name that the state begins with."""


def write_executable(stored: StoredExecutable, path: str | os.PathLike[str]) -> None:
    """Write a compiled computation atomically.

    Values of variables are not written: `export_variables_from_live_session` writes them.

    Args:
        stored: The compiled computation.
        path: Path of the file.

    Raises:
        ExecutableFileError: If the description is not that of the executable.
        OSError: If the file cannot be written.
    """
    description = stored.description
    program = _arrange_programs(stored.executable.executable, description)
    metadata = _make_metadata(program, description)
    blobs = {popef.ROWS_BLOB: stored.executable.rows.encode(), **stored.own_blobs}
    with Staging() as staging, popef.Writer(staging.open(path)) as writer:
        with writer.createOpaqueBlob(BLOB, description.name) as blob:
            blob.write(encode_description(description, program.target.ipu_version))
        with writer.createExecutable(description.name, compress=False) as blob:
            for piece in program.iter_serialized():
                blob.write(piece)
        writer.writeMetadata(metadata)
        for name, payload in sorted(blobs.items()):
            with writer.createOpaqueBlob(name, description.name) as blob:
                blob.write(payload)
        for name, value in sorted(stored.state_values.items()):
            write_tensor(writer, name, value)


def write_tensor(writer: popef.Writer, name: str, value: Array) -> None:
    """Write a tensor's data.

    Args:
        writer: Writer of the file.
        name: Name of the tensor, that of its anchor.
        value: The value.
    """
    info = popef.TensorInfo(shape=value.shape, dataType=popef.numpyDTypeToPopefType(value.dtype))
    with writer.createTensorData(popef.TensorDataInfo(name=name, tensorInfo=info)) as blob:
        blob.write(np.ascontiguousarray(value).data)


def read_executable(path: str | os.PathLike[str], name: str = "") -> StoredExecutable:
    """Read a compiled computation.

    Args:
        path: Path of a file that `write_executable` wrote.
        name: Expected name of the executable; "" accepts any.

    Returns:
        The executable, with the program indices of the compiler, and its description.

    Raises:
        ExecutableFileError: If the file holds no such executable, or is damaged.
    """
    try:
        stored = Executable(Path(path))
    except CompileError as error:
        raise ExecutableFileError(str(error)) from error
    message = decode_message(stored.opaque_blobs.get(BLOB), path)
    found = stored.executable.name
    if name and stored.metadata.executable() != name:
        raise ExecutableFileError(
            f"{os.fspath(path)}: expected the executable {name!r}, found {found!r}"
        )
    description = _decode_description(message, stored, path)
    own = {key: data for key, data in stored.opaque_blobs.items() if key.startswith(OWN_PREFIX)}
    stored.executable = _restore_programs(stored.executable, path)
    names = {tensor.name for tensor in description.state}
    state = {name: value for name, value in stored.weights.items() if name in names}
    stored.opaque_blobs, stored.weights = {}, {}
    return StoredExecutable(stored, description, own, state)


def read_message(path: str | os.PathLike[str]) -> pb.PoplarExecutableProto:
    """Read only the message of a file: the first opaque blob, as the real embedded runtime does.

    Args:
        path: Path of the file.

    Returns:
        The message.

    Raises:
        ExecutableFileError: If the file is no PopEF file, or has no such message.
    """
    return decode_message(read_first_blob(path), path)


def read_first_blob(path: str | os.PathLike[str]) -> bytes:
    """Return the first opaque blob of a file.

    Args:
        path: Path of the file.

    Returns:
        The data of the blob.

    Raises:
        ExecutableFileError: If the file is no PopEF file, or has no blob that holds a message.
    """
    try:
        with popef.Reader() as reader:
            reader.parseFile(path)
            blobs = reader.opaqueBlobs()
            if blobs and blobs[0].getAvailableReadSize() > MAX_MESSAGE_BYTES:
                raise wrong_message(path, f"{blobs[0].getAvailableReadSize()} bytes")
            if blobs:
                return bytes(blobs[0].data())
    except (popef.PopefError, OSError) as error:
        raise ExecutableFileError(f"{os.fspath(path)}: {error}") from error
    raise missing_message(path)


def _decode_description(
    message: pb.PoplarExecutableProto, stored: Executable, path: str | os.PathLike[str]
) -> ExecutableDescription:
    """Return the description; types and shapes of all tensors are checked with the executable."""
    config = message.embedded_runtime_config
    streams = {
        stream.handle: stream
        for program in stored.executable.programs
        for stream in program.streams
    }
    kinds = {anchor.handle(): tuple(anchor.programs()) for anchor in stored.metadata.anchors()}

    def find_tensor(handle: str, shape: pb.ShapeProto) -> TensorDescription:
        stream = streams.get(handle)
        # An argument that no operator reads has no stream.
        tensor = decode_tensor(stream.tensor if stream else handle, shape, path)
        if stream and (stream.shape, stream.dtype) != (tensor.shape, tensor.dtype):
            raise wrong_message(path, f"another shape or type of the stream {handle!r}")
        return tensor

    def decode_feeds(feeds: Sequence[pb.FeedConfig], kind: str) -> tuple[FeedDescription, ...]:
        return tuple(
            FeedDescription(
                tuple(
                    find_tensor(f"{kind}_{feed.config.feed_id}.{place}", shape)
                    for place, shape in enumerate(feed.shape.tuple_shapes)
                ),
                feed.config.prefetch_depth,
                feed.config.mode == PoplarFeedConfig.GetLast,
                feed.config.optimise_latency,
            )
            for feed in feeds
        )

    def decode_entries(
        entries: Sequence[pb.Input] | Sequence[pb.Output],
        programs: Mapping[EntryKind, tuple[int, ...]],
    ) -> tuple[EntryDescription, ...]:
        kinds_by_programs = {used: kind for kind, used in programs.items()}
        return tuple(
            EntryDescription(
                entry.name,
                find_tensor(entry.handle, entry.shape),
                kinds_by_programs.get(kinds.get(entry.handle, ()), EntryKind.STREAMED),
            )
            for entry in entries
        )

    return ExecutableDescription(
        decode_feeds(message.infeeds, "infeed"),
        decode_feeds(message.outfeeds, "outfeed"),
        decode_entries(config.signature.inputs, _INPUT_PROGRAMS),
        decode_entries(config.signature.outputs, _OUTPUT_PROGRAMS),
        message.replication_factor,
        config.num_IPUs,
        {flag.option: flag.value for flag in message.option_flags},
        config.executable_can_stall,
        stored.metadata.executable(),
        _find_state(stored.executable, message),
    )


@dataclass(frozen=True, slots=True)
class Streams:
    """What each run of a file's executable exchanges with the host, by handle."""

    inputs: Mapping[str, np.dtype[Any]]
    outputs: Mapping[str, np.dtype[Any]]


def read_streams(path: str | os.PathLike[str]) -> Streams:
    """Read what each run of a file's executable exchanges with the host.

    Args:
        path: Path of the file.

    Returns:
        The type of each tensor, in the order of the file.

    Raises:
        ExecutableFileError: If the file is no PopEF file.
    """
    try:
        with popef.Reader() as reader:
            reader.parseFile(path)
            anchors = [
                (kind, anchor)
                for metadata in reader.metadata()[:1]
                for kind in (popef.TensorType.INPUT, popef.TensorType.OUTPUT)
                for anchor in popef.user_anchors(metadata, kind)
            ]
    except (popef.PopefError, OSError) as error:
        raise ExecutableFileError(f"{os.fspath(path)}: {error}") from error
    types: dict[Any, dict[str, np.dtype[Any]]] = {
        popef.TensorType.INPUT: {},
        popef.TensorType.OUTPUT: {},
    }
    for kind, anchor in anchors:
        dtype = popef.popefTypeToNumpyDType(anchor.tensorInfo().dataType())
        types[kind][anchor.handle()] = np.dtype(dtype)
    return Streams(types[popef.TensorType.INPUT], types[popef.TensorType.OUTPUT])


def _find_state(
    executable: SimulatedExecutable, message: pb.PoplarExecutableProto
) -> tuple[TensorDescription, ...]:
    """Return the tensors of the executable that are in no signature."""
    signature = message.embedded_runtime_config.signature
    lists = (signature.inputs, signature.outputs)
    feeds = (signature.streamed_inputs, signature.streamed_outputs)
    described = {entry.handle for entries in (*lists, *feeds) for entry in entries}
    return tuple(
        TensorDescription(stream.tensor, stream.shape, stream.dtype)
        for program in executable.programs
        for stream in program.streams
        if stream.handle not in described
    )


def _arrange_programs(
    executable: SimulatedExecutable, description: ExecutableDescription
) -> SimulatedExecutable:
    """Return the executable with the programs and handles of TensorFlow's files."""
    handles = description.find_handles()
    programs = [
        dataclasses.replace(
            program,
            index=_INDICES[program.index],
            name=_PROGRAM_NAMES[_INDICES[program.index]],
            streams=tuple(_rename_streams(program.streams, handles)),
        )
        for program in executable.programs
        if program.index in _INDICES
    ]
    kinds = {program.index for program in programs}
    if LOAD not in kinds:
        programs.insert(0, Program(LOAD, _PROGRAM_NAMES[LOAD], ProgramKind.LOAD, ()))
    programs.append(Program(SAVE, _PROGRAM_NAMES[SAVE], ProgramKind.SAVE, ()))
    _check_variables(programs, description)
    return dataclasses.replace(executable, name=description.name, programs=tuple(programs))


def _rename_streams(streams: Sequence[Stream], handles: Mapping[str, str]) -> Iterator[Stream]:
    for stream in streams:
        if stream.tensor not in handles:
            raise ExecutableFileError(
                f"tensor {stream.tensor!r} of the executable is neither a feed, an argument nor a "
                f"result; described are {', '.join(handles) or 'none'}"
            )
        yield dataclasses.replace(stream, handle=handles[stream.tensor])


def _check_variables(programs: Sequence[Program], description: ExecutableDescription) -> None:
    """Check that loaded tensors are variables, under the names that they are exported with."""
    loaded = {
        stream.tensor for program in programs if program.index == LOAD for stream in program.streams
    }
    for entry in description.inputs:
        if entry.tensor.name not in loaded:
            continue
        if entry.kind is not EntryKind.VARIABLE or unmangle_name(entry.name) != entry.tensor.name:
            raise ExecutableFileError(
                f"argument {entry.name!r}: expected a variable whose tensor has the same name, "
                f"found a {entry.kind.value} with the tensor {entry.tensor.name!r}"
            )


def _restore_programs(
    executable: SimulatedExecutable, path: str | os.PathLike[str]
) -> SimulatedExecutable:
    """Return the executable with the compiler's program indices."""
    indices = {file: compiler for compiler, file in _INDICES.items()}
    programs = tuple(
        dataclasses.replace(program, index=indices[program.index])
        for program in executable.programs
        if program.index in indices
    )
    if {program.index for program in programs} != set(_INDICES):
        raise ExecutableFileError(
            f"{os.fspath(path)}: expected a load program and a main program, found "
            f"{', '.join(program.title for program in executable.programs) or 'none'}"
        )
    return dataclasses.replace(executable, programs=programs)


def _make_metadata(
    executable: SimulatedExecutable, description: ExecutableDescription
) -> popef.Metadata:
    return popef.Metadata(
        replicationFactor=description.replicas,
        numIpus=description.num_ipus,
        seedHandle=_SEED_HANDLE,
        anchors=_make_anchors(executable, description),
        executable=description.name,
        numProcesses=1,
        ipuVersion=executable.target.ipu_version,
        isPOD=False,
        isInference=True,
        engineOptions=[
            popef.Option(name=name, value=value)
            for name, value in sorted(description.options.items())
        ],
        deviceOptions=[],
        programFlow=popef.ProgramFlow(load=[LOAD], main=[MAIN], save=[SAVE]),
        programsMap=_PROGRAM_NAMES,
    )


def _make_anchors(
    executable: SimulatedExecutable, description: ExecutableDescription
) -> list[popef.Anchor]:
    """Return anchors of infeeds, outfeeds, arguments, results and state, in this order.

    What each run would exchange, but no operator has, has no anchor.
    """
    inputs, outputs = popef.TensorType.INPUT, popef.TensorType.OUTPUT
    streams = executable.program(MAIN).streams
    streamed = {stream.handle for stream in streams}
    rows: list[tuple[str, str, TensorDescription, popef.TensorType, tuple[int, ...], bool]] = []
    for kind, feeds in ((inputs, description.infeeds), (outputs, description.outfeeds)):
        for feed in feeds:
            rows += [
                (fed.name, fed.name, fed, kind, (MAIN,), True)
                for fed in feed.tensors
                if fed.name in streamed
            ]
    for kind, prefix, entries, programs in (
        (inputs, "", description.inputs, _INPUT_PROGRAMS),
        (outputs, "out_", description.outputs, _OUTPUT_PROGRAMS),
    ):
        for number, entry in enumerate(entries):
            handle, used = f"{prefix}{number}.0", programs[entry.kind]
            if MAIN not in used or handle in streamed:
                name = unmangle_name(entry.name)
                rows.append((name, handle, entry.tensor, kind, used, False))
    incoming = {stream.handle for stream in streams if stream.direction is HOST_TO_DEVICE}
    for tensor in description.state:
        kind = inputs if tensor.name in incoming else outputs
        rows.append((tensor.name, tensor.name, tensor, kind, (MAIN,), False))
    names = number_duplicates([row[0] for row in rows])
    return [
        _make_anchor(name, *row[1:], description.replicas)
        for name, row in zip(names, rows, strict=True)
    ]


def _make_anchor(
    name: str,
    handle: str,
    tensor: TensorDescription,
    kind: popef.TensorType,
    programs: Sequence[int],
    is_feed: bool,
    replicas: int,
) -> popef.Anchor:
    """Return an anchor. Replicas are in front of a feed's shape, as our runtime expects it."""
    shape = (replicas, *tensor.shape) if is_feed and replicas > 1 else tensor.shape
    return popef.Anchor(
        name=name,
        handle=handle,
        tensorInfo=popef.TensorInfo(
            shape=shape, dataType=popef.numpyDTypeToPopefType(tensor.dtype)
        ),
        type=kind,
        isPerReplica=is_feed or replicas == 1,
        programs=list(programs),
    )
