"""Answers of a written repository: each model is asked by a client of a real server, with zeros and
with made-up inputs of one row, a batch, and a row more, and compared with ONNX Runtime in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tritonclient.http as httpclient
from model_runtime import ModelRuntimeError
from onnxgraph import find_inputs
from poprt.comparing import measure_difference
from poprt.frontend import read_model
from simipu import CompileError, SimIpuError
from triton_poplar.errors import ModelConfigError
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from popef._tools.arrays import Array
from poplar_triton.demo.example import HALF_TOLERANCE
from poplar_triton.errors import ExportError
from poplar_triton.export.check import (
    FLOAT_LIMIT,
    count_rows,
    iter_requests,
    open_onnx,
    run_onnx,
)
from poplar_triton.export.source import ROWS, ExportSource, Port, open_source
from poplar_triton.migrate.verdicts import Judged
from poplar_triton.serving.server import TritonServer

_LOG = "tritonserver.log"
_TIMEOUT_SECONDS = 600.0
"""Timeout of a request, far more than a sound model takes on a CPU."""
_ERRORS = (ExportError, ModelConfigError, ModelRuntimeError, SimIpuError, CompileError, OSError)


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of one request: its rows, its kind of inputs, and what differs, or "" for nothing."""

    model: str
    rows: int
    inputs: str
    result: str
    is_right: bool

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The result as texts of a table."""
        return self.model, str(self.rows or "-"), self.inputs or "-", self.result

    def encode(self) -> dict[str, Any]:
        """Return the result for a JSON document."""
        return {
            "model": self.model,
            "rows": self.rows,
            "inputs": self.inputs,
            "result": self.result,
            "right": self.is_right,
        }


class _Reference:
    """The graph of a model, computed by ONNX Runtime in fp32, in batches of the compiled size."""

    def __init__(self, source: ExportSource, file: Path) -> None:
        self._source = source
        model = read_model(file)
        self._types = {
            value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            for value in find_inputs(model.graph)
        }
        self._engine, self._compute = open_onnx(file, 0)

    def run(self, request: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of a request by the names of clients."""
        source = self._source
        feeds = {port.stream.tensor: _to_graph(port, request[port.name]) for port in source.inputs}
        axes = {port.stream.tensor: port.stream.batch_axis for port in source.inputs}
        if not source.is_open:
            return self._name(self._run(feeds))
        rows, size = _count_rows(source, feeds), source.program.batch_size
        parts = []
        for begin in range(0, rows, size):
            numbers = np.arange(begin, begin + size) % max(1, rows)
            batch = {name: feed.take(numbers, axes[name]) for name, feed in feeds.items()}
            parts.append(self._run(batch))
        joined = [
            np.concatenate([part[i] for part in parts], port.stream.batch_axis).take(
                np.arange(rows), port.stream.batch_axis
            )
            for i, port in enumerate(source.outputs)
        ]
        return self._name(joined)

    def _run(self, feeds: Mapping[str, Array]) -> list[Array]:
        typed = {name: feed.astype(self._types[name]) for name, feed in feeds.items()}
        outputs = run_onnx(self._engine, self._compute, typed)
        return [outputs[port.stream.tensor] for port in self._source.outputs]

    def _name(self, arrays: Sequence[Array]) -> dict[str, Array]:
        return {port.name: array for port, array in zip(self._source.outputs, arrays, strict=True)}


def _to_graph(port: Port, value: Array) -> Array:
    """Return a tensor of a request in the shape that the graph has."""
    return (
        value if ROWS not in port.shape and value.shape == port.shape else value.reshape(port.shape)
    )


def _count_rows(source: ExportSource, feeds: Mapping[str, Array]) -> int:
    port = source.inputs[0]
    return int(feeds[port.stream.tensor].shape[port.stream.batch_axis])


