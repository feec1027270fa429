"""Hostile calls of TensorFlow Serving's gRPC, as bytes: every kind in `KINDS`, the allowed
outcomes, and the sender.

The models are those of hostile_models. The same seed and number make the same case.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import grpc
import numpy as np
from children import find_children, read_resident_bytes
from hostile_models import GATHERING, LINEAR, MODELS, NAMES, SIZES, SLOW, Array, Served, Wanted
from hostile_runner import (
    CLIENTS,
    LEAK_BYTES,
    SOUND_EVERY,
    Report,
    WrongAnswerError,
)
from message_mutations import mutate_message
from poplar_triton.tfserving import messages_pb2 as messages
from server_processes import TfServing
from tfserving_clients import (
    METADATA,
    PREDICT,
    STATUS,
    Client,
    make_request,
    make_spec,
    read_outputs,
)
from waiting import PATIENCE_SECONDS

BLOCK_SLACK_BYTES = 1 << 20
"""Growth between two usages that is no leak."""
DEFECTS = ("poplar-triton:", "poplar backend:", "Traceback", "Exception calling", "metadata size")
"""Words in an answer that show a fault of something other than the request."""
COMPUTED = "could not compute the request"
"""Words of a model that rejects values."""
NUMBERS = (0, 1, -1, 7, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
DTYPES = (0, 1, 2, 3, 7, 8, 9, 10, 14, 19, 20, 101, -1, 2**31 - 1, -(2**31))
LISTS = (
    "float_val",
    "double_val",
    "int_val",
    "int64_val",
    "bool_val",
    "half_val",
    "uint32_val",
    "uint64_val",
)
METHODS = (
    "/tensorflow.serving.PredictionService/Classify",
    "/tensorflow.serving.PredictionService/MultiInference",
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    "/tensorflow.serving.PredictionService/None",
    "/tensorflow.serving.SessionService/SessionRun",
    "/x",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A call and its expected answer: `rows` is what an answered request must hold of `model`."""

    message: bytes
    wanted: Wanted = Wanted.REFUSED
    method: str = PREDICT
    model: Served | None = None
    rows: Array | None = None
    deadline_seconds: float | None = None
    called_off_seconds: float | None = None
    compression: grpc.Compression = grpc.Compression.NoCompression


Kind = Callable[[Random], Case]
KINDS: dict[str, Kind] = {}


def kind(make: Kind) -> Kind:
    """Register the maker of a kind, under its own name."""
    KINDS[make.__name__] = make
    return make


def draft(
    random: Random, models: tuple[Served, ...] = MODELS
) -> tuple[Served, messages.PredictRequest]:
    """Return a valid request."""
    model = random.choice(models)
    return model, make_request(model.name, {model.input: model.make_rows(random)})


def ask(request: Any, wanted: Wanted = Wanted.REFUSED, method: str = PREDICT) -> Case:
    return Case(request.SerializeToString(), wanted, method)


def make_sound(random: Random) -> Case:
    """Return a case that must get the right answer, with data as content or as typed values."""
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    request = make_request(model.name, {model.input: rows}, random.choice([(), (model.output,)]))
    tensor = request.inputs[model.input]
    if random.random() < 0.5:
        tensor.tensor_content = b""
        if model.takes_indices:
            tensor.int_val.append(bytes(rows.astype(np.uint8).ravel()))  # varints of one byte
        else:
            tensor.float_val.append(rows.tobytes())
    return replace(ask(request, Wanted.ANSWERED), model=model, rows=rows)


@kind
def no_message(random: Random) -> Case:
    return Case(random.choice([b"", b"\0", b"\xff" * 9, random.randbytes(random.randint(1, 5000))]))


@kind
def cut_or_lengthened(random: Random) -> Case:
    message = draft(random)[1].SerializeToString()
    if random.random() < 0.5:
        return Case(message[: random.randrange(len(message))])
    return Case(message + random.randbytes(random.randint(1, 50)), Wanted.EITHER)


@kind
def flipped(random: Random) -> Case:
    message = bytearray(draft(random)[1].SerializeToString())
    for _ in range(random.randint(1, 4)):
        message[random.randrange(len(message))] ^= 1 << random.randrange(8)
    return Case(bytes(message), Wanted.EITHER)


@kind
def mutated(random: Random) -> Case:
    request = draft(random)[1]
    for _ in range(random.randint(1, 3)):
        mutate_message(random.choice([request, *request.inputs.values()]), random)
    return ask(request, Wanted.EITHER)


@kind
def mutated_questions(random: Random) -> Case:
    spec = make_spec(random.choice(MODELS).name, 1)
    if random.random() < 0.5:
        request: Any = messages.GetModelStatusRequest(model_spec=spec)
        method = STATUS
    else:
        request = messages.GetModelMetadataRequest(
            model_spec=spec, metadata_field=["signature_def"]
        )
        method = METADATA
    mutate_message(request, random)
    return ask(request, Wanted.EITHER, method)


