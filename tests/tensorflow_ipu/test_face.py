"""The real names: all of them are there, what is not supported says so, and importing is cheap."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow_ipu.errors import TrainingError
from tensorflow_ipu.versions import check_tensorflow

pytestmark = pytest.mark.tensorflow
FACE = Path(ipu.__file__).parent
NAMES = {
    "config": """
        AttributeMetadata DeviceConnectionType ExecutionProfileType IPUConfig
        MergeRemoteBuffersBehaviour SchedulingAlgorithm SelectionOrder StochasticRoundingBehaviour
        configure_ipu_system deprecate_config_attribute deprecate_config_attributes get_ipu_config
        reset_ipu_configuration running_on_ipu_model
    """,
    "data.ops.dataset_ops": "BufferDataset",
    "dataset_benchmark": "dataset_benchmark infeed_benchmark",
    "dataset_extractor": "dataset_extractor export_variables get_variable_handles import_variables",
    "distributed.host_collective_ops": "allgather allreduce broadcast",
    "distributed.popdist_strategy": "PopDistStrategy IPUMirroredVariable IPUSyncOnReadVariable",
    "eager.backprop": "GradientCaptureContext GradientCaptureTape",
    "gradient_accumulation": "GradientAccumulationReductionMethod",
    "ipu_compiler": "compile",
    "ipu_estimator": "IPUEstimator IPUEstimatorSpec",
    "ipu_infeed_queue": "IPUInfeedQueue IPUIterator IPUOwnedIterator",
    "ipu_multi_worker_strategy": "IPUMultiWorkerStrategy IPUMultiWorkerStrategyV1",
    "ipu_outfeed_queue": """
        IPUOutfeedMode IPUOutfeedQueue IPUOutfeedQueueIterator ScopedIPUOutfeedQueue
    """,
    "ipu_pipeline_estimator": "IPUPipelineEstimator IPUPipelineEstimatorSpec",
    "ipu_run_config": "IPURunConfig RunConfig",
    "ipu_session_run_hooks": "IPULoggingTensorHook",
    "ipu_strategy": "IPUStrategy IPUStrategyV1",
    "loops": "repeat while_loop",
    "ops.all_to_all_op": "all_gather all_to_all",
    "ops.control_flow_ops": "barrier",
    "ops.cross_replica_ops": "assume_equal_across_replicas cross_replica_mean cross_replica_sum",
    "ops.custom_ops": "codelet_expression_op cpu_user_operation precompiled_user_op",
    "ops.embedded_runtime": """
        RuntimeContext embedded_runtime_call embedded_runtime_start embedded_runtime_start_and_call
        embedded_runtime_stop
    """,
    "ops.embedding_ops": """
        HostEmbedding HostEmbeddingOptimizerSpec HostEmbeddingSGDGAOptimizerSpec
        create_host_embedding embedding_lookup
    """,
    "ops.f8_ops": """
        Format QuarterTensor convert_from_f8 convert_to_f8 create_metadata f8_conv_1d f8_conv_2d
        f8_conv_3d f8_matmul
    """,
    "ops.functional_ops": "outlined_function",
    "ops.grad_util_ops": "capture_upstream_gradients",
    "ops.image_ops": "normalise_image",
    "ops.internal_ops": "fifo get_current_iteration_counter print_tensor remap remap_deduce",
    "ops.math_ops": "segment_sum serialized_matmul",
    "ops.nn_ops": """
        ctc_beam_search_decoder ctc_beam_search_decoder_with_log_probs ctc_loss_v2
        ctc_loss_with_log_probs gelu hard_sigmoid multi_conv nce_loss sampled_softmax_loss softmax
        swish
    """,
    "ops.normalization_ops": "group_norm instance_norm layer_norm",
    "ops.op_util": """
        SetMlType SetOpAsBwd SetOpAsFwd SetOpAsWU accumulate_gradients bool_to_three_state
        conv_gradients_override_map get_accumulator_dtype get_activation_name
        gradient_override_scope gradients_override_map matmul_gradients_override_map
    """,
    "ops.rand_ops": "dropout",
    "ops.reduce_scatter_op": "reduce_scatter",
    "ops.replication_ops": "replication_index",
    "ops.slicing_ops": "sequence_slice sequence_slice_pack sequence_slice_unpack",
    "ops.statistics_ops": "fixed_width_bins histogram histogram_normalize histogram_update",
    "ops.within_replica_ops": "all_gather all_reduce reduce_scatter",
    "optimizers": """
        CrossReplicaGradientAccumulationOptimizer CrossReplicaGradientAccumulationOptimizerV2
        CrossReplicaOptimizer GradientAccumulationOptimizer GradientAccumulationOptimizerV2
        IpuOptimizer MapGradientOptimizer ShardedOptimizer
    """,
    "scopes": """
        frontend_attribute ipu_jit_scope ipu_scope ipu_shard outside_compilation_scope
        partials_type stochastic_rounding
    """,
    "sharding": """
        dependencies enable_sharded_gradient_tape get_shard_from_colocation get_sharding has_attr
        propagate_sharding
    """,
    "utils": """
        export_dataset_to_file export_inputs_to_file export_variables_from_live_model
        export_variables_from_live_session get_num_of_ipus_in_device import_data_in_live_model
        import_data_in_live_session move_variable_initialization_to_cpu reset_ipu_seed
        running_on_ipu_model use_synthetic_data_for DeviceConnectionType IPUConfig
        SyntheticDataCategory get_ipu_config configure_ipu_system
    """,
    "vertex_edsl": "BaseType Float16 Float32 Int16 Int32 Sequence condition constant let",
}
"""Names of the real library by module; others have tests beside what they do."""


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_there(module):
    found = importlib.import_module(f"tensorflow.python.ipu.{module}")
    for name in NAMES[module].split():
        assert getattr(found, name), name
        assert name in dir(found), name


def test_every_module_of_ops_is_a_name_of_the_package():
    for path in (FACE / "ops").glob("*.py"):
        if path.stem != "__init__":
            found = importlib.import_module(f"tensorflow.python.ipu.ops.{path.stem}")
            assert getattr(ipu, path.stem) is found is getattr(ipu.ops, path.stem)
    assert ipu.outlined_function is ipu.functional_ops.outlined_function


def test_every_module_of_the_face_can_be_imported():
    roots = {"face": "tensorflow.python.ipu", "face_plugin": "tensorflow.compiler.plugin"}
    for folder, package in roots.items():
        root = FACE.with_name(folder)
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join([package, *parts]).removesuffix(".__init__")
            assert importlib.import_module(name).__doc__, name


def test_a_name_that_is_not_there_is_an_attribute_error():
    for module in (ipu, ipu.ops, ipu.config, ipu.nn_ops):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            module.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="nothing of this module is supported here"):
        ipu.popfloat_cast_to_gfloat.cast_native_to_gfloat  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from tensorflow.python.ipu.config import nonsense")


def test_importing_it_loads_none_of_the_large_packages():
    """The time is measured elsewhere; what it consists of is what can go wrong."""
    source = (
        "import sys, tensorflow\n"
        "before = set(sys.modules)\n"
        "from tensorflow.python import ipu\n"
        "ipu.config.IPUConfig; ipu.utils.reset_ipu_seed; ipu.ipu_compiler.compile\n"
        "ipu.ipu_strategy.IPUStrategy; ipu.loops.repeat; ipu.scopes.ipu_scope; ipu.nn_ops.gelu\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    large = {
        "keras",
        "model_runtime",
        "onnx",
        "onnxruntime",
        "popart",
        "poprt",
        "simipu",
        "tf2onnx",
    }
    assert not large & set(done.stdout.split())


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2.6.3+gc3.4.0", "Graphcore's own, and tensorflow-ipu has overwritten a part of it"),
        ("1.15.5+gc3.4.0", "Graphcore's own"),
        ("2.15.1", r"requires TensorFlow 2\.16 or later, found 2\.15\.1"),
        ("1.15.5", r"requires TensorFlow 2\.16 or later"),
    ],
)
def test_another_tensorflow_is_refused_in_one_line(version, message):
    with pytest.raises(ImportError, match=message) as caught:
        check_tensorflow(version)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("tensorflow.__version__ = '2.6.3+gc3.4.0'", "ImportError: tensorflow 2.6.3+gc3.4.0 is"),
        ("import os; os.environ['TF_POPLAR_FLAGS'] = '--nonsense'", "Unknown flag in TF_POPLAR"),
    ],
)
def test_the_import_ends_with_one_line_for_another_tensorflow_and_unknown_flags(statement, message):
    source = f"import tensorflow; {statement}\nfrom tensorflow.python import ipu"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(message)


@pytest.mark.parametrize("version", ["2.16.0", "2.21.0", "2.22.0-rc1", "3.0.0"])
def test_a_stock_tensorflow_is_accepted(version):
    check_tensorflow(version)


@pytest.mark.parametrize(
    ("module", "name", "reason"),
    [
        ("ipu_estimator", "IPUEstimator", "TensorFlow has no estimators since"),
        ("ipu_pipeline_estimator", "IPUPipelineEstimator", "TensorFlow has no estimators since"),
        ("ipu_run_config", "RunConfig", "TensorFlow has no estimators since"),
        ("horovod", "init", "Horovod trains with several processes"),
        ("distributed.popdist_strategy", "PopDistStrategy", "programs of several processes"),
        ("distributed.host_collective_ops", "allreduce", "programs of several processes"),
        ("ipu_multi_worker_strategy", "IPUMultiWorkerStrategy", "programs of several processes"),
        ("eager.backprop", "GradientCaptureTape", "computes inference"),
    ],
)
def test_what_is_not_supported_can_be_imported_and_says_so_in_one_line(module, name, reason):
    refused = getattr(importlib.import_module(f"tensorflow.python.ipu.{module}"), name)
    with pytest.raises(NotImplementedError, match=f"is not supported: .*{reason}") as caught:
        refused(object(), config=None)
    assert "\n" not in str(caught.value)


def make_optimizers():
    inner = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    found = ipu.optimizers
    return [
        found.CrossReplicaOptimizer(inner),
        found.ShardedOptimizer(inner),
        found.MapGradientOptimizer(inner, lambda gradient, _: gradient),
        found.GradientAccumulationOptimizerV2(inner, 4, reduction_method="mean"),
        found.CrossReplicaGradientAccumulationOptimizerV2(inner, 4, dtype=tf.float32),
        found.GradientAccumulationOptimizer(inner, 4),
        found.CrossReplicaGradientAccumulationOptimizer(inner, 4),
    ]


@pytest.mark.parametrize("method", ["minimize", "compute_gradients", "apply_gradients"])
def test_optimizers_can_be_made_but_do_not_train(method):
    for optimizer in make_optimizers():
        assert optimizer.get_name() == type(optimizer).__name__
        with pytest.raises(TrainingError, match=rf"{method}: training is not supported"):
            getattr(optimizer, method)(None)


def test_options_of_optimizers_are_checked():
    inner = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match="num_mini_batches must be a positive number"):
        ipu.optimizers.GradientAccumulationOptimizerV2(inner, 0)
    with pytest.raises(ValueError, match="Cannot parse most as one of"):
        ipu.optimizers.GradientAccumulationOptimizerV2(inner, 1, reduction_method="most")
    with pytest.raises(ValueError, match="opt: expected an optimizer, found float"):
        ipu.optimizers.CrossReplicaOptimizer(0.1)


def test_shards_go_to_what_is_placed_with_them():
    with tf.Graph().as_default() as graph:
        with ipu.scopes.ipu_scope("/device:IPU:0"), ipu.scopes.ipu_shard(3):
            first = tf.constant(1.0, name="first")
        with graph.colocate_with(first.op):
            second = tf.constant(2.0, name="second")
        assert ipu.sharding.get_sharding(first.op) == [3]
        assert ipu.sharding.get_sharding(second.op) is None
        ipu.sharding.propagate_sharding(graph)
        assert ipu.sharding.get_sharding(second.op) == [3]
        assert ipu.sharding.dependencies([first + second]) >= {first.op, second.op}
