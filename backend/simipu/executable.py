"""The compiled executable that the compiler passes to the engine, and its only serialised form.

Only `SimulatedExecutable.serialize` and `SimulatedExecutable.deserialize` write and read the
payload of a poplarExecutable blob:

    0        8  "simipu" and the format version, two decimal digits
    8        8  size of the message, little endian
    16          the protobuf message of `executable.proto`
    n * 64      the constants, raw, each at a multiple of 64: a reader maps them and never copies
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from popef._tools.arrays import Array
from simipu import executable_pb2 as pb
from simipu.chip.target import Target, find_target
from simipu.errors import ForeignExecutableError, LoadError, RunError
from simipu.numerics.options import Numerics
from simipu.streams import Direction, Stream
from simipu.version import FORMAT_VERSION, package_hash

MAX_AXES = 32
"""Maximum number of axes, which every version of numpy supports."""
MAX_ELEMENTS = 1 << 48
"""Maximum number of elements of a tensor that a host stream copies or a file holds; an axis of 0
counts as 1."""
_DTYPES = frozenset(
    "bool float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
)
_MAGIC = b"simipu"
_HEADER_BYTES, _ALIGNMENT = 16, 64
"""Bytes of the magic, the format's version and the message's length, and the alignment of each
constant behind the message."""


class ProgramKind(IntEnum):
    """Part of PopEF's program flow that a program belongs to."""

    LOAD = 0
    MAIN = 1
    SAVE = 2


