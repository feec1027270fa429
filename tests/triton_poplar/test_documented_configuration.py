"""The configuration with which docs/configuration.md begins, as a user copies it."""

import re
from pathlib import Path

import numpy as np
from google.protobuf.json_format import MessageToDict
from onnx import TensorProto, helper
from poprt.triton import read_config
from sample_models import make_model
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_first_configuration_of_the_page_loads_and_answers(tmp_path, compile_popef):
    text = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "config.pbtxt").write_text(text)
    config = MessageToDict(read_config(tmp_path / "config.pbtxt"), preserving_proto_field_name=True)
    assert config["backend"] == "poplar"
    w = np.random.default_rng(0).standard_normal((64, 10)).astype(np.float32)
    kind = TensorProto.FLOAT
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (kind, ["n", 64])},
        {"y": (kind, ["n", 10])},
        {"w": w},
    )
    (tmp_path / "1").mkdir()
    compile_popef(model).rename(tmp_path / "1" / "executable.popef")
    state = ModelState({"name": "mine", **config}, tmp_path / "1")
    state.validate()
    instance = ModelInstanceState(state, "mine_0")
    x = np.ones((5, 64), np.float32)
    request = Request(state, {"x": x}, ["y"])
    instance.execute([request])
    np.testing.assert_allclose(request.outputs()["y"], x @ w, rtol=1e-4)
    instance.close()
