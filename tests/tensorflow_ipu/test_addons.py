"""Layers of ipu_tensorflow_addons, compared with Keras' own on the CPU."""

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
tf = pytest.importorskip("tensorflow")

from ipu_tensorflow_addons.keras import layers  # noqa: E402
from ipu_tensorflow_addons.v1 import layers as session_layers  # noqa: E402
from tensorflow.python import ipu  # noqa: E402
from tensorflow_ipu.execution import counters  # noqa: E402

v1 = tf.compat.v1
keras = tf.keras
RANDOM = np.random.default_rng(5)
TIME, BATCH, SIZE, UNITS = 4, 3, 5, 6
X = RANDOM.normal(size=(BATCH, TIME, SIZE)).astype("float32")


@pytest.fixture(autouse=True)
def configured():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    before = counters.compiled
    yield
    ipu.config.reset_ipu_configuration()
    assert counters.compiled > before


def run(layer, *inputs, **options):
    """Return the results of a layer on the IPU, with random weights."""
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        layer.build(inputs[0].shape)
        layer.set_weights(
            [RANDOM.normal(size=w.shape).astype(w.dtype) for w in layer.get_weights()]
        )
        result = strategy.run(
            tf.function(lambda *tensors: layer(*tensors, **options)),
            [tf.constant(x) for x in inputs],
        )
    return tf.nest.map_structure(np.array, result)


def expect(reference, layer, *inputs, **options):
    """Return the results of a reference layer with the same weights."""
    reference.build(inputs[0].shape)
    reference.set_weights(layer.get_weights())
    with tf.device("/device:CPU:0"):
        result = reference(*[tf.constant(x) for x in inputs], **options)
    return tf.nest.map_structure(np.array, result)


