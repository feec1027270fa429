"""The poplar backend: the one file that meets Triton. It turns Triton's requests into ours and our answers into Triton's.

Works from a backend directory (`backend: "poplar"`) and as model.py in a model's version folder (`backend: "python"`).
"""

import asyncio  # noqa: F401  the stub imports it during the first request otherwise, which then takes 20 ms longer
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from triton_poplar.dlpack import to_capsule
from triton_poplar.errors import RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request

NUMPY_IS_OLD = int(np.__version__.split(".")[0]) < 2
"""The stub's binding to numpy works with numpy 1 only; with numpy 2 tensors go through DLPack capsules."""


class TritonPythonModel:
    """One instance of a model, in a process of its own."""

    def initialize(self, args):
        """Load the model; whatever is raised here becomes the reason that Triton gives for the failed load."""
        version_folder = Path(args["model_repository"], args["model_version"])
        self._state = ModelState(json.loads(args["model_config"]), version_folder)
        self._dtypes = {name: tensor.dtype for name, tensor in self._state.inputs.items()}
        self._instance = ModelInstanceState(self._state, args["model_instance_name"])

    def execute(self, requests):
        """Answer every request: exactly one response each, in their order, whatever fails."""
        try:
            taken = [self._take(request) for request in requests]
            self._instance.execute(taken)
            return [_respond(request) for request in taken]
        except Exception as error:  # noqa: BLE001  a defect of ours: every request still gets its answer
            failure = pb_utils.TritonError(f"poplar backend: {error!r}", pb_utils.TritonError.INTERNAL)
            return [pb_utils.InferenceResponse(error=failure) for _ in requests]

    def finalize(self):
        """Release the model."""
        self._instance = None

    def _take(self, request):
        inputs = {tensor.name(): _view(tensor, self._dtypes.get(tensor.name())) for tensor in request.inputs()}
        return Request(self._state, inputs, request.requested_output_names())


def _view(tensor, dtype):
    """The tensor's memory as an array, without a copy; booleans travel as bytes."""
    array = np.from_dlpack(tensor)
    return array.view(np.bool_) if dtype == np.bool_ and array.dtype == np.uint8 else array


def _respond(request):
    try:
        outputs = request.outputs()
    except RequestError as error:
        code = getattr(pb_utils.TritonError, error.code)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
    return pb_utils.InferenceResponse([_make_tensor(name, array) for name, array in outputs.items()])


def _make_tensor(name, array):
    if NUMPY_IS_OLD:
        return pb_utils.Tensor(name, array)
    return pb_utils.Tensor.from_dlpack(name, to_capsule(array))
