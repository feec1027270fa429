"""Tests of TensorFlow models: parts that need no TensorFlow, and (`make test-tensorflow`) real
models against TensorFlow."""

import importlib.util
import subprocess
import sys

import numpy as np
import onnx
import pytest
import tritonclient.http as httpclient
from model_runtime import ModelRunner
from poplar_triton.serving.server import TritonServer
from poprt import frontend
from poprt.cli import main
from poprt.frontend import tensorflow_frontend
from simipu import CompileError
from triton_clients import infer
from waiting import PATIENCE_SECONDS

MAKE = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
given = keras.Input((16, 16, 3), name="inputs")
x = keras.layers.Conv2D(8, 3, activation="relu")(given)
x = keras.layers.MaxPool2D()(keras.layers.BatchNormalization()(x))
cnn = keras.Model(given, keras.layers.Conv2D(4, 3, padding="same")(x))
cnn.export("cnn", verbose=False)

class Two(tf.Module):
    def __init__(self):
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(10, 4)).astype("float32"))

    @tf.function(
        input_signature=[tf.TensorSpec([None, 3], tf.int64, "ids"), tf.TensorSpec([None, 1], name="scale")]
    )
    def both(self, ids, scale):
        rows = tf.gather(self.table, ids)
        return {"b_sum": tf.reduce_sum(rows, 1) * scale, "a_max": tf.reduce_max(rows, 1)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="z")])
    def other(self, z):
        return z + 1.0

two = Two()
tf.saved_model.save(two, "two", signatures={"other": two.other, "third": two.both})
v1 = tf.compat.v1
with tf.Graph().as_default() as graph:
    feed = v1.placeholder(tf.float32, [None, 4], name="feed")
    probs = tf.nn.softmax(feed @ tf.constant(np.eye(4, 3, dtype="float32")), name="probs")
    with v1.Session(graph=graph) as session:
        open("frozen.pb", "wb").write(graph.as_graph_def().SerializeToString())
        v1.saved_model.simple_save(session, "one", {"images": feed}, {"scores": probs})
