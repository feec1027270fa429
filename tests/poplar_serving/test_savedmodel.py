"""SavedModels with PopEF inside, run by TensorFlow (`make test-tensorflow`)."""

import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import poplar_serving
import pytest
from model_runtime import ModelRunner
from onnx import TensorProto, helper
from poplar_serving import ExportError, embedded_runtime, library
from sample_models import gather_model, linear_model, make_model, write_handmade
from saved_models import X, ask, list_children, run_fresh
from waiting import wait_until

REPOSITORY = Path(__file__).parents[2] / "model_repository"


@pytest.mark.tensorflow
def test_a_loaded_saved_model_answers_as_the_runner_does(exported, expected):
    loaded = poplar_serving.load(exported)
    (asset,) = (exported / "assets").iterdir()
    assert asset.name.startswith("application_")
    signature = loaded.signatures["serving_default"]
    assert {
        name: spec.shape.as_list() for name, spec in signature.structured_input_signature[1].items()
    } == {"x": [4, 4]}
    outputs = signature.structured_outputs
    assert {name: spec.shape.as_list() for name, spec in outputs.items()} == {
        "output_0": [4, 3],
        "output_1": [4, 4],
    }
    answer = ask(loaded, x=X)
    assert np.array_equal(answer["output_0"], expected["y"])
    assert np.array_equal(answer["output_1"], expected["z"])


@pytest.mark.tensorflow
def test_the_function_that_export_returns_can_be_tried_out(file, tmp_path, expected):
    predict = poplar_serving.export(file, tmp_path / "1", output_names=["y", "z"])
    assert np.array_equal(predict(X)["y"].numpy(), expected["y"])


@pytest.mark.tensorflow
def test_a_fresh_process_runs_it_and_leaves_nothing(exported, expected, tmp_path):
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy, poplar_serving, pathlib\nask = "
        "poplar_serving.load(sys.argv[1]).signatures['serving_default']\nanswer = "
        "ask(x=numpy.load(sys.argv[2]))\npids = [t.read_text().split() for t in "
        "pathlib.Path('/proc/self/task').glob('*/children')]\nprint(sum(pids, [])[0], "
        "answer['output_0'].numpy().tobytes().hex())\n"
    )
    pid, answer = run_fresh(code, exported, tmp_path / "x.npy").split()
    assert answer == expected["y"].tobytes().hex()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the process ends")


@pytest.mark.tensorflow
def test_one_that_was_moved_runs_and_one_that_is_saved_again(exported, expected, tmp_path, tf):
    moved = exported.rename(tmp_path / "moved")
    loaded = poplar_serving.load(moved)
    assert np.array_equal(ask(loaded, x=X)["output_0"], expected["y"])
    tf.saved_model.save(loaded, str(tmp_path / "again"), loaded.signatures)
    again = poplar_serving.load(tmp_path / "again")
    assert np.array_equal(ask(again, x=X)["output_0"], expected["y"])


@pytest.mark.tensorflow
def test_one_process_serves_all_that_load_a_folder_and_ends_with_them(exported):
    gc.collect()
    wait_until(lambda: not list_children(), "the process ends")
    first, second = poplar_serving.load(exported), poplar_serving.load(exported)
    ask(first, x=X), ask(second, x=X)
    assert len(list_children()) == 1
    del first
    gc.collect()
    ask(second, x=X)
    assert len(list_children()) == 1
    del second
    gc.collect()
    wait_until(lambda: not list_children(), "the process ends")


@pytest.mark.tensorflow
def test_several_models_run_side_by_side_and_each_answers_its_own(compile_popef, tmp_path):
    loaded, answers = [], []
    for seed in range(3):
        file = compile_popef(linear_model(seed=seed), name=f"{seed}/executable.popef")
        poplar_serving.export(file, tmp_path / "models" / str(seed))
        loaded.append(poplar_serving.load(tmp_path / "models" / str(seed)))
        with ModelRunner(file) as runner:
            answers.append(runner.execute({"x": X})["y"])
    for model, answer in zip(loaded, answers, strict=True):
        assert np.array_equal(ask(model, x=X)["output_0"], answer)
    assert not np.array_equal(answers[0], answers[1])


@pytest.mark.tensorflow
def test_threads_get_their_own_answers(exported):
    loaded = poplar_serving.load(exported)
    wrong = []

    def work(value):
        for turn in range(25):
            x = np.full((4, 4), value + turn / 100, "float32")
            if not np.array_equal(ask(loaded, x=x)["output_1"], 2 * x):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=[value]) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.tensorflow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_is_killed_is_replaced(exported, expected, number):
    loaded = poplar_serving.load(exported)
    ask(loaded, x=X)
    before = list_children()
    for pid in before:
        os.kill(pid, number)
    # Wait until it is reaped: its threads end one by one, and a call before the last end fails.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before), "the process ends")
    assert np.array_equal(ask(loaded, x=X)["output_0"], expected["y"])


