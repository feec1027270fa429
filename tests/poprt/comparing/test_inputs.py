"""Tests of the inputs of the calibration run: the user's rows, and random values in the range and
of the size that the graph says."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from poprt.comparing.inputs import iter_given, iter_made_up
from poprt.comparing.ranges import find_range
from sample_models import make_model
from simipu import CompileError, Direction, Stream

F, I64, I32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(
        operator, inputs.split(), outputs.split(), name=f"the_{outputs.split()[0]}", **attributes
    )


def indices(*nodes, weights=None, kind=I64, name="ids"):
    return make_model(list(nodes), {name: (kind, [4, 6])}, {"y": (F, None)}, weights or {})


TABLE = {"table": np.zeros((10, 3), np.float32)}


@pytest.mark.parametrize(
    ("model", "least", "greatest"),
    [
        (indices(node("Gather", "table ids", "y"), weights=TABLE), 0, 9),
        (indices(node("Gather", "table ids", "y", axis=1), weights=TABLE), 0, 2),
        (
            indices(
                node("Add", "ids two", "i"),
                node("Gather", "table i", "y"),
                weights={**TABLE, "two": np.array(2)},
            ),
            -2,
            7,
        ),
        (
            indices(
                node("Unsqueeze", "ids axes", "u"),
                node("Cast", "u", "c", to=I32),
                node("Gather", "table c", "a"),
                node("Gather", "short ids", "y"),
                weights={**TABLE, "axes": np.array([0]), "short": np.zeros((7, 2), np.float32)},
            ),
            0,
            6,
        ),
        (
            indices(
                node("OneHot", "ids depth values", "y"),
                weights={"depth": np.array(5), "values": np.array([0, 1], np.float32)},
            ),
            0,
            4,
        ),
        (
            indices(
                node("Unsqueeze", "ids axes", "u"),
                node("Equal", "u range", "e"),
                node("Cast", "e", "y", to=F),
                weights={"axes": np.array([2]), "range": np.arange(257)},
            ),
            0,
            256,
        ),
    ],
)
def test_indices_are_made_up_all_over_their_table_and_not_beyond(model, least, greatest):
    found = find_range(model, "ids")
    assert (found.least, found.greatest) == (least, greatest)
    values = made_up(
        model, Stream("ids", "ids", Direction.HOST_TO_DEVICE, np.dtype(np.int64), (4, 6))
    )
    assert least <= values.min() <= values.max() <= greatest
    assert len(np.unique(values)) > 2


@pytest.mark.parametrize(
    ("nodes", "least", "greatest"),
    [
        ([node("Sub", "ids two", "i"), node("Gather", "table i", "y")], 2, 11),
        ([node("Sub", "two ids", "i"), node("Gather", "table i", "y")], -np.inf, np.inf),
        ([node("Add", "ids unknown", "i"), node("Gather", "table i", "y")], 0, 9),
        ([node("Concat", "other ids", "i", axis=0), node("Gather", "table i", "y")], 0, 9),
        ([node("GatherElements", "table ids", "y", axis=1)], 0, 2),
        ([node("Gather", "ids zero", "i"), node("Gather", "table i", "y")], 0, 9),
        ([node("Gather", "table other", "i"), node("Add", "i ids", "y")], -np.inf, np.inf),
        ([node("Equal", "ids pair", "y")], -np.inf, np.inf),
        ([node("Equal", "ids two", "y")], -np.inf, np.inf),
        ([node("Equal", "ids three", "y")], 1, 3),
        ([node("Mul", "ids two", "i"), node("Gather", "table i", "y")], -np.inf, np.inf),
        ([node("OneHot", "ids vector values", "y")], 0, 6),
        ([node("OneHot", "other ids values", "y")], -np.inf, np.inf),
    ],
    ids=lambda value: value[0].op_type if isinstance(value, list) else None,
)
def test_a_range_follows_what_hands_values_on_and_what_is_added_to_them(nodes, least, greatest):
    weights = {
        **TABLE,
        "two": np.array(2),
        "zero": np.array(0),
        "pair": np.array([0, 5]),
        "three": np.array([1, 2, 3]),
        "vector": np.array([7]),
        "values": np.array([0, 1], np.float32),
    }
    model = make_model(
        nodes,
        {name: (I64, [4, 6]) for name in ("ids", "other", "unknown")},
        {"y": (F, None)},
        weights,
    )
    found = find_range(model, "ids")
    assert (found.least, found.greatest) == (least, greatest)
    assert found.is_known == np.isfinite(least)


def test_indices_stay_within_what_the_type_of_an_input_holds():
    wide = indices(
        node("Gather", "table ids", "y"), weights={"table": np.zeros((300, 1), np.float32)}
    )
    for dtype, greatest in ((np.int8, 127), (np.uint8, 255), (np.int16, 299)):
        values = made_up(
            wide, Stream("ids", "ids", Direction.HOST_TO_DEVICE, np.dtype(dtype), (4, 6))
        )
        assert 0 <= values.min() <= values.max() <= greatest
        assert values.max() > greatest // 2
    shifted = indices(
        node("Add", "ids two", "a"),
        node("Cast", "a", "i", to=I64),
        node("Gather", "table i", "y"),
        weights={"table": np.zeros((3, 1), np.float32), "two": np.float32(2)},
        kind=F,
    )
    values = made_up(
        shifted, Stream("ids", "ids", Direction.HOST_TO_DEVICE, np.dtype(np.float32), (4, 6))
    )
    assert (values.min(), values.max()) == (-2, 0)


def made_up(model, stream, batch=4):
    batch = next(iter_made_up(model, [stream], batch))
    assert batch[stream.tensor].shape == stream.shape
    return batch[stream.tensor]


def test_masks_keep_everything_and_beginnings():
    nodes = [node("Cast", "mask", "c", to=F), node("Sub", "one c", "s"), node("Mul", "s far", "y")]
    model = indices(*nodes, weights={"one": np.float32(1), "far": np.float32(-10000)}, name="mask")
    for dtype in (np.int64, np.int32, bool, np.float32):
        values = made_up(
            model, Stream("mask", "mask", Direction.HOST_TO_DEVICE, np.dtype(dtype), (4, 6))
        )
        np.testing.assert_array_equal(
            values, [[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]
        )


@pytest.mark.parametrize(
    ("dtype", "least", "greatest"),
    [(np.uint8, 0, 255), (np.int16, -32768, 32767), (np.int8, -128, 127)],
)
def test_bytes_and_sounds_are_made_up_over_all_they_hold(dtype, least, greatest):
    model = make_model(
        [node("Cast", "x", "y", to=F)],
        {"x": (TensorProto.UINT8, [4, 500])},
        {"y": (F, [4, 500])},
        {},
    )
    values = made_up(model, Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(dtype), (4, 500)))
    assert values.dtype == dtype
    assert values.min() < least + (greatest - least) / 50
    assert values.max() > greatest - (greatest - least) / 50


def test_floats_are_loud_quiet_and_between_0_and_1(linear):
    values = made_up(
        linear, Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(np.float16), (5, 500)), 5
    )
    assert values.dtype == np.float32
    spread = values.std(axis=1)
    assert spread[0] > 0.9
    assert values[1].min() >= 0
    np.testing.assert_allclose(np.abs(values[3]), 1, atol=0.05)
    assert spread[4] < 0.05


def test_a_small_batch_is_made_up_several_times(linear):
    stream = Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(np.float16), (1, 4))
    assert len(list(iter_made_up(linear, [stream], 1))) == 15


def test_indices_that_come_as_floats_are_indices_all_the_same():
    """Keras exports an embedding this way: negative indices count from the end."""
    nodes = [
        node("Cast", "x", "i", to=I64),
        node("Less", "i zero", "negative"),
        node("Cast", "negative", "n", to=I64),
        node("Mul", "n ten", "correction"),
        node("Add", "i correction", "at"),
        node("Gather", "table at", "y"),
    ]
    model = make_model(
        nodes,
        {"x": (F, [4, 6])},
        {"y": (F, None)},
        {**TABLE, "zero": np.array(0), "ten": np.array(10)},
    )
    values = made_up(
        model, Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(np.float32), (4, 6))
    )
    assert set(values.ravel()) <= set(range(10))
    assert len(np.unique(values)) > 5


def pixels(*op_types):
    """Return nodes that standardise x as a graph for images does, with other constants."""
    names = iter([*"abc"[: len(op_types) - 1], "y"])
    nodes, source = [], "x"
    for op_type in op_types:
        result = next(names)
        nodes.append(node(op_type, f"{source} {op_type.lower()}", result))
        source = result
    return nodes


FLOATS = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("nodes", "weights", "dtype", "least", "greatest"),
    [
        (pixels("Div"), {"div": 32768}, FLOATS, (-32768, -16000), (16000, 32768)),
        (pixels("Mul"), {"mul": 1 / 255}, FLOATS, (-255, -120), (120, 255)),
        (pixels("Mul", "Sub"), {"mul": 2 / 255, "sub": 1}, FLOATS, (-600, 0), (255, 800)),
        (
            pixels("Sub", "Div"),
            {"sub": np.full((3, 1, 1), 120), "div": np.array([57, 58, 59]).reshape(3, 1, 1)},
            FLOATS,
            (-200, 0),
            (220, 440),
        ),
        (pixels("Sub"), {"sub": np.full((3, 1, 1), 120)}, FLOATS, (-200, 0), (220, 440)),
        (
            [node("Cast", "x", "f", to=F), node("Div", "f div", "y")],
            {"div": 255},
            np.dtype(np.int32),
            (-255, -120),
            (120, 255),
        ),
        (
            [node("Transpose", "x", "t"), node("Clip", "t low high", "y")],
            {"low": 0, "high": 255},
            FLOATS,
            (0, 0),
            (255, 255),
        ),
        (
            [node("QuantizeLinear", "x step zero", "y")],
            {"step": 0.5, "zero": np.uint8(128)},
            FLOATS,
            (-64, -63),
            (63, 64),
        ),
        (
            [node("BatchNormalization", "x one one mean square", "y")],
            {"one": np.ones(3), "mean": np.full(3, 500), "square": np.full(3, 1e4)},
            FLOATS,
            (0, 300),
            (700, 1000),
        ),
        (
            [node("Conv", "x w bias", "y")],
            {"w": np.full((2, 3, 1, 1), 0.01), "bias": np.array([1, -1])},
            FLOATS,
            (-300, -100),
            (100, 300),
        ),
        (
            [node("MatMul", "x w", "m"), node("Add", "m bias", "y")],
            {"w": np.full((8, 2), 0.01), "bias": np.array([1, -1])},
            FLOATS,
            (-200, -60),
            (60, 200),
        ),
        ([node("Sqrt", "x", "y")], {}, FLOATS, (0, 0.1), (2, 6)),
        # Nothing here says how large x is: the values are about 1.
        ([node("Relu", "x", "y")], {}, FLOATS, (-6, -2), (2, 6)),
        (pixels("Mul"), {"mul": 1e6}, FLOATS, (-6, -2), (2, 6)),
        (pixels("Mul"), {"mul": 2}, FLOATS, (-6, -2), (2, 6)),
        (
            pixels("Add"),
            {"add": np.array([0, -6e4, -6e4])[:, None, None]},
            FLOATS,
            (-6, -2),
            (2, 6),
        ),
        (pixels("Add"), {"add": np.array([9, -9, 9])[:, None, None]}, FLOATS, (-6, -2), (2, 6)),
        (pixels("Mul"), {"mul": np.array([0.001, 1, 5])}, FLOATS, (-6, -2), (2, 6)),
        ([node("Div", "div x", "y")], {"div": 255}, FLOATS, (-6, -2), (2, 6)),
        (
            [node("Conv", "x w bias", "y")],
            {"w": np.full((2, 3, 1, 1), 0.5), "bias": np.array([1, -1])},
            FLOATS,
            (-6, -2),
            (2, 6),
        ),
        (
            [node("Clip", "x low high", "y")],
            {"low": 1e-7, "high": 65500},
            FLOATS,
            (-6, -2),
            (2, 6),
        ),
    ],
)
def test_floats_are_of_the_size_that_the_constants_at_the_front_suggest(
    nodes, weights, dtype, least, greatest
):
    values = {name: np.asarray(value) for name, value in weights.items()}
    values = {
        name: value if value.dtype.kind == "u" else value.astype(np.float32)
        for name, value in values.items()
    }
    shape = (5, 3, 8, 8)
    kind = F if dtype == FLOATS else TensorProto.INT32
    model = make_model(nodes, {"x": (kind, shape)}, {"y": (F, None)}, values)
    stream = Stream("x", "x", Direction.HOST_TO_DEVICE, dtype, shape)
    drawn = made_up(model, stream, 5)
    assert least[0] <= drawn.min() <= least[1]
    assert greatest[0] <= drawn.max() <= greatest[1]
    assert drawn.std() > (greatest[0] - least[1]) / 20


def test_the_size_is_told_by_weights_that_the_graph_does_not_hold():
    weights = {"w": np.full((2, 3, 1, 1), 0.01, np.float32), "bias": np.float32([1, -1])}
    model = make_model(
        [node("Conv", "x w bias", "y")], {"x": (F, [1, 3, 8, 8])}, {"y": (F, None)}, weights
    )
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    assert not find_range(model, "x").size.is_evident
    assert find_range(model, "x", weights).size.spread > 50


def given(shape, data, batch, axis=0, dtype=np.float16):
    stream = Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(dtype), shape, batch_axis=axis)
    return [found["x"] for found in iter_given([stream], {"x": data}, batch)]


def test_rows_of_data_come_in_batches_the_last_of_which_is_filled_up_with_the_first():
    rows = np.arange(10.0).reshape(5, 2)
    first, second = given((3, 2), rows, 3)
    np.testing.assert_array_equal(first, rows[:3])
    np.testing.assert_array_equal(second, rows[[3, 4, 0]])
    assert first.dtype == np.float32, "what becomes of floats in half is looked for"
    assert given((3, 2), rows.astype(np.int64), 3, dtype=np.int32)[0].dtype == np.int32


def test_data_may_be_rows_or_in_the_compiled_shape():
    rows = np.arange(12.0).reshape(4, 3)
    for data in (rows, rows.T):
        (found,) = given((3, 4), data, 4, axis=1)
        np.testing.assert_array_equal(found, rows.T)
    for data in (rows[0], rows[:1]):
        (found,) = given((3,), data, 0)
        np.testing.assert_array_equal(found, rows[0])
    assert len(given((3,), rows, 0)) == 4


@pytest.mark.parametrize(
    ("shape", "data", "batch", "found"),
    [
        ((3, 4), np.zeros((2, 5)), 3, r"\[2, 5\]"),
        ((3, 4), np.zeros((0, 4)), 3, r"\[0, 4\]"),
        ((3,), np.zeros(4), 0, r"\[4\]"),
        ((3, 4), None, 3, "none"),
    ],
)
def test_data_of_another_shape_are_refused(shape, data, batch, found):
    reason = f"input 'x': expected rows of shape .* found {found}; the inputs are x"
    with pytest.raises(CompileError, match=reason):
        given(shape, data, batch)
