"""Half models whose weights are streamed: random inputs are chosen without the weights' values."""

import numpy as np
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions
from sample_models import make_model


def test_a_half_model_that_adds_a_streamed_weight_to_its_input_compiles():
    spec = (TensorProto.FLOAT16, [2, 3])
    model = make_model(
        [helper.make_node("Add", ["w", "x"], ["y"])],
        {"x": spec},
        {"y": spec},
        {"w": np.ones((2, 3), np.float16)},
    )
    compiled = Compiler.compile(model, ["y"], CompilerOptions(constant_weights=False))
    assert compiled.batch_size >= 1