@pytest.mark.tensorflow
def test_a_call_whose_process_is_killed_fails_and_the_next_has_another(exported, expected, tf):
    gc.collect()
    wait_until(lambda: not list_children(), "the process ends")
    loaded = poplar_serving.load(exported)
    ask(loaded, x=X)
    (pid,) = list_children()
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(3, os.kill, [pid, signal.SIGKILL])
    timer.start()
    with pytest.raises(
        tf.errors.InternalError, match=r"its process died \(signal Killed\); the log has"
    ):
        ask(loaded, x=X)
    assert np.array_equal(ask(loaded, x=X)["output_0"], expected["y"])


@pytest.mark.tensorflow
def test_a_session_as_in_a_server_runs_it_and_may_cancel(exported, expected, tf):
    """tensorflow_model_server loads graphs in this way: in a session, without Python functions."""
    v1 = tf.compat.v1
    library.load_library()
    gc.collect()
    wait_until(lambda: not list_children(), "the process ends")
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], str(exported)).signature_def[
            "serving_default"
        ]
        fetched, fed = signature.outputs["output_0"].name, {signature.inputs["x"].name: X}
        assert np.array_equal(session.run(fetched, fed), expected["y"])
        (pid,) = list_children()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(fetched, fed, options=v1.RunOptions(timeout_in_ms=300))
        os.kill(pid, signal.SIGCONT)
        assert np.array_equal(session.run(fetched, fed), expected["y"])
        assert list_children() == [pid]


@pytest.mark.tensorflow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16", "float32"])
def test_every_type_passes_unchanged(dtype, tmp_path):
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = make_model(
        [helper.make_node("Transpose", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["t"])],
        {"x": (number, [3, 5]), "s": (TensorProto.FLOAT, [])},
        {"y": (number, [5, 3]), "t": (TensorProto.FLOAT, [])},
        {},
    )
    write_handmade(tmp_path / "model.popef", model)
    poplar_serving.export(tmp_path / "model.popef", tmp_path / "1")
    x = np.random.default_rng(0).integers(0, 255, (3, 5)).astype("uint8").view("int8").astype(dtype)
    answer = ask(poplar_serving.load(tmp_path / "1"), x=x, s=np.float32(7))
    assert answer["output_0"].dtype == dtype
    assert np.array_equal(answer["output_0"], x.T)
    assert answer["output_1"] == 7


@pytest.mark.tensorflow
def test_half_precision_is_the_runners_to_the_bit(compile_popef, tmp_path):
    file = compile_popef(linear_model(), precision="fp16")
    poplar_serving.export(file, tmp_path / "1")
    with ModelRunner(file) as runner:
        (described,) = runner.getExecuteInputs()
        x = X.astype(described.numpy_data_type())
        expected = runner.execute({"x": x})
    answer = ask(poplar_serving.load(tmp_path / "1"), x=x)
    assert answer["output_0"].tobytes() == expected["y"].tobytes()


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["magika", "sentence_similarity"])
def test_example_models_answer_to_the_bit(name, tmp_path):
    files = sorted((REPOSITORY / name / "1").glob("*.popef"))
    if not files:
        pytest.skip("the example models are not built: make models")
    poplar_serving.export(files, tmp_path / name / "1")
    random = np.random.default_rng(5)
    with ModelRunner(files) as runner:
        fed = {
            each.name: random.integers(0, 2, each.shape).astype(each.numpy_data_type())
            for each in runner.getExecuteInputs()
        }
        expected = list(runner.execute(fed).values())
    answer = ask(poplar_serving.load(tmp_path / name / "1"), **fed)
    for number, value in enumerate(expected):
        assert answer[f"output_{number}"].tobytes() == value.tobytes()


def start(file, name="engine"):
    return embedded_runtime.embedded_runtime_start(str(file), [], name)


@pytest.mark.tensorflow
def test_the_real_functions_work_eagerly_too(file, expected):
    outputs, context = embedded_runtime.embedded_runtime_start_and_call(
        str(file), [], [X], "engine_eager"
    )
    assert np.array_equal(outputs[0].numpy(), expected["y"])
    assert context.name() == "engine_eager"
    assert [each.name for each in context.signature().outputs] == ["y", "z"]
    assert np.array_equal(embedded_runtime.embedded_runtime_call([X], context)[1].numpy(), 2 * X)
    with pytest.raises(NotImplementedError, match="engines cannot be stopped"):
        embedded_runtime.embedded_runtime_stop(context)
    with pytest.raises(ExportError, match="expected no inputs, found 1"):
        embedded_runtime.embedded_runtime_start(str(file), [X], "engine_eager")
    with pytest.raises(ExportError, match=r"inputs: expected 1 \(x\), found 2"):
        embedded_runtime.embedded_runtime_call([X, X], context)
    with pytest.raises(ExportError, match="found int64"):
        embedded_runtime.embedded_runtime_call([np.zeros((4, 4), "int64")], context)


