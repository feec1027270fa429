"""A real server takes names chosen by strangers as names only.

No name becomes a parameter, whose script would be run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from onnx import TensorProto, helper
from poplar_triton.serving.server import TritonServer
from sample_models import make_model
from triton_clients import infer

from .conftest import write_model

pytestmark = pytest.mark.slow

F = TensorProto.FLOAT
ATTACK = (
    'x" data_type: TYPE_FP32 dims: [ 4 ] } ] '
    'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "FOLDER" } } '
    'input [ { name: "q'
)
"""Name that ends its block if a configuration is put together from texts."""


def write_environment(folder: Path) -> Path:
    """Write an environment for Triton's Python backend.

    Returns:
        The file that the environment's script creates if it runs.
    """
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").write_text(f"touch {folder / 'sign'}\n")
    return folder / "sign"


def test_no_name_is_more_than_a_name(tmp_path):
    sign = write_environment(tmp_path / "environment")
    names = {
        "quoted": 'x"',
        "attack": ATTACK.replace("FOLDER", str(sign.parent)),
        "escaped": "x\\\"\\n'{}[]#",
    }
    for model, name in names.items():
        graph = make_model(
            [helper.make_node("Neg", [name], ["y"])],
            {name: (F, ["n", 4])},
            {"y": (F, ["n", 4])},
            {},
        )
        write_model(tmp_path / "repository" / model, graph)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with TritonServer(tmp_path / "repository", log=tmp_path / "log") as server:
        assert server.failed_models() == {}
        with httpclient.InferenceServerClient(server.http_url) as client:
            for model, name in names.items():
                config = client.get_model_config(model)
                assert [tensor["name"] for tensor in config["input"]] == [name]
                assert list(config["parameters"]) == ["synchronous_execution"]
                np.testing.assert_array_equal(infer(client, model, {name: x})["y"], -x)
    assert not sign.exists()
