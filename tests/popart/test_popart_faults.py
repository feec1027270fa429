"""Faults of a session's arguments: which of several is raised, and what is said of weights in
files."""

import numpy as np
import onnx
import popart
import pytest
from popart_models import open_session

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def make_product():
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 3], "x")
    return builder, builder.aiOnnx.matmul([x, builder.addInitializedInputTensor(WEIGHT, "w")])


def test_options_that_poplar_lacks_are_rejected_when_the_session_is_made():
    builder, y = make_product()
    open_session(builder.getModelProto(), [y], engineOptions={"opt.level": "1"})
    for options, text in (
        ({"level": "1"}, "Unrecognised option 'level'"),
        ({"debug.nanOverflowException": "maybe"}, "Invalid value 'maybe' of option"),
    ):
        with pytest.raises(popart.poplar_exception, match=text):
            open_session(builder.getModelProto(), [y], engineOptions=options)


ORDER = (
    ("a model that is none", {"model": b"no model"}, "Failed to load a ModelProto"),
    ("engine options", {"engineOptions": {"level": "1"}}, "Unrecognised option 'level'"),
    ("no anchors", {"anchors": []}, "User must specify an anchor tensor"),
    ("training", {"enableGradientAccumulation": True}, "only available when training"),
    ("a wrong operator", {"shape": [7]}, "are not aligned"),
    ("options of the graph", {"enableExplicitMainLoops": True}, "requires useHostCopyOps"),
    ("virtual graphs", {"virtualGraphMode": popart.VirtualGraphMode.Manual}, "no Ops have been"),
    ("an unknown anchor", {"anchors": ["nothing"]}, "not in Ir Tensors"),
)


def make_wrong(faults):
    builder = popart.Builder()
    shape = faults.pop("shape", [2])
    names = [builder.addInputTensor("FLOAT", each) for each in ([2], shape)]
    y = builder.aiOnnx.add(names)
    model = faults.pop("model", builder.getModelProto())
    return open_session(model, faults.pop("anchors", [y]), **faults)


@pytest.mark.parametrize("first", range(len(ORDER)), ids=[name for name, _, _ in ORDER])
def test_of_two_faults_the_one_that_popart_sees_first_is_raised(first):
    _, fault, text = ORDER[first]
    for _, other, _ in ORDER[first + 1 :]:
        with pytest.raises((popart.popart_exception, popart.poplar_exception), match=text):
            make_wrong({**other, **fault})


def test_weights_in_a_file_are_looked_for_in_the_working_directory(tmp_path, monkeypatch):
    builder, y = make_product()
    model = onnx.load_from_string(builder.getModelProto())
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    text = "^Unrecognised file name 'weights.bin' for externally stored tensor 'w'"
    for source in (path, path.read_bytes()):
        with pytest.raises(popart.popart_exception, match=text):
            open_session(source, [y])
    monkeypatch.chdir(path.parent)
    x = np.ones((2, 3), np.float32)
    for source in ("model.onnx", path.read_bytes()):
        session = open_session(source, [y])
        session.prepareDevice()
        arrays = session.initAnchorArrays()
        session.run(popart.PyStepIO({"x": x}, arrays))
        np.testing.assert_allclose(arrays[y], x @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("location", "", "^No location information for externally stored tensor"),
        ("length", "0", r"^Invalid 'length' information \(0\) for externally stored"),
        ("length", None, r"^Invalid 'length' information \(0\) for externally stored"),
        ("offset", "-1", r"^Invalid 'offset' information \(-1\) for externally stored"),
    ],
)
def test_impossible_positions_in_files_are_reported(tmp_path, monkeypatch, key, value, text):
    builder, y = make_product()
    model = onnx.load_from_string(builder.getModelProto())
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load("m.onnx", load_external_data=False)
    entries = model.graph.initializer[0].external_data
    for entry in [each for each in entries if each.key == key]:
        entries.remove(entry)
    if value is not None:
        entries.add(key=key, value=value)
    with pytest.raises(popart.popart_exception, match=text):
        open_session(model.SerializeToString(), [y])
