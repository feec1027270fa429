"""Sessions of TensorFlow 1: computations, feeds, variables and control flow, beside numpy."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow").compat.v1
pytestmark = pytest.mark.tensorflow
DEVICE = "/device:IPU:0"
SQUARE = np.array([[1, 2], [3, 4]], np.float32)


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def compile_on_ipu(ipu, function, inputs=None):
    with ipu.scopes.ipu_scope(DEVICE):
        return ipu.ipu_compiler.compile(function, inputs)


def test_a_loop_with_feeds_computes_each_element(ipus, compiled, graph):
    ipu = ipus()
    data = np.arange(48, dtype=np.float32).reshape(6, 2, 4)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(data))
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def body(x):
        weight = tf.get_variable("w", [4, 3], initializer=tf.random_normal_initializer(seed=1))
        product = tf.matmul(x, weight)
        return outfeed.enqueue({"rows": product, "sum": tf.reduce_sum(product)})

    run = compile_on_ipu(ipu, lambda: ipu.loops.repeat(3, body, [], infeed))
    dequeue = outfeed.dequeue()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(infeed.initializer)
        weight = session.run(tf.global_variables()[0])
        for part in (data[:3], data[3:]):
            session.run(run)
            found = session.run(dequeue)
            np.testing.assert_allclose(found["rows"], part @ weight, rtol=1e-5)
            np.testing.assert_allclose(found["sum"], (part @ weight).sum((1, 2)), rtol=1e-4)
        assert session.run(dequeue)["rows"].shape == (0, 2, 3)
    assert compiled() == 1


def test_a_changed_variable_is_used_by_the_next_run(ipus, compiled, graph):
    ipu = ipus()
    x = tf.placeholder(tf.float32, [2, 2])

    def function(value):
        return value @ tf.get_variable("w", [2, 2], initializer=tf.ones_initializer())

    [result] = compile_on_ipu(ipu, function, [x])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(result, {x: SQUARE}), SQUARE @ np.ones([2, 2]))
        tf.global_variables()[0].load(SQUARE, session)
        np.testing.assert_array_equal(session.run(result, {x: SQUARE}), SQUARE @ SQUARE)
    assert compiled() == 1


def test_a_loop_changes_a_variable(ipus, compiled, graph):
    ipu = ipus()

    def function():
        total = tf.get_variable("total", [2], initializer=tf.zeros_initializer())

        def body(value):
            with tf.control_dependencies([total.assign_add([1.0, 2.0])]):
                return value + total.read_value()

        return ipu.loops.repeat(3, body, [tf.zeros([2])])

    [result] = compile_on_ipu(ipu, function)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(result), [6, 12])
        np.testing.assert_array_equal(session.run(result), [15, 30])
        np.testing.assert_array_equal(session.run(tf.global_variables()[0]), [6, 12])
    assert compiled() >= 1


def test_a_shape_and_an_axis_are_known_when_a_run_compiles(ipus, compiled, graph):
    ipu = ipus()
    x, axis = tf.placeholder(tf.float32, [None, None]), tf.placeholder(tf.int32, [])
    [result] = compile_on_ipu(ipu, tf.argmax, [x, axis])
    wide = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(result, {x: SQUARE, axis: 1}), [1, 1])
        np.testing.assert_array_equal(session.run(result, {x: -SQUARE, axis: 0}), [0, 0])
        np.testing.assert_array_equal(session.run(result, {x: wide, axis: 0}), [1, 1, 1])
        np.testing.assert_array_equal(session.run(result, {x: wide, axis: 0}), [1, 1, 1])
    assert compiled() == 3


@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow_without_effects_is_one_program(ipus, compiled, graph, sign):
    ipu = ipus()
    x = tf.placeholder(tf.float32, [2, 2])

    def function(value):
        chosen = tf.cond(tf.reduce_sum(value) > 0, lambda: value @ value, lambda: value - 1)
        return tf.while_loop(lambda i, _: i < 3, lambda i, m: (i + 1, m @ value), [0, chosen])[1]

    [result] = compile_on_ipu(ipu, function, [x])
    given = SQUARE * sign
    expected = given @ given if sign > 0 else given - 1
    for _ in range(3):
        expected = expected @ given
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(result, {x: given}), expected)
    assert compiled() == 1


def test_operations_on_an_ipu_are_compiled_without_a_call_of_compile(ipus, compiled, graph):
    ipus()
    with tf.device(DEVICE):
        x = tf.placeholder(tf.float32, [2, 2])
        first = x @ x + 1.0
        state = tf.Variable(tf.ones([2]), use_resource=True)
        update = state.assign_add([1.0, 2.0])
    on_host = first * 2
    with tf.device(DEVICE):
        second = on_host + tf.reduce_sum(first)
    expected = SQUARE @ SQUARE + 1
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert compiled() == 0
        found = session.run([first, on_host, second], {x: SQUARE})
        np.testing.assert_allclose(found[0], expected)
        np.testing.assert_allclose(found[1], expected * 2)
        np.testing.assert_allclose(found[2], expected * 2 + expected.sum())
        assert compiled() == 2
        np.testing.assert_array_equal(session.run(update), [2, 3])
        np.testing.assert_array_equal(session.run(state), [2, 3])
        assert compiled() == 3


def test_an_operator_that_nothing_converts_is_an_error_that_names_it(ipus, graph):
    ipu = ipus()
    x = tf.placeholder(tf.float32, [4])
    [result] = compile_on_ipu(ipu, lambda value: tf.unique(value)[0], [x])
    with tf.Session() as session, pytest.raises(Exception, match="Unique"):
        session.run(result, {x: [1, 2, 1, 3]})


def test_replicas_share_an_infeed_and_add_up(ipus, compiled, graph):
    ipu = ipus(2)
    data = np.arange(32, dtype=np.float32).reshape(4, 2, 4)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(data))
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def body(x):
        total = tf.reduce_sum(x)
        return outfeed.enqueue((total, ipu.ops.cross_replica_ops.cross_replica_sum(total)))

    run = compile_on_ipu(ipu, lambda: ipu.loops.repeat(2, body, [], infeed))
    dequeue = outfeed.dequeue()
    with tf.Session() as session:
        session.run(infeed.initializer)
        session.run(run)
        own, joined = session.run(dequeue)
    sums = data.sum((1, 2)).reshape(2, 2)
    np.testing.assert_allclose(own, sums)
    np.testing.assert_allclose(joined, np.repeat(sums.sum(1, keepdims=True), 2, 1))
    assert compiled() == 1


def test_a_second_process_loads_what_the_first_one_compiled(ipus, compiled, graph, tmp_path):
    from tensorflow_ipu import execution
    from tensorflow_ipu.config import flags

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_POPLAR_FLAGS", f"--executable_cache_path={tmp_path}/made")
        flags.reset()
        ipu = ipus()
        loaded = execution.counters.loaded
        for _ in range(2):
            with tf.Graph().as_default(), tf.Session() as session:
                x = tf.placeholder(tf.float32, [2, 2])
                [result] = compile_on_ipu(ipu, lambda value: value @ value, [x])
                np.testing.assert_array_equal(session.run(result, {x: SQUARE}), SQUARE @ SQUARE)
    flags.reset()
    assert compiled() == 1
    assert execution.counters.loaded == loaded + 1
    assert len(list((tmp_path / "made").glob("*.poplar_exec"))) == 1


def test_the_host_computes_what_is_outside_the_compilation(ipus, compiled, graph):
    ipu = ipus()
    x = tf.placeholder(tf.float32, [2, 2])
    seen = []

    def look(value):
        seen.append(value.copy())
        return value[::-1]

    def body(value):
        product = value @ value
        with ipu.scopes.outside_compilation_scope():
            turned = tf.numpy_function(look, [product], tf.float32)
            turned.set_shape([2, 2])
        return turned + 1

    [result] = compile_on_ipu(ipu, lambda value: ipu.loops.repeat(2, body, [value]), [x])
    expected, products = SQUARE, []
    for _ in range(2):
        products.append(expected @ expected)
        expected = products[-1][::-1] + 1
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(result, {x: SQUARE}), expected)
    np.testing.assert_allclose(seen, products)
    assert compiled() == 2


def test_the_host_waits_for_what_an_ipu_computes(ipus, compiled, graph):
    ipus()
    with tf.device(DEVICE):
        x = tf.placeholder(tf.float32, [2, 2])
        product = x @ x
        state = tf.Variable(tf.zeros([2, 2]), use_resource=True)
        update = state.assign_add(product)
    with tf.device("cpu"), tf.control_dependencies([product, update]):
        number = tf.constant(7) + tf.placeholder_with_default(1, [])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(number, {x: SQUARE}) == 8
        assert compiled() == 1
        np.testing.assert_allclose(session.run(state), SQUARE @ SQUARE)


def test_variables_on_an_ipu_are_restored_before_they_have_values(ipus, compiled, graph, tmp_path):
    ipu = ipus()
    x = tf.placeholder(tf.float32, [2, 2])
    with ipu.scopes.ipu_scope(DEVICE):
        weight = tf.get_variable("w", [2, 2], initializer=tf.ones_initializer())
        scaled = weight * 2.0
        product = x @ scaled
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        weight.load(SQUARE, session)
        path = saver.save(session, str(tmp_path / "weights"))
    before = compiled()
    with tf.Session() as session:
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run(weight), SQUARE)
        assert compiled() == before
        found = session.run(product, {x: SQUARE})
        np.testing.assert_array_equal(found, SQUARE @ SQUARE * 2)
    assert compiled() == before + 1


def test_operators_of_the_chip_take_constants(ipus, compiled, graph):
    ipu = ipus()
    image = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    offsets, scales = np.array([[0.5, 0.25, 0.125], [2, 4, 8]], np.float32)
    x = tf.placeholder(tf.uint8, image.shape)
    [result] = compile_on_ipu(
        ipu, lambda value: ipu.image_ops.normalise_image(value, offsets, scales, 0.125), [x]
    )
    with tf.Session() as session:
        found = session.run(result, {x: image})
    np.testing.assert_array_equal(found[..., :3], (image * 0.125 - offsets) * scales)
    np.testing.assert_array_equal(found[..., 3], np.zeros([1, 4, 4]))
    assert compiled() == 1


def test_a_callable_of_a_session_runs_on_the_ipu(ipus, compiled, graph):
    ipus()
    with tf.device(DEVICE):
        x = tf.placeholder(tf.float32, [2, 2])
        product = x @ x
        constant = tf.constant(SQUARE) @ tf.constant(SQUARE)
    with tf.Session() as session:
        np.testing.assert_allclose(session.make_callable(product, [x])(SQUARE), SQUARE @ SQUARE)
        np.testing.assert_allclose(session.make_callable(constant)(), SQUARE @ SQUARE)
    assert compiled() == 2


def test_loops_of_a_graph_are_functions_whatever_a_script_disables(ipus, compiled, graph):
    from tensorflow.python.ops import control_flow_v2_toggles

    ipus()
    control_flow_v2_toggles.disable_control_flow_v2()  # as `disable_v2_behavior` does
    with tf.device(DEVICE):
        x = tf.placeholder(tf.float32, [2, 2])
        _, result = tf.while_loop(lambda i, _: i < 3, lambda i, m: (i + 1, m @ x), [0, x])
    with tf.Session() as session:
        found = session.run(result, {x: SQUARE})
    np.testing.assert_allclose(found, np.linalg.matrix_power(SQUARE, 4))
    assert compiled() == 1


def test_a_profile_is_written_where_the_engine_options_ask(ipus, compiled, graph, tmp_path):
    import pva
    from tensorflow.python import ipu

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.compilation_poplar_options = {
        "autoReport.all": "true",
        "autoReport.directory": str(tmp_path),
    }
    config.configure_ipu_system()
    x = tf.placeholder(tf.float32, [64, 64])
    [result] = compile_on_ipu(ipu, lambda value: tf.nn.softmax(value @ value), [x])
    with tf.Session() as session:
        session.run(result, {x: np.ones([64, 64])})
    [file] = tmp_path.glob("tf_report__*/profile.pop")
    assert '"tensorflow"' in file.with_name("framework.json").read_text()
    report = pva.openReport(str(file))
    assert report.compilation.target.numIPUs == 1
    assert report.execution.totalCycles.total > 0


def test_a_loop_within_a_loop(ipus, compiled, graph):
    ipu = ipus()
    x = tf.placeholder(tf.float32, [4])

    def body(i, value):
        def inner(j, inside):
            return j + 1, inside * 2.0 + tf.cast(i, tf.float32)

        return i + 1, tf.while_loop(lambda j, _: j < 2, inner, [0, value])[1]

    def function(value):
        return tf.while_loop(lambda i, _: i < 3, body, [0, value])[1]

    [result] = compile_on_ipu(ipu, function, [x])
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(result, {x: np.ones(4)}), [82] * 4)
    assert compiled() == 1


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_loop_reads_a_list_of_tensors(ipus, compiled, graph, is_constant):
    ipu = ipus()
    x = tf.placeholder(tf.float32, [4])

    def function(value):
        parts = tf.constant([0.1] * 5) * (1.0 if is_constant else value[0])
        array = tf.TensorArray(tf.float32, 5, element_shape=[]).unstack(parts)
        total = tf.while_loop(
            lambda i, _: i < 5,
            lambda i, total: (i + 1, total + array.read(i) * 0.5 * tf.ones([2])),
            [0, tf.zeros([2])],
        )[1]
        return total + value[:2]

    [result] = compile_on_ipu(ipu, function, [x])
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(result, {x: np.ones(4)}), [1.25, 1.25], rtol=1e-6)
    assert compiled() == 1


def test_a_flag_logs_the_modelled_cycles_of_each_run(ipus, graph, monkeypatch, caplog):
    from tensorflow_ipu import execution
    from tensorflow_ipu.config import flags

    monkeypatch.setenv("TF_POPLAR_FLAGS", "--log_cycle_count=0")
    flags.reset()
    ipu = ipus()
    x = tf.placeholder(tf.float32, [64, 64])
    [result] = compile_on_ipu(ipu, lambda value: value @ value, [x])
    before = execution.counters.cycles
    with tf.Session() as session, caplog.at_level("INFO", "tensorflow"):
        for _ in range(2):
            session.run(result, {x: np.ones([64, 64])})
    flags.reset()
    lines = [line for line in caplog.messages if line.startswith("Cycle count (modelled): ")]
    assert len(lines) == 2
    assert int(lines[0].rpartition(" ")[2]) * 2 == execution.counters.cycles - before > 0
