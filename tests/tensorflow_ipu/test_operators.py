"""Operators of TensorFlow for the IPU, beside numpy and TensorFlow's own operators."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(7)
ROWS = RANDOM.standard_normal((4, 6, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def ipu(ipus, compiled):
    ipu = ipus()
    yield ipu
    assert compiled()


def run(function, *inputs):
    """Return what a compiled function computes, as arrays in its structure."""
    from tensorflow_ipu.launching import run_function

    structure = []

    def traced(*tensors):
        structure[:] = [function(*tensors)]
        return tf.nest.flatten(structure[0])

    results = run_function(traced, [tf.constant(value) for value in inputs])
    return tf.nest.pack_sequence_as(structure[0], [result.numpy() for result in results])


def test_activations(ipu):
    nn = ipu.nn_ops
    results = run(
        lambda x: [
            nn.gelu(x),
            nn.gelu(x, approximate=False),
            nn.hard_sigmoid(x),
            nn.swish(x),
            nn.softmax(x),
        ],
        ROWS,
    )
    expected = [
        tf.nn.gelu(ROWS, approximate=True),
        tf.nn.gelu(ROWS),
        np.clip(0.2 * ROWS + 0.5, 0, 1),
        tf.nn.swish(ROWS),
        tf.nn.softmax(ROWS),
    ]
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, value, atol=2e-6)


def test_operators_are_compiled_in_eager_mode(ipu):
    result = ipu.nn_ops.swish(tf.constant(ROWS))
    np.testing.assert_allclose(result, tf.nn.swish(ROWS), atol=1e-6)


def normalize(x, axis, groups, is_strided, epsilon=1.53e-5):
    """Return x, normalized by groups of channels: a reference in float64."""
    channels = np.moveaxis(x.astype(np.float64), axis, 1)
    count = channels.shape[1]
    result = np.empty_like(channels)
    for group in range(groups):
        size = count // groups
        places = (
            range(group, count, groups) if is_strided else range(group * size, (group + 1) * size)
        )
        part = channels[:, list(places)]
        axes = tuple(range(1, part.ndim))
        mean, variance = part.mean(axes, keepdims=True), part.var(axes, keepdims=True)
        result[:, list(places)] = (part - mean) / np.sqrt(variance + epsilon)
    return np.moveaxis(result, 1, axis)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("axis", [1, -1])
def test_norms(ipu, axis, training):
    norms = ipu.normalization_ops
    channels = ROWS.shape[axis]
    options = {"channels_axis": axis, "training": training, "center": False, "scale": False}
    strided, plain, layer, instance = run(
        lambda x: [
            norms.group_norm(x, groups=2, **options),
            norms.group_norm(x, groups=2, strided_channel_grouping=False, **options),
            norms.layer_norm(x, **options),
            norms.instance_norm(x, **options),
        ],
        ROWS,
    )
    np.testing.assert_allclose(strided, normalize(ROWS, axis, 2, True), atol=1e-5)
    np.testing.assert_allclose(plain, normalize(ROWS, axis, 2, False), atol=1e-5)
    np.testing.assert_allclose(layer, normalize(ROWS, axis, 1, False), atol=1e-5)
    np.testing.assert_allclose(instance, normalize(ROWS, axis, channels, False), atol=1e-5)


def test_a_norm_with_statistics_from_elsewhere_equals_the_norm_with_its_own(ipu):
    from tensorflow_ipu.operators.generated import gen_popnn_ops

    options = {"data_format": "NHWC", "epsilon": 0.01, "num_groups": 4}

    def both(x):
        gamma, beta = tf.range(1.0, 9.0), tf.ones([8])
        mean, deviation = gen_popnn_ops.popnn_group_norm_statistics(x, **options)
        normal = gen_popnn_ops.popnn_group_norm_training(x, gamma, beta, **options)
        known = gen_popnn_ops.popnn_group_norm_inference(x, gamma, beta, mean, deviation, **options)
        return [normal.output, known]

    first, second = run(both, ROWS)
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_embedding_lookups(ipu):
    table = RANDOM.standard_normal((12, 5)).astype(np.float32)
    ids = np.array([[0, 11], [3, 3]], np.int32)
    look_up = ipu.embedding_ops.embedding_lookup
    for factor in (1, 4):
        result = run(lambda t, i, factor=factor: look_up(t, i, factor), table, ids)
        assert (result == table[ids]).all()
    with pytest.raises(ValueError, match="must divide the size"):
        look_up(tf.constant(table), tf.constant(ids), 5)


def test_a_host_embedding_clips_what_is_out_of_range(ipu):
    table = ipu.embedding_ops.create_host_embedding(
        "t", [4, 2], tf.float32, initializer=ROWS[0, :4, :2]
    )
    with table.register():
        result = run(table.lookup, np.array([0, 3, 9], np.int32))
    assert (result == ROWS[0, [0, 3, 3], :2]).all()


@pytest.mark.parametrize("dimension", ["a_columns", "a_rows_b_columns", "b_rows"])
@pytest.mark.parametrize("transposed", [False, True])
def test_serialized_products(ipu, dimension, transposed):
    a, b = ROWS[0], ROWS[1].T.copy()
    left = a.T.copy() if transposed else a
    multiply = ipu.math_ops.serialized_matmul
    result = run(lambda x, y: multiply(x, y, 2, dimension, transpose_a=transposed), left, b)
    np.testing.assert_allclose(result, a @ b, atol=1e-5)


def test_sums_of_segments(ipu):
    result = run(lambda x: ipu.math_ops.segment_sum(x, [0, 0, 2, 2], 4), ROWS)
    assert not result[[1, 3]].any()
    np.testing.assert_allclose(result[[0, 2]], [ROWS[:2].sum(0), ROWS[2:].sum(0)], atol=1e-6)


def test_sequence_slices(ipu):
    slicing = ipu.slicing_ops
    source, counts = ROWS[:, 0], np.array([1, 2], np.int32)

    def all_three(x):
        zeros = tf.ones([5, 8])
        return [
            slicing.sequence_slice(zeros, x, counts, [3, 0], [4, 1], zero_unused=False),
            slicing.sequence_slice_unpack(x, counts, [3, 0], 5),
            slicing.sequence_slice_pack(zeros, x, counts, [4, 1], zero_unused=True),
        ]

    moved, unpacked, packed = run(all_three, source)
    ones, zeros = np.ones((1, 8)), np.zeros((1, 8))
    assert (moved == np.concatenate([ones, source[:2], ones, source[3:]])).all()
    assert (unpacked == np.concatenate([source[3:], source[:2], zeros, zeros])).all()
    assert (packed == np.concatenate([zeros, source[1:3], zeros, source[:1]])).all()


def test_histograms(ipu):
    levels = np.array([-0.5, 0.0, 0.5], np.float32)
    values = np.concatenate([ROWS.ravel()[:50], levels])
    result = run(lambda x: ipu.statistics_ops.histogram(x, levels), values)
    edges = np.concatenate([[-np.inf], levels, [np.inf]])
    assert (result == np.histogram(values, edges)[0]).all()
    updated = run(lambda x: ipu.statistics_ops.histogram_update(tf.ones([4]), x, levels), values)
    assert (updated == result + 1).all()
    bins = run(lambda x: ipu.statistics_ops.fixed_width_bins(x, 5), values)
    np.testing.assert_allclose(bins, np.linspace(values.min(), values.max(), 5), rtol=1e-6)


def test_images_are_normalized(ipu):
    image = RANDOM.integers(0, 255, (2, 3, 3)).astype(np.uint8)
    offsets, scales = np.array([1, 2, 3], np.float32), np.array([0.5, 0.25, 2], np.float32)
    result = run(lambda x: ipu.image_ops.normalise_image(x, offsets, scales, 0.5), image)
    assert result.dtype == np.float16
    assert not result[..., 3].any()
    np.testing.assert_allclose(result[..., :3], (image * 0.5 - offsets) * scales, rtol=2e-3)


@pytest.mark.parametrize("fmt", ["F143", "F152"])
def test_eight_bit_floats_round_trip_all_their_codes(ipu, fmt):
    f8 = ipu.f8_ops
    codes = np.array([code for code in range(256) if code != 128], np.uint8)
    metadata = f8.create_metadata(f8.Format[fmt], -2)

    def there_and_back(x):
        values = f8.convert_from_f8(f8.QuarterTensor(x, metadata), tf.float32)
        return [values, f8.convert_to_f8(values, metadata).data]

    values, back = run(there_and_back, codes)
    assert (back == codes).all()
    from simipu.numerics import quarter

    assert quarter is not None
    ordered = values[codes < 128]
    assert (np.diff(ordered) > 0).all()


def test_products_of_eight_bit_floats(ipu):
    f8 = ipu.f8_ops
    a = RANDOM.integers(-4, 5, (3, 4)).astype(np.float32)
    metadata = f8.create_metadata(f8.Format.F143)
    product = run(
        lambda x: f8.f8_matmul(
            f8.convert_to_f8(x, metadata), f8.convert_to_f8(tf.transpose(x), metadata)
        ),
        a,
    )
    assert (product == (a @ a.T).astype(np.float16)).all()


def test_ctc_losses_and_paths(ipu):
    logits = RANDOM.standard_normal((5, 2, 4)).astype(np.float32)
    labels, lengths = np.array([[1, 2], [3, 3]], np.int32), np.array([2, 2], np.int32)
    steps = np.array([5, 4], np.int32)
    loss = run(lambda x: ipu.nn_ops.ctc_loss_v2(labels, x, lengths, steps, 0), logits)
    expected = tf.nn.ctc_loss(labels, logits, lengths, steps, blank_index=0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    scores, counts, paths = run(
        lambda x: ipu.nn_ops.ctc_beam_search_decoder(x, steps, beam_width=16), logits
    )
    (decoded,), logarithms = tf.nn.ctc_beam_search_decoder(logits, steps, 16, 1)
    dense = tf.sparse.to_dense(decoded, -1).numpy()
    np.testing.assert_allclose(scores, logarithms, rtol=1e-4)
    for row in range(2):
        assert list(paths[row, 0, : counts[row, 0]]) == [x for x in dense[row] if x >= 0]


def test_dropout_keeps_and_scales_and_repeats_a_seed(ipu):
    ones = np.ones((200, 10), np.float32)
    drop = ipu.rand_ops.dropout
    free, first, again = run(
        lambda x: [drop(x, 0.25), drop(x, 0.25, seed=[1, 2]), drop(x, 0.25, seed=[1, 2])], ones
    )
    assert set(np.unique(free.round(5))) == {0, np.float32(4 / 3).round(5)}
    assert (free > 0).mean() == pytest.approx(0.75, abs=0.05)
    assert (first == again).all()
    shared = run(lambda x: drop(x, 0.5, noise_shape=[200, 1]), ones)
    assert (shared == shared[:, :1]).all()


def test_collectives_of_one_replica(ipu):
    cross, gather = ipu.cross_replica_ops, ipu.all_to_all_op
    total, mean, gathered, part, index = run(
        lambda x: [
            cross.cross_replica_sum(x),
            cross.cross_replica_mean(x),
            gather.all_gather(x, 1),
            ipu.reduce_scatter_op.reduce_scatter(x[0, 0], 1),
            ipu.replication_ops.replication_index() + tf.cast(x[0, 0, 0] * 0, tf.int32),
        ],
        ROWS,
    )
    assert (total == ROWS).all()
    assert (mean == ROWS).all()
    assert (gathered == ROWS[None]).all()
    assert (part == ROWS[0, 0]).all()
    assert index == 0


def test_collectives_between_the_ipus_of_a_replica(ipu):
    within = ipu.within_replica_ops
    sums, parts, joined = run(
        lambda a, b: [
            within.all_reduce([a, b], "COLLECTIVE_OP_ADD"),
            within.reduce_scatter([a, b], "COLLECTIVE_OP_MAX"),
            within.all_gather([a, b]),
        ],
        ROWS[0, 0, :3],
        ROWS[0, 1, :5],
    )
    short = np.pad(ROWS[0, 0, :3], (0, 2))
    assert all((result == short + ROWS[0, 1, :5]).all() for result in sums)
    assert (np.concatenate(parts) == np.pad(np.maximum(short, ROWS[0, 1, :5]), (0, 1))).all()
    assert (joined[1] == np.concatenate([ROWS[0, 0, :3], ROWS[0, 1, :5]])).all()


def test_users_operators_compute_their_registered_bodies(ipu):
    custom = ipu.custom_ops

    @custom.register_user_op_body("Cube", "libcube.so")
    def cube(x, attributes="1"):
        return x**3 * float(attributes)

    outs = {"output_types": [tf.float32], "output_shapes": [tf.TensorShape([4, 6, 8])]}

    def call(x):
        return custom.precompiled_user_op(
            [x], "/opt/libcube.so", outs=outs, op_name="Cube", attributes="2"
        )

    np.testing.assert_allclose(run(call, ROWS)[0], 2 * ROWS**3, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="register_user_op_body"):
        custom.precompiled_user_op([tf.constant(ROWS)], "libother.so", outs=outs)
    expression = run(
        lambda x: custom.codelet_expression_op(lambda a, b: abs(a) * b - a, x, x), ROWS
    )
    np.testing.assert_allclose(expression, np.abs(ROWS) * ROWS - ROWS, atol=1e-6)


def test_outlined_functions_and_multi_convolutions_compute_in_place(ipu):
    @ipu.outlined_function
    def double(x):
        return {"twice": x * 2, "same": x}

    @ipu.nn_ops.multi_conv
    def convolve(x, kernel):
        return tf.nn.conv1d(x, kernel, 1, "SAME"), x

    kernel = RANDOM.standard_normal((3, 8, 2)).astype(np.float32)
    twice, (convolved, _) = run(lambda x: [double(x)["twice"], convolve(x, kernel)], ROWS)
    assert (twice == ROWS * 2).all()
    np.testing.assert_allclose(convolved, tf.nn.conv1d(ROWS, kernel, 1, "SAME"), atol=1e-5)


def test_queues_counters_and_prints_of_loops(ipu, capfd):
    def loop(x):
        def body(value, counted, delayed):
            delayed += ipu.internal_ops.fifo(value, 2)
            counted += ipu.internal_ops.get_current_iteration_counter()
            ipu.internal_ops.print_tensor(counted, "counted")
            return value + 1, counted, delayed

        return ipu.loops.repeat(5, body, [x, tf.constant(0), tf.zeros([2])])

    value, counted, delayed = run(loop, np.array([1, 3], np.float32))
    assert counted == 10
    assert (value == [6, 8]).all()
    assert (delayed == [1 + 2 + 3, 3 + 4 + 5]).all()
    assert "counted: 10" in capfd.readouterr().err