@dataclass(frozen=True, slots=True)
class Constant:
    """A frozen weight: little-endian elements in row-major order. If it was read from a file, it is
    a view of the file."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    data: bytes | memoryview

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a pickled form with the bytes copied: a view of a file cannot be pickled."""
        return Constant, (self.name, self.dtype, self.shape, bytes(self.data))

    @classmethod
    def of(cls, name: str, value: Array) -> Constant:
        """Return a constant with the values of an array, not copied if it is contiguous."""
        data = np.ascontiguousarray(value).view(np.uint8).data.cast("B")
        return cls(name, value.dtype, value.shape, data)

    def array(self) -> Array:
        """Return the values, not copied."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Program:
    """One entry of the program flow.

    `graph` is the placed graph, a serialised ONNX model in the types of the chip (half where it
    computes in half). A LOAD program has none: it copies its streams into the device variables of
    the same tensor name. The MAIN graph holds these as initializers without data, like the
    executable's constants. `row_independent` says that each row of the batch is proven to depend on
    that row alone; `row_dependence` is the reason if not, with the node. `cycles` is modelled, for
    the whole compiled batch. So is `interval_cycles`, from batch to batch if a pipeline works on
    several at once (0: the same). `overlapped` says that I/O tiles transfer one batch while the
    others compute another.

    A fused MAIN program has `branches`, one program for each of its models, and no graph of its
    own. The input tensor `selector` holds the number of a branch; a run computes that branch, and
    takes its time. Its streams are the selector's and those of all branches.
    """

    index: int
    name: str
    kind: ProgramKind
    streams: tuple[Stream, ...]
    graph: bytes = b""
    row_independent: bool = False
    cycles: int = 0
    interval_cycles: int = 0
    overlapped: bool = False
    row_dependence: str = ""
    branches: tuple[Program, ...] = ()
    selector: str = ""

    @property
    def title(self) -> str:
        """Index and name, for messages."""
        return f"program {self.index} ({self.name})"

    @property
    def inputs(self) -> list[Stream]:
        """Streams from the host to the device."""
        return [s for s in self.streams if s.direction is Direction.HOST_TO_DEVICE]

    @property
    def outputs(self) -> list[Stream]:
        """Streams from the device to the host."""
        return [s for s in self.streams if s.direction is Direction.DEVICE_TO_HOST]

    def find_branch(self, value: Array) -> int:
        """Return the number of the branch that a value of the selector selects. Raises RunError if
        there is none."""
        number = int(value.ravel()[0])
        if not 0 <= number < len(self.branches):
            raise RunError(
                f"input {self.selector!r}: expected the number of a model, 0 to "
                f"{len(self.branches) - 1}, found {number}"
            )
        return number

    @property
    def batch_size(self) -> int:
        """Rows of the compiled batch: the size of all streams along their batch axes. It is 0 if
        the sizes differ, for a fused program, and for one without inputs, which does not define a
        row."""
        if self.branches or not self.inputs:
            return 0
        sizes = {stream.shape[stream.batch_axis] if stream.shape else 0 for stream in self.streams}
        return sizes.pop() if len(sizes) == 1 else 0


@dataclass(frozen=True, slots=True)
class SimulatedExecutable:
    """A compiled model: programs, the target they were planned for, and how they were compiled."""

    name: str
    target: Target
    programs: tuple[Program, ...]
    package_hash: str = field(default_factory=package_hash)
    compile_options: tuple[tuple[str, str], ...] = ()
    constants: tuple[Constant, ...] = ()
    numerics: Numerics = field(default_factory=Numerics)

    def program(self, index: int) -> Program:
        """Return the program with that index. Raises LoadError, with a list of the programs, if
        there is none."""
        for program in self.programs:
            if program.index == index:
                return program
        listed = ", ".join(f"{p.index} ({p.name})" for p in self.programs) or "none"
        raise LoadError(f"executable {self.name!r} has no program {index}; it has {listed}")

    def cycles(self, index: int) -> int:
        """Return the modelled cycles of one run of program `index`: the whole compiled batch,
        without host transfers."""
        return self.program(index).cycles

    def serialize(self) -> bytes:
        """Return the payload of the poplarExecutable blob. Equal executables give equal bytes."""
        return b"".join(self.iter_serialized())

    def iter_serialized(self) -> Iterator[bytes | memoryview]:
        """Yield the payload in pieces. Constants, which may be gigabytes, are not copied."""
        offsets, size = _lay_out(constant.data for constant in self.constants)
        message = pb.Executable(
            package_hash=self.package_hash,
            name=self.name,
            target=pb.Target(name=self.target.name, num_ipus=self.target.num_ipus),
            programs=[_encode_program(program) for program in self.programs],
            compile_options=[
                pb.Option(name=name, value=value) for name, value in self.compile_options
            ],
            constants=[
                pb.Constant(name=c.name, dtype=c.dtype.name, shape=c.shape, offset=offset)
                for c, offset in zip(self.constants, offsets, strict=True)
            ],
            numerics=pb.Numerics(**asdict(self.numerics)),
        )
        encoded = bytes(message.SerializeToString(deterministic=True))
        head = _MAGIC + b"%02d" % FORMAT_VERSION + len(encoded).to_bytes(8, "little") + encoded
        yield head
        if not size:
            return
        yield bytes(_align(len(head)) - len(head))
        end = 0
        for constant, offset in zip(self.constants, offsets, strict=True):
            yield bytes(offset - end)
            yield constant.data
            end = offset + len(constant.data)
        yield bytes(size - end)

    @staticmethod
    def deserialize(
        payload: bytes | memoryview, *, check_package_hash: bool = True
    ) -> SimulatedExecutable:
        """Read a payload that `serialize` wrote; the constants are views of `payload`.

        Raises ForeignExecutableError for a payload of another program, LoadError for one of another
        version or package hash and for a damaged one. A real Poplar executable holds machine code
        of the chip: it is foreign here.
        """
        view = memoryview(payload)
        start = _check_head(view)
        message = pb.Executable()
        try:
            message.ParseFromString(bytes(view[_HEADER_BYTES:start]))
        except DecodeError as error:
            raise LoadError(
                f"the executable payload of {len(view)} bytes is damaged: {error}; compile it again"
            ) from error
        if check_package_hash and message.package_hash != package_hash():
            raise LoadError(
                f"Failed to deserialize {message.name} : Error reading executable - package hash "
                f"({message.package_hash}) differs from poplar hash ({package_hash()}); compile "
                "the model again with this version, or set check_package_hash to false to load it "
                "anyway"
            )
        constants = view[_align(start) :]
        return SimulatedExecutable(
            name=message.name,
            target=find_target(message.target.name, message.target.num_ipus),
            programs=tuple(_decode_program(program) for program in message.programs),
            package_hash=message.package_hash,
            compile_options=tuple(
                (option.name, option.value) for option in message.compile_options
            ),
            constants=_decode_constants(message.constants, constants),
            numerics=Numerics(
                **{field.name: getattr(message.numerics, field.name) for field in fields(Numerics)}
            ),
        )


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _lay_out(pieces: Iterable[bytes | memoryview]) -> tuple[list[int], int]:
    """Return the offset of each piece, and the size of all of them."""
    offsets, size = [], 0
    for piece in pieces:
        size = _align(size)
        offsets.append(size)
        size += len(piece)
    return offsets, size


def _check_head(payload: memoryview) -> int:
    """Return the end of the message. Raises ForeignExecutableError for a payload of another
    program, LoadError for one of another version or an incomplete one."""
    if payload[:6] != _MAGIC:
        raise ForeignExecutableError(
            f"the executable payload of {len(payload)} bytes was not written by this project's "
            "poprt: it is damaged, or holds machine code of a real IPU, which cannot be simulated; "
            "compile the ONNX model with poprt, or name the ONNX graph that it was compiled from "
            "(parameter sim_graph_path)"
        )
    version = bytes(payload[6:8])
    if version != b"%02d" % FORMAT_VERSION:
        raise LoadError(
            f"the executable has format version {version.decode('ascii', 'replace')}, this "
            f"simulator reads {FORMAT_VERSION:02d}; compile the model again with poprt"
        )
    end = _HEADER_BYTES + int.from_bytes(payload[8:_HEADER_BYTES], "little")
    if len(payload) < end or end == _HEADER_BYTES:
        raise LoadError(
            f"the executable payload is incomplete: expected at least {end} bytes, found "
            f"{len(payload)}; compile it with poprt again"
        )
    return end


def _decode_dtype(name: str) -> np.dtype[Any]:
    """Return a numeric or boolean type. Raises ValueError for other names, many of which numpy
    would accept."""
    if name not in _DTYPES:
        raise ValueError(f"expected a type, {', '.join(sorted(_DTYPES))}, found {name!r}")
    return np.dtype(name)


def _decode_shape(shape: Sequence[int]) -> tuple[int, ...]:
    elements = math.prod(max(1, size) for size in shape)
    if len(shape) > MAX_AXES or min(shape, default=0) < 0 or elements > MAX_ELEMENTS:
        raise ValueError(
            f"expected a shape of at most {MAX_AXES} axes and {MAX_ELEMENTS} elements, found "
            f"{list(shape)[:9]}"
        )
    return tuple(shape)


def _decode_constant(message: pb.Constant, payload: memoryview) -> Constant:
    try:
        dtype, shape = _decode_dtype(message.dtype), _decode_shape(message.shape)
    except ValueError as error:
        raise LoadError(
            f"constant {message.name!r} of the executable is damaged: {error}"
        ) from error
    end = message.offset + math.prod(shape) * dtype.itemsize
    if end > len(payload):
        raise LoadError(
            f"constant {message.name!r} of the executable: expected {end} bytes, found "
            f"{len(payload)}; the file is damaged: compile it with poprt again"
        )
    return Constant(message.name, dtype, shape, payload[message.offset : end])


def _decode_constants(messages: Sequence[pb.Constant], payload: memoryview) -> tuple[Constant, ...]:
    """Return constants, each with a name and with bytes of its own, as `serialize` writes them.
    Raises LoadError for two that share either."""
    constants = tuple(_decode_constant(message, payload) for message in messages)
    counts = Counter(constant.name for constant in constants)
    for name, count in counts.most_common(1):
        if count > 1:
            raise LoadError(
                f"the executable has {count} constants {name!r}, expected one; the file is "
                "damaged: compile it with poprt again"
            )
    places = sorted(
        (message.offset, message.offset + len(constant.data), constant.name)
        for message, constant in zip(messages, constants, strict=True)
        if constant.data
    )
    for (_, end, name), (start, _, other) in pairwise(places):
        if start < end:
            raise LoadError(
                f"constants {name!r} and {other!r} of the executable overlap: expected {other!r} "
                f"at offset {end} or later, found {start}; the file is damaged: compile it with "
                "poprt again"
            )
    return constants


_SAME = (
    "index name graph row_independent cycles interval_cycles overlapped row_dependence selector"
).split()
"""Fields of a program that its message has under the same name and type."""


def _encode_program(program: Program) -> pb.Program:
    return pb.Program(
        **{name: getattr(program, name) for name in _SAME},
        kind=pb.Program.Kind.Name(program.kind.value),
        streams=[
            pb.Stream(
                handle=stream.handle,
                tensor=stream.tensor,
                direction=pb.Stream.Direction.Name(stream.direction.value),
                dtype=stream.dtype.name,
                shape=stream.shape,
                batch_axis=stream.batch_axis,
            )
            for stream in program.streams
        ],
        branches=[_encode_program(branch) for branch in program.branches],
    )


def _decode_program(message: pb.Program, is_branch: bool = False) -> Program:
    try:
        if is_branch and message.branches:
            raise ValueError("a fused program contains another fused program")
        program = Program(
            **{name: getattr(message, name) for name in _SAME},
            kind=ProgramKind(message.kind),
            streams=tuple(_decode_stream(stream) for stream in message.streams),
            branches=tuple(_decode_program(branch, True) for branch in message.branches),
        )
        _check_branches(program)
    except (TypeError, ValueError) as error:
        raise LoadError(
            f"program {message.index} ({message.name!r}) of the executable is damaged: {error}"
        ) from error
    return program


def _check_branches(program: Program) -> None:
    """Raise ValueError unless a fused program selects by one whole number, and each of its other
    streams belongs to one branch."""
    if not program.branches:
        return
    expected = [stream for branch in program.branches for stream in branch.streams]
    selectors = [stream for stream in program.streams if stream.tensor == program.selector]
    others = [stream for stream in program.streams if stream.tensor != program.selector]
    key = operator.attrgetter("handle")
    if sorted(others, key=key) != sorted(expected, key=key):
        raise ValueError("its streams differ from those of its branches")
    if len(selectors) != 1 or selectors[0].direction is not Direction.HOST_TO_DEVICE:
        raise ValueError(f"its selector {program.selector!r} is not one of its inputs")
    if math.prod(selectors[0].shape) != 1 or selectors[0].dtype.kind != "i":
        raise ValueError(f"its selector {program.selector!r} is not one whole number")


def _decode_stream(message: pb.Stream) -> Stream:
    shape, axis = _decode_shape(message.shape), message.batch_axis
    if axis and axis >= len(shape):
        raise ValueError(
            f"stream {message.handle!r} of shape {shape} has no axis {axis} for its batch"
        )
    direction, dtype = Direction(message.direction), _decode_dtype(message.dtype)
    return Stream(message.handle, message.tensor, direction, dtype, shape, axis)


@dataclass(slots=True)
class Device:
    """The `target.num_ipus` simulated chips of one kind; `id` appears in messages."""

    target: Target
    id: int = 0

    def check_fits(self, executable: SimulatedExecutable, replication_factor: int = 1) -> None:
        """Raise LoadError unless `executable` was compiled for this kind of chip, with these tiles,
        and this number of chips.

        The number may count one replica's chips or those of all `replication_factor` replicas:
        files have both.
        """
        required, mine = executable.target, self.target
        numbers = {required.num_ipus, required.num_ipus * replication_factor}
        kinds = [(target.ipu_version, target.tiles_per_ipu) for target in (required, mine)]
        if mine.num_ipus not in numbers or kinds[0] != kinds[1]:
            raise LoadError(
                f"executable {executable.name!r} was compiled for {_describe(required)}, but "
                f"device {self.id} is {_describe(mine)}; compile for this device or load it on a "
                "matching one"
            )


def _describe(target: Target) -> str:
    return f"{target.num_ipus} x {target.name} of {target.tiles_per_ipu} tiles"
