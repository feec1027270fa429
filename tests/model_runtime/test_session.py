"""A session runs what poprt compiled, and rejects files whose parts do not belong together."""

import os

import numpy as np
import pytest
from forked import ask_fork
from model_runtime import (
    AnchorCallbackPolicy,
    DeviceManager,
    LaunchPolicy,
    ModelRuntimeError,
    OutputSlot,
    Session,
    SessionConfig,
    host_sync_timeout_seconds,
)
from model_runtime.descriptions import InputDesc, OutputDesc, describe_anchor
from onnx import TensorProto, helper
from resident_files import count_resident_bytes
from sample_models import linear_model, make_model, steps_model
from sdk_files import replicate, rewrite
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
    from oracles import unoptimised_session

    path = compile_popef(linear, options=options, precision=precision)
    weights = path.parent / "weights.popef"
    session = Session(open_model(path, *([weights] if weights.exists() else [])))
    session.runLoadPrograms()
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    found = ask(session, x.astype(np.float16 if precision == "fp16" else np.float32))
    expected = unoptimised_session(linear).run(["y", "z"], {"x": x})
    for name, value in zip(("y", "z"), expected, strict=True):
        np.testing.assert_allclose(
            found[name], value, rtol=1e-2 if precision == "fp16" else 1e-5, atol=1e-2
        )


def test_missing_weights_are_counted_and_named(linear, compile_popef, open_model):
    session = Session(open_model(compile_popef(linear, options={"constant_weights": False})))
    with pytest.raises(
        ModelRuntimeError, match=r"2 of its weights are in none of the PopEF files.*weights_path"
    ):
        session.runLoadPrograms()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda m: m.anchors()[0].setHandle("h2d_q"),
            "handle 'h2d_q', which is not a host_to_device stream",
        ),
        (
            lambda m: m.anchors()[0].setTensorInfo(popef.TensorInfo(shape=(4, 5))),
            r"shape \(4, 5\) in the metadata",
        ),
        (lambda m: m.setAnchors(m.anchors()[1:]), "stream 'h2d_x' of executable .* has no anchor"),
        (
            lambda m: m.setProgramFlow(popef.ProgramFlow(load=[0], main=[7], save=[])),
            "has no program 7; it has 0",
        ),
        (
            lambda m: m.setProgramFlow(popef.ProgramFlow(load=[], main=[0], save=[])),
            "which is not a main program",
        ),
        (
            lambda m: (m.setReplicationFactor(2), m.anchors()[0].setIsPerReplica(True)),
            "replication factor 2: expected the replicas as leading dimension, found shape",
        ),
        (
            lambda m: m.setProgramFlow(popef.ProgramFlow(load=[0], main=[], save=[])),
            "has no main program in its program flow",
        ),
        (
            lambda m: m.setIpuVersion(1),
            "is for IPU version 21, its metadata says 1; they do not belong",
        ),
        (lambda m: m.setIpuVersion(2), "is for IPU version 21, its metadata says 2"),
        (
            lambda m: m.setIpuVersion(7),
            "IPU version 7 is not known; simulated versions are 1 .ipu1., 2 .ipu2., 21 .ipu21.",
        ),
    ],
)
def test_metadata_of_another_executable_is_refused(
    linear, compile_popef, open_model, change, reason
):
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
    device = DeviceManager().getDevice(
        open_model(compile_popef(linear, options={"ipu_version": "ipu21"}))
    )
    assert (device.ipuVersion(), device.numIpus()) == (21, 1)


def test_descriptions_hold_sizes_and_types(linear, compile_popef, open_model):
    session = Session(open_model(compile_popef(linear)))
    (x,) = (
        describe_anchor(session.model().metadata, anchor)
        for anchor in session.getUserInputAnchors()
    )
    outputs = [
        describe_anchor(session.model().metadata, anchor)
        for anchor in session.getUserOutputAnchors()
    ]
    assert isinstance(x, InputDesc)
    assert all(isinstance(output, OutputDesc) for output in outputs)
    assert (x.name, x.shape, x.size_in_bytes, x.numpy_data_type()) == (
        "x",
        (4, 4),
        64,
        np.dtype(np.float32),
    )


def test_modelled_cycles_come_from_the_executable(compile_popef, open_model):
    small = Session(open_model(compile_popef(linear_model(), name="small.popef")))
    large = Session(
        open_model(compile_popef(linear_model(width=4096), name="large.popef", batch=512))
    )
    assert 0 < small.cycles < large.cycles


