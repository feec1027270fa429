"""Hostile calls over gRPC, as bytes: every kind in `KINDS`, with the allowed outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import grpc
import numpy as np
import tritonclient.grpc.service_pb2 as pb
from hostile_models import (
    GATHERING,
    LINEAR,
    MAX_ROWS,
    MODELS,
    NAMES,
    REGION,
    REGION_BYTES,
    SIZES,
    SLOW,
    TYPES,
    Array,
    Served,
    Wanted,
)
from message_mutations import mutate_message

GZIP = grpc.Compression.Gzip


@dataclass(frozen=True, slots=True)
class GrpcCase:
    """A call: its messages and the expected answers.

    Each message must be answered once, unless `answers` says otherwise. `rows` is what an answered
    request must hold of `model`. `deadline_seconds` is the client's (None: the runner's own). The
    client cancels the request `called_off_seconds` after sending it.
    """

    messages: tuple[bytes, ...]
    wanted: Wanted = Wanted.REFUSED
    model: Served | None = None
    rows: Array | None = None
    method: str = "ModelInfer"
    deadline_seconds: float | None = None
    called_off_seconds: float | None = None
    answers: int | None = None
    compression: grpc.Compression = grpc.Compression.NoCompression

    @property
    def is_stream(self) -> bool:
        return self.method == "ModelStreamInfer"


Kind = Callable[[Random], GrpcCase]
KINDS: dict[str, Kind] = {}
CONTENTS = tuple(field.name for field in pb.InferTensorContents.DESCRIPTOR.fields)


def kind(make: Kind) -> Kind:
    """Register the maker of a kind, under its own name."""
    KINDS[make.__name__] = make
    return make


def draft(model: Served, rows: Array) -> pb.ModelInferRequest:
    """Return a valid request."""
    request = pb.ModelInferRequest(model_name=model.name, raw_input_contents=[rows.tobytes()])
    request.inputs.add(name=model.input, datatype=model.datatype, shape=rows.shape)
    request.outputs.add(name=model.output)
    return request


def make_draft(random: Random) -> tuple[Served, pb.ModelInferRequest]:
    """Return a valid request to a random model."""
    model = random.choice(MODELS)
    return model, draft(model, model.make_rows(random))


def ask(request: pb.ModelInferRequest, wanted: Wanted = Wanted.REFUSED) -> GrpcCase:
    return GrpcCase((request.SerializeToString(),), wanted)


def edited(random: Random, **changes: object) -> GrpcCase:
    """Return a request whose one input has these fields; None leaves a field out."""
    _, request = make_draft(random)
    for name, value in changes.items():
        request.inputs[0].ClearField(name)
        if isinstance(value, list):
            getattr(request.inputs[0], name).extend(value)
        elif value is not None:
            setattr(request.inputs[0], name, value)
    return ask(request)


def make_sound(random: Random, model: Served | None = None) -> GrpcCase:
    """Return a case that must get the right answer."""
    model = model or random.choice(MODELS)
    rows = model.make_rows(random)
    return replace(ask(draft(model, rows), Wanted.ANSWERED), model=model, rows=rows)


def odd_parameter(random: Random) -> pb.InferParameter:
    return random.choice(
        [
            pb.InferParameter(),
            pb.InferParameter(bool_param=True),
            pb.InferParameter(int64_param=random.choice([-1, 0, 2**40, -(2**63), 2**63 - 1])),
            pb.InferParameter(string_param=random.choice(NAMES)),
            pb.InferParameter(double_param=random.choice([float("nan"), -1.0, 1e300])),
            pb.InferParameter(uint64_param=2**64 - 1),
        ]
    )


@kind
def unknown_model(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    request.model_name = f"model_{random.randrange(99)}"
    return ask(request)


@kind
def unknown_version(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    request.model_version = random.choice(["2", "0", "-1", "abc", "x1", "9" * 20, "\0", "9" * 5000])
    return ask(request)


@kind
def unknown_input(random: Random) -> GrpcCase:
    return edited(random, name=f"input_{random.randrange(99)}")


@kind
def missing_input(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    del request.inputs[:]
    if random.random() < 0.5:
        del request.raw_input_contents[:]
    return ask(request)


@kind
def duplicate_input(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    for _ in range(random.randint(1, 20)):
        request.inputs.add().CopyFrom(request.inputs[0])
        request.raw_input_contents.append(request.raw_input_contents[0])
    return ask(request)


@kind
def missing_field(random: Random) -> GrpcCase:
    return edited(random, **{random.choice(["name", "shape", "datatype"]): None})


@kind
def wrong_type(random: Random) -> GrpcCase:
    model, request = make_draft(random)
    request.inputs[0].datatype = random.choice([name for name in TYPES if name != model.datatype])
    return ask(request)


@kind
def wrong_rank(random: Random) -> GrpcCase:
    return edited(random, shape=random.choice([[], [4], [1, 1, 4], [1] * 1000]))


@kind
def wrong_size(random: Random) -> GrpcCase:
    return edited(random, shape=[random.choice(SIZES), random.choice(SIZES)])


@kind
def too_many_rows(random: Random) -> GrpcCase:
    model = random.choice(MODELS)
    return ask(draft(model, model.make_rows(random, MAX_ROWS + random.randint(1, 500))))


@kind
def data_shorter_or_longer(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    data = request.raw_input_contents[0]
    request.raw_input_contents[0] = random.choice(
        [data[:-1], data + b"1", data * 50, b"", data[:1]]
    )
    return ask(request)


@kind
def too_many_or_too_few_data(random: Random) -> GrpcCase:
    """Return a request with too many or too few data; Triton ignores excess data."""
    _, request = make_draft(random)
    if random.random() < 0.5:
        request.raw_input_contents.extend([b"x"] * random.choice([1, 1000]))
        return ask(request, Wanted.EITHER)
    del request.raw_input_contents[:]
    return ask(request)


@kind
def raw_and_typed(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    request.inputs[0].contents.fp32_contents.extend([1] * random.choice([1, 4]))
    return ask(request)


@kind
def typed(random: Random) -> GrpcCase:
    """Return a valid request with typed values in place of raw ones."""
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    request = draft(model, rows)
    del request.raw_input_contents[:]
    contents = request.inputs[0].contents
    (contents.int_contents if model.takes_indices else contents.fp32_contents).extend(
        rows.ravel().tolist()
    )
    return replace(ask(request, Wanted.ANSWERED), model=model, rows=rows)


@kind
def typed_wrongly(random: Random) -> GrpcCase:
    """Return a request with data of a wrong count, or in the field of another type."""
    model, request = make_draft(random)
    del request.raw_input_contents[:]
    own = "int_contents" if model.takes_indices else "fp32_contents"
    field = random.choice([name for name in CONTENTS if name != own])
    name, count = random.choice([(own, 1), (own, 1001), (field, 4), (field, 1000)])
    values = [b"a" * random.choice([0, 4])] * count if name == "bytes_contents" else [1] * count
    getattr(request.inputs[0].contents, name).extend(values)
    return ask(request)


@kind
def hostile_name_of_input(random: Random) -> GrpcCase:
    return edited(random, name=random.choice(NAMES))


@kind
def hostile_name_of_output(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    request.outputs[0].name = random.choice(NAMES)
    return ask(request)


@kind
def hostile_name_of_model(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    request.model_name = random.choice(NAMES)
    return ask(request)


@kind
def hostile_id(random: Random) -> GrpcCase:
    """Return a valid request with a hostile id, which comes back with the answer."""
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    request = draft(model, rows)
    request.id = random.choice(NAMES)
    return replace(ask(request, Wanted.ANSWERED), model=model, rows=rows)


@kind
def not_utf8(random: Random) -> GrpcCase:
    model, request = make_draft(random)
    name = model.input.encode()
    return GrpcCase((request.SerializeToString().replace(name, b"\xff" * len(name)),))


@kind
def odd_parameters(random: Random) -> GrpcCase:
    """Return a request with sequences, priorities and timeouts for models that have none of
    them."""
    _, request = make_draft(random)
    name = random.choice(
        [
            "sequence_id",
            "sequence_start",
            "sequence_end",
            "priority",
            "timeout",
            "custom",
            "",
            "triton_x",
        ]
    )
    request.parameters[name].CopyFrom(odd_parameter(random))
    return ask(request, Wanted.EITHER)


@kind
def odd_parameters_of_tensors(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    names = [
        "shared_memory_region",
        "shared_memory_offset",
        "shared_memory_byte_size",
        "classification",
        "binary_data",
        "custom",
    ]
    for _ in range(random.randint(1, 3)):
        random.choice([request.inputs[0], request.outputs[0]]).parameters[
            random.choice(names)
        ].CopyFrom(odd_parameter(random))
    return ask(request, Wanted.EITHER)


@kind
def unknown_output(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    request.outputs.add(name=f"output_{random.randrange(99)}")
    return ask(request)


@kind
def outputs_twice_or_not_at_all(random: Random) -> GrpcCase:
    """Return a request with duplicate outputs, which Triton accepts, or none, for which it returns
    all."""
    model, request = make_draft(random)
    del request.outputs[random.choice([0, 1]) :]
    for _ in range(random.choice([0, 1, 300])):
        request.outputs.add(name=model.output)
    return ask(request, Wanted.EITHER)


@kind
def classification(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    request.outputs[0].parameters["classification"].int64_param = random.choice(
        [1, 2, 100, 2**31, 2**40, 0, -1, -(2**63)]
    )
    return ask(request, Wanted.EITHER)


@kind
def shared_memory(random: Random) -> GrpcCase:
    """Return a request for regions that do not exist, or places beyond the end of the one that
    does."""
    model, request = make_draft(random)
    if is_input := random.random() < 0.5:
        del request.raw_input_contents[:]
    parameters = (request.inputs if is_input else request.outputs)[0].parameters
    parameters["shared_memory_region"].string_param = random.choice(["nothing", REGION, "", "\x1b"])
    parameters["shared_memory_offset"].int64_param = random.choice(
        [REGION_BYTES, 2**31, 2**40, -1, -(2**63)]
    )
    parameters["shared_memory_byte_size"].int64_param = model.width * 4
    return ask(request)


@kind
def shared_memory_registered(random: Random) -> GrpcCase:
    key = random.choice(["/nothing", "", "/", "/../../etc/passwd", "../x", "x" * 5000, "\x1b"])
    message = pb.SystemSharedMemoryRegisterRequest(
        name=random.choice(NAMES),
        key=key,
        offset=random.choice([0, 2**40, 2**64 - 1]),
        byte_size=random.choice([0, 1, 2**40]),
    )
    return GrpcCase((message.SerializeToString(),), method="SystemSharedMemoryRegister")


@kind
def bytes_tensors(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    request.inputs[0].datatype = "BYTES"
    if random.random() < 0.5:
        del request.raw_input_contents[:]
        request.inputs[0].contents.bytes_contents.extend([b"a"] * random.choice([1, 4, 1000]))
    else:
        request.raw_input_contents[0] = random.choice(
            [b"\xff" * 16, b"\1\0\0\0a" * 4, b"\0", b"\0" * 1000]
        )
    return ask(request)


@kind
def bad_indices(random: Random) -> GrpcCase:
    model = random.choice(GATHERING)
    rows = model.make_rows(random)
    rows[random.randrange(len(rows)), random.randrange(2)] = random.choice(
        [10, 1000, 2**31 - 1, -(2**31), -11]
    )
    return ask(draft(model, rows))


@kind
def not_finite_values(random: Random) -> GrpcCase:
    """Return a valid request with values that are not finite, but of the type."""
    model = random.choice(LINEAR)
    rows = model.make_rows(random)
    rows[random.randrange(len(rows)), :] = random.choice([np.nan, np.inf, -np.inf, 3.4e38, 1e-45])
    return replace(ask(draft(model, rows), Wanted.ANSWERED), model=model, rows=rows)


@kind
def compressed(random: Random) -> GrpcCase:
    """Return a valid request that is compressed."""
    return replace(make_sound(random), compression=random.choice([GZIP, grpc.Compression.Deflate]))


@kind
def large_requests(random: Random) -> GrpcCase:
    """Return a request of a megabyte, which compresses to very little."""
    _, request = make_draft(random)
    request.raw_input_contents[0] = bytes(1 << 20)
    return replace(ask(request), compression=random.choice([GZIP, grpc.Compression.NoCompression]))


@kind
def damaged_messages(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    data = bytearray(request.SerializeToString())
    match random.randrange(3):
        case 0:
            for _ in range(random.choice((1, 3, 10))):
                data[random.randrange(len(data))] = random.randrange(256)
        case 1:
            del data[random.randrange(len(data)) :]
        case _:
            data = bytearray(random.randrange(256) for _ in range(random.choice([1, 100, 10_000])))
    return GrpcCase((bytes(data),), Wanted.EITHER)


@kind
def mutated_fields(random: Random) -> GrpcCase:
    _, request = make_draft(random)
    for _ in range(random.choice((1, 2, 5))):
        mutate_message(request, random)
    return GrpcCase((request.SerializeToString(),), Wanted.EITHER)


@kind
def streams(random: Random) -> GrpcCase:
    """Return valid and invalid messages, each of which gets one answer."""
    cases = [
        random.choice([make_sound, wrong_rank, bad_indices, unknown_model, unknown_input])(random)
        for _ in range(5)
    ]
    messages = [message for case in cases for message in case.messages]
    return GrpcCase(tuple(messages), Wanted.EITHER, method="ModelStreamInfer")


@kind
def streams_that_are_not_messages(random: Random) -> GrpcCase:
    """Return a stream of bytes that are no messages; Triton ends it at the first of them, without
    an answer."""
    return GrpcCase(
        (b"\xff" * random.randint(1, 99),), Wanted.EITHER, method="ModelStreamInfer", answers=0
    )


@kind
def unknown_methods(random: Random) -> GrpcCase:
    return GrpcCase(
        (b"\xff" * random.randint(0, 99),),
        method=random.choice(["Nothing", "", "ModelInfer/x", "modelinfer"]),
    )


@kind
def deadlines_that_pass(random: Random) -> GrpcCase:
    """Return a request whose deadline passes while it waits in the backend."""
    model = random.choice(SLOW)
    return replace(
        ask(draft(model, model.make_rows(random))),
        deadline_seconds=random.choice([0.005, 0.01, 0.02]),
    )


@kind
def called_off(random: Random) -> GrpcCase:
    """Return a request that is cancelled while it waits in the backend."""
    model = random.choice(SLOW)
    return replace(
        ask(draft(model, model.make_rows(random))),
        called_off_seconds=random.choice([0.005, 0.01, 0.02]),
    )


@kind
def control_calls(random: Random) -> GrpcCase:
    """Return a call that is no inference, with a message that it does not expect."""
    name = random.choice([*NAMES, random.choice(MODELS).name])
    method, message = random.choice(
        [
            ("RepositoryIndex", pb.RepositoryIndexRequest(repository_name=name)),
            (
                "RepositoryModelLoad",
                pb.RepositoryModelLoadRequest(model_name=name, repository_name=name),
            ),
            ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=name)),
            ("ModelStatistics", pb.ModelStatisticsRequest(name=name, version=name)),
            ("ModelConfig", pb.ModelConfigRequest(name=name, version="1")),
            ("ModelMetadata", pb.ModelMetadataRequest(name=name)),
            ("ModelReady", pb.ModelReadyRequest(name=name, version="x")),
            ("TraceSetting", pb.TraceSettingRequest(model_name=name)),
            (
                "LogSettings",
                pb.LogSettingsRequest(
                    settings={"nothing": pb.LogSettingsRequest.SettingValue(string_param=name)}
                ),
            ),
            ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=name)),
            (
                "CudaSharedMemoryRegister",
                pb.CudaSharedMemoryRegisterRequest(
                    name=name, raw_handle=b"\xff" * 64, byte_size=2**40
                ),
            ),
        ]
    )
    data = message.SerializeToString() if random.random() < 0.8 else b"\xff" * 9
    return GrpcCase((data,), Wanted.EITHER, method=method)
