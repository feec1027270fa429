"""The names of Keras for the IPU, whichever package a script imports first."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

ORDERS = {
    "Keras is not imported": "",
    "tf.keras is Keras 2": "import os; os.environ['TF_USE_LEGACY_KERAS'] = '1'",
}
SCRIPT = """
{order}
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.keras import ipu as first
from tensorflow.keras.ipu import PipelineStage
from tensorflow import keras

assert keras.ipu.PipelineStage is PipelineStage is first.PipelineStage is tf.keras.ipu.PipelineStage
import keras as plain, tf_keras
import tensorflow.keras.ipu.extensions.functional_extensions as extensions
from keras.ipu.optimizers import ALSOptimizer

assert plain.ipu.PipelineStage is tf_keras.ipu.PipelineStage is PipelineStage
with ipu.ipu_strategy.IPUStrategy().scope():
    for package in (plain, tf_keras, tf.keras):
        model = package.Sequential([package.layers.Dense(2)])
        assert not isinstance(model, extensions.FunctionalExtension)
        model.set_pipeline_stage_assignment([0])
        optimizer = ALSOptimizer(package.optimizers.SGD(0.5))
        assert isinstance(optimizer, package.optimizers.SGD)
assert not hasattr(plain.Sequential(), "set_pipeline_stage_assignment")
print("all names")
"""


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_all_names_are_there_in_any_order_of_imports(order):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(order=order)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.stdout.endswith("all names\n"), result.stderr[-2000:]