@pytest.mark.parametrize("rows", [1, 8, 9, 24, 30])
def test_replicas_and_iterations_share_the_rows(linear, compile_popef, rows):
    path = compile_popef(linear)
    replicate(path, 2, 3)
    session = Session(path)
    session.runLoadPrograms()
    assert (session.batch_size, session.rows_per_run) == (4, 24)
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    np.testing.assert_array_equal(ask(session, x)["z"], 2 * x)
    np.testing.assert_array_equal(session.run({"x": x})["z"], 2 * x)
    plain = Session(compile_popef(linear, name="plain.popef"))
    assert session.cycles == 3 * plain.cycles


def test_batches_per_step_of_the_compiler_are_device_iterations(linear, compile_popef):
    session = Session(compile_popef(linear, options={"batches_per_step": 5}))
    assert session.rows_per_run == 20


def test_handlers_fill_inputs_and_take_outputs(linear, compile_popef):
    session = Session(compile_popef(linear))
    session.runLoadPrograms()
    seen = {}
    session.setUserInputHandler(lambda anchor: lambda array: array.__setitem__(slice(None), 3))
    session.setUserOutputHandler(lambda anchor: lambda rows: seen.update({anchor.name(): rows}))
    assert session.runMainPrograms() == 4
    np.testing.assert_array_equal(seen["z"], np.full((4, 4), 6))


def test_handlers_of_a_model_without_a_batch_have_whole_tensors(compile_popef):
    kind = TensorProto.FLOAT
    nodes = [helper.make_node("ReduceSum", ["state"], ["total"], keepdims=0)]
    model = make_model(nodes, {"state": (kind, [2, 3])}, {"total": (kind, [])}, {})
    session = Session(compile_popef(model, batch=None))
    session.runLoadPrograms()
    shapes, totals = [], []

    def fill(array):
        shapes.append(array.shape)
        array[:] = 2

    session.setUserInputHandler(lambda anchor: fill)
    session.setUserOutputHandler(
        lambda anchor: lambda total: totals.append((total.shape, float(total)))
    )
    assert session.runMainPrograms() == 1
    assert (shapes, totals) == ([(2, 3)], [((), 12.0)])


def test_handlers_have_the_batch_where_the_model_has_it(compile_popef):
    session = Session(compile_popef(steps_model(), batch_axis=1))
    session.runLoadPrograms()
    filled = np.random.default_rng(0).standard_normal((5, 4, 2)).astype(np.float32)
    seen = {}
    session.setUserInputHandler(lambda anchor: lambda array: np.copyto(array, filled))
    session.setUserOutputHandler(
        lambda anchor: lambda rows: seen.update({anchor.name(): rows.copy()})
    )
    assert session.runMainPrograms() == 4
    expected = session.run({"x": np.moveaxis(filled, 1, 0)})
    np.testing.assert_array_equal(seen["y"], np.moveaxis(expected["y"], 0, 1))
    np.testing.assert_array_equal(seen["last"], expected["last"])
    assert seen["y"].shape == (5, 4, 3)


def test_anchors_without_a_handler_are_zeros_dropped_or_left_as_they_are(linear, compile_popef):
    session = Session(compile_popef(linear))
    session.runLoadPrograms()
    seen = []

    def choose(**policies):
        return lambda anchor: policies.get(anchor.name(), AnchorCallbackPolicy.BIND_USER_CB)

    def see(anchor):
        return lambda rows: seen.append((anchor.name(), rows.max()))

    empty, skip = AnchorCallbackPolicy.BIND_EMPTY_CB, AnchorCallbackPolicy.SKIP_CB
    session.setUserInputHandler(lambda anchor: lambda array: array.fill(3))
    session.setUserOutputHandler(see, choose(y=empty))
    session.runMainPrograms()
    assert seen == [("z", 6)]
    session.setUserInputHandler(lambda anchor: None, choose(x=skip))
    session.setUserOutputHandler(lambda anchor: None, choose(y=skip, z=skip))
    session.runMainPrograms()
    assert seen == [("z", 6), ("z", 6)]
    session.setUserInputHandler(lambda anchor: None, choose(x=empty))
    session.runMainPrograms()
    assert seen[2:] == [("z", 0)]


def test_handlers_stay_for_the_next_device(linear, compile_popef):
    session = Session(compile_popef(linear))
    seen = []
    session.setUserInputHandler(lambda anchor: lambda array: array.fill(3))
    session.setUserOutputHandler(
        lambda anchor: lambda rows: seen.append((anchor.name(), rows.shape))
    )
    for _ in range(2):
        session.bindToDevice()
        session.runLoadPrograms()
        session.runMainPrograms()
    assert seen == 2 * [("y", (4, 3)), ("z", (4, 4))]


