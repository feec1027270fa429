"""What the compiler hands to the engine, and its one serialised form.

`Executable.serialize` and `Executable.deserialize` are the only doors to the payload of a poplarExecutable blob; the
wire form is the protobuf message of `executable.proto`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from google.protobuf.message import DecodeError

from simipu import executable_pb2 as pb
from simipu.errors import LoadError
from simipu.target import Target, find_target

FORMAT_VERSION = 1
"""Raised with every change that makes an older reader misunderstand a newer payload, or compute something else."""


def package_hash() -> str:
    """The hash that stands for this simulator's generation, as the Poplar package hash does for an SDK.

    Executables carry it; loading one of another generation fails unless `check_package_hash` is off.
    """
    return hashlib.sha1(f"simipu executable format {FORMAT_VERSION}".encode()).hexdigest()[:10]


class Direction(IntEnum):
    """Which way a stream copies."""

    HOST_TO_DEVICE = 0
    DEVICE_TO_HOST = 1


class ProgramKind(IntEnum):
    """The part of PopEF's program flow that a program belongs to."""

    LOAD = 0
    MAIN = 1
    SAVE = 2


@dataclass(frozen=True, slots=True)
class Stream:
    """A host stream: the tensor of the graph that it feeds or reads, in its compiled shape (batch first)."""

    handle: str
    tensor: str
    direction: Direction
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One entry of the program flow.

    `graph` is a serialised ONNX model in the types of the chip (half where it computes in half). A LOAD program has
    none: it copies its streams into the device variables of the same tensor name, which the MAIN graph holds as
    initializers without data. `cycles` is modelled, for the whole compiled batch.
    """

    index: int
    name: str
    kind: ProgramKind
    streams: tuple[Stream, ...]
    graph: bytes = b""
    row_independent: bool = False
    cycles: int = 0


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled model: programs, the target they were planned for, and how they were compiled."""

    name: str
    target: Target
    programs: tuple[Program, ...]
    package_hash: str = field(default_factory=package_hash)
    compile_options: tuple[tuple[str, str], ...] = ()

    def program(self, index: int) -> Program:
        """The program of that index; LoadError lists those there are."""
        for program in self.programs:
            if program.index == index:
                return program
        known = ", ".join(f"{p.index} ({p.name})" for p in self.programs) or "none"
        raise LoadError(f"executable {self.name!r} has no program {index}; it has {known}")

    def cycles(self, index: int) -> int:
        """Modelled cycles of one run of program `index`: the whole compiled batch, host transfers left out."""
        return self.program(index).cycles

    def serialize(self) -> bytes:
        """The payload of the poplarExecutable blob: same executable, same bytes."""
        message = pb.Executable(
            format_version=FORMAT_VERSION,
            package_hash=self.package_hash,
            name=self.name,
            target=pb.Target(name=self.target.name, num_ipus=self.target.num_ipus),
            programs=[_encode_program(program) for program in self.programs],
            compile_options=[pb.Option(name=name, value=value) for name, value in self.compile_options],
        )
        return bytes(message.SerializeToString(deterministic=True))

    @staticmethod
    def deserialize(payload: bytes | memoryview, *, check_package_hash: bool = True) -> Executable:
        """Read what `serialize` wrote.

        Raises LoadError for a payload of another maker, version or package hash. A real Poplar executable holds
        machine code of the chip, and is refused here.
        """
        message = pb.Executable()
        try:
            message.ParseFromString(bytes(payload))
        except DecodeError:
            message.Clear()
        if message.format_version != FORMAT_VERSION or not message.programs:
            raise LoadError(_describe_foreign(message, len(payload)))
        if check_package_hash and message.package_hash != package_hash():
            raise LoadError(
                f"Failed to deserialize {message.name} : Error reading executable - package hash "
                f"({message.package_hash}) differs from poplar hash ({package_hash()}); compile the model again with "
                "this version, or set check_package_hash to false to load it all the same"
            )
        return Executable(
            name=message.name,
            target=find_target(message.target.name, message.target.num_ipus),
            programs=tuple(_decode_program(program) for program in message.programs),
            package_hash=message.package_hash,
            compile_options=tuple((option.name, option.value) for option in message.compile_options),
        )


def _describe_foreign(message: pb.Executable, size: int) -> str:
    if message.programs and message.package_hash:
        return (
            f"executable {message.name!r} has format version {message.format_version}, this simulator reads "
            f"{FORMAT_VERSION}; compile the model again"
        )
    return (
        f"the executable payload of {size} bytes was not written by this project's poprt: it is damaged, or holds machine "
        "code of a real IPU, which cannot be simulated; compile the ONNX model with poprt"
    )


def _encode_program(program: Program) -> pb.Program:
    return pb.Program(
        index=program.index,
        name=program.name,
        kind=pb.Program.Kind.Name(program.kind.value),
        streams=[
            pb.Stream(
                handle=stream.handle,
                tensor=stream.tensor,
                direction=pb.Stream.Direction.Name(stream.direction.value),
                dtype=stream.dtype.name,
                shape=stream.shape,
            )
            for stream in program.streams
        ],
        graph=program.graph,
        row_independent=program.row_independent,
        cycles=program.cycles,
    )


def _decode_program(message: pb.Program) -> Program:
    try:
        return Program(
            index=message.index,
            name=message.name,
            kind=ProgramKind(message.kind),
            streams=tuple(
                Stream(s.handle, s.tensor, Direction(s.direction), np.dtype(s.dtype), tuple(s.shape)) for s in message.streams
            ),
            graph=message.graph,
            row_independent=message.row_independent,
            cycles=message.cycles,
        )
    except (TypeError, ValueError) as error:
        raise LoadError(f"program {message.index} ({message.name!r}) of the executable is damaged: {error}") from error