@kind
def other_fields_of_metadata(random: Random) -> Case:
    request = messages.GetModelMetadataRequest(model_spec=make_spec(random.choice(MODELS).name))
    request.metadata_field.extend(random.choices(NAMES, k=random.randint(0, 5)))
    return ask(request, method=METADATA)


@kind
def odd_names(random: Random) -> Case:
    _, request = draft(random)
    name = random.choice(NAMES)
    place = random.randrange(4)
    if place == 0:
        request.model_spec.name = name
    elif place == 1:
        request.model_spec.signature_name = name or "x"
    elif place == 2:
        request.output_filter.append(name)
    else:
        request.inputs[name].dtype = random.choice(DTYPES)
    return ask(request)


@kind
def unknown_versions(random: Random) -> Case:
    _, request = draft(random)
    if random.random() < 0.5:
        request.model_spec.version.value = random.choice(
            [number for number in NUMBERS if number != 1]
        )
    else:
        request.model_spec.version_label = random.choice(NAMES)
    method = random.choice([PREDICT, STATUS])
    if method == STATUS:
        return ask(messages.GetModelStatusRequest(model_spec=request.model_spec), method=STATUS)
    return ask(request)


@kind
def many_names(random: Random) -> Case:
    _, request = draft(random)
    for number in range(random.randint(1, 3000)):
        request.inputs[f"input_{number}"].dtype = 1
    return ask(request)


@kind
def many_outputs(random: Random) -> Case:
    model, request = draft(random)
    request.output_filter.extend([model.output] * random.randint(2, 5000))
    return ask(request)


@kind
def other_types(random: Random) -> Case:
    model, request = draft(random)
    right = {"INT32": (3, 9), "FP32": (1,)}[model.datatype]
    request.inputs[model.input].dtype = random.choice(
        [dtype for dtype in DTYPES if dtype not in right]
    )
    return ask(request)


@kind
def odd_shapes(random: Random) -> Case:
    model, request = draft(random)
    shape = request.inputs[model.input].tensor_shape
    what = random.randrange(4)
    if what == 0:
        shape.dim[random.randrange(2)].size = random.choice(SIZES)
    elif what == 1:
        for _ in range(random.randint(1, 5000)):
            shape.dim.add(size=random.choice([1, 2**62, -1]))
    elif what == 2:
        shape.unknown_rank = True
    else:
        del shape.dim[:]
    return ask(request)


@kind
def contents_of_other_lengths(random: Random) -> Case:
    model, request = draft(random)
    tensor = request.inputs[model.input]
    size = len(tensor.tensor_content)
    tensor.tensor_content = random.randbytes(
        random.choice([1, size - 1, size + 1, 2 * size, 300_000])
    )
    return ask(request)


@kind
def typed_values_of_other_lengths(random: Random) -> Case:
    """Return a request with another number of values; fewer than the shape has are valid: the last
    one is repeated."""
    model, request = draft(random)
    tensor = request.inputs[model.input]
    count = len(tensor.tensor_content) // 4 + random.choice([1, 100, 100_000])
    tensor.tensor_content = b""
    if model.takes_indices:
        tensor.int_val.append(bytes(count))
    else:
        tensor.float_val.append(bytes(4 * count))
    return ask(request)


@kind
def damaged_values(random: Random) -> Case:
    model, request = draft(random)
    tensor = request.inputs[model.input]
    tensor.tensor_content = b""
    for _ in range(random.randint(1, 3)):
        data = random.choice(
            [b"\xff" * random.randint(1, 30), random.randbytes(random.randint(1, 40)), b""]
        )
        getattr(tensor, random.choice(LISTS)).append(data)
    return ask(request, Wanted.EITHER)


@kind
def one_value_for_many(random: Random) -> Case:
    """Return a few bytes that claim to be many rows: more than the model accepts."""
    model, request = draft(random)
    tensor = request.inputs[model.input]
    tensor.tensor_content = b""
    tensor.tensor_shape.dim[0].size = random.choice([65, 10**6, 2**31, 2**40, 2**62])
    return ask(request)


@kind
def values_that_the_model_refuses(random: Random) -> Case:
    model, _ = draft(random, GATHERING)
    rows = np.full((2, model.width), random.choice([10, -11, 2**31 - 1, -(2**31)]), np.int32)
    return ask(make_request(model.name, {model.input: rows}))


@kind
def wide_integers_that_do_not_fit(random: Random) -> Case:
    model, _ = draft(random, GATHERING)
    rows = np.full(
        (2, model.width), random.choice([2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]), np.int64
    )
    return ask(make_request(model.name, {model.input: rows}))


@kind
def other_methods(random: Random) -> Case:
    return replace(ask(draft(random)[1]), method=random.choice(METHODS))


@kind
def impatient(random: Random) -> Case:
    _, request = draft(random, (*LINEAR, *SLOW))
    case = ask(request, Wanted.EITHER)
    if random.random() < 0.5:
        return replace(case, deadline_seconds=random.choice([0.001, 0.01]))
    return replace(case, called_off_seconds=random.choice([0.0, 0.001, 0.01]))


