"""Required outcome of every payload of an executable: answers, or an error of ours, within the
limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import hostile_graphs as hostile
import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from message_mutations import mutate_message
from onnx import TensorProto, helper, numpy_helper
from poprt import Compiler, CompilerOptions, Converter
from poprt.compile.executable import Executable as Compiled
from sample_models import gather_model, linear_model
from simipu import (
    Device,
    Direction,
    Engine,
    GraphOptions,
    Program,
    SimIpuError,
    SimulatedExecutable,
    Stream,
)
from simipu import executable_pb2 as pb

OPTIONS = GraphOptions(num_threads=1, limit_seconds=1.0, ready_seconds=5.0, memory_bytes=256 << 20)
_MAX_FED_BYTES = 1 << 20


@cache
def seed_executables() -> tuple[Compiled, ...]:
    """Return valid executables of several kinds: floats and halves, constants and streamed weights,
    loops, branches, convolutions."""
    models = [linear_model(), gather_model(), hostile.endless_loop(3), _branches(), _convolution()]
    found = []
    for model in models:
        for precision in ("fp32", "fp16"):
            converted = (
                Converter(batch_size=2, precision=precision).convert(model)
                if model is models[0]
                else None
            )
            converted = converted or Converter(
                batch_size=2 if model is models[1] else None, precision=precision
            ).convert(model)
            for constant_weights in (True, False):
                options = CompilerOptions(constant_weights=constant_weights)
                found.append(Compiler.compile(converted, None, options))
    return tuple(found)


@cache
def seed_payloads() -> tuple[bytes, ...]:
    """Return the payloads of `seed_executables`."""
    return tuple(compiled.executable.serialize() for compiled in seed_executables())


def _branches() -> onnx.ModelProto:
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4])
    graphs = [
        helper.make_graph([helper.make_node(op, ["x"], ["o"])], op, [], [out])
        for op in ("Relu", "Neg")
    ]
    go = helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0)
    choose = helper.make_node("Greater", ["m", "zero"], ["go"])
    node = helper.make_node("If", ["go"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    return hostile.make_model(
        [go, choose, node], [numpy_helper.from_array(np.array(0, np.float32), "zero")]
    )


def _convolution() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    tensors = [
        hostile.whole([1, 1, 2, 2], "four"),
        hostile.whole([4], "flat"),
        numpy_helper.from_array(random.standard_normal((1, 1, 3, 3)).astype(np.float32), "w"),
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "four"], ["image"]),
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Resize", ["p", "", "", "sizes"], ["r"]),
        helper.make_node("Reshape", ["r", "flat"], ["y"]),
    ]
    return hostile.make_model(nodes, [*tensors, hostile.whole([1, 1, 2, 2], "sizes")])


def mutate_payload(payload: bytes, random: Random) -> bytes:
    """Damage to the message, to a graph in it, or to any byte."""
    if random.random() < 0.1:
        place = random.randrange(len(payload))
        return payload[:place] + bytes([random.randrange(256)]) + payload[place + 1 :]
    size = int.from_bytes(payload[8:16], "little")
    message, rest = pb.Executable.FromString(payload[16 : 16 + size]), payload[16 + size :]
    for _ in range(random.choice((1, 1, 2, 5))):
        programs = [program for program in message.programs if program.graph]
        if programs and random.random() < 0.7:
            program = random.choice(programs)
            graph = onnx.ModelProto.FromString(program.graph)
            mutate_message(graph, random)
            program.graph = graph.SerializeToString()
        else:
            mutate_message(message, random)
        if not _parses(message):
            break
    encoded = message.SerializeToString()
    return payload[:8] + len(encoded).to_bytes(8, "little") + encoded + rest


def _parses(message: pb.Executable) -> bool:
    try:
        for program in message.programs:
            onnx.ModelProto.FromString(program.graph)
    except DecodeError:
        return False
    return True


def check_payload(payload: bytes, *, isolated: bool = False) -> str:
    """Load and run it; "answers", or the name of the error of ours that it came to. Anything else
    is raised."""
    engine = None
    try:
        executable = SimulatedExecutable.deserialize(payload)
        engine = Engine(
            executable, Device(executable.target), graph_options=OPTIONS, isolated=isolated
        )
        for program in executable.programs:
            for stream in program.streams:
                if stream.direction is Direction.HOST_TO_DEVICE:
                    engine.connect_input(stream.handle, _feed(program, stream))
                else:
                    engine.connect_output(stream.handle, _drain(program, stream))
        for program in sorted(executable.programs, key=lambda each: each.kind):
            engine.run(program.index)
    except SimIpuError as error:
        return type(error).__name__ if str(error) else "an error without words"
    finally:
        if engine is not None:
            engine.unload()
    return "answers"


def _feed(program: Program, stream: Stream) -> Callable[[int], npt.NDArray[Any]]:
    def read(_most: int) -> npt.NDArray[Any]:
        shape = (
            1,
            *(stream.row_shape if program.kind == 1 and program.batch_size else stream.shape),
        )
        if (
            np.prod([max(1, size) for size in shape], dtype=float) * stream.dtype.itemsize
            > _MAX_FED_BYTES
        ):
            raise SimIpuError("nobody sends that much")
        return np.ones(shape, stream.dtype)

    return read


def _drain(program: Program, stream: Stream) -> Callable[[npt.NDArray[Any]], None]:
    def write(rows: npt.NDArray[Any]) -> None:
        row_shape = stream.row_shape if program.batch_size else stream.shape
        assert (rows.dtype, rows.shape[1:]) == (stream.dtype, row_shape), (
            f"{stream} gave {rows.dtype} {rows.shape}"
        )

    return write


def iter_damaged(first: int, count: int) -> Iterator[bytes]:
    """Yield that many damaged payloads, the same for the same numbers."""
    for number in range(first, first + count):
        yield damage(number)[1]


def damage(number: int) -> tuple[Compiled, bytes]:
    """Return the damaged payload of a number, and the compiled model it was made from."""
    random = Random(number)
    payload = random.choice(seed_payloads())
    return seed_executables()[seed_payloads().index(payload)], mutate_payload(payload, random)
