"""Values of operators in PopART's sense, beside NumPy: those of its own domain, and those of the
standard whose meaning newer opsets have changed."""

import numpy as np
import popart
import pytest
from popart_models import build, compute, open_session

import popef

R = np.random.default_rng(7)
F, I32, U = np.float32, np.int32, np.uint32
X = R.standard_normal((2, 3, 4)).astype(F)
Y = R.standard_normal((2, 3, 4)).astype(F)
TINY = np.array([1e-8, -1e-8, 0, 1e-4, 2.0], F)
WHOLE = np.array([[7, -7, 12], [5, 3, -1]], I32)
OTHER = np.array([[3, 3, -5], [2, -2, 7]], I32)


def of(name, *args, opset="aiGraphcore", **kwargs):
    return lambda b, names: getattr(getattr(b, opset), name)(names, *args, **kwargs)


def onnx_op(name, *args, **kwargs):
    return of(name, *args, opset="aiOnnx", **kwargs)


def with_constant(name, value, *args, **kwargs):
    return lambda b, names: getattr(b.aiOnnx, name)(
        [*names, b.aiOnnx.constant(np.asarray(value))], *args, **kwargs
    )


def flat_softmax(x, axis):
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1).astype(np.float64)
    raised = np.exp(rows - rows.max(1, keepdims=True))
    return (raised / raised.sum(1, keepdims=True)).reshape(x.shape)