CALLS = {
    "a type": (
        lambda tf, anchor: {"infeeds": [tf.zeros((4, 4), tf.int64)], "anchor": anchor},
        r"engine 'engine': input 0 \('x'\): expected float32 \[4,4\], found int64 \[4,4\]; cast or "
        r"reshape",
    ),
    "a shape": (
        lambda tf, anchor: {"infeeds": [tf.zeros((2, 4))], "anchor": anchor},
        r"input 0 \('x'\): expected float32 \[4,4\], found float32 \[2,4\]",
    ),
    "no inputs": (
        lambda tf, anchor: {"infeeds": [], "anchor": anchor},
        "expected 1 inputs, found 0",
    ),
    "output types": (
        lambda tf, anchor: {
            "infeeds": [tf.zeros((4, 4))],
            "anchor": anchor,
            "outfeed_types": [tf.int32],
        },
        r"outfeed_types: the model gives float32 \[4,3\], float32 \[4,4\], found int32",
    ),
    "an anchor of none": (
        lambda tf, anchor: {"infeeds": [tf.zeros((4, 4))], "anchor": 99999},
        "it is not started: expected the anchor of an ApplicationRuntime of that engine_name, "
        "found 99999",
    ),
    "an anchor of another": (
        lambda tf, anchor: {
            "infeeds": [tf.zeros((4, 4))],
            "anchor": anchor,
            "engine_name": "other",
        },
        "engine 'other': it is not started: .* which is that of 'engine'",
    ),
    "two anchors": (
        lambda tf, anchor: {"infeeds": [tf.zeros((4, 4))], "anchor": [anchor, anchor]},
        "engine 'engine': anchor: expected one number",
    ),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize(("make", "message"), CALLS.values(), ids=CALLS)
def test_the_operator_refuses_calls_that_do_not_fit(make, message, file, tf):
    anchor = start(file).start_output()
    options = {
        "engine_name": "engine",
        "outfeed_types": [tf.float32, tf.float32],
        **make(tf, anchor),
    }
    with pytest.raises(tf.errors.OpError, match=message):
        library.load_library().application_call(**options)


STARTS = {
    "no file": (
        lambda tf: {"filename": "/nonexistent"},
        "filename '/nonexistent': expected a PopEF file",
    ),
    "no PopEF": (lambda tf: {"filename": __file__}, "damaged or not PopEF"),
    "no path": (lambda tf: {"filename": ""}, "expected the path of a PopEF file"),
    "two paths": (lambda tf: {"filename": ["a", "b"]}, "filename: expected one path, found 2"),
    "a name of none": (
        lambda tf: {"engine_name": ""},
        "engine_name: expected 1 to 1024 bytes, found 0",
    ),
    "inputs": (lambda tf: {"inputs": [tf.zeros(3)]}, "inputs: expected none, found 1; the weights"),
    "a timeout before now": (
        lambda tf: {"timeout_us": -1},
        "timeout_us: expected 0 to .* found -1",
    ),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize(("make", "message"), STARTS.values(), ids=STARTS)
def test_the_operator_refuses_engines_that_cannot_start(make, message, file, tf):
    options = {"inputs": [], "filename": str(file), "engine_name": "engine", **make(tf)}
    with pytest.raises(tf.errors.OpError, match=message):
        library.load_library().application_runtime(**options)


@pytest.mark.tensorflow
def test_an_invalid_input_fails_that_call_only(compile_popef, tmp_path, tf):
    poplar_serving.export(compile_popef(gather_model()), tmp_path / "1")
    loaded = poplar_serving.load(tmp_path / "1")
    with pytest.raises(tf.errors.InvalidArgumentError, match="99"):
        ask(loaded, ids=np.full((4, 2), 99, "int32"))
    assert ask(loaded, ids=np.zeros((4, 2), "int32"))["output_0"].shape == (4, 2, 3)


@pytest.mark.tensorflow
def test_the_operators_are_those_of_the_real_one(exported, tf):
    library.load_library()
    from tensorflow.python.framework import op_def_registry

    definitions = [op_def_registry.get(name) for name in ("ApplicationRuntime", "ApplicationCall")]
    described = [
        (
            [argument.name for argument in each.input_arg],
            [argument.name for argument in each.output_arg],
            {attribute.name: attribute.default_value.i for attribute in each.attr},
        )
        for each in definitions
    ]
    assert described == [
        (
            ["inputs", "filename"],
            ["anchor"],
            {"input_types": 0, "engine_name": 0, "timeout_us": 5000},
        ),
        (
            ["infeeds", "anchor"],
            ["outfeeds"],
            {"infeed_types": 0, "outfeed_types": 0, "engine_name": 0},
        ),
    ]


@pytest.mark.tensorflow
def test_runs_are_limited_and_another_python_can_be_named(exported, tmp_path):
    code = "import sys, numpy, poplar_serving; m = poplar_serving.load(sys.argv[1])\n"
    call = "m.signatures['serving_default'](x=numpy.zeros((4, 4), 'float32'))"
    said = run_fresh(code + call, exported, status=1, POPLAR_SERVING_PYTHON="/nonexistent/python")
    assert "the process that runs its model cannot be started: '/nonexistent/python'" in said
    options = json.dumps({"target.hostSyncTimeout": 30})
    run_fresh(
        code + call, exported, POPLAR_SERVING_PYTHON=sys.executable, POPLAR_RUNTIME_OPTIONS=options
    )
