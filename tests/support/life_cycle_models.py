"""The model repositories of the life cycle's tests, and the options of the servers that serve
them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from compiled_models import compile_once
from onnx import TensorProto, helper
from poplar_triton.serving.installation import find_triton
from poprt import Compiler, CompilerOptions, Converter
from poprt.triton.model_folder import write_triton_model
from sample_models import make_model

MODES = ("synchronous", "asynchronous")

WIDTH = 512
TABLE_ROWS = 5000
"""Enough for 15 pages of weights, which are not copied: a request reads them from the mapped
file."""

FACTORS = {"synchronous": 2, "asynchronous": 3}
"""Factors of the plain models."""


def scale_model(factor: float) -> onnx.ModelProto:
    """Return y = factor * x, so that an answer identifies the weights it came from."""
    return make_model(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        {"x": (TensorProto.FLOAT, ["batch", WIDTH])},
        {"y": (TensorProto.FLOAT, ["batch", WIDTH])},
        {"factor": np.full(WIDTH, factor, np.float32)},
    )


def make_rows(number: float, rows: int = 1) -> npt.NDArray[np.float32]:
    """Return an input of scale_model."""
    return np.full((rows, WIDTH), number, np.float32)


def lookup_model() -> onnx.ModelProto:
    """Return rows = table[ids] * factor."""
    return make_model(
        [
            helper.make_node("Gather", ["table", "ids"], ["row"]),
            helper.make_node("Mul", ["row", "factor"], ["rows"]),
        ],
        {"ids": (TensorProto.INT32, ["n"]), "factor": (TensorProto.FLOAT, ["n", 3])},
        {"rows": (TensorProto.FLOAT, ["n", 3])},
        {"table": np.arange(3 * TABLE_ROWS, dtype=np.float32).reshape(TABLE_ROWS, 3)},
    )


SYNCHRONOUS = 'parameters { key: "synchronous_execution" value { string_value: "1" } }'
DELAY = 'parameters { key: "execute_delay_ms" value: { string_value: "600" } }'
DELAY_SECONDS = 0.6
ONE_BY_ONE = ("max_batch_size: 4000", "max_batch_size: 1")
TWO_INSTANCES = ("{ kind: KIND_CPU }", "{ kind: KIND_CPU count: 2 }")

WARM_UP = """
model_warmup [
    { name: "zeros" batch_size: 3
      inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 512 ] zero_data: true } } },
    { name: "random" batch_size: 2
      inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 512 ] random_data: true } } }
]
"""
WARM_UP_REQUESTS = 5

BATCHING = "dynamic_batching { }"
"""Text that is written for a model whose rows are independent."""
QUEUE = """dynamic_batching {
    priority_levels: 3
    default_priority_level: 2
    default_queue_policy {
        timeout_action: REJECT default_timeout_microseconds: 300000000
        allow_timeout_override: true max_queue_size: 3
    }
    priority_queue_policy { key: 3 value { timeout_action: REJECT default_timeout_microseconds: 1 } }
}"""

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4000
input [ { name: "in" data_type: TYPE_FP32 dims: [ 512 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 512 ] } ]
ensemble_scheduling { step [
    { model_name: "plain_synchronous" model_version: -1
      input_map { key: "x" value: "in" } output_map { key: "y" value: "between" } },
    { model_name: "plain_asynchronous" model_version: -1
      input_map { key: "x" value: "between" } output_map { key: "y" value: "out" } }
] }
"""

SCRIPT_CONFIG = """
backend: "python"
max_batch_size: 4000
input [ { name: "in" data_type: TYPE_FP32 dims: [ 512 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 512 ] } ]
"""
SCRIPT = """
import numpy as np
import triton_python_backend_utils as pb_utils
from triton_poplar.dlpack import to_capsule

def make_tensor(name, array):
    return pb_utils.Tensor.from_dlpack(name, to_capsule(array))

class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(request) for request in requests]

    def ask(self, request):
        array = np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "in"))
        for model in ("plain_synchronous", "plain_asynchronous"):
            asked = pb_utils.InferenceRequest(
                model_name=model, requested_output_names=["y"], inputs=[make_tensor("x", array)]
            )
            answer = asked.exec()
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
            array = np.from_dlpack(pb_utils.get_output_tensor_by_name(answer, "y"))
        return pb_utils.InferenceResponse([make_tensor("out", array + 1)])
"""


