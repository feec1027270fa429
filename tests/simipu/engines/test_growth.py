"""Test of memory that ONNX Runtime takes beside its arena, in a process whose growth is limited."""

import subprocess
import sys

SCRIPT = """
import numpy as np
from onnx import TensorProto, helper
from popef._tools.memory import GROWTH
from simipu import GraphOptions
from simipu.engines.computed import OrtGraph
from simipu.errors import RunMemoryError

infos = [
    helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 100, 4]),
    helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, "classes", 100]),
]
node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["y"])
weights = [
    helper.make_tensor("most", TensorProto.INT64, [], [2**40]),
    helper.make_tensor("overlap", TensorProto.FLOAT, [], [1.0]),
]
result = helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 3])
graph = helper.make_graph([node], "graph", infos, [result], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
graph = OrtGraph(model.SerializeToString(), {}, GraphOptions(1))

def run(classes):
    boxes = np.tile(np.float32([0, 0, 1, 1]), (1, 100, 1))
    return len(graph.run(["y"], {"boxes": boxes, "scores": np.ones((1, classes, 100), np.float32)})[0])

assert run(10) == 1000
GROWTH.start(96 << 20)
try:
    raise SystemExit(f"{run(60_000)} boxes: they need some 300 MB")
except RunMemoryError as error:
    assert "or than is free" in str(error), error
assert run(10) == 1000
"""


def test_boxes_of_one_request_end_at_the_limit_and_the_next_request_is_answered():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