@pytest.mark.parametrize("slots", [0, -1])
def test_a_queue_has_a_slot_at_least(linear, compile_popef, slots):
    session = Session(compile_popef(linear))
    with pytest.raises(ModelRuntimeError, match=f"num_buffers must be at least 1, found {slots}"):
        session.createQueueManager(slots)
    session.createQueueManager(1)


def test_predicates_choose_what_is_connected(linear, compile_popef):
    session = Session(compile_popef(linear))
    session.runLoadPrograms()
    empty = AnchorCallbackPolicy.BIND_EMPTY_CB
    accept_y = lambda anchor: AnchorCallbackPolicy.BIND_USER_CB if anchor.name() == "y" else empty  # noqa: E731
    queues = session.createQueueManager(output_predicate=accept_y)
    slot = OutputSlot()
    queues.inputQueue("x").enqueue(np.ones((2, 4), np.float32))
    queues.outputQueue("y").enqueue(slot, 2)
    with pytest.raises(
        ModelRuntimeError, match="output anchor 'z' is not known; expected one of y"
    ):
        queues.outputQueue("z")
    assert session.runMainPrograms() == 2
    assert slot.array.shape == (2, 3)
    queues = session.createQueueManager(input_predicate=lambda anchor: empty)
    with pytest.raises(
        ModelRuntimeError, match="input anchor 'x' is not known; expected one of none"
    ):
        queues.inputQueue("x")


def test_the_usual_predicates_accept_what_they_say():
    from model_runtime.predicate_factory import (
        anchor_callbacks,
        orBind,
        predProgramFlowMain,
        predProgramNotAssigned,
    )

    accept, reject = AnchorCallbackPolicy.BIND_USER_CB, AnchorCallbackPolicy.BIND_EMPTY_CB
    flow = popef.ProgramFlow(load=[0], main=[5], save=[])
    weight, tensor, old = (
        popef.Anchor(name="a", programs=programs) for programs in ([0], [0, 5], [])
    )
    main, free = predProgramFlowMain(flow), predProgramNotAssigned()
    either = orBind(accept, reject, main, free)
    assert [main(anchor) for anchor in (weight, tensor, old)] == [reject, accept, reject]
    assert [free(anchor) for anchor in (weight, tensor, old)] == [reject, reject, accept]
    assert [either(anchor) for anchor in (weight, tensor, old)] == [reject, accept, accept]
    assert anchor_callbacks.orBind is orBind


def test_a_deferred_session_binds_on_request(linear, compile_popef, open_model):
    model = open_model(compile_popef(linear))
    session = Session(model, SessionConfig(policy=LaunchPolicy.Deferred))
    with pytest.raises(ModelRuntimeError, match="not bound to a device; call bindToDevice first"):
        session.runLoadPrograms()
    device = DeviceManager().getDevice(model)
    session.bindToDevice(device)
    session.runLoadPrograms()
    queues = session.createQueueManager()
    other = Session(model, SessionConfig(policy=LaunchPolicy.Deferred))
    other.bindToDevice(device)
    with pytest.raises(ModelRuntimeError, match="not bound to a device"):
        session.device  # noqa: B018
    session.bindToDevice()
    session.runLoadPrograms()
    slots = {name: OutputSlot() for name in ("y", "z")}
    queues.inputQueue("x").enqueue(np.ones((1, 4), np.float32))
    for name, slot in slots.items():
        queues.outputQueue(name).enqueue(slot, 1)
    session.runMainPrograms()
    np.testing.assert_array_equal(slots["z"].array, [[2, 2, 2, 2]])


def test_a_timeout_callback_decides_what_is_flushed(linear, compile_popef):
    """Paddle's callback looks at the queue again and flushes it then."""
    session = Session(compile_popef(linear))
    session.runLoadPrograms()
    calls = []

    def flush(ring):
        calls.append(ring.readAvailable())
        if len(calls) == 3:
            queues.flushAll()

    queues = session.createQueueManager(10, flush, 1_000_000)
    queues.inputQueue("x").enqueue(np.ones((1, 4), np.float32))
    for name in ("y", "z"):
        queues.outputQueue(name).enqueue(None, 1)
    assert session.runMainPrograms() == 1
    assert calls == [0, 0, 0]


def test_a_stopped_session_runs_nothing(linear, compile_popef):
    session = Session(compile_popef(linear))
    session.runLoadPrograms()
    session.createQueueManager()
    session.stop()
    assert session.runMainPrograms() == 0


@pytest.mark.parametrize(
    "text", ["[]", '{"target.hostSyncTimeout":"soon"}', '{"target.hostSyncTimeout":"-1"}', "{"]
)
def test_bad_runtime_options_are_an_error_that_names_the_variable(text):
    with pytest.raises(ModelRuntimeError, match=r"POPLAR_RUNTIME_OPTIONS: .*expected a "):
        host_sync_timeout_seconds({"POPLAR_RUNTIME_OPTIONS": text})
    assert host_sync_timeout_seconds({"POPLAR_RUNTIME_OPTIONS": ""}) == 300


