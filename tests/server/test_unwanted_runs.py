"""Runs that would take hours on a real server, whose clients give up: the next request is answered."""

import hostile_graphs as hostile
import hostile_loads
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from poplar_triton.serving.server import TritonServer
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

GIVE_UP_SECONDS = 3.0


def infer(client, model, value, seconds):
    tensor = grpcclient.InferInput("x", [4], "FP32")
    tensor.set_data_from_numpy(np.full(4, value, np.float32))
    return client.infer(model, [tensor], client_timeout=seconds).as_numpy("y")


def test_a_run_ends_when_its_client_has_gone(tmp_path):
    """Without that, the next request waits for the limit of a run, which is longer."""
    for mode, parameters in hostile_loads.MODES.items():
        parts = (
            f'key: "{name}" value {{ string_value: "{value}" }}'
            for name, value in parameters.items()
        )
        entries = "} parameters {".join(parts)
        hostile_loads.write_folder(tmp_path / "models" / mode, hostile.counted_loop(), entries)
    with TritonServer(tmp_path / "models", log=tmp_path / "log") as server:
        client = grpcclient.InferenceServerClient(server.grpc_url)
        for mode in hostile_loads.MODES:
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                infer(client, mode, 2.0**31 - 1, GIVE_UP_SECONDS)
        for mode in hostile_loads.MODES:
            answer = infer(client, mode, 1, PATIENCE_SECONDS)
            np.testing.assert_array_equal(answer, np.full(4, 2, np.float32), mode)