@kind
def compressed(random: Random) -> Case:
    """Return some kilobytes that decompress to megabytes."""
    model, request = draft(random)
    request.inputs[model.input].tensor_content = bytes(random.choice([1 << 20, 8 << 20]))
    return replace(ask(request), compression=grpc.Compression.Gzip)


def run_cases(server: TfServing, numbers: range, seed: int) -> Report:
    """Send the cases of these numbers from many clients at once."""
    total = Report()
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = [[*numbers][client::CLIENTS] for client in range(CLIENTS)]
        for report in pool.map(lambda share: _work(server, share, seed), shares):
            total.merge(report)
    return total


def _work(server: TfServing, numbers: list[int], seed: int) -> Report:
    kinds = list(KINDS.items())
    report = Report()
    with Client(server.grpc_url) as client:
        for place, number in enumerate(numbers):
            name, make = kinds[number % len(kinds)]
            _send(client, name, make, f"{seed} {number}", report)
            if place % SOUND_EVERY == 0:
                _send(client, "sound", make_sound, f"{seed} {number} sound", report)
    return report


def _send(client: Client, name: str, make: Kind, seed: str, report: Report) -> None:
    case = make(Random(seed))
    try:
        outcome = send(client, case)
    except WrongAnswerError as error:
        outcome = "WRONG"
        report.faults.append(f"{name} of seed {seed!r}: {error}")
    report.add("grpc", name, outcome)


def send(client: Client, case: Case) -> str:
    """Send a case and return the code received; raises WrongAnswerError."""
    call = client.channel.unary_unary(case.method).future(
        case.message,
        timeout=case.deadline_seconds or PATIENCE_SECONDS,
        compression=case.compression,
    )
    if case.called_off_seconds is not None:
        time.sleep(case.called_off_seconds)
        call.cancel()
    code, text, answer = "OK", "", b""
    try:
        answer = call.result()
    except grpc.FutureCancelledError:
        code = "CANCELLED"
    except grpc.RpcError as error:
        code, text = error.code().name, error.details() or ""
    _judge(case, code, text)
    if case.wanted is Wanted.ANSWERED:
        assert case.model is not None
        assert case.rows is not None
        outputs = read_outputs(messages.PredictResponse.FromString(answer))
        if not np.array_equal(outputs[case.model.output], case.model.compute(case.rows)):
            raise WrongAnswerError(
                f"{case.model.name}: {case.rows.tolist()} was answered {outputs}"
            )
    return code


def _judge(case: Case, code: str, text: str) -> None:
    is_defect = code == "UNKNOWN" or (code == "INTERNAL" and COMPUTED not in text)
    if is_defect or any(words in text for words in DEFECTS):
        raise WrongAnswerError(f"a defect: {code} {text[:1000]!r}")
    if code == "CANCELLED" and case.called_off_seconds is None:
        raise WrongAnswerError(f"called off: {text}")
    if code == "DEADLINE_EXCEEDED" and case.deadline_seconds is None:
        raise WrongAnswerError(f"no answer within {PATIENCE_SECONDS:g} s")
    if case.wanted is not Wanted.EITHER and (code == "OK") != (case.wanted is Wanted.ANSWERED):
        raise WrongAnswerError(f"must be {case.wanted.value}, found {code} {text[:500]!r}")


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a server's processes: their ids, bytes of memory, open files and threads."""

    processes: list[int]
    resident: int
    files: int
    threads: int


def measure(server: TfServing) -> Usage:
    """Return the present usage of the server's processes."""
    processes = _family(server.pid)
    files = sum(len(os.listdir(f"/proc/{process}/fd")) for process in processes)
    threads = sum(len(os.listdir(f"/proc/{process}/task")) for process in processes)
    return Usage(processes, read_resident_bytes(server.pid), files, threads)


def describe_growth(usages: Sequence[Usage], requests: int) -> list[str]:
    """Return how the processes have changed over usages that are `requests` requests apart.

    The memory that an allocator keeps varies by megabytes. A leak grows between all of the usages,
    so the smallest growth counts.
    """
    faults = []
    before, after = usages[0], usages[-1]
    if before.processes != after.processes:
        faults.append(f"the processes were {before.processes}, are {after.processes}")
    growths = [later.resident - earlier.resident for earlier, later in pairwise(usages)]
    if min(growths) > BLOCK_SLACK_BYTES + LEAK_BYTES * requests:
        faults.append(f"they grew by {growths} bytes, each time in {requests} requests")
    for what, was, now in (
        ("open files", before.files, after.files),
        ("threads", before.threads, after.threads),
    ):
        if now > was + 4 * CLIENTS:
            faults.append(f"they had {was} {what}, have {now}")
    return faults


def _family(process: int) -> list[int]:
    children = find_children(process)
    return sorted([process, *(descendant for child in children for descendant in _family(child))])
