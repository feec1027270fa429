"""Executables of strangers in model folders of a real server: each is loaded, asked once and
unloaded.

A load is wrong when it gets no answer, or a reason of several lines or with control characters in
it.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hostile_graphs as hostile
import numpy as np
import onnx
import tritonclient.http as httpclient
from hostile_models import Served
from hostile_runner import DEFECTS, Report
from life_cycle_models import QUICKLY
from payload_fuzzing import damage
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, Converter
from poprt.triton.model_folder import write_triton_model
from sample_models import linear_model, write_executable
from simipu import SimulatedExecutable
from tritonclient.utils import InferenceServerException, triton_to_np_dtype
from waiting import PATIENCE_SECONDS, wait_until

SOUND = Served("sound", "x", "FP32", 4, "z")
"""The model beside the hostile ones."""
NAME = "hostile"
OPTIONS = ["--model-control-mode=explicit", f"--load-model={SOUND.name}", QUICKLY]
ENVIRONMENT = {"POPLAR_RUNTIME_OPTIONS": '{"target.hostSyncTimeout":"2"}'}
"""Environment that limits runs in time, because some graphs never end."""
SENTINEL = np.arange(4, dtype=np.float32)[None]

GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {
    "function_bomb": hostile.function_bomb,
    "concat_bomb": hostile.concat_bomb,
    "nested_graphs": hostile.nested_graphs,
    "outside_constant": lambda: hostile.outside_constant("zero"),
    "outside_of_branch": lambda: hostile.outside_of_branch("zero"),
    "outside_of_sparse": lambda: hostile.outside_of_sparse("zero"),
    "large_constant": hostile.large_constant,
    "hidden_large_tensor": hostile.hidden_large_tensor,
    "dear_product": hostile.dear_product,
    "constant_chain": hostile.constant_chain,
    "endless_loop": partial(hostile.endless_loop, condition="And"),
}

MODES = {
    "synchronous": {"synchronous_execution": "1"},
    "asynchronous": {"synchronous_execution": "0"},
    "isolated": {"synchronous_execution": "1", "sim_isolation": "process"},
}
"""Parameters of a model, by the mode that they set."""


def write_repository(repository: Path) -> None:
    """Write the valid model."""
    compiled = Compiler.compile(Converter(batch_size=4).convert(linear_model()))
    write_triton_model(compiled, repository / SOUND.name)


@dataclass(frozen=True, slots=True)
class _Payload:
    """Stands for a sound executable where its PopEF file is written."""

    sound: SimulatedExecutable
    payload: bytes

    @property
    def name(self) -> str:
        return self.sound.name

    def program(self, index: int) -> Any:
        return self.sound.program(index)

    def iter_serialized(self) -> Iterator[bytes]:
        yield self.payload


def write_damaged(folder: Path, number: int) -> None:
    """Write the model folder of a damaged payload; the rest comes from its original executable."""
    compiled, payload = damage(number)
    write_triton_model(compiled, folder)
    broken: Any = _Payload(compiled.executable, payload)
    damaged = copy.copy(compiled)
    damaged.executable = broken
    damaged.export(folder / "1" / "executable.popef", folder / "1" / "weights.popef")
    _set_mode(folder, number)


def write_graph(folder: Path, name: str, number: int) -> None:
    """Write the model folder of one of `GRAPHS`."""
    write_folder(folder, GRAPHS[name]())
    _set_mode(folder, number)


def write_folder(folder: Path, model: onnx.ModelProto, parameters: str = "") -> None:
    """Write the model folder of a graph from x to y, with parameters of its configuration."""
    (folder / "1").mkdir(parents=True)
    write_executable(folder / "1" / "executable.popef", hostile.make_executable(model))
    tensors = [
        f'{kind} [ {{ name: "{tensor}" data_type: TYPE_FP32 dims: [4] }} ]'
        for kind, tensor in (("input", "x"), ("output", "y"))
    ]
    (folder / "config.pbtxt").write_text(
        "\n".join(['backend: "poplar"', *tensors, f"parameters {{{parameters}}}"])
    )


def _set_mode(folder: Path, number: int) -> None:
    config = folder / "config.pbtxt"
    parameters = [*MODES.values()][number % len(MODES)]
    entries = [
        f'{{ key: "{key}" value: {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    ]
    tensors = config.read_text().partition("parameters {")[0]
    config.write_text(
        f"{tensors}parameters [{', '.join(entries)}]\ninstance_group [{{ kind: KIND_CPU }}]\n"
    )


def load_all(server: TritonServer, damaged: range, graphs: list[str]) -> Report:
    """Load the damaged payloads of these numbers and the graphs of these names, one after the
    other."""
    folder, report = Path(server.model_repository) / NAME, Report()
    limits = {"connection_timeout": PATIENCE_SECONDS, "network_timeout": PATIENCE_SECONDS}
    with httpclient.InferenceServerClient(server.http_url, **limits) as client:
        cases: list[tuple[str, Callable[[], None]]] = [
            *((f"payload {number}", partial(write_damaged, folder, number)) for number in damaged),
            *(
                (name, partial(write_graph, folder, name, place))
                for place, name in enumerate(graphs)
            ),
        ]
        for name, write in cases:
            shutil.rmtree(folder, ignore_errors=True)
            write()
            kind = name.split()[0]
            outcome, text = load_once(client)
            report.add("load", kind, outcome)
            if fault := find_fault(text):
                report.faults.append(f"{name}: {fault}: {text[:1000]!r}")
            report.faults += [f"{name}: afterwards {fault}" for fault in check_sound(client)]
            if server.poll() is not None:
                report.faults.append(f"{name}: the server has ended, with status {server.poll()}")
                break
    return report


def load_once(client: httpclient.InferenceServerClient) -> tuple[str, str]:
    """Load and query the model; return the outcome, and the reason if it is not an answer."""
    try:
        client.load_model(NAME)
    except InferenceServerException as error:
        return "refused", error.message() or ""
    try:
        client.infer(NAME, list(_iter_inputs(client.get_model_config(NAME))))
        outcome, text = "answered", ""
    except InferenceServerException as error:
        outcome, text = f"loaded, then {error.status()}", error.message() or ""
    client.unload_model(NAME)
    wait_until(lambda: _state(client) == "UNAVAILABLE", f"{NAME} is unloaded", PATIENCE_SECONDS)
    return outcome, text


def find_fault(text: str) -> str | None:
    """Return what is wrong with a reason that the server gave.

    Triton appends a newline to the reasons of loads.
    """
    if not text.strip().isprintable():
        return "a reason that is not one printable line"
    return next((f"a defect ({words})" for words in DEFECTS if words in text), None)


def check_sound(client: httpclient.InferenceServerClient) -> list[str]:
    """Return what is wrong with the valid model beside them."""
    tensor = httpclient.InferInput(SOUND.input, SENTINEL.shape, SOUND.datatype)
    tensor.set_data_from_numpy(SENTINEL)
    try:
        answer = client.infer(SOUND.name, [tensor]).as_numpy(SOUND.output)
    except InferenceServerException as error:
        return [f"the sound model: {error}"]
    return (
        []
        if np.array_equal(answer, SOUND.compute(SENTINEL))
        else [f"the sound model answers {answer}"]
    )


def _state(client: httpclient.InferenceServerClient) -> str:
    return next(
        (
            model.get("state", "")
            for model in client.get_model_repository_index()
            if model["name"] == NAME
        ),
        "",
    )


def _iter_inputs(config: dict[str, Any]) -> Iterator[httpclient.InferInput]:
    """Yield inputs of ones, in one row."""
    rows = [1] if config.get("max_batch_size") else []
    for tensor in config["input"]:
        shape = [*rows, *(int(size) for size in tensor["dims"])]
        datatype = tensor["data_type"].removeprefix("TYPE_")
        infer_input = httpclient.InferInput(tensor["name"], shape, datatype)
        infer_input.set_data_from_numpy(np.ones(shape, triton_to_np_dtype(datatype)))
        yield infer_input
