"""Tests of models exported with a batch of 1 and converted to another: each row's answer equals the
original model's."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Converter
from poprt.passes import get_pass
from sample_models import make_model
from simipu import CompileError

F, I64 = TensorProto.FLOAT, TensorProto.INT64
LSTM_READS = ["timed", "w", "r", "b", "", "h0", "c0"]
RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(
        op_type, inputs.split(), outputs.split(), outputs.split()[0], **attributes
    )


def attention():
    """Return an attention as torch exports view(1, -1, heads, width): Reshape targets name the
    batch, and positions are added to words."""
    nodes = [
        node("Gather", "table ids", "words"),
        node("Add", "words positions", "x"),
        node("MatMul", "x wq", "q0"),
        node("Reshape", "q0 split", "q1"),
        node("Transpose", "q1", "q", perm=[0, 2, 1, 3]),
        node("MatMul", "x wk", "k0"),
        node("Reshape", "k0 split", "k1"),
        node("Transpose", "k1", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "q k", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights q", "mixed"),
        node("Transpose", "mixed", "turned", perm=[0, 2, 1, 3]),
        node("Reshape", "turned join", "y"),
    ]
    weights = {
        "table": draw(20, 12),
        "positions": draw(1, 6, 12),
        "wq": draw(12, 12),
        "wk": draw(12, 12),
        "split": np.array([1, -1, 3, 4]),
        "join": np.array([1, 6, 12]),
    }
    return make_model(nodes, {"ids": (I64, [1, 6])}, {"y": (F, [1, 6, 12])}, weights)


def recurrent():
    """Return a recurrent network whose states are constants of a batch of 1."""
    nodes = [
        node("Transpose", "x", "timed", perm=[1, 0, 2]),
        helper.make_node(
            "LSTM", ["timed", "w", "r", "b", "", "h0", "c0"], ["all", "h"], "lstm", hidden_size=5
        ),
        node("Squeeze", "h first", "y"),
    ]
    weights = {
        "w": draw(1, 20, 3),
        "r": draw(1, 20, 5),
        "b": draw(1, 40),
        "h0": draw(1, 1, 5),
        "c0": draw(1, 1, 5),
        "first": np.array([0]),
    }
    return make_model(nodes, {"x": (F, [1, 7, 3])}, {"y": (F, [1, 5])}, weights)


def recurrent_with_states():
    """Return a recurrent network whose states are inputs with the batch as their second axis."""
    nodes = [
        node("Transpose", "x", "timed", perm=[1, 0, 2]),
        helper.make_node(
            "LSTM",
            ["timed", "w", "r", "b", "", "h0", "c0"],
            ["all", "h", "c"],
            "lstm",
            hidden_size=5,
        ),
    ]
    weights = {"w": draw(1, 20, 3), "r": draw(1, 20, 5), "b": draw(1, 40)}
    inputs = {"x": (F, [1, 7, 3]), "h0": (F, [1, 1, 5]), "c0": (F, [1, 1, 5])}
    return make_model(nodes, inputs, {"h": (F, [1, 1, 5]), "c": (F, [1, 1, 5])}, weights)


def vision():
    """Return a vision model that puts a class token before the patches and adds positions."""
    nodes = [
        node("Conv", "x filters", "patches", strides=[4, 4]),
        node("Reshape", "patches rows", "flat"),
        node("Transpose", "flat", "tokens", perm=[0, 2, 1]),
        node("Concat", "token tokens", "all", axis=1),
        node("Add", "all positions", "placed"),
        node("Gather", "placed zero", "first", axis=1),
        node("MatMul", "first head", "y"),
    ]
    weights = {
        "filters": draw(6, 3, 4, 4),
        "rows": np.array([1, 6, 9]),
        "token": draw(1, 1, 6),
        "positions": draw(1, 10, 6),
        "zero": np.array(0),
        "head": draw(6, 4),
    }
    return make_model(nodes, {"x": (F, [1, 3, 12, 12])}, {"y": (F, [1, 4])}, weights)


def expanded_token():
    """Return the same token, expanded to the batch first, with a mask made of the size of the
    result."""
    nodes = [
        node("Expand", "token size", "own"),
        node("Concat", "own x", "all", axis=1),
        node("Shape", "all", "shape"),
        node("ConstantOfShape", "shape", "zeros"),
        node("Add", "all zeros", "y"),
    ]
    weights = {"token": draw(1, 1, 6), "size": np.array([1, 1, 6])}
    return make_model(nodes, {"x": (F, [1, 4, 6])}, {"y": (F, [1, 5, 6])}, weights)


def detector():
    """Return a detection head like those of YOLO: anchors by classes are split, added to a grid and
    joined."""
    nodes = [
        node("Conv", "x filters", "raw"),
        node("Reshape", "raw parted", "five"),
        node("Transpose", "five", "last", perm=[0, 1, 3, 4, 2]),
        node("Slice", "last zero two four", "xy"),
        node("Slice", "last two seven four", "rest"),
        node("Slice", "last zeros ones none", "same"),
        node("Add", "xy grid", "moved"),
        node("Concat", "moved rest", "both", axis=-1),
        node("Add", "both same", "sum"),
        node("Reshape", "sum flat", "y"),
    ]
    weights = {
        "filters": draw(21, 3, 1, 1),
        "parted": np.array([1, 3, 7, 4, 4]),
        "grid": draw(1, 1, 4, 4, 2),
        "flat": np.array([1, 48, 7]),
        **{
            name: np.array([value])
            for name, value in {"zero": 0, "two": 2, "seven": 7, "four": 4}.items()
        },
        "zeros": np.array([0]),
        "ones": np.array([1]),
        "none": np.array([0]),
    }
    return make_model(nodes, {"x": (F, [1, 3, 4, 4])}, {"y": (F, [1, 48, 7])}, weights)


def upsampled():
    """Return an upsampling model whose sizes name the batch, with a flattening that does not."""
    nodes = [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["large"], "large", mode="nearest"),
        node("GlobalAveragePool", "large", "means"),
        node("Reshape", "means flat", "row"),
        node("Gemm", "row w b", "y"),
    ]
    weights = {
        "sizes": np.array([1, 3, 8, 8]),
        "flat": np.array([1, 3]),
        "w": draw(3, 2),
        "b": draw(1, 2),
    }
    return make_model(nodes, {"x": (F, [1, 3, 4, 4])}, {"y": (F, [1, 2])}, weights)


def time_first():
    """Return a model that flattens batch and time into one axis, which a Reshape splits again."""
    nodes = [
        node("Transpose", "x", "timed", perm=[1, 0, 2]),
        node("Reshape", "timed flat", "rows"),
        node("MatMul", "rows w", "products"),
        node("Reshape", "products parted", "again"),
        node("Transpose", "again", "y", perm=[1, 0, 2]),
    ]
    weights = {"flat": np.array([5, 3]), "w": draw(3, 4), "parted": np.array([5, 1, 4])}
    return make_model(nodes, {"x": (F, [1, 5, 3])}, {"y": (F, [1, 5, 4])}, weights)


MODELS = [attention, recurrent, vision, expanded_token, detector, upsampled, time_first]


def session_of(model):
    return unoptimised_session(model)


def draw_input(value, batch, axis=0):
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    shape[axis] = batch
    return RNG.integers(0, 20, shape) if value.type.tensor_type.elem_type == I64 else draw(*shape)


def assert_rows_are_the_models(model, axes, batch=4, **options):
    """Check that each row of the converted model's answer equals the answer of the original, which
    takes one row only. Return the converted model."""
    converted = Converter(batch_size=batch, **options).convert(model)
    fed = {value.name: draw_input(value, batch, axes[value.name]) for value in model.graph.input}
    narrow = {
        name: array.astype(np.int32) if array.dtype == np.int64 else array
        for name, array in fed.items()
    }
    found = session_of(converted).run(None, narrow)
    alone = session_of(model)
    for row in range(batch):
        one = alone.run(None, {name: array.take([row], axes[name]) for name, array in fed.items()})
        for value, whole, single in zip(model.graph.output, found, one, strict=True):
            np.testing.assert_allclose(
                whole.take([row], axes[value.name]), single, rtol=1e-4, atol=1e-5
            )
    return converted


@pytest.mark.parametrize("make", MODELS)
def test_every_row_answers_as_it_does_alone(make):
    model = make()
    axes = dict.fromkeys([value.name for value in (*model.graph.input, *model.graph.output)], 0)
    assert_rows_are_the_models(model, axes)


def test_states_that_are_inputs_have_their_batch_elsewhere():
    axes = {"x": 0, "h0": 1, "c0": 1, "h": 1, "c": 1}
    assert_rows_are_the_models(recurrent_with_states(), axes)


def test_an_input_whose_batch_is_variable_goes_with_the_others():
    nodes = [node("Add", "x z", "s"), node("Reshape", "s flat", "y")]
    inputs = {"x": (F, [1, 2, 3]), "z": (F, ["batch", 2, 3])}
    model = make_model(nodes, inputs, {"y": (F, [1, 6])}, {"flat": np.array([1, 6])})
    assert_rows_are_the_models(model, {"x": 0, "z": 0, "y": 0})


def test_a_batch_of_one_that_is_asked_for_changes_nothing():
    model = attention()
    assert Converter(batch_size=1).convert(model) == Converter().convert(model)


@pytest.mark.parametrize("size", [1, 2])
def test_the_real_tools_pass_alone_leaves_known_dimensions_alone(size):
    model = vision()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size
    with pytest.raises(CompileError, match=f"dimension 0 is fixed at {size} and cannot become 4"):
        get_pass("const_input_shape", batch_size=4)(model)


def test_another_batch_than_one_stays():
    model = vision()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(CompileError, match="dimension 0 is fixed at 2 and cannot become 4"):
        Converter(batch_size=4).convert(model)


@pytest.mark.parametrize(
    ("nodes", "weights", "reason"),
    [
        ([node("ReduceMean", "x", "y", keepdims=1)], {}, "'y' .ReduceMean.: .*"),
        (
            [node("Gather", "x zero", "y")],
            {"zero": np.array([0])},
            "'y' .Gather.: it picks among the rows",
        ),
        (
            [node("Reshape", "x flat", "m"), node("Softmax", "m", "y", axis=0)],
            {"flat": np.array([6])},
            "'y' .Softmax.: .*",
        ),
        ([node("Squeeze", "x first", "y")], {"first": np.array([0])}, "'y' .Squeeze.: "),
        (
            [node("Concat", "x other", "y", axis=0)],
            {"other": draw(1, 2, 3)},
            "'y' .Concat.: it joins rows",
        ),
    ],
)
def test_a_node_that_mixes_rows_is_named(nodes, weights, reason):
    model = make_model(nodes, {"x": (F, [1, 2, 3])}, {"y": (F, None)}, weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(
        CompileError, match=f"batch_size 4: .*exported with a batch of 1.*node {reason}"
    ):
        Converter(batch_size=4).convert(model)


def test_an_input_without_a_batch_is_named():
    model = make_model(
        [node("Mul", "x scale", "y")], {"x": (F, [1, 3]), "scale": (F, [3])}, {"y": (F, [1, 3])}, {}
    )
    with pytest.raises(CompileError, match=r"input 'scale' of shape .3. has no dimension of 1"):
        Converter(batch_size=4).convert(model)


def test_half_precision_and_an_old_opset_go_with_it():
    model = vision()
    axes = dict.fromkeys(["x", "y"], 0)
    converted = Converter(batch_size=3, precision="fp16", convert_version=11).convert(model)
    assert [dim.dim_value for dim in converted.graph.output[0].type.tensor_type.shape.dim] in (
        [],
        [3, 4],
    )
    assert_rows_are_the_models(model, axes, batch=3, convert_version=11)