def check_repository(output: Path, models: Sequence[Judged], scratch: Path) -> list[Checked]:
    """Start a server on the written repository, and return how each of its models answers; the
    server's log is written into `scratch`."""
    checked: list[Checked] = []
    names = sorted({model.found.folder.name for model in models if model.found.state is not None})
    with TritonServer(output, log=scratch / _LOG) as server:
        failed = server.failed_models()
        client = httpclient.InferenceServerClient(
            server.http_url, network_timeout=_TIMEOUT_SECONDS, connection_timeout=_TIMEOUT_SECONDS
        )
        with client:
            for name in names:
                if name in failed:
                    checked.append(Checked(name, 0, "", f"not loaded: {failed[name]}", False))
                    continue
                checked += _check_model(client, output / name)
    return checked


def _check_model(client: httpclient.InferenceServerClient, folder: Path) -> Iterator[Checked]:
    name = folder.name
    try:
        source = open_source(folder)
        file = source.state.graph_file
        reference = None if file is None else _Reference(source, file)
        requests = list(iter_requests(source))
    except _ERRORS as error:
        yield Checked(name, 0, "", f"not compared: {error}", False)
        return
    limit = HALF_TOLERANCE if _is_half(source) else FLOAT_LIMIT
    groups: dict[tuple[str, int], list[dict[str, Array]]] = {}
    for request in requests:
        rows = count_rows(source, request)
        if _takes(source, rows):
            groups.setdefault(("made up", rows), []).append(request)
            zeros = {port: np.zeros_like(array) for port, array in request.items()}
            groups.setdefault(("zeros", rows), [zeros])
    for (kind, rows), checks in sorted(groups.items()):
        try:
            result = _compare_all(client, source, reference, checks, limit)
            yield Checked(name, rows, kind, result, True)
        except (InferenceServerException, ExportError) as error:
            yield Checked(name, rows, kind, str(error), False)


def _takes(source: ExportSource, rows: int) -> bool:
    """Return whether the model's configuration allows a request of so many rows."""
    if source.config.max_batch_size:
        return rows <= int(source.config.max_batch_size)
    return rows == (source.program.batch_size or 1)


def _compare_all(
    client: httpclient.InferenceServerClient,
    source: ExportSource,
    reference: _Reference | None,
    requests: Sequence[Mapping[str, Array]],
    limit: float,
) -> str:
    """Return how well the answers to requests agree with the reference, if there is one. Raises
    ExportError for a difference, and InferenceServerException for a request that failed."""
    worst = 0.0
    for request in requests:
        answer = _ask(client, source, request)
        if reference is not None:
            worst = max(worst, _compare(answer, reference.run(request), limit))
    return "answered" if reference is None else f"right, within {worst:.1g}"


def _is_half(source: ExportSource) -> bool:
    streams = {np.dtype(port.stream.dtype) for port in (*source.inputs, *source.outputs)}
    return source.is_narrow or np.dtype(np.float16) in streams


def _ask(
    client: httpclient.InferenceServerClient, source: ExportSource, request: Mapping[str, Array]
) -> dict[str, Array]:
    inputs = []
    for name, array in request.items():
        tensor = httpclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(np.ascontiguousarray(array))
        inputs.append(tensor)
    answer = client.infer(source.name, inputs)
    return {port.name: answer.as_numpy(port.name) for port in source.outputs}


def _compare(answers: Mapping[str, Array], expected: Mapping[str, Array], limit: float) -> float:
    """Return the greatest difference of the outputs; raises ExportError for one above the limit."""
    worst = 0.0
    for output, array in expected.items():
        actual = answers[output]
        if actual is None or actual.size != array.size:
            shape = None if actual is None else actual.shape
            raise ExportError(f"output {output!r}: expected shape {array.shape}, found {shape}")
        difference = measure_difference(actual.reshape(array.shape), array)
        worst = max(worst, difference)
        if not difference <= limit:
            raise ExportError(
                f"output {output!r} differs by {difference:.2g} of its largest value, expected at "
                f"most {limit:g}"
            )
    return worst
