"""Clients of a real tritonserver that outlive their models, and its metrics."""

from __future__ import annotations

import concurrent.futures
import itertools
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from life_cycle_models import make_rows
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from waiting import PATIENCE_SECONDS, wait_until

REFUSED = "refused"

Array = npt.NDArray[Any]

_REFUSALS = ("unknown model", "no available versions")


def infer(client: Any, model: str, inputs: dict[str, Array], **options: Any) -> dict[str, Array]:
    """Send arrays by name over HTTP or gRPC; the answer's arrays by name."""
    module = httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient
    if module is grpcclient:
        # Over HTTP the client has a separate timeout.
        options = {"client_timeout": PATIENCE_SECONDS, **options}
    return _arrays(client.infer(model, _tensors(module, inputs), **options))


def send(
    client: grpcclient.InferenceServerClient, model: str, inputs: dict[str, Array], **options: Any
) -> Any:
    """Send without waiting: a future of the answer's arrays, whose `call` cancels the request."""
    future: Any = concurrent.futures.Future()

    def done(result: Any, error: Exception | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(_arrays(result))

    future.call = client.async_infer(model, _tensors(grpcclient, inputs), done, **options)
    return future


@contextmanager
def traffic(grpc_url: str, model: str, clients: int = 3) -> Iterator[list[list[Any]]]:
    """Run clients that send numbered rows to a scale_model one request after the other, until the
    block ends.

    Yields a growing list of outcomes per client: the factor of the right answer, REFUSED if the
    model is not there, or a text that describes the fault.
    """
    stop = threading.Event()
    outcomes: list[list[Any]] = [[] for _ in range(clients)]

    def ask(mine: list[Any]) -> None:
        with grpcclient.InferenceServerClient(grpc_url) as client:
            for number in itertools.count(1):
                if stop.wait(0.01):
                    return
                mine.append(_outcome(client, model, make_rows(number, 1 + number % 5)))

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(ask, mine) for mine in outcomes]
        try:
            yield outcomes
        finally:
            stop.set()
        for future in futures:
            future.result(PATIENCE_SECONDS)


def wait_for_all(outcomes: list[list[Any]], wanted: Any) -> None:
    """Wait until the last outcome of every client of `traffic` is `wanted`."""
    wait_until(
        lambda: all(mine and mine[-1] == wanted for mine in outcomes), f"{wanted!r} at every client"
    )


def phases(outcomes: list[Any]) -> list[Any]:
    """Return a client's outcomes without repetitions."""
    return [outcome for outcome, _ in itertools.groupby(outcomes)]


def read_metrics(url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the Prometheus page: the labels and value of each series, by name."""
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        text = answer.read().decode()
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        series.setdefault(name, []).append(
            (dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))
        )
    return series


def read_metric(url: str, name: str, **labels: str) -> float:
    """Return the sum of the series of that name whose labels include these; 0 if there are none."""
    series = read_metrics(url).get(name, [])
    return sum(value for series_labels, value in series if labels.items() <= series_labels.items())


def _tensors(module: Any, inputs: dict[str, Array]) -> list[Any]:
    tensors = []
    for name, array in inputs.items():
        tensor = module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def _arrays(answer: Any) -> dict[str, Array]:
    response = answer.get_response()
    outputs = (
        response["outputs"]
        if isinstance(response, dict)
        else [{"name": o.name} for o in response.outputs]
    )
    return {output["name"]: answer.as_numpy(output["name"]) for output in outputs}


def _outcome(client: grpcclient.InferenceServerClient, model: str, x: Array) -> Any:
    try:
        y = infer(client, model, {"x": x})["y"]
    except InferenceServerException as error:
        return REFUSED if any(text in error.message() for text in _REFUSALS) else str(error)
    factor = float(y.flat[0] / x.flat[0])
    return (
        factor
        if y.shape == x.shape and np.array_equal(y, factor * x)
        else f"{x[:, 0]} was answered {y}"
    )