def write_model(
    folder: Path,
    model: onnx.ModelProto,
    *changes: str | tuple[str, str],
    options: CompilerOptions | None = None,
) -> Path:
    """Write a model folder.

    `changes` are texts to add to its config.pbtxt, or pairs of texts to exchange in it.
    """
    compiled = (
        compile_once(model)
        if options is None
        else Compiler.compile(Converter(batch_size=4).convert(model), None, options)
    )
    write_triton_model(compiled, folder)
    config = folder / "config.pbtxt"
    for change in changes:
        old, new = (
            ("instance_group", f"{change}\ninstance_group") if isinstance(change, str) else change
        )
        exchange(config, old, new)
    return folder


def exchange(file: Path, old: str, new: str) -> None:
    """Put one text in the place of another, which must be there."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def set_mode(mode: str) -> tuple[str, str]:
    """Return the change of a configuration that sets the mode.

    The compiler writes synchronous models; a configuration without the option is asynchronous.
    """
    return (SYNCHRONOUS, SYNCHRONOUS) if mode == "synchronous" else (SYNCHRONOUS, "")


QUICKLY = "--disable-auto-complete-config"
"""Saves the process that completes configurations, for each model; these have nothing to
complete."""


def write_explicit(repository: Path) -> list[str]:
    for mode in MODES:
        write_model(repository / f"plain_{mode}", scale_model(FACTORS[mode]), set_mode(mode))
        write_model(repository / f"warm_{mode}", scale_model(2), set_mode(mode), WARM_UP)
        write_model(repository / f"reloaded_{mode}", scale_model(2), set_mode(mode))
        busy = write_model(
            repository / f"busy_{mode}", scale_model(2), set_mode(mode), DELAY, ONE_BY_ONE
        )
        exchange(busy / "config.pbtxt", BATCHING, QUEUE)
        write_model(
            repository / f"cached_{mode}",
            scale_model(2),
            set_mode(mode),
            "response_cache { enable: true }",
        )
        # Triton checks requests itself; an optional input that the model needs all the same gets a
        # bad one past it.
        optional = ('name: "factor"', 'name: "factor" optional: true')
        write_model(
            repository / f"counted_{mode}", lookup_model(), set_mode(mode), TWO_INSTANCES, optional
        )
    for name, config in (("ensemble", ENSEMBLE), ("script", SCRIPT_CONFIG)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "script" / "1" / "model.py").write_text(SCRIPT)
    caches = f"--cache-directory={find_triton() / 'caches'}"
    return [
        "--model-control-mode=explicit",
        "--load-model=*",
        "--cache-config=local,size=1048576",
        caches,
        QUICKLY,
    ]


def write_polled(repository: Path) -> list[str]:
    """Write a repository to poll, for a machine that fits the executables.

    A failed reload keeps Triton 24.10 from ending before its exit timeout.
    """
    for mode in MODES:
        write_model(repository / f"executable_{mode}", scale_model(2), set_mode(mode))
    write_model(repository / "configuration", scale_model(2))
    write_model(repository / "broken", scale_model(2))
    machine = [
        "--backend-config=poplar,sim_num_IPUs=1",
        "--backend-config",
        "poplar,sim_ipu_version=c600",
    ]
    return [
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
        "--exit-timeout-secs=3",
        *machine,
    ]


def write_other_machine(repository: Path) -> list[str]:
    write_model(repository / "ipu2", scale_model(2), options=CompilerOptions(ipu_version="ipu2"))
    write_model(repository / "ipu21", scale_model(2), options=CompilerOptions(ipu_version="ipu21"))
    return [
        "--backend-config=poplar,sim_ipu_version=21",
        "--backend-config",
        "poplar,sim_tiles_per_IPU=4",
    ]


def write_no_machine(repository: Path) -> list[str]:
    write_model(repository / "ipu2", scale_model(2), options=CompilerOptions(ipu_version="ipu2"))
    return ["--backend-config=poplar,use_sim_if_no_hw=false"]


def write_stopping(repository: Path) -> list[str]:
    for mode in MODES:
        write_model(repository / f"slow_{mode}", scale_model(2), set_mode(mode), DELAY, ONE_BY_ONE)
        write_model(repository / f"pair_{mode}", scale_model(3), set_mode(mode), TWO_INSTANCES)
    return [QUICKLY]


SERVERS = {
    "explicit": write_explicit,
    "poll": write_polled,
    "stopping": write_stopping,
    "other machine": write_other_machine,
    "no machine": write_no_machine,
}
"""Functions that write a server's repository and return its options, by name."""
