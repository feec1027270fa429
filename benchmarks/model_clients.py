"""Loader of real models into a server, and several concurrent clients that send the requests ONNX
Runtime gets, too."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import memory
import model_inputs
import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from model_answers import ORIGINAL_ERRORS, Original
from model_results import Result
from poplar_triton.serving.server import TritonServer
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

CLIENTS = (grpcclient, httpclient, grpcclient, httpclient)
"""One thread each."""


Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's request and its answer."""

    feeds: dict[str, Array]
    outputs: dict[str, Array]


class Served:
    """A loaded model, with the axes of the rows of its tensors, as the server describes it."""

    def __init__(self, client: grpcclient.InferenceServerClient, result: Result, stub: int) -> None:
        config: ModelConfig = client.get_model_config(result.name).config
        self.name = result.name
        self.stub = stub
        self.model = result.model
        self.types = {tensor.name: _dtype(tensor) for tensor in config.input}
        self.outputs = [tensor.name for tensor in config.output]
        # Triton has no scalars: a row that is one is a row of one element, and without a batch so
        # is a tensor.
        self.scalars = {
            tensor.name for tensor in (*config.input, *config.output) if tensor.HasField("reshape")
        }
        self.axes = find_axes(config)

    @property
    def sizes(self) -> list[int]:
        """The rows of the requests."""
        batch = self.model.batch
        return sorted({1, 3, batch, 2 * batch + 1}) if self.axes is not None else [batch]


def find_axes(config: ModelConfig) -> dict[str, int] | None:
    """Return the axis that may have any number of rows, by tensor; None if only the compiled shape
    is possible."""
    tensors = [*config.input, *config.output]
    if config.max_batch_size:
        return {tensor.name: 0 for tensor in tensors}
    axes = {tensor.name: list(tensor.dims).index(-1) for tensor in tensors if -1 in tensor.dims}
    return axes or None


def _dtype(tensor: Any) -> np.dtype[Any]:
    return np.dtype(triton_to_np_dtype(DataType.Name(tensor.data_type).removeprefix("TYPE_")))


def load(
    client: grpcclient.InferenceServerClient, server: TritonServer, result: Result, seconds: float
) -> Served | None:
    """Load a model; None, with the reason in the result, if the server cannot."""
    before = set(memory.find_stubs(server.pid))
    start = time.monotonic()
    try:
        client.load_model(result.name, client_timeout=seconds)
    except InferenceServerException as error:
        result.failure = f"does not load: {error.message()}"
        return None
    result.load_seconds = time.monotonic() - start
    (stub,) = set(memory.wait_for_stubs(server.pid, len(before) + 1)) - before
    result.private_bytes = memory.read_private_bytes(stub)
    return Served(client, result, stub)


def ask(
    server: TritonServer, served: Served, types: dict[str, np.dtype[Any]], deadline: float
) -> list[Answer]:
    """Return every client's answers; raises the error of a request that failed.

    `types` are those of the original's inputs.
    """
    stop = threading.Event()

    def run(number: int) -> list[Answer]:
        module = CLIENTS[number]
        answers = []
        with _connect(module, server, deadline - time.monotonic()) as client:
            for rows in served.sizes:
                if time.monotonic() > deadline or stop.is_set():
                    raise TimeoutError("the time for this model was over")
                feeds = model_inputs.make_inputs(served.model.inputs, rows, (number, rows))
                # ONNX Runtime gets the same inputs: rounded to half if the served model takes
                # halves.
                sent = served.model.cast(feeds, served.types)
                answers.append(
                    Answer(
                        served.model.cast({**feeds, **sent}, types),
                        _infer(module, client, served, sent, deadline),
                    )
                )
        return answers

    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        futures = [pool.submit(run, number) for number in range(len(CLIENTS))]
        try:
            return [answer for future in futures for answer in future.result()]
        finally:
            stop.set()


def _connect(module: Any, server: TritonServer, seconds: float) -> Any:
    if module is grpcclient:
        return grpcclient.InferenceServerClient(server.grpc_url)
    return httpclient.InferenceServerClient(server.http_url, network_timeout=seconds)


def _infer(
    module: Any, client: Any, served: Served, arrays: dict[str, Array], deadline: float
) -> dict[str, Array]:
    tensors = []
    for name, array in arrays.items():
        shaped = array.reshape(-1, 1) if name in served.scalars else np.atleast_1d(array)
        tensor = module.InferInput(name, list(shaped.shape), np_to_triton_dtype(shaped.dtype))
        tensor.set_data_from_numpy(shaped)
        tensors.append(tensor)
    options = {"client_timeout": deadline - time.monotonic()} if module is grpcclient else {}
    answer = client.infer(served.name, tensors, **options)
    outputs = {name: answer.as_numpy(name) for name in served.outputs}
    if missing := [name for name, array in outputs.items() if array is None]:
        raise ValueError(f"the answer lacks {', '.join(missing)}")
    return {
        name: array.reshape(-1) if name in served.scalars else array
        for name, array in outputs.items()
    }


def check(server: TritonServer, served: Served, result: Result, seconds: float) -> None:
    """Send requests to a model, and compare its answers."""
    deadline = time.monotonic() + seconds
    try:
        original = Original(result.model.fetch(), served.axes)
        answers = ask(server, served, original.types, deadline)
        for answer in answers:
            result.differences.add(original.run(answer.feeds, served.outputs), answer.outputs)
        result.axis = find_axis(served.axes)
        result.private_bytes = memory.read_private_bytes(served.stub)
    except (InferenceServerException, OSError, ValueError, *ORIGINAL_ERRORS) as error:
        result.failure = f"{type(error).__name__}: {' '.join(str(error).split())}"


def find_axis(axes: dict[str, int] | None) -> int | None:
    """Return one of the axes of rows: one that is not the first, if there is one."""
    return max(axes.values()) if axes else None
