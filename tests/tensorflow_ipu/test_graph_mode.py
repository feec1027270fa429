"""Scripts that disable eager mode, as those of TensorFlow 1 do, in processes of their own."""

import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow
EXPORT = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow_ipu.execution import counters
tf.disable_v2_behavior()
config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
step = tf.function(lambda x: x * 2 + 1)
signature = [tf.TensorSpec([4], tf.float32)]
function = ipu.serving.export_single_step(step, sys.argv[1], 2, signature)
x = tf.placeholder(tf.float32, [4])
result = function(x)
with tf.Session() as session:
    for number in range(3):
        [found] = session.run(result, {x: np.full(4, number)})
        np.testing.assert_array_equal(found, np.full(4, number * 2 + 1))
assert counters.compiled == 1
"""


def test_a_step_is_exported_and_called(tmp_path):
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "exported")]
    subprocess.run(command, check=True, timeout=300)
    assert list(tmp_path.glob("exported/assets/application_*"))
