"""Pipelines for inference."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ipu import (
    config,
    ipu_compiler,
    ipu_infeed_queue,
    ipu_outfeed_queue,
    pipelining_ops,
)
from tensorflow_ipu.errors import TrainingError
from tensorflow_ipu.execution import counters
from tensorflow_ipu.operators.pipeline_arguments import count_overlapping

pytestmark = pytest.mark.tensorflow
tf1 = tf.compat.v1
Schedule = pipelining_ops.PipelineSchedule
WEIGHT = np.array([[1, 2], [3, 4]], np.float32)


@pytest.fixture(autouse=True)
def four_ipus():
    options = config.IPUConfig()
    options.auto_select_ipus = 4
    options.configure_ipu_system()
    yield
    config.reset_ipu_configuration()


def scale(factor, x):
    weight = tf1.get_variable("w", initializer=WEIGHT, use_resource=True, dtype=tf.float32)
    return factor * x, weight


def multiply(x, weight):
    return tf.matmul(x, weight), tf.reduce_sum(weight)


def add(x, total):
    return {"y": x + total}


def run(stages, count, expected_programs=True, feed=None, **options):
    with tf.Graph().as_default():
        rows = tf.data.Dataset.range(100).map(lambda n: tf.fill([1, 2], tf.cast(n, tf.float32)))
        queue, outfeed = ipu_infeed_queue.IPUInfeedQueue(rows), ipu_outfeed_queue.IPUOutfeedQueue()
        factor = tf1.placeholder(tf.float32, [])
        number = tf1.placeholder(tf.int32, [])

        def net(factor, number):
            return pipelining_ops.pipeline(
                stages,
                number if count is None else count,
                inputs=[factor],
                infeed_queue=queue,
                outfeed_queue=outfeed,
                **options,
            )

        with tf.device("/device:IPU:0"):
            operation = ipu_compiler.compile(net, [factor, number])
        dequeued = outfeed.dequeue()
        before = counters.runs
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(queue.initializer)
            session.run(operation, {factor: 2.0, number: feed or 0})
            assert (counters.runs > before) is expected_programs
            return session.run(dequeued)


def expect(count):
    rows = np.arange(count, dtype=np.float32).reshape(count, 1, 1) * np.ones([1, 2], np.float32)
    return 2 * rows @ WEIGHT + WEIGHT.sum()


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("mapping", [None, [0, 0, 0], [1, 0, 1]])
def test_each_element_passes_all_stages_in_every_schedule(schedule, mapping):
    found = run([scale, multiply, add], 6, pipeline_schedule=schedule, device_mapping=mapping)
    replicas = 4 // {None: 4, (0, 0, 0): 1, (1, 0, 1): 2}[tuple(mapping) if mapping else None]
    values = found["y"].reshape(6 * replicas, 1, 2)
    assert np.allclose(values, expect(6 * replicas))


def test_a_pipeline_is_repeated_and_its_number_of_elements_may_be_fed():
    assert np.allclose(run([scale, multiply, add], None, feed=3, repeat_count=2)["y"], expect(6))


def test_the_number_of_iterations_suits_the_schedule():
    text = "must be a multiple of 3, but it is 4. This number might be called"
    for count, feed in ((4, None), (None, 4)):
        with pytest.raises(tf.errors.FailedPreconditionError, match=text):
            run([scale, multiply, add], count, feed=feed)
    assert len(run([scale, multiply, add], 4, pipeline_schedule=Schedule.Sequential)["y"]) == 4


def test_sums_of_results_are_enqueued_once_for_each_run():
    found = run([scale, multiply, add], 3, repeat_count=2, accumulate_outfeed=True)["y"]
    expected = expect(6)
    assert np.allclose(found, [expected[:3].sum(axis=0), expected[3:].sum(axis=0)])


def test_a_list_of_functions_is_one_stage():
    stages = [lambda f, x: (f, x), [lambda f, x: f * x, lambda f, x: (f, x)], lambda a, f, x: a + x]
    found = run(stages, 3, device_mapping=[0, [1, 2], 3])
    assert np.allclose(found, np.arange(3).reshape(3, 1, 1) * 3 * np.ones([1, 2]))


@pytest.mark.parametrize(
    ("mapping", "number"),
    [([0, 1, 2], 3), ([0, 0, 0], 1), ([0, 1, 2, 0, 0, 2, 1, 0], 2), ([0, 1, 0, 1], 2)],
)
def test_stages_on_different_ipus_overlap_when_interleaved(mapping, number):
    assert count_overlapping(Schedule.Interleaved, mapping) == number
    assert count_overlapping(Schedule.Grouped, mapping) == len(mapping)
    assert count_overlapping(Schedule.Sequential, mapping) == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"count": None}, ValueError, "gradient_accumulation_count must be specified"),
        ({"count": -1}, ValueError, "must be >= 0"),
        ({"count": 2**31}, ValueError, "must be < max int32"),
        ({"stages": add}, TypeError, "computational_stages argument needs to be a list"),
        ({"stages": [add]}, ValueError, "requires at least two computational stages"),
        ({"device_mapping": 1}, TypeError, "device_mapping argument needs to be a list"),
        ({"device_mapping": [1]}, ValueError, "mapped to an IPU: 1 mappings != 2 stages"),
        ({"pipeline_schedule": 1}, TypeError, "not a member of the PipelineSchedule"),
        ({"recomputation_mode": 1}, TypeError, "not a member of the RecomputationMode"),
        ({"infeed_queue": 1}, TypeError, "infeed_queue is not an instance of"),
        ({"outfeed_queue": 1}, TypeError, "outfeed_queue is not an instance of"),
        ({"accumulate_outfeed": True}, ValueError, "An outfeed_queue must be provided when"),
        ({"outfeed_loss": True}, ValueError, "must be provided when outfeed_loss is True"),
        ({"outfeed_mask": [True]}, ValueError, "must be provided when outfeed_mask is set"),
        ({"continuous_weight_updates": True}, NotImplementedError, "not supported"),
        ({"optimizer_function": add}, TrainingError, "training is not supported"),
        (
            {"forward_propagation_stages_poplar_options": [1]},
            ValueError,
            "forward_propagation_stages_poplar_options must be a list or a tuple",
        ),
        (
            {"batch_serialization_iterations": 2, "pipeline_schedule": Schedule.Grouped},
            NotImplementedError,
            "only supported with the `Sequential`",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_the_real_texts(options, error, text):
    arguments = {"stages": [add, add], "count": 2, **options}
    with pytest.raises(error, match=text), tf.Graph().as_default():
        pipelining_ops.pipeline(arguments.pop("stages"), arguments.pop("count"), **arguments)


def test_results_need_an_outfeed_and_stages_get_all_that_they_read():
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
    with tf.Graph().as_default(), tf.device("/device:IPU:0"):
        other = tf1.placeholder(tf.float32, [])
        with pytest.raises(ValueError, match="The last computational stage has tensor outputs"):
            ipu_compiler.compile(
                lambda x: pipelining_ops.pipeline([tf.abs, tf.abs], 2, inputs=[x]), [1.0]
            )
        with pytest.raises(ValueError, match="Trying to capture the tensor Placeholder:0"):
            ipu_compiler.compile(
                lambda x: pipelining_ops.pipeline(
                    [lambda x: x * other, tf.abs], 2, inputs=[x], outfeed_queue=outfeed
                ),
                [1.0],
            )


def test_results_of_optimizer_functions_are_checked():
    make = pipelining_ops.OptimizerFunctionOutput
    loss = tf.constant(1.0)
    plain, keras = tf1.train.GradientDescentOptimizer(0.1), tf.keras.optimizers.SGD()
    assert make(keras, loss, variables=[1]).variables == [1]
    for error, text, call in (
        (TypeError, "opt must be a TensorFlow Optimizer", lambda: make(1, loss)),
        (TypeError, "loss must be a TensorFlow Tensor", lambda: make(plain, 1)),
        (ValueError, "args may not be used with OptimizerV2", lambda: make(keras, loss, (1,))),
        (ValueError, "only be used with OptimizerV2", lambda: make(plain, loss, variables=[1])),
        (TypeError, "tape must be a GradientTape", lambda: make(keras, loss, tape=[1])),
        (
            ValueError,
            "tape may not be used when OptimizerFunctionOutput.variables",
            lambda: make(keras, loss, variables=[1], tape=tf.GradientTape()),
        ),
    ):
        with pytest.raises(error, match=text):
            call()
