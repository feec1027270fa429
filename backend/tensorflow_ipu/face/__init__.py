"""TensorFlow for the IPU: the package `tensorflow.python.ipu`.

Each module is a name here and is imported on first use, also those of `ops` and `optimizers`.
"""

import tensorflow

from tensorflow_ipu.config.flags import read_flags
from tensorflow_ipu.forwarding import forward_modules
from tensorflow_ipu.keras_extensions import import_hook
from tensorflow_ipu.sessions import install
from tensorflow_ipu.versions import check_tensorflow

check_tensorflow(tensorflow.__version__)
# Ends the process for an unknown flag; later a thread of TensorFlow may be the first to read them.
read_flags()

_MODULES = {
    "all_to_all_op": ".ops.all_to_all_op",
    "all_to_all_op_grad": ".ops.all_to_all_op_grad",
    "application_compile_op": ".ops.application_compile_op",
    "config": ".config",
    "control_flow_ops": ".ops.control_flow_ops",
    "control_flow_ops_grad": ".ops.control_flow_ops_grad",
    "cross_replica_ops": ".ops.cross_replica_ops",
    "cross_replica_ops_grad": ".ops.cross_replica_ops_grad",
    "cross_replica_optimizer": ".optimizers.cross_replica_optimizer",
    "custom_ops": ".ops.custom_ops",
    "data": ".data",
    "dataset_benchmark": ".dataset_benchmark",
    "dataset_extractor": ".dataset_extractor",
    "distributed": ".distributed",
    "eager": ".eager",
    "embedded_runtime": ".ops.embedded_runtime",
    "embedding_ops": ".ops.embedding_ops",
    "embedding_ops_grad": ".ops.embedding_ops_grad",
    "f8_ops": ".ops.f8_ops",
    "functional_ops": ".ops.functional_ops",
    "functional_ops_grad": ".ops.functional_ops_grad",
    "grad_util_ops": ".ops.grad_util_ops",
    "grad_util_ops_grad": ".ops.grad_util_ops_grad",
    "gradient_accumulation": ".gradient_accumulation",
    "gradient_accumulation_optimizer": ".optimizers.gradient_accumulation_optimizer",
    "horovod": ".horovod",
    "image_ops": ".ops.image_ops",
    "internal_ops": ".ops.internal_ops",
    "internal_ops_grad": ".ops.internal_ops_grad",
    "ipu_compiler": ".ipu_compiler",
    "ipu_estimator": ".ipu_estimator",
    "ipu_infeed_queue": ".ipu_infeed_queue",
    "ipu_multi_worker_strategy": ".ipu_multi_worker_strategy",
    "ipu_optimizer": ".optimizers.ipu_optimizer",
    "ipu_outfeed_queue": ".ipu_outfeed_queue",
    "ipu_pipeline_estimator": ".ipu_pipeline_estimator",
    "ipu_run_config": ".ipu_run_config",
    "ipu_session_run_hooks": ".ipu_session_run_hooks",
    "ipu_strategy": ".ipu_strategy",
    "keras": ".keras",
    "keras_extensions": ".keras_extensions",
    "loops": ".loops",
    "map_gradient_optimizer": ".optimizers.map_gradient_optimizer",
    "math_ops": ".ops.math_ops",
    "nn_ops": ".ops.nn_ops",
    "nn_ops_grad": ".ops.nn_ops_grad",
    "normalization_ops": ".ops.normalization_ops",
    "normalization_ops_grad": ".ops.normalization_ops_grad",
    "op_util": ".ops.op_util",
    "ops": ".ops",
    "optimizers": ".optimizers",
    "pipelining_ops": ".ops.pipelining_ops",
    "pipelining_ops_grad": ".ops.pipelining_ops_grad",
    "popfloat_cast_to_gfloat": ".ops.experimental.popfloat_cast_to_gfloat",
    "rand_ops": ".ops.rand_ops",
    "rand_ops_grad": ".ops.rand_ops_grad",
    "reduce_scatter_op": ".ops.reduce_scatter_op",
    "replication_ops": ".ops.replication_ops",
    "rnn_ops": ".ops.rnn_ops",
    "rnn_ops_grad": ".ops.rnn_ops_grad",
    "scopes": ".scopes",
    "serving": ".serving",
    "sharded_optimizer": ".optimizers.sharded_optimizer",
    "sharding": ".sharding",
    "slicing_ops": ".ops.slicing_ops",
    "slicing_ops_grad": ".ops.slicing_ops_grad",
    "statistics_ops": ".ops.statistics_ops",
    "test_utils": ".test_utils",
    "utils": ".utils",
    "vertex_edsl": ".vertex_edsl",
    "within_replica_ops": ".ops.within_replica_ops",
    "within_replica_ops_grad": ".ops.within_replica_ops_grad",
}

__getattr__, __dir__ = forward_modules(
    __name__, _MODULES, {"outlined_function": ".ops.functional_ops"}
)

install()

# `tf.keras.ipu`: Keras itself is not imported.
import_hook.watch()
