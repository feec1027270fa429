"""Variables and data sets in PopEF files."""

import numpy as np
import pytest

import popef

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tensorflow_ipu.files import dataset_extractor, utils  # noqa: E402

v1 = tf.compat.v1


def read(file):
    with popef.Reader() as reader:
        reader.parseFile(file)
        return {str(t.info.name): np.array(t.data()) for t in reader.tensors()}


def read_feeds(file):
    with popef.Reader() as reader:
        reader.parseFile(file)
        return {str(feed.info.name): np.array(feed.data()) for feed in reader.feeds()}


@pytest.fixture
def session():
    with tf.Graph().as_default(), v1.Session() as current:
        with v1.variable_scope("net", use_resource=True):
            v1.get_variable("w", initializer=np.arange(6, dtype="float32").reshape(2, 3))
            v1.get_variable("half", initializer=np.float16([1, 2]))
            v1.get_variable("count", initializer=np.int32(7))
        current.run(v1.global_variables_initializer())
        yield current


def write_metadata(file, shape=(2, 3)):
    anchors = [
        popef.Anchor(
            name=name,
            handle=f"{i}.0",
            tensorInfo=popef.TensorInfo(shape=of, dataType=kind),
            type=popef.TensorType.INPUT,
            programs=[0],
        )
        for i, (name, of, kind) in enumerate(
            [
                ("net/w", shape, popef.DataType.F32),
                ("net/half", (2,), popef.DataType.F16),
                ("net/count", (), popef.DataType.S32),
            ]
        )
    ]
    with popef.Writer(file) as writer:
        writer.writeMetadata(popef.Metadata(anchors=anchors, executable="e"))


def test_a_session_exports_all_variables_by_handle(session, tmp_path):
    file = tmp_path / "new" / "weights.popef"
    utils.export_variables_from_live_session(session, str(file))
    values = read(file)
    assert sorted(values) == ["net/count", "net/half", "net/w"]
    np.testing.assert_array_equal(values["net/w"], np.arange(6).reshape(2, 3))
    assert (values["net/half"].dtype, values["net/count"][()]) == (np.float16, 7)


def test_the_export_works_on_a_finalized_graph(session, tmp_path):
    session.graph.finalize()
    utils.export_variables_from_live_session(session, tmp_path / "weights.popef")
    utils.import_data_in_live_session(session, [tmp_path / "weights.popef"])


def test_variables_are_checked_with_metadata(session, tmp_path):
    write_metadata(tmp_path / "good")
    write_metadata(tmp_path / "bad", (3, 2))
    utils.export_variables_from_live_session(session, tmp_path / "w", tmp_path / "good")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Mismatch in type/shape.*net/w"):
        utils.export_variables_from_live_session(session, tmp_path / "w2", tmp_path / "bad")
    with session.graph.as_default():
        extra = v1.get_variable("extra", initializer=1.0, use_resource=True)
    session.run(extra.initializer)
    with pytest.raises(tf.errors.InvalidArgumentError, match="find anchor in metadata for extra"):
        utils.export_variables_from_live_session(session, tmp_path / "w2", tmp_path / "good")
    assert not (tmp_path / "w2").exists()


def test_a_variable_without_resource_is_an_error(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("old", initializer=1.0, use_resource=False)
        session.run(v1.global_variables_initializer())
        with pytest.raises(ValueError, match="'old:0': expected a resource variable"):
            utils.export_variables_from_live_session(session, tmp_path / "w")


def test_variables_return_to_another_session(session, tmp_path):
    utils.export_variables_from_live_session(session, tmp_path / "w")
    with tf.Graph().as_default(), v1.Session() as other:
        with v1.variable_scope("net", use_resource=True):
            w = v1.get_variable("w", initializer=np.zeros((2, 3), "float32"))
            rest = v1.get_variable("rest", initializer=5.0)
        other.run(v1.global_variables_initializer())
        utils.import_data_in_live_session(other, [tmp_path / "w"], tmp_path / "saved" / "model")
        np.testing.assert_array_equal(other.run(w), np.arange(6).reshape(2, 3))
        assert other.run(rest) == 5
    assert (tmp_path / "saved" / "model.index").exists()


def test_a_value_of_another_shape_is_an_error(session, tmp_path):
    utils.export_variables_from_live_session(session, tmp_path / "w")
    with tf.Graph().as_default(), v1.Session() as other:
        with v1.variable_scope("net", use_resource=True):
            v1.get_variable("w", initializer=np.zeros((3, 2), "float32"))
        with pytest.raises(tf.errors.InvalidArgumentError, match="For tensor net/w"):
            utils.import_data_in_live_session(other, [tmp_path / "w"])


def test_a_damaged_file_is_an_error(session, tmp_path):
    (tmp_path / "w").write_bytes(b"from a stranger")
    with pytest.raises(tf.errors.InvalidArgumentError, match="w"):
        utils.import_data_in_live_session(session, [tmp_path / "w"])


def test_a_keras_model_exports_and_imports_its_variables(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(2)])
    model.build((None, 4))
    before = [np.array(variable) for variable in model.get_weights()]
    utils.export_variables_from_live_model(model, tmp_path / "w")
    stored = read(tmp_path / "w")
    assert len(stored) == 4
    assert all("kernel" in name or "bias" in name for name in stored)
    model.set_weights([0 * value for value in before])
    utils.import_data_in_live_model(model, [tmp_path / "w"])
    for value, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("eager", [True, False])