def assert_close(results, expected):
    for value, other in zip(tf.nest.flatten(results), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(value, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("returns", [(False, False), (True, False), (True, True)])
def test_an_lstm_is_that_of_keras(returns):
    sequences, state = returns
    options = {"return_sequences": sequences, "return_state": state}
    layer = layers.LSTM(UNITS, **options)
    result = run(layer, X)
    assert_close(result, expect(keras.layers.LSTM(UNITS, **options), layer, X))


@pytest.mark.parametrize("reset_after", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_gru_is_that_of_keras(reset_after, activation):
    options = {"return_sequences": True, "reset_after": reset_after, "activation": activation}
    layer = layers.GRU(UNITS, **options)
    result = run(layer, X / 4)
    reference = keras.layers.GRU(UNITS, recurrent_activation="sigmoid", **options)
    assert_close(result, expect(reference, layer, X / 4))


def test_activations_that_no_onnx_layer_has_are_unrolled():
    layer = layers.LSTM(UNITS, recurrent_activation="softmax")
    result = run(layer, X)
    reference = keras.layers.LSTM(UNITS, recurrent_activation="softmax")
    assert_close(result, expect(reference, layer, X))


def test_an_lstm_in_half_is_near_the_one_in_float():
    layer = layers.LSTM(UNITS, dtype="float16")
    result = run(layer, X.astype("float16"))
    reference = keras.layers.LSTM(UNITS)
    reference.build(X.shape)
    reference.set_weights([w.astype("float32") for w in layer.get_weights()])
    np.testing.assert_allclose(result, np.array(reference(X)), atol=2e-2)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_sequences_end_at_their_lengths(kind):
    lengths = np.int32([1, 4, 2])
    inputs = X.transpose(1, 0, 2)
    with tf.Graph().as_default(), v1.Session() as session:
        layer = getattr(session_layers, f"PopnnDynamic{kind}")(UNITS)
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            x = v1.placeholder(tf.float32, inputs.shape)
            outputs, state = layer(x, tf.constant(lengths))
        ipu.utils.move_variable_initialization_to_cpu()
        names = [variable.op.name for variable in v1.global_variables()]
        session.run(v1.global_variables_initializer())
        kernel, biases = session.run([layer.kernel, layer.biases])
        outputs, state = session.run([outputs, state], {x: inputs})
    assert names == [f"popnn_dynamic_{kind.lower()}/{name}" for name in ("kernel", "biases")]
    reference = getattr(keras.layers, kind)(
        UNITS,
        return_sequences=True,
        return_state=True,
        **({"reset_after": False} if kind == "GRU" else {}),
    )
    reference.build(X.shape)
    reference.set_weights([kernel[:SIZE], kernel[SIZE:], biases.reshape(-1)])
    mask = np.arange(TIME) < lengths[:, None]
    expected, *states = (np.array(v) for v in reference(X, mask=tf.constant(mask)))
    last = state[1] if kind == "LSTM" else state
    np.testing.assert_allclose(last, states[0], rtol=1e-4, atol=1e-5)
    if kind == "LSTM":
        np.testing.assert_allclose(state[0], states[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        outputs.transpose(1, 0, 2), np.where(mask[..., None], expected, 0), rtol=1e-4, atol=1e-5
    )


def test_attention_keeps_the_state_where_the_score_is_one():
    inputs = X.transpose(1, 0, 2)
    scores = np.zeros((TIME, BATCH), "float32")
    scores[:, 0] = 1  # the update gate is 0: the state is the candidate alone
    with tf.Graph().as_default(), v1.Session() as session:
        plain = session_layers.PopnnGRU(UNITS)
        layer = session_layers.PopnnAUGRU(UNITS)
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            x = v1.placeholder(tf.float32, inputs.shape)
            expected, _ = plain(x)
            outputs, _ = layer(x, tf.fill([BATCH], TIME), scores)
        ipu.utils.move_variable_initialization_to_cpu()
        session.run(v1.global_variables_initializer())
        session.run(
            [
                plain.kernel.assign(layer.kernel),
                plain.biases.assign([[1.0] * UNITS, [1.0] * UNITS, [0.0] * UNITS]),
            ]
        )
        outputs, expected = session.run([outputs, expected], {x: inputs})
    np.testing.assert_allclose(outputs[:, 1:], expected[:, 1:], rtol=1e-4, atol=1e-5)
    assert not np.allclose(outputs[:, 0], expected[:, 0])


def test_layer_normalization_is_that_of_keras():
    layer = layers.LayerNormalization(axis=-1)
    result = run(layer, X)
    assert_close(result, expect(keras.layers.LayerNormalization(axis=-1), layer, X))


@pytest.mark.parametrize("strided", [False, True])
def test_group_normalization_groups_channels(strided):
    inputs = RANDOM.normal(size=(2, 3, 3, 8)).astype("float32")
    layer = layers.GroupNormalization(
        groups=4,
        strided_channel_grouping=strided,
        gamma_initializer="ones",
        beta_initializer="zeros",
    )
    result = run(layer, inputs)
    gamma, beta = layer.get_weights()
    shape = (2, 3, 3, 2, 4) if strided else (2, 3, 3, 4, 2)
    axes = (1, 2, 3) if strided else (1, 2, 4)
    groups = inputs.reshape(shape)
    mean, variance = groups.mean(axes, keepdims=True), groups.var(axes, keepdims=True)
    expected = ((groups - mean) / np.sqrt(variance + 1e-3)).reshape(inputs.shape) * gamma + beta
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


def test_a_serial_dense_layer_is_a_dense_layer():
    inputs = X[0]
    layer = layers.SerialDense(UNITS, 2, "kernel_rows", activation="relu")
    result = run(layer, inputs)
    assert_close(result, expect(keras.layers.Dense(UNITS, activation="relu"), layer, inputs))


def test_an_embedding_looks_vectors_up():
    ids = np.int32([[3, 0, 7], [1, 1, 2]])
    layer = layers.Embedding(8, UNITS)
    np.testing.assert_array_equal(run(layer, ids), layer.get_weights()[0][ids])


def test_dropout_does_nothing_in_inference():
    strategy = ipu.ipu_strategy.IPUStrategy()
    layer = layers.Dropout(0.5)
    with strategy.scope():
        result = strategy.run(
            tf.function(lambda x: (layer(x), 2 * layer(x, training=True))), [tf.constant(X)]
        )
    np.testing.assert_array_equal(result[0], X)
    assert np.any(np.array(result[1]) == 0)


def test_a_functional_model_with_addons_predicts():
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        inputs = keras.Input((TIME, SIZE), batch_size=BATCH)
        hidden = layers.GRU(UNITS, return_sequences=True)(inputs)
        hidden = layers.LayerNormalization()(hidden)
        outputs = keras.layers.Dense(2)(layers.LSTM(UNITS)(hidden))
        model = keras.Model(inputs, outputs)
        result = model.predict(X, batch_size=BATCH, verbose=0)
    assert result.shape == (BATCH, 2)
    assert np.isfinite(result).all()


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: layers.LSTM(2, use_bias=False), ValueError, "does not support use_bias = False"),
        (lambda: layers.GRU(2, unroll=True), ValueError, "does not support unroll = True"),
        (lambda: layers.LSTM(2, activation="selu"), ValueError, "does not support 'selu' as an"),
        (lambda: layers.Embedding(2, 2, mask_zero=True), NotImplementedError, "mask_zero"),
        (lambda: layers.LayerNormalization(axis="x"), ValueError, "int or a list/tuple"),
        (lambda: layers.GroupNormalization(3).build((2, 8)), ValueError, "not commensurate with 3"),
        (lambda: session_layers.PopnnLSTM(2, dtype=tf.float64), ValueError, "Only support float16"),
    ],
)
def test_what_is_not_supported_is_an_error(make, kind, text):
    counters.compiled += 1  # nothing is compiled
    with pytest.raises(kind, match=text):
        make()


def test_an_effective_transformer_attends_to_what_is_no_padding():
    from_lengths, to_lengths = np.int32([[2], [4]]), np.int32([[3], [1]])
    sources = RANDOM.normal(size=(2, 4)).astype("float32")
    targets = RANDOM.normal(size=(2, 3)).astype("float32")
    layer = layers.EffectiveTransformer(
        5, 4, num_attention_heads=2, attention_head_size=3, layer_norm_output=False
    )
    strategy = ipu.ipu_strategy.IPUStrategy()
    inputs = [tf.constant(x) for x in (sources, from_lengths, targets, to_lengths)]
    with strategy.scope():
        layer.build([x.shape for x in inputs])
        output, context = strategy.run(tf.function(lambda *x: layer(list(x))), inputs)
    kernels = layer.get_weights()
    q, k, v = (
        (x[..., None] * kernels[2 * n][0] + kernels[2 * n + 1])
        * (np.arange(x.shape[1]) < lengths)[..., None]
        for n, (x, lengths) in enumerate(
            [(sources, from_lengths), (targets, to_lengths), (targets, to_lengths)]
        )
    )
    q, k, v = (x.reshape(2, -1, 2, 3).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = np.exp(q @ k.transpose(0, 1, 3, 2))
    expected = (scores / scores.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(context, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        output, expected.reshape(2, -1) @ kernels[6] + kernels[7], rtol=1e-4, atol=1e-5
    )


def test_an_operator_of_the_ipu_is_compiled_alone_in_a_function_of_the_cpu():
    layer = layers.GroupNormalization(groups=2, center=False, scale=False)
    layer.build((2, 3, 4))
    inputs = RANDOM.normal(size=(2, 3, 4)).astype("float32")
    result = tf.function(lambda x: layer(x) * 2)(inputs).numpy() / 2
    groups = result.reshape(2, 3, 2, 2)
    np.testing.assert_allclose(groups.mean((1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(groups.var((1, 2)), 1, atol=1e-1)
