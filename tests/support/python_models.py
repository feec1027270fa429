"""Python models that are served beside poplar models, written as Triton's documentation does, and
what they are asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

TYPES = {
    "BOOL": "bool",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "STRING": "object",
}
"""numpy's type by the type of a configuration, without TYPE_."""

IMPORTS = "import asyncio, threading\nimport numpy as np, triton_python_backend_utils as pb_utils\n"
ECHO = """
class TritonPythonModel:
    # Sends every input back, in an order of its own, and the last one twice as large.
    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = []
            for tensor in request.inputs():
                array = tensor.as_numpy()
                assert isinstance(tensor, pb_utils.Tensor)
                assert array.flags.c_contiguous or array.ndim < 2
                turned = np.asfortranarray(array) if array.ndim > 1 else array
                wide = np.concatenate([turned, turned], -1)[..., : turned.shape[-1]]
                answer = pb_utils.Tensor(tensor.name() + "_back", wide)
                assert answer.as_numpy().tolist() == array.tolist()
                outputs.append(answer)
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * x)]))
        return responses
"""
CALLER = """
class TritonPythonModel:
    # Asks the model that the first name says, with exec or async_exec, and adds 1.
    async def execute(self, requests):
        return [await self.ask(request) for request in requests]

    async def ask(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        words = pb_utils.get_input_tensor_by_name(request, "words").as_numpy()
        model, way = (word.decode() for word in words.ravel()[:2])
        asked = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x)]
        )
        answer = asked.exec() if way == "exec" else await asked.async_exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        y = pb_utils.get_output_tensor_by_name(answer, "y").as_numpy()
        said = np.array([[f"{model} said {value:g}".encode()] for value in y.sum(axis=1)], object)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("y", y + 1), pb_utils.Tensor("said", said)]
        )
"""
STREAM = """
class TritonPythonModel:
    # Sends each row of its input, from another thread.
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.send, args=(request,)).start()

    def send(self, request):
        sender = request.get_response_sender()
        for row in pb_utils.get_input_tensor_by_name(request, "x").as_numpy():
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", row[::-1])]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
REJECTED = """
class TritonPythonModel:
    # Answers what the constructor says of a type that Triton does not have.
    def execute(self, requests):
        return [self.fail() for _ in requests]

    def fail(self):
        said = []
        for value in (np.zeros(2, complex), np.zeros(2, ">f4"), [1.0, 2.0], np.array(["a"])):
            try:
                pb_utils.Tensor("y", value)
                said.append("made")
            except (TypeError, pb_utils.TritonModelException) as error:
                said.append(type(error).__name__)
        try:
            pb_utils.Tensor("", np.zeros(2, np.float32))
            said.append("made")
        except pb_utils.TritonModelException:
            said.append("no name")
        error = pb_utils.TritonError(f"numpy {np.__version__}: " + ",".join(said))
        return pb_utils.InferenceResponse(error=error)
"""
_X = 'input { name: "x" data_type: TYPE_FP32 dims: [%s] }'
_Y = 'output { name: "y" data_type: TYPE_FP32 dims: [%s] }'


def _io(kind: str, suffix: str = "") -> str:
    return "".join(
        f'{kind} {{ name: "{name.lower()}{suffix}" data_type: TYPE_{name} dims: [-1, 3] }}\n'
        for name in TYPES
    )


def write_python_models(repository: Path, poplar: str, environment: Path | None = None) -> None:
    """Write Python models, and an ensemble of one before the poplar model of that name, which has
    an input x of 4 floats and an output z. `environment` is a virtual environment for them."""
    both = _X % 4 + "\n" + _Y % 4
    words = 'input { name: "words" data_type: TYPE_STRING dims: [2] }'
    said = 'output { name: "said" data_type: TYPE_STRING dims: [1] }'
    models = {
        "echo": (ECHO, _io("input") + _io("output", "_back")),
        "double": (DOUBLE, f"max_batch_size: 8\n{both}"),
        "caller": (CALLER, f"max_batch_size: 8\n{both}\n{words}\n{said}"),
        "stream": (
            STREAM,
            f"{_X % '-1, 4'}\n{_Y % 4}\nmodel_transaction_policy {{ decoupled: true }}",
        ),
        "rejected": (REJECTED, both),
    }
    own = f"""parameters {{
    key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }}
}}
"""
    own = own if environment else ""
    for name, (code, config) in models.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(IMPORTS + code)
        (repository / name / "config.pbtxt").write_text(f'backend: "python"\n{config}\n{own}')
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(
        f"""platform: "ensemble" max_batch_size: 8
{both}
ensemble_scheduling {{ step [
    {{ model_name: "double" model_version: -1
      input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "m" }} }},
    {{ model_name: "{poplar}" model_version: -1
      input_map {{ key: "x" value: "m" }} output_map {{ key: "z" value: "y" }} }}
] }}
"""
    )


def make_inputs(rows: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return inputs of `echo`: extreme values of every type, and strings of all lengths."""
    inputs: dict[str, npt.NDArray[np.generic]] = {}
    random = np.random.default_rng(rows)
    for name, kind in TYPES.items():
        if name == "STRING":
            texts = [random.bytes(int(size)) for size in random.integers(0, 40, 3 * rows)]
            inputs["string"] = np.array([*texts, b""], object)[:-1].reshape(rows, 3)
            continue
        raw = random.integers(0, 256, 3 * rows * np.dtype(kind).itemsize, dtype=np.uint8)
        array = raw.view(kind) if kind != "bool" else (raw % 2).astype(bool)
        inputs[name.lower()] = np.nan_to_num(array).reshape(rows, 3)
    return inputs