random = np.random.default_rng(2)
fed = {"inputs": random.normal(size=(2, 16, 16, 3)), "ids": random.integers(0, 10, (2, 3))}
fed["scale"] = [[1], [2]]
fed = {name: np.asarray(value, "int32" if name == "ids" else "float32") for name, value in fed.items()}
answers = two.both(tf.constant(fed["ids"], tf.int64), tf.constant(fed["scale"]))
np.savez("fed.npz", **fed)
np.savez("answers.npz", cnn=cnn(fed["inputs"]), **{name: value.numpy() for name, value in answers.items()})
"""


def poprt(*arguments):
    try:
        return main(list(map(str, arguments)))
    except SystemExit as ended:
        return ended.code


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with models, their inputs and TensorFlow's answers."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run(
        [sys.executable, "-c", MAKE],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    return folder


@pytest.fixture(scope="module")
def data(made):
    return np.load(made / "fed.npz"), np.load(made / "answers.npz")


def load(path, **options):
    model = frontend.get_frontend(path, "tensorflow", **options).load_model()
    onnx.checker.check_model(model)
    return [
        {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (model.graph.input, model.graph.output)[side]
        }
        for side in (0, 1)
    ]


def answer(folder, **fed):
    with ModelRunner(folder / "executable.popef") as runner:
        return runner.execute(fed)


@pytest.mark.skipif(bool(importlib.util.find_spec("tensorflow")), reason="TensorFlow is installed")
def test_without_the_package_one_line_says_what_to_install_before_any_work(capsys, tmp_path):
    assert (
        poprt("-i", tmp_path, "--framework", "tensorflow", "--output_dir", tmp_path / "made") == 1
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "needs the package tensorflow, which is not installed: pip install "
        "'poplar-triton[tensorflow]'" in line
    )
    assert not list(tmp_path.iterdir())


def test_the_subcommand_belongs_to_tensorflow(capsys, tmp_path):
    assert poprt("-i", tmp_path, "tf2onnx", "--saved_model") == 2
    assert "tf2onnx requires --framework tensorflow, found 'onnx'" in capsys.readouterr().err
    assert poprt("-i", tmp_path, "--framework", "tensorflow", "tf2onnx", "--nosuch") == 2
    assert "poprt tf2onnx: error: unknown option '--nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:0", (["x:0"], None)),
        ("x:0[1,28,28,3],y:0", (["x:0", "y:0"], {"x:0": [1, 28, 28, 3]})),
        ("a,b[2],c", (["a", "b", "c"], {"b": [2]})),
    ],
)
def test_names_may_have_shapes_behind_them(text, expected):
    assert frontend.TensorflowFrontend.split_nodename_and_shape(text) == expected


@pytest.mark.parametrize("text", ["x[1,a]", "x[1", "[1]", "x]y", ",x"])
def test_invalid_lists_of_names_are_rejected(text):
    with pytest.raises(CompileError, match="expected"):
        frontend.TensorflowFrontend.split_nodename_and_shape(text)


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("nosuch", {}, "expected a folder with saved_model.pb; there is none"),
        ("nosuch.pb", {"saved_model": False}, "expected a file with a frozen graph; there is none"),
        ("frozen.pb", {"saved_model": False}, "--inputs and --outputs have to name its tensors"),
    ],
)
def test_missing_files_and_options_are_rejected_at_once(
    path, options, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(tensorflow_frontend, "check_packages", lambda: None)
    (tmp_path / "frozen.pb").write_bytes(b"")
    with pytest.raises(CompileError, match=expected):
        frontend.get_frontend(tmp_path / path, "tensorflow", **options)


@pytest.mark.tensorflow
def test_a_keras_model_answers_as_tensorflow_does(made, data, tmp_path, capsys):
    assert (
        poprt(
            "-i",
            made / "cnn",
            "--framework",
            "tensorflow",
            "--export_popef",
            "--output_dir",
            tmp_path,
            "--input_shape",
            "inputs=2,16,16,3",
            "tf2onnx",
            "--saved_model",
        )
        == 0
    ), capsys.readouterr().err
    fed, answers = data
    np.testing.assert_allclose(
        answer(tmp_path, inputs=fed["inputs"])["output_0"], answers["cnn"], atol=1e-6
    )


@pytest.mark.tensorflow
def test_a_keras_model_is_served(made, data, tmp_path, capsys):
    folder = tmp_path / "repository" / "keras"
    arguments = ["-i", made / "cnn", "--framework", "tensorflow", "--batch_size", 1]
    assert poprt(*arguments, "--triton_model_dir", folder, "tf2onnx", "--saved_model") == 0
    fed, answers = data
    with (
        TritonServer(folder.parent, log=tmp_path / "log") as server,
        httpclient.InferenceServerClient(server.http_url) as client,
    ):
        found = infer(client, "keras", {"inputs": fed["inputs"]})
    np.testing.assert_allclose(found["output_0"], answers["cnn"], atol=1e-6)


@pytest.mark.tensorflow
def test_images_may_come_and_go_with_their_channels_first(made, data, tmp_path, capsys):
    assert (
        poprt(
            "-i",
            made / "cnn",
            "--framework",
            "tensorflow",
            "--export_popef",
            "--output_dir",
            tmp_path,
            "--batch_size",
            2,
            "tf2onnx",
            "--saved_model",
            "--tag",
            "serve",
            "--signature_def",
            "serving_default",
            "--inputs_as_nchw",
            "inputs:0",
            "--outputs",
            "Identity:0",
            "--outputs_as_nchw",
            "Identity:0",
        )
        == 0
    ), capsys.readouterr().err
    fed, answers = data
    found = answer(tmp_path, inputs=np.ascontiguousarray(fed["inputs"].transpose(0, 3, 1, 2)))
    np.testing.assert_allclose(found["Identity:0"].transpose(0, 2, 3, 1), answers["cnn"], atol=1e-6)


@pytest.mark.tensorflow
def test_a_module_of_two_inputs_answers_by_its_signature(made, data, tmp_path, capsys):
    assert (
        poprt(
            "-i",
            made / "two",
            "--framework",
            "tensorflow",
            "--export_popef",
            "--output_dir",
            tmp_path,
            "--batch_size",
            2,
            "tf2onnx",
            "--saved_model",
            "--signature_def",
            "third",
        )
        == 0
    )
    fed, answers = data
    found = answer(tmp_path, ids=fed["ids"], scale=fed["scale"])
    for name in ("a_max", "b_sum"):
        np.testing.assert_allclose(found[name], answers[name], atol=1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize("large", [False, True])
def test_names_and_shapes_arrive(large, made, monkeypatch):
    if large:
        monkeypatch.setattr(tensorflow_frontend, "_LARGE_BYTES", 0)
    assert load(made / "cnn", input_shape={"inputs": [2, 16, 16, 3]}) == [
        {"inputs": [2, 16, 16, 3]},
        {"output_0": [2, 7, 7, 4]},
    ]
    assert load(made / "two", signature_def="third", inputs="ids:0[2,3]", outputs="a_max") == [
        {"ids:0": [2, 3]},
        {"a_max": [2, 4]},
    ]
    assert load(made / "one", input_shape={"images": (2, 4)}) == [
        {"images": [2, 4]},
        {"scores": [2, 3]},
    ]
    assert load(made / "frozen.pb", saved_model=False, inputs="feed:0[2,4]", outputs="probs:0") == [
        {"feed:0": [2, 4]},
        {"probs:0": [2, 3]},
    ]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"inputs": "nosuch:0"},
            r"--inputs names 'nosuch:0'; the model's inputs are inputs \(inputs:0\)",
        ),
        (
            {"outputs": "nosuch"},
            r"--outputs names 'nosuch'; the model's outputs are output_0 \(Identity:0\)",
        ),
        ({"inputs_as_nchw": "nosuch:0"}, "--inputs_as_nchw names 'nosuch:0'"),
        ({"outputs_as_nchw": "nosuch:0"}, "--outputs_as_nchw names 'nosuch:0'"),
        ({"input_shape": {"nosuch": [1]}}, "--input_shape names 'nosuch'"),
        ({"signature_def": "nosuch"}, "the signatures of .*cnn are serve, serving_default"),
        ({"tag": "nosuch"}, "cannot be loaded with tag 'nosuch'"),
        ({"opset": 99}, "tf2onnx cannot convert it: "),
    ],
)
def test_names_that_the_model_lacks_are_rejected(options, expected, made):
    with pytest.raises(CompileError, match=expected):
        frontend.get_frontend(made / "cnn", "tensorflow", **options).load_model()


@pytest.mark.tensorflow
def test_of_several_signatures_one_has_to_be_named(made):
    with pytest.raises(CompileError, match=r"the signatures of .*two are other, third"):
        frontend.get_frontend(made / "two", "tensorflow").load_model()


@pytest.mark.tensorflow
def test_a_damaged_graph_is_refused(tmp_path):
    path = tmp_path / "damaged.pb"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(CompileError, match="is no frozen graph of TensorFlow"):
        frontend.get_frontend(
            path, "tensorflow", saved_model=False, inputs="a:0", outputs="b:0"
        ).load_model()


@pytest.mark.tensorflow
def test_the_tensors_of_a_graph_are_described(made):
    import tensorflow

    graph = tensorflow.compat.v1.GraphDef.FromString((made / "frozen.pb").read_bytes())
    loader = frontend.get_frontend(made / "cnn", "tensorflow")
    assert loader.get_inputs_meta(graph) == {
        "feed:0": ([-1, 4], tensorflow.float32.as_datatype_enum)
    }
    assert loader.get_outputs_meta(graph) == {"probs:0": ([], tensorflow.float32.as_datatype_enum)}