def median(x, axis):
    return np.sort(x, axis)[:, (x.shape[axis] - 1) // 2]


OWN = {
    "log1p of small numbers": (of("log1p"), [TINY], np.log1p(TINY)),
    "expm1 of small numbers": (of("expm1"), [TINY], np.expm1(TINY)),
    "atan2 in all quarters": (
        of("atan2"),
        [np.array([1, 1, -1, -1, 0, 1, -2], F), np.array([1, -1, 1, -1, -1, 0, 0], F)],
        np.arctan2(np.array([1, 1, -1, -1, 0, 1, -2], F), np.array([1, -1, 1, -1, -1, 0, 0], F)),
    ),
    "fmod has the sign of the dividend": (of("fmod"), [X, Y], np.fmod(X, Y)),
    "remainder has that of the divisor": (of("remainder"), [X, Y], np.mod(X, Y)),
    "remainder of integers": (of("remainder"), [WHOLE, OTHER], np.mod(WHOLE, OTHER)),
    "round away from zero": (
        of("round"),
        [np.array([0.5, 1.5, -0.5, -2.5, 2.4], F)],
        np.array([1, 2, -1, -3, 2], F),
    ),
    "nearbyint to even": (
        of("nearbyint"),
        [np.array([0.5, 1.5, -0.5, -2.5, 2.4], F)],
        np.array([0, 2, 0, -2, 2], F),
    ),
    "swish": (of("swish"), [X], X / (1 + np.exp(-X))),
    "scale": (of("scale", 0.3), [X], X * F(0.3)),
    "scaledadd": (of("scaledadd", 0.5, -2.0), [X, Y], 0.5 * X - 2 * Y),
    "incrementmod": (of("incrementmod", 3.0, 4.0), [WHOLE], np.fmod(WHOLE + 3, 4)),
    "bitwise or": (of("bitwiseor"), [WHOLE, OTHER], WHOLE | OTHER),
    "bitwise xnor": (of("bitwisexnor"), [WHOLE, OTHER], ~(WHOLE ^ OTHER)),
    "bitwise not": (of("bitwisenot"), [WHOLE], ~WHOLE),
    "subsample": (of("subsample", [1, 2, 3]), [X], X[:, ::2, ::3]),
    "reverse": (of("reverse", [0, 2]), [X], X[::-1, :, ::-1]),
    "slice": (of("slice", [2, -1], [1, 0], [1, 2]), [X], X[:, 1:2, :-1]),
    "bucketize left": (
        of("bucketize"),
        [np.array([0, 1, 1.5, 9], F), np.array([1, 2], F)],
        np.array([0, 0, 1, 2], I32),
    ),
    "bucketize right": (
        of("bucketize", 1),
        [np.array([0, 1, 1.5, 9], F), np.array([1, 2], F)],
        np.array([0, 1, 1, 2], I32),
    ),
    "groupedgather": (
        of("groupedgather", 1, 2),
        [X, np.array([[2, 0], [1, 1]], I32)],
        np.stack([X[0][[2, 0]], X[1][[1, 1]]]),
    ),
    "dynamicslice": (
        of("dynamicslice", [1, 2], [2, 3]),
        [X, np.array([1, 0], U)],
        X[:, 1:3, 0:3],
    ),
    "scatterreduce sum": (
        of("scatterreduce", 4),
        [np.array([1, 2, 4], F), np.array([3, 0, 3], I32)],
        np.array([2, 0, 0, 5], F),
    ),
    "l1loss": (of("l1loss", 0.5, popart.ReductionType.Sum), [X], 0.5 * np.abs(X).sum()),
    "identityloss": (of("identityloss", popart.ReductionType.Mean), [X], X.mean()),
}
STANDARD = {
    "softmax flattens": (onnx_op("softmax", 1), [X], flat_softmax(X, 1)),
    "logsoftmax flattens": (onnx_op("logsoftmax", 1), [X], np.log(flat_softmax(X, 1))),
    "mod of integers": (onnx_op("mod", 0), [WHOLE, OTHER], np.mod(WHOLE, OTHER)),
    "clip by attributes": (onnx_op("clip", 0.5, -0.5), [X], np.clip(X, -0.5, 0.5)),
    "pad by attributes": (
        onnx_op("pad", [0, 0, 1, 0, 0, 2], value=3.0),
        [X],
        np.pad(X, [(0, 0), (0, 0), (1, 2)], constant_values=3.0),
    ),
    "pad that cuts": (onnx_op("pad", [0, -1, 0, 0, 0, -2]), [X], X[:, 1:, :-2]),
    "unsqueeze": (onnx_op("unsqueeze", [0, -1]), [X], X[None, ..., None]),
    "reduce over no axes": (onnx_op("reducesumsquare", []), [X], X * X),
    "argmax is INT32": (onnx_op("argmax", -1, 0), [X], X.argmax(-1).astype(I32)),
    "slice backwards": (
        lambda b, names: b.aiOnnx.slice(
            [
                *names,
                *(b.aiOnnx.constant(np.array([n])) for n in (-1, -9, 2, -2)),
            ]
        ),
        [X],
        X[:, :, ::-2],
    ),
    "onehot of negative indices": (
        lambda b, names: b.aiOnnx.onehot(
            [
                names[0],
                b.aiOnnx.constant(np.array(3)),
                b.aiOnnx.constant(np.array([-1, 5], F)),
            ],
            0,
        ),
        [np.array([2, -3, 1], I32)],
        np.where(np.arange(3)[:, None] == np.array([2, 0, 1]), 5, -1).astype(F),
    ),
    "half times a float scalar": (
        onnx_op("mul"),
        [X.astype(np.float16), np.array([0.3], F)],
        (X.astype(np.float16).astype(F) * F(0.3)).astype(np.float16),
    ),
    "resize takes what PyTorch takes": (
        with_constant("resize", np.array([1, 1, 1.5], F), "nearest"),
        [X],
        X[:, :, np.floor(np.arange(6) / 1.5).astype(int)],
    ),
    "reshape with a shape of INT32": (
        with_constant("reshape", np.array([0, -1], I32)),
        [X],
        X.reshape(2, 12),
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_an_operator_of_its_own_domain_has_popart_s_meaning(case):
    make, inputs, expected = OWN[case]
    (found,) = compute(make, inputs)
    assert found.dtype == np.asarray(expected).dtype or case.endswith("loss")
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("case", STANDARD)
def test_an_operator_of_opset_10_keeps_its_meaning(case):
    make, inputs, expected = STANDARD[case]
    (found,) = compute(make, inputs)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["dynamicupdate", "dynamicadd", "dynamiczero"])
def test_a_window_is_written_where_the_index_says(name):
    window = R.standard_normal((2, 2, 4)).astype(F)
    inputs = [X, np.array([1], U), window]
    (found,) = compute(of(name, [1], [2]), inputs[:2] if name == "dynamiczero" else inputs)
    expected = X.copy()
    expected[:, 1:3] = {"dynamicupdate": window, "dynamicadd": X[:, 1:3] + window}.get(name, 0)
    np.testing.assert_array_equal(found, expected)


def test_a_median_is_the_lower_one_with_its_place_in_the_reduced_axes():
    values, places = compute(of("reducemedian", [1, 2], 0), [X])
    flat = X.reshape(2, 12)
    np.testing.assert_array_equal(values, median(flat, 1))
    np.testing.assert_array_equal(flat[[0, 1], places], values)
    assert places.dtype == I32


def test_sorted_values_come_with_their_places():
    values, places = compute(of("sort", 1, 1), [X])
    np.testing.assert_array_equal(values, -np.sort(-X, 1))
    np.testing.assert_array_equal(np.take_along_axis(X, places, 1), values)


def test_the_loss_ignores_given_labels():
    scores = np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]], F)
    labels = np.array([1, 0, 1], I32)
    make = of("nllloss", popart.ReductionType.Mean, 0)
    (found,) = compute(make, [scores, labels])
    np.testing.assert_allclose(found, -(np.log(0.8) + np.log(0.1)) / 2, rtol=1e-6)


