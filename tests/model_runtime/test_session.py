"""A session runs what poprt compiled, and refuses files whose parts do not belong together."""

import numpy as np
import pytest
from model_runtime import DeviceManager, ModelRuntimeError, OutputSlot, Session, SessionConfig
from model_runtime.descriptions import InputDesc, OutputDesc, describe_anchor
from sample_models import linear_model
from simipu import LoadError

import popef


def ask(session, x):
    """Run all rows of x through a session."""
    queues = session.createQueueManager()
    memories = {anchor.name(): OutputSlot() for anchor in session.getUserOutputAnchors()}
    queues.inputQueue("x").enqueue(x)
    for name, memory in memories.items():
        queues.outputQueue(name).enqueue(memory, len(x))
    while queues.readAvailable():
        session.runMainPrograms()
    return {name: memory.array for name, memory in memories.items()}


@pytest.mark.parametrize("options", [{}, {"constant_weights": False}])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("rows", [1, 4, 11])
def test_answers_equal_onnx_runtime(linear, compile_popef, open_model, options, precision, rows):
    import onnxruntime

    path = compile_popef(linear, options=options, precision=precision)
    weights = path.parent / "weights.popef"
    session = Session(open_model(path, *([weights] if weights.exists() else [])))
    session.runLoadPrograms()
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    found = ask(session, x.astype(np.float16 if precision == "fp16" else np.float32))
    expected = onnxruntime.InferenceSession(linear.SerializeToString()).run(["y", "z"], {"x": x})
    for name, value in zip(("y", "z"), expected, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-2 if precision == "fp16" else 1e-5, atol=1e-2)


def test_missing_weights_are_counted_and_named(linear, compile_popef, open_model):
    session = Session(open_model(compile_popef(linear, options={"constant_weights": False})))
    with pytest.raises(ModelRuntimeError, match=r"loads 2 weights that no PopEF file holds.*weights_path"):
        session.runLoadPrograms()


def rewrite(path, metadata, payload):
    """A file like `path` with other metadata or another payload."""
    with popef.Writer(path) as writer:
        writer.writeMetadata(metadata)
        with writer.createExecutable(metadata.executable()) as blob:
            blob.write(payload)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.anchors()[0].setHandle("h2d_q"), "handle 'h2d_q', which is no host_to_device stream"),
        (lambda m: m.anchors()[0].setTensorInfo(popef.TensorInfo(shape=(4, 5))), r"shape \(4, 5\) in the metadata"),
        (lambda m: m.setAnchors(m.anchors()[1:]), "stream 'h2d_x' of executable .* has no anchor"),
        (lambda m: m.setProgramFlow(popef.ProgramFlow(load=[0], main=[7], save=[])), "has no program 7; it has 0"),
        (lambda m: m.setProgramFlow(popef.ProgramFlow(load=[], main=[0], save=[])), "which is no main program"),
        (lambda m: m.setReplicationFactor(2), "replication factor 2: expected isPerReplica and the replicas as leading"),
        (lambda m: m.setIpuVersion(7), "IPU version 7 is not known; simulated versions are 1 .ipu1., 2 .ipu2., 21 .ipu21."),
    ],
)
def test_metadata_of_another_executable_is_refused(linear, compile_popef, open_model, change, reason):
    path = compile_popef(linear)
    model = open_model(path)
    payload = bytes(model.executable.executable())
    change(model.metadata)
    rewrite(path, model.metadata, payload)
    with pytest.raises((ModelRuntimeError, LoadError), match=reason):
        Session(open_model(path))


def test_a_real_executable_is_refused_with_a_way_out(linear, compile_popef, open_model):
    path = compile_popef(linear)
    rewrite(path, open_model(path).metadata, b"machine code of a chip")
    with pytest.raises(LoadError, match="compile the ONNX model with poprt"):
        Session(open_model(path), SessionConfig(check_package_hash=False))


def test_the_device_manager_makes_what_the_metadata_asks_for(linear, compile_popef, open_model):
    device = DeviceManager().getDevice(open_model(compile_popef(linear, options={"ipu_version": "ipu21"})))
    assert (device.ipuVersion(), device.numIpus()) == (21, 1)


def test_descriptions_hold_sizes_and_types(linear, compile_popef, open_model):
    session = Session(open_model(compile_popef(linear)))
    (x,) = (describe_anchor(session.model().metadata, anchor) for anchor in session.getUserInputAnchors())
    outputs = [describe_anchor(session.model().metadata, anchor) for anchor in session.getUserOutputAnchors()]
    assert isinstance(x, InputDesc)
    assert all(isinstance(output, OutputDesc) for output in outputs)
    assert (x.name, x.shape, x.size_in_bytes, x.numpy_data_type()) == ("x", (4, 4), 64, np.dtype(np.float32))


def test_modelled_cycles_come_from_the_executable(compile_popef, open_model):
    small = Session(open_model(compile_popef(linear_model(), name="small.popef")))
    large = Session(open_model(compile_popef(linear_model(width=4096), name="large.popef", batch=512)))
    assert 0 < small.cycles < large.cycles