def test_bad_engine_options_are_an_error_of_a_session(linear, compile_popef, monkeypatch):
    """Poplar reads them for each engine, also for that of an executable."""
    file = compile_popef(linear)
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "{'autoReport.all': 'true'}")
    with pytest.raises(ModelRuntimeError, match="POPLAR_ENGINE_OPTIONS: expected a JSON object"):
        Session(file)


def test_the_host_sync_timeout_is_the_limit_of_a_run():
    assert host_sync_timeout_seconds({}) == 300
    assert (
        host_sync_timeout_seconds({"POPLAR_RUNTIME_OPTIONS": '{"target.hostSyncTimeout":"2.5"}'})
        == 2.5
    )


@pytest.fixture
def open_old(compile_popef, open_model):
    """Return a function that loads a linear model from a file that was written long ago."""

    def build(width, **options):
        path = compile_popef(linear_model(width), precision="fp16", **options)
        for file in path.parent.glob("*.popef"):
            os.utime(file, (1, 1))  # before now, whatever the resolution of the system's times
        weights = path.parent / "weights.popef"
        session = Session(open_model(path, *([weights] if weights.exists() else [])))
        session.runLoadPrograms()
        return path, session

    return build


def change(path, size):
    with path.open("r+b") as file:
        file.write(b"?") if size is None else file.truncate(size)


CHANGES = pytest.mark.parametrize("size", [0, None], ids=["emptied", "overwritten"])
IN_PLACE = "{}: .* found that it was modified in place"
WIDE = 1 << 16
"""Width of a model whose weights are read where they are mapped."""
SMALL = 1024
"""Width of a model with weights in its file that are copied when it is loaded."""


@CHANGES
def test_a_model_whose_file_is_written_to_answers_with_an_error_and_does_not_touch_it(
    open_old, size
):
    """Its weights are mapped: they change with the file.

    A read beyond the file's end kills the process.
    """
    path, session = open_old(WIDE)
    x = {"x": np.ones((4, WIDE), np.float16)}
    assert set(session.run(x)) == {"y", "z"}
    change(path, size)
    for ask_again in (lambda: session.run(x), session.runLoadPrograms):
        with pytest.raises(ModelRuntimeError, match=IN_PLACE.format(path)):
            ask_again()


def test_a_loaded_model_has_no_pages_of_its_file_in_memory_until_a_run_reads_them(open_old):
    path, session = open_old(WIDE)
    assert count_resident_bytes(path) == 0
    assert set(session.run({"x": np.ones((4, WIDE), np.float16)})) == {"y", "z"}
    assert count_resident_bytes(path) > WIDE


@CHANGES
@pytest.mark.parametrize("options", [{}, {"constant_weights": False}])
def test_a_small_model_does_not_read_its_file_again(open_old, options, size):
    path, session = open_old(SMALL, options=options)
    x = {"x": np.ones((4, SMALL), np.float16)}
    expected = session.run(x)
    for file in path.parent.glob("*.popef"):
        change(file, size)
    for _ in range(3):
        answer = session.run(x)
        for name, value in expected.items():
            np.testing.assert_array_equal(answer[name], value)
    with pytest.raises(ModelRuntimeError, match="modified in place"):
        session.runLoadPrograms()


@pytest.mark.parametrize("step", ["runSavePrograms", "in a fork", "loaded again"])
def test_what_reads_the_file_of_a_small_model_again_looks_at_it_first(open_old, step):
    path, session = open_old(4, options={"constant_weights": False})
    x = {"x": np.ones((4, 4), np.float16)}
    session.run(x)
    change(path.parent / "weights.popef", 0)

    def raise_error():
        with pytest.raises(ModelRuntimeError, match="modified in place"):
            session.run(x)
        return True

    if step == "runSavePrograms":
        with pytest.raises(ModelRuntimeError, match="modified in place"):
            session.runSavePrograms()
    elif step == "in a fork":
        assert ask_fork(raise_error)
    else:
        session.bindToDevice()
        raise_error()


def test_a_file_that_is_replaced_is_not_read(open_old, tmp_path):
    path, session = open_old(WIDE)
    x = {"x": np.ones((4, WIDE), np.float16)}
    expected = session.run(x)["z"]
    other = tmp_path / "other"
    other.write_bytes(b"?")
    other.replace(path)
    np.testing.assert_array_equal(session.run(x)["z"], expected)