def test_groups_of_a_norm_can_take_every_other_channel():
    x = R.standard_normal((1, 4, 5)).astype(F)
    parts = [np.ones(4, F), np.zeros(4, F)]
    make = of("groupnormalization", 2)
    y, *_ = compute(make, [x, *parts], groupNormStridedChannelGrouping=True)
    for group in (x[:, ::2], x[:, 1::2]):
        normed = (group - group.mean()) / np.sqrt(group.var() + 1e-5)
        start = int(group is not x[:, ::2] and not np.array_equal(group, x[:, ::2]))
        np.testing.assert_allclose(y[:, start::2], normed, rtol=1e-4, atol=1e-5)


def test_the_lstm_of_its_own_domain_has_the_gates_of_poplibs():
    length, batch, size, hidden = 3, 2, 4, 5
    x = R.standard_normal((length, batch, size)).astype(F)
    weights = R.standard_normal((4, size + hidden, hidden)).astype(F) / 3
    bias = R.standard_normal((4, hidden)).astype(F)
    outputs, cell = compute(of("lstm"), [x, weights, bias])

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    h = c = np.zeros((batch, hidden), np.float64)
    for step in range(length):
        joined = np.concatenate([x[step], h], 1)
        forget, take, candidate, give = (joined @ w + b for w, b in zip(weights, bias, strict=True))
        c = sigmoid(forget) * c + sigmoid(take) * np.tanh(candidate)
        h = sigmoid(give) * np.tanh(c)
        np.testing.assert_allclose(outputs[step], h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cell, c, rtol=1e-4, atol=1e-5)


def test_the_loss_of_ctc_is_that_of_all_paths():
    steps, classes, label = 3, 3, [1, 2]
    scores = np.log(R.dirichlet(np.ones(classes), size=(steps, 1)).astype(F))
    make = of("ctcloss", popart.ReductionType.Sum)
    (found,) = compute(
        make,
        [scores, np.array([label], U), np.array([steps], U), np.array([len(label)], U)],
    )
    total = 0.0
    for path in np.ndindex(*[classes] * steps):
        kept = [s for i, s in enumerate(path) if s and (i == 0 or path[i - 1] != s)]
        if kept == label:
            total += np.exp(sum(scores[i, 0, s] for i, s in enumerate(path)))
    np.testing.assert_allclose(found, -np.log(total), rtol=1e-5)


def test_a_tensor_is_printed_a_weight_updated_and_a_run_ended(capfd):
    def make(b, names):
        weight = b.addInitializedInputTensor(np.zeros(2, F))
        total = b.aiGraphcore.printtensor([b.aiOnnx.add([names[0], weight])], title="total")
        b.aiGraphcore.copyvarupdate([weight, total])
        limit = b.aiOnnx.constant(np.array([2.5, 2.5], F))
        over = b.aiOnnx.cast([b.aiOnnx.greater([total, limit])], "FLOAT")
        b.aiGraphcore.abort([b.aiOnnx.reducemax([over], keepdims=0)])
        return total

    proto, (total,) = build(make, [np.ones(2, F)])
    session = open_session(proto, [total], constantWeights=False)
    session.prepareDevice()
    session.weightsFromHost()
    arrays = session.initAnchorArrays()
    for expected in (1, 2):
        session.run(popart.PyStepIO({"input": np.ones(2, F)}, arrays))
        np.testing.assert_array_equal(arrays[total], [expected] * 2)
    assert "total: [2.0000000 2.0000000]" in capfd.readouterr().err
    with pytest.raises(popart.poplar_application_runtime_error, match="Abort Program"):
        session.run(popart.PyStepIO({"input": np.ones(2, F)}, arrays))


def test_random_numbers_differ_between_operators_and_repeat_with_the_seed():
    def make(b, _):
        return [b.aiOnnx.randomnormal([50]), b.aiOnnx.randomnormal([50])]

    proto, names = build(make, [])
    session = open_session(proto, names)
    session.prepareDevice()
    arrays = session.initAnchorArrays()
    drawn = []
    for seed in (1, 1, 2):
        session.setRandomSeed(seed)
        session.run(popart.PyStepIO({}, arrays))
        drawn.append([arrays[name].copy() for name in names])
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0][0], drawn[0][1])
    assert not np.array_equal(drawn[0][0], drawn[2][0])


def test_an_exported_model_that_prints_returns_its_anchors_only(tmp_path):
    proto, names = build(of("printtensor"), [X])
    device = popart.DeviceManager().createOfflineIPUDevice({"numIPUs": 1, "tilesPerIPU": 1472})
    session = popart.InferenceSession(proto, popart.DataFlow(1, names), device)
    session.compileAndExport(str(tmp_path / "prints.popef"))
    reader = popef.Reader()
    reader.parseFile(str(tmp_path / "prints.popef"))
    anchors = [anchor.name() for each in reader.metadata() for anchor in each.anchors()]
    assert anchors == ["input", *names]
