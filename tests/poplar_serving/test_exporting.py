"""Export of SavedModels: how it works, what is rejected, and the errors of missing parts.

Missing parts are the operators or TensorFlow.
"""

import inspect
from pathlib import Path

import numpy as np
import poplar_serving
import pytest
from model_runtime import ModelRunner
from onnx import TensorProto, helper
from poplar_serving import BuildError, ExportError, LibraryError, library
from poplar_serving.__main__ import main
from sample_models import linear_model, make_model, write_handmade
from saved_models import TENSORFLOW, X, ask, run_fresh


@pytest.mark.skipif(TENSORFLOW, reason="TensorFlow is installed")
def test_without_tensorflow_the_error_says_what_to_install(tmp_path, capsys):
    with pytest.raises(LibraryError, match=r"pip install 'poplar-triton\[tensorflow\]'"):
        poplar_serving.export("model.popef", tmp_path / "1")
    with pytest.raises(LibraryError, match="the package tensorflow"):
        poplar_serving.load(tmp_path)
    assert main(["build"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "python -m poplar_serving: error: the package tensorflow cannot be imported"
    )


def test_parameters_are_those_of_the_real_function_but_for_what_it_would_compile():
    """It is ipu.serving.export_single_step in Graphcore's TensorFlow 2.6, SDK 3.3."""
    real = (
        "predict_step export_dir iterations predict_step_signature input_dataset output_names "
        "preprocessing_step preprocessing_step_signature postprocessing_step "
        "postprocessing_step_signature purge_export_dir"
    ).split()
    ours = inspect.signature(poplar_serving.export).parameters
    assert [*ours][2:-1] == real[3:]
    assert {ours[name].default for name in real[3:-1]} == {None}
    assert ours["purge_export_dir"].default is False


def test_the_sources_are_where_it_says(capsys):
    assert main(["sources"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert all((folder / unit).is_file() for unit in library.UNITS)


@pytest.mark.tensorflow
def test_functions_run_before_and_after_with_their_variables_as_constants(file, tmp_path, tf):
    factor = tf.Variable([[2.0], [3.0], [4.0], [5.0]])

    def parse(text, unused):
        return tf.strings.to_number(text) * factor

    @tf.function(input_signature=[tf.TensorSpec([4, 3]), tf.TensorSpec([4, 4])])
    def choose(y, z):
        return {
            "best": tf.argmax(y, 1),
            "z": z if tf.reduce_sum(z) > 0 else -z,
            "sum": tf.reduce_sum(y, 1),
        }

    poplar_serving.export(
        file,
        tmp_path / "1",
        preprocessing_step=parse,
        preprocessing_step_signature=[
            tf.TensorSpec([4, 4], tf.string),
            tf.TensorSpec([], tf.int64),
        ],
        postprocessing_step=choose,
        output_names=["best", "sum", "z"],
    )
    factor.assign(tf.zeros((4, 1)))
    answer = ask(
        poplar_serving.load(tmp_path / "1"), text=X.astype(str), unused=tf.constant(1, tf.int64)
    )
    with ModelRunner(file) as runner:
        given = np.array([[2], [3], [4], [5]], "float32") * X.astype(str).astype("float32")
        expected = runner.execute({"x": given})
    assert np.array_equal(answer["best"], expected["y"].argmax(1))
    assert np.array_equal(answer["z"], expected["z"] if expected["z"].sum() > 0 else -expected["z"])
    np.testing.assert_allclose(answer["sum"], expected["y"].sum(1), rtol=1e-6)


@pytest.mark.tensorflow
def test_signatures_may_come_from_a_dataset(file, tmp_path, tf):
    dataset = tf.data.Dataset.from_tensor_slices(np.zeros((2, 4, 4), "float32"))
    poplar_serving.export(file, tmp_path / "1", input_dataset=dataset)
    poplar_serving.export(
        file,
        tmp_path / "2",
        input_dataset=tf.data.Dataset.from_tensors((np.zeros((4, 4), "int32"),)),
        preprocessing_step=lambda whole: tf.cast(whole, tf.float32),
    )
    assert np.array_equal(ask(poplar_serving.load(tmp_path / "1"), x=X)["output_1"], 2 * X)
    ones = np.ones((4, 4), "int32")
    assert np.array_equal(
        ask(poplar_serving.load(tmp_path / "2"), whole=ones)["output_1"], 2.0 * ones
    )


@pytest.mark.tensorflow
def test_names_that_tensorflow_does_not_take_become_such_or_are_given(tmp_path, tf):
    shape = (TensorProto.FLOAT, [2])

    def write(path, *names):
        nodes = [helper.make_node("Identity", [name], [f"out {name}"]) for name in names]
        outputs = {f"out {name}": shape for name in names}
        write_handmade(path, make_model(nodes, dict.fromkeys(names, shape), outputs, {}))
        return path

    odd = write(tmp_path / "odd.popef", "a/b:0", "1é")
    poplar_serving.export(odd, tmp_path / "1")
    ask(poplar_serving.load(tmp_path / "1"), a_b_0=np.zeros(2, "f4"), arg_1_=np.zeros(2, "f4"))
    twice = write(tmp_path / "twice.popef", "a/b", "a:b")
    with pytest.raises(
        ExportError, match=r"'a/b' and 'a:b': expected different TensorFlow names, found 'a_b'"
    ):
        poplar_serving.export(twice, tmp_path / "2")
    given = [tf.TensorSpec([2], tf.float32, name) for name in ("first", "second")]
    poplar_serving.export(twice, tmp_path / "2", given)
    ask(poplar_serving.load(tmp_path / "2"), first=np.zeros(2, "f4"), second=np.zeros(2, "f4"))


def specs(tf, *shapes, dtype="float32"):
    return [tf.TensorSpec(shape, dtype) for shape in shapes]


REFUSED = {
    "int64": (
        lambda tf: {"predict_step_signature": specs(tf, [4, 4], dtype="int64")},
        r"input 0 \('x'\): expected float32 of shape \(4, 4\), found int64 of shape \(4, 4\)",
    ),
    "a shape": (
        lambda tf: {"predict_step_signature": specs(tf, [8, 4])},
        r"input 0 \('x'\): expected float32 of shape \(4, 4\), found float32 of shape \(8, 4\)",
    ),
    "too many inputs": (
        lambda tf: {"predict_step_signature": specs(tf, [4, 4], [4, 4])},
        r"predict_step_signature: inputs: expected 1 \(x\), found 2",
    ),
    "no signature": (lambda tf: {"predict_step_signature": []}, "expected TensorSpecs, found none"),
    "a function without signature": (
        lambda tf: {"preprocessing_step": lambda a: a},
        "preprocessing_step_signature: expected a TensorSpec for each parameter of "
        "preprocessing_step",
    ),
    "a signature of another length": (
        lambda tf: {
            "preprocessing_step": lambda a, b: a,
            "preprocessing_step_signature": specs(tf, [4, 4]),
        },
        "expected 2 TensorSpecs, one for each of a, b, found 1",
    ),
    "what preprocessing gives": (
        lambda tf: {
            "preprocessing_step": lambda a: tf.cast(a, tf.int64),
            "preprocessing_step_signature": specs(tf, [4, 4]),
        },
        r"preprocessing_step: what it gives as input 0 \('x'\): expected float32 .* found int64",
    ),
    "what postprocessing gets": (
        lambda tf: {
            "postprocessing_step": lambda a, b: a,
            "postprocessing_step_signature": specs(tf, [4, 3], [4, 5]),
        },
        r"postprocessing_step_signature: output 1 \('z'\): expected float32 of shape \(4, 4\), "
        r"found",
    ),
    "too few names": (lambda tf: {"output_names": "y"}, "output_names: expected 2 names, found 1"),
    "a name twice": (lambda tf: {"output_names": ["y", "y"]}, "different names, found 'y' 2 times"),
    "two signatures": (
        lambda tf: {
            "predict_step_signature": specs(tf, [4, 4]),
            "input_dataset": tf.data.Dataset.from_tensors(X),
        },
        "predict_step_signature and input_dataset: expected one of them, found both",
    ),
    "an inequal dataset": (
        lambda tf: {"input_dataset": tf.data.Dataset.from_tensors(X[:2])},
        r"expected float32 of shape \(4, 4\), found float32 of shape \(2, 4\)",
    ),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_a_failed_export_removes_no_existing_version(options, message, file, tmp_path, tf):
    kept = tmp_path / "1" / "kept"
    kept.parent.mkdir()
    kept.write_text("a version that serves")
    with pytest.raises(ExportError, match=message):
        poplar_serving.export(file, kept.parent, **options(tf), purge_export_dir=True)
    assert [*kept.parent.iterdir()] == [kept]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "options",
    [
        {"output_names": ("y", "z")},
        {"output_names": [1, 2]},
        {"input_dataset": 3},
        {"preprocessing_step": 3},
        {"predict_step_signature": 3},
        {"predict_step_signature": [3]},
    ],
)
def test_arguments_of_another_type_are_a_type_error(options, file, tmp_path):
    with pytest.raises(TypeError, match="expected"):
        poplar_serving.export(file, tmp_path / "1", **options)


@pytest.mark.tensorflow
def test_a_folder_with_files_is_kept_unless_it_is_to_be_purged(exported, file, tmp_path):
    before = sorted(exported.rglob("*"))
    with pytest.raises(
        ExportError, match=r"expected an empty folder, found files .*purge_export_dir"
    ):
        poplar_serving.export(file, exported)
    assert sorted(exported.rglob("*")) == before
    poplar_serving.export(file, exported, purge_export_dir=True)
    assert len([*(exported / "assets").iterdir()]) == 1
    with pytest.raises(ExportError, match="expected a folder, found a file"):
        poplar_serving.export(file, file)
    link = tmp_path / "link"
    link.symlink_to(exported)
    with pytest.raises(ExportError, match="expected a folder to purge, found a link"):
        poplar_serving.export(file, link, purge_export_dir=True)


@pytest.mark.tensorflow
def test_weights_that_are_in_another_file_are_asked_for(compile_popef, tmp_path):
    file = compile_popef(linear_model(), options={"constant_weights": False})
    with pytest.raises(
        ExportError, match=(r"loads \d weights that are in none of the given files, for example")
    ):
        poplar_serving.export(file, tmp_path / "1")
    files = [file, file.parent / "weights.popef"]
    poplar_serving.export(files, tmp_path / "1")
    assert len([*(tmp_path / "1" / "assets").iterdir()]) == 1
    with ModelRunner(files) as runner:
        expected = runner.execute({"x": X})
    assert np.array_equal(ask(poplar_serving.load(tmp_path / "1"), x=X)["output_0"], expected["y"])


@pytest.mark.tensorflow
def test_the_command_exports(file, tmp_path, expected, capsys):
    assert main(["export", str(file), str(tmp_path / "1"), "--output_names", "y,z"]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / '1'}\n"
    assert np.array_equal(ask(poplar_serving.load(tmp_path / "1"), x=X)["y"], expected["y"])
    assert main(["export", str(file), str(tmp_path / "1")]) == 1
    assert "purge_export_dir" in capsys.readouterr().err
    assert main(["export", "/nonexistent", str(tmp_path / "2")]) == 1
    assert "/nonexistent: No such file or directory" in capsys.readouterr().err


@pytest.mark.tensorflow
def test_a_library_that_is_not_there_or_is_none_says_how_to_build_it(exported, tmp_path):
    code = "import sys, poplar_serving; poplar_serving.load(sys.argv[1])"
    missing = str(tmp_path / "missing.so")
    said = run_fresh(code, exported, status=1, POPLAR_SERVING_LIBRARY=missing)
    assert f"expected {missing}, which does not exist: build them for TensorFlow" in said
    assert "`python -m poplar_serving build`" in said
    (tmp_path / "damaged.so").write_bytes(b"nothing of a library")
    said = run_fresh(code, exported, status=1, POPLAR_SERVING_LIBRARY=str(tmp_path / "damaged.so"))
    assert "cannot load it" in said
    assert "`python -m poplar_serving build`" in said
    said = run_fresh(
        "import sys, tensorflow; tensorflow.saved_model.load(sys.argv[1])", exported, status=1
    )
    assert "Op type not registered 'ApplicationRuntime'" in said


@pytest.mark.tensorflow
def test_a_library_that_cannot_be_built_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "false")
    assert main(["build", "--output", str(tmp_path / "made.so")]) == 1
    assert "the operators cannot be compiled: false " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(BuildError, match="No such file"):
        poplar_serving.build(tmp_path / "made.so")
    with pytest.raises(BuildError, match="choose another file with --output"):
        poplar_serving.build("/proc/nowhere/made.so")