def test_a_data_set_is_written_as_feeds(tmp_path, eager):
    graph = tf.Graph().as_default() if not eager else None
    if graph:
        graph.__enter__()
    try:
        rows = {"b": np.arange(8, dtype="int32").reshape(4, 2), "a": np.float32([1, 2, 3, 4])}
        dataset = tf.data.Dataset.from_tensor_slices(rows).repeat()
        utils.export_dataset_to_file(dataset, str(tmp_path / "feed"), 6, feed_name="mine")
        utils.export_dataset_to_file(dataset, str(tmp_path / "unnamed"), 1)
    finally:
        if graph:
            graph.__exit__(None, None, None)
    feeds = read_feeds(tmp_path / "feed")
    np.testing.assert_array_equal(feeds["mine.0"], [1, 2, 3, 4, 1, 2])
    np.testing.assert_array_equal(feeds["mine.1"], rows["b"][[0, 1, 2, 3, 0, 1]])
    assert sorted(read_feeds(tmp_path / "unnamed")) == ["infeed.0", "infeed.1"]


def test_a_data_set_that_ends_in_a_graph_is_an_error(tmp_path):
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.range(3)
        with pytest.raises(tf.errors.OutOfRangeError, match="reached the end of the dataset"):
            utils.export_dataset_to_file(dataset, tmp_path / "feed", 4)
    assert not (tmp_path / "feed").exists()


def test_a_data_set_that_ends_is_an_error(tmp_path):
    dataset = tf.data.Dataset.range(3)
    with pytest.raises(tf.errors.OutOfRangeError, match="reached the end of the dataset"):
        utils.export_dataset_to_file(dataset, tmp_path / "feed", 4)
    assert not (tmp_path / "feed").exists()


@pytest.mark.parametrize(
    ("dataset", "count", "kind", "text"),
    [
        (lambda: tf.data.Dataset.range(3), 0, ValueError, "at least 1"),
        (lambda: tf.data.Dataset.range(3).batch(2), 1, ValueError, "drop_remainder=True"),
        (lambda: [1, 2], 1, TypeError, r"Expected `dataset` argument"),
    ],
)
def test_a_data_set_that_cannot_be_written_is_an_error(tmp_path, dataset, count, kind, text):
    with pytest.raises(kind, match=text):
        dataset_extractor.dataset_extractor(dataset(), count, tmp_path / "feed", "")


def test_inputs_of_a_graph_are_written(tmp_path):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2], name="scope/x")
        utils.export_inputs_to_file([x], tmp_path / "inputs", {x: [1, 2]})
    np.testing.assert_array_equal(read(tmp_path / "inputs")["scope/x"], [1, 2])


def test_operations_of_the_extractor_run_in_a_session(session, tmp_path):
    with session.graph.as_default():
        variables = v1.global_variables()
        names = [name[0] for name in session.run(dataset_extractor.get_variable_handles(variables))]
        assert names == [b"net/w", b"net/half", b"net/count"]
        operation = dataset_extractor.export_variables(variables, names, tmp_path / "w")
        assert not (tmp_path / "w").exists()
        session.run(operation)
        session.run(variables[2].assign(0))
        session.run(dataset_extractor.import_variables(variables, [tmp_path / "w"], is_input=False))
        assert session.run(variables[2]) == 7
        with pytest.raises(
            ValueError, match="which cannot be found in the graph: net/count,net/half"
        ):
            dataset_extractor.import_variables(variables[:1], [tmp_path / "w"])
