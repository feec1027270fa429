"""Models from folders: what requests get, and which versions are served while folders change."""

import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper
from poplar_triton.tfserving import local
from poplar_triton.tfserving.check import answer, describe_array
from poplar_triton.tfserving.local import LocalModels, Retries
from poplar_triton.tfserving.models import (
    Code,
    ModelSpec,
    ServingError,
    VersionState,
    VersionStatus,
)
from poplar_triton.tfserving.settings import ModelSource, VersionPolicy
from poprt import Compiler, CompilerOptions
from poprt.compile.converter import MFConverter
from sample_models import gather_model, linear_model, loudness_model, make_model, steps_model
from serving_calls import PlayedCall
from triton_poplar.errors import ModelConfigError
from triton_poplar.server_start import NOT_TRIED
from waiting import PATIENCE_SECONDS, wait_until

F = TensorProto.FLOAT
CALL = PlayedCall()
ROW = np.ones((1, 2), np.float32)


def scale_model(factor):
    """Return the model of y = factor * x with rows of 2."""
    return make_model(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        {"x": (F, ["batch", 2])},
        {"y": (F, ["batch", 2])},
        {"factor": np.float32(factor)},
    )


@pytest.fixture(autouse=True)
def _no_leave(monkeypatch):
    monkeypatch.setattr(local, "LEAVE_SECONDS", 0)


@pytest.fixture
def write(compile_popef, tmp_path):
    """Return a function that writes versions of a model that multiplies by its version's number."""

    def build(*versions, config="", model=None, name="m", **compiling):
        for version in versions:
            compile_popef(
                model or scale_model(version),
                name=f"{name}/{version}/executable.popef",
                **compiling,
            )
        if config:
            (tmp_path / name / "config.pbtxt").write_text(config)
        return tmp_path / name

    return build


@pytest.fixture
def open_models():
    """Yield a function that opens the models of sources; all are closed at the end."""
    opened = []

    def build(*sources, **options):
        opened.append(LocalModels(sources, **options))
        opened[-1].refresh()
        return opened[-1]

    yield build
    for models in opened:
        models.close()


@pytest.fixture
def open_model(open_models, tmp_path):
    """Return a function that opens the model "m"."""
    return lambda policy=None, labels=None, **options: open_models(
        ModelSource("m", tmp_path / "m", policy, labels or {}), **options
    )


def ask(models, inputs=None, outputs=(), **spec):
    servable = models.find(ModelSpec(**{"name": "m", **spec}), CALL)
    return answer(servable, "", inputs or {"x": ROW}, describe_array, outputs, CALL)


def factor(models, **spec):
    return ask(models, **spec)["y"][0, 0]


def states(models):
    try:
        return {each.version: each.state for each in models.list_versions(ModelSpec("m"), CALL)}
    except ServingError:
        return {}


def refuse(models, code, words, inputs=None, **spec):
    with pytest.raises(ServingError, match=re.escape(words)) as refused:
        ask(models, inputs, **spec)
    assert refused.value.code is code


def break_version(folder, version):
    (folder / str(version)).mkdir(exist_ok=True)
    (folder / str(version) / "executable.popef").write_bytes(b"garbage")


@pytest.mark.parametrize(
    ("config", "policy", "served"),
    [
        ("", None, [3]),
        ('backend: "poplar"', None, [3]),
        ("version_policy { all {} }", None, [3, 2, 1]),
        ("version_policy { specific { versions: [1, 2, 9] } }", None, [2, 1]),
        ("version_policy { latest { num_versions: 2 } }", None, [3, 2]),
        ("version_policy { latest {} }", None, [3]),
        ("version_policy { all {} }", VersionPolicy(specific=frozenset({1})), [1]),
        ("", VersionPolicy(latest=None), [3, 2, 1]),
    ],
)
def test_the_versions_of_the_policy_are_served_and_no_others(
    write, open_model, config, policy, served
):
    write(1, 2, 3, config=config)
    models = open_model(policy)
    assert models.list_versions(ModelSpec("m"), CALL) == [
        VersionStatus(version, VersionState.AVAILABLE) for version in served
    ]
    assert factor(models) == served[0]
    for version in (1, 2, 3):
        if version in served:
            assert factor(models, version=version) == version
        else:
            words = f"Servable not found for request: Specific(m, {version})"
            refuse(models, Code.NOT_FOUND, words, version=version)
            with pytest.raises(ServingError, match=f"Could not find version {version} of model m"):
                models.list_versions(ModelSpec("m", version=version), CALL)


def test_unknown_models_and_versions_are_not_found(write, open_model):
    write(1)
    models = open_model()
    refuse(models, Code.NOT_FOUND, "Servable not found for request: Latest(n)", name="n")
    refuse(
        models,
        Code.NOT_FOUND,
        "Servable not found for request: Specific(n, 1)",
        name="n",
        version=1,
    )
    refuse(models, Code.NOT_FOUND, "Specific(m, -1)", version=-1)
    with pytest.raises(ServingError, match="Could not find any versions of model n"):
        models.list_versions(ModelSpec("n"), CALL)


def test_labels_are_names_of_versions(write, open_model):
    write(1, 2)
    models = open_model(VersionPolicy(latest=None), {"stable": 1, "gone": 7})
    assert factor(models, label="stable") == 1
    assert [
        each.version for each in models.list_versions(ModelSpec("m", label="stable"), CALL)
    ] == [1]
    refuse(
        models, Code.INVALID_ARGUMENT, "Unrecognized servable version label: canary", label="canary"
    )
    refuse(models, Code.NOT_FOUND, "Specific(m, 7)", label="gone")
    with pytest.raises(
        ServingError, match=r"label 'gone' .* version 7, .* expected one of \[1, 2\]"
    ) as refused:
        models.check_labels()
    assert refused.value.code is Code.FAILED_PRECONDITION
    open_model(VersionPolicy(latest=None), {"stable": 1}).check_labels()


def test_only_folders_with_the_number_of_a_version_are_versions(write, open_model):
    folder = write(5)
    for name in ("-6", "6.0", "v7", "\u0667", "9" * 200, str(2**63), "0" * 65):
        (folder / name).mkdir()
    (folder / "8").write_text("a file")
    assert states(open_model(VersionPolicy(latest=None))) == {5: VersionState.AVAILABLE}


def test_a_new_version_takes_the_place_of_the_old_one(write, open_model):
    write(1)
    models = open_model()
    assert factor(models) == 1
    write(2)
    models.refresh()
    assert factor(models) == 2
    refuse(models, Code.NOT_FOUND, "Specific(m, 1)", version=1)
    wait_until(
        lambda: states(models) == {2: VersionState.AVAILABLE, 1: VersionState.END},
        "the end of version 1",
    )


def test_where_the_newest_version_vanishes_an_older_one_is_served(write, open_model):
    folder = write(1, 2)
    models = open_model()
    shutil.rmtree(folder / "2")
    models.refresh()
    assert factor(models) == 1
    models.refresh()
    assert states(models) == {1: VersionState.AVAILABLE}
    shutil.rmtree(folder / "1")
    models.refresh()
    refuse(models, Code.NOT_FOUND, "Latest(m)")


def test_an_unloaded_version_can_come_back(write, open_model, tmp_path):
    folder = write(1, 2)
    models = open_model()
    for _ in range(3):
        (folder / "2").rename(tmp_path / "away")
        models.refresh()
        assert factor(models) == 1
        (tmp_path / "away").rename(folder / "2")
        models.refresh()
        assert factor(models) == 2
    wait_until(
        lambda: states(models) == {2: VersionState.AVAILABLE, 1: VersionState.END},
        "the end of all closing",
    )


def test_a_version_that_comes_back_while_it_is_closed_stays_available(
    write, open_model, monkeypatch
):
    """Its earlier instance ends only when the new one already serves."""
    folder = write(1, 2)
    models = open_model()
    go_on = threading.Event()
    played = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: go_on.wait(PATIENCE_SECONDS))
    monkeypatch.setattr(local, "time", played)
    (folder / "2").rename(folder / "away")
    models.refresh()
    (folder / "away").rename(folder / "2")
    models.refresh()
    go_on.set()
    models.refresh()
    wait_until(lambda: states(models)[1] is VersionState.END, "the end of version 1")
    wait_until(
        lambda: not any(each.name == "close m" for each in threading.enumerate()), "all closed"
    )
    assert states(models) == {2: VersionState.AVAILABLE, 1: VersionState.END}


def test_a_broken_version_says_why_and_the_older_one_is_served_on(write, open_model):
    folder = write(1)
    models = open_model(retries=Retries(seconds=-1))
    break_version(folder, 2)
    models.refresh()
    assert factor(models) == 1
    newest, oldest = models.list_versions(ModelSpec("m"), CALL)
    assert (newest.version, newest.state, newest.code) == (
        2,
        VersionState.END,
        Code.INVALID_ARGUMENT,
    )
    assert "executable.popef" in newest.message
    assert oldest == VersionStatus(1, VersionState.AVAILABLE)
    assert models.failures == [("m", newest)]
    refuse(models, Code.NOT_FOUND, "Specific(m, 2)", version=2)

    write(2)
    models.refresh()
    assert factor(models) == 2
    assert models.failures == []


def test_a_version_is_tried_again_so_often_and_after_so_long(write, open_model, monkeypatch):
    folder = write(1)
    break_version(folder, 1)
    now, loads = [1000.0], []
    monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    load = local.load
    monkeypatch.setattr(
        local, "load", lambda *given, **how: loads.append(now[0]) or load(*given, **how)
    )
    models = open_model(retries=Retries(most=2, seconds=60.0))
    for _ in range(50):
        now[0] += 10
        models.refresh()
    assert loads == [1000, 1060, 1120]

    # The next file in its place is tried again.
    shutil.rmtree(folder / "1")
    models.refresh()
    assert states(models) == {}
    write(1)
    models.refresh()
    assert factor(models) == 1


def test_a_version_that_the_start_did_not_try_is_loaded_next(write, open_model, monkeypatch):
    write(1)
    load = local.load

    def reject(*_, **__):
        monkeypatch.setattr(local, "load", load)
        raise ModelConfigError(f"model 'model' {NOT_TRIED}: the start is over")

    monkeypatch.setattr(local, "load", reject)
    models = open_model(retries=Retries(most=0, seconds=60.0))
    assert NOT_TRIED in models.failures[0][1].message
    models.refresh()
    assert factor(models) == 1


def test_a_folder_that_cannot_be_read_keeps_what_is_served(write, open_model, tmp_path, caplog):
    folder = write(1)
    models = open_model()
    folder.rename(tmp_path / "away")
    for _ in range(3):
        models.refresh()
    assert factor(models) == 1
    assert len(caplog.messages) == 1  # told once

    (tmp_path / "away").rename(folder)
    (folder / "config.pbtxt").write_text("no configuration")
    for _ in range(3):
        models.refresh()
    assert factor(models) == 1
    assert len(caplog.messages) == 2
    assert "config.pbtxt" in caplog.messages[1]


def test_a_model_whose_folder_comes_later_is_served_then(write, open_model):
    models = open_model()
    ((name, why),) = models.absences
    assert (name, "No such file" in why, models.failures) == ("m", True, [])
    refuse(models, Code.NOT_FOUND, "Latest(m)")
    write(1)
    models.refresh()
    assert (factor(models), models.absences) == (1, [])


def test_a_model_that_does_not_load_leaves_the_others_alone(write, open_models, tmp_path):
    sources = [ModelSource(name, write(1, name=name)) for name in ("a", "b", "c")]
    break_version(tmp_path / "b", 1)
    (tmp_path / "c" / "config.pbtxt").write_text('backend: "onnxruntime"')
    models = open_models(*sources)
    assert ask(models, name="a")["y"].tolist() == [[1, 1]]
    messages = {name: status.message for name, status in models.failures}
    assert list(messages) == ["b", "c"]
    assert messages["c"] == (
        "model 'c' is for the backend 'onnxruntime'; expected poplar: serve it with Triton, see "
        "--triton"
    )


def test_a_defect_of_loading_is_a_version_that_does_not_load(write, open_model, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("of ours")

    write(1)
    monkeypatch.setattr(local, "load", fail)
    ((_, status),) = open_model().failures
    assert (status.state, status.message) == (VersionState.END, "ZeroDivisionError('of ours')")


def test_requests_under_way_lose_nothing_while_versions_come_and_go(write, open_model, monkeypatch):
    monkeypatch.setattr(local, "LEAVE_SECONDS", 0.2)
    folder = write(1)
    models, stop, seen = open_model(), threading.Event(), []

    def ask_on():
        while not stop.is_set():
            seen.append(factor(models))

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask_on) for _ in range(4)]
        try:
            for version in (2, 3, 4):
                write(version)
                models.refresh()
                wait_until(
                    lambda version=version: seen[-1:] == [version], "an answer of the new version"
                )
            shutil.rmtree(folder / "4")
            models.refresh()
            wait_until(lambda: seen[-1] == 3, "an answer of the older version")
        finally:
            stop.set()
        for future in asking:
            future.result(PATIENCE_SECONDS)
    assert set(seen) == {1, 2, 3, 4}


def test_closing_answers_all_and_refuses_what_comes_later(write, open_model):
    write(1)
    models = open_model()
    servable = models.find(ModelSpec("m"), CALL)
    models.close()
    refuse(models, Code.NOT_FOUND, "Latest(m)")
    with pytest.raises(ServingError, match="the model was unloaded; try again") as refused:
        servable.predict({"x": ROW}, (), CALL)
    assert refused.value.code is Code.UNAVAILABLE


def test_counts_of_unloaded_versions_are_kept(write, open_model):
    write(1)
    models = open_model()
    ask(models)
    write(2)
    models.refresh()
    ask(models)
    ask(models)
    ((name, statistics),) = models.iter_statistics()
    assert (name, [each.requests for each in statistics]) == ("m", [1, 2])


LIMITED = 'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 2 } dynamic_batching {}'


def test_requests_of_more_rows_than_the_configuration_allows_are_refused_in_tritons_words(
    write, open_model
):
    write(1, config=LIMITED)
    models = open_model()
    assert ask(models, {"x": np.ones((4, 2), np.float32)})["y"].shape == (4, 2)
    words = "inference request batch-size must be <= 4 for 'm', found 5"
    refuse(models, Code.INVALID_ARGUMENT, words, {"x": np.ones((5, 2), np.float32)})
    refuse(
        models,
        Code.INVALID_ARGUMENT,
        "input 'x' has batch size 0",
        {"x": np.ones((0, 2), np.float32)},
    )


RESHAPED = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [2, 1] reshape { shape: 2 } }
output { name: "y" data_type: TYPE_FP32 dims: [1, 2] reshape { shape: 2 } }
"""


def test_rows_are_reshaped_as_the_configuration_says(write, open_model):
    write(3, config=RESHAPED)
    models = open_model()
    signature = models.find(ModelSpec("m"), CALL).signature
    assert (signature.inputs["x"].shape, signature.outputs["y"].shape) == ((-1, 2, 1), (-1, 1, 2))
    found = ask(models, {"x": np.array([[[1], [2]], [[3], [4]]], np.float32)})
    assert found["y"].tolist() == [[[3, 6]], [[9, 12]]]


SUM = make_model(
    [
        helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        helper.make_node("Neg", ["n"], ["m"]),
    ],
    {"x": (F, ["batch", 3]), "n": (F, ["batch"])},
    {"total": (F, ["batch"]), "m": (F, ["batch"])},
    {"axes": np.array([1])},
)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_single_values_of_a_batch_may_come_with_an_axis_or_without(write, open_model, shape):
    write(1, model=SUM)
    models = open_model()
    signature = models.find(ModelSpec("m"), CALL).signature
    assert (signature.inputs["n"].shape, signature.outputs["total"].shape) == ((-1,), (-1,))
    inputs = {"x": np.ones((5, 3), np.float32), "n": np.arange(5, dtype=np.float32).reshape(shape)}
    found = ask(models, inputs)
    assert found["total"].tolist() == [3] * 5
    assert found["m"].tolist() == [0, -1, -2, -3, -4]
    assert ask(models, inputs, ["m"]).keys() == {"m"}


def test_a_model_without_a_batch_takes_and_gives_scalars_as_one_element(write, open_model):
    model = make_model(
        [
            helper.make_node("Mul", ["state", "by"], ["next"]),
            helper.make_node("Neg", ["by"], ["minus"]),
        ],
        {"state": (F, [2, 3]), "by": (F, [])},
        {"next": (F, [2, 3]), "minus": (F, [])},
        {},
    )
    write(1, model=model, batch=None)
    models = open_model()
    found = ask(models, {"state": np.ones((2, 3), np.float32), "by": np.array([4], np.float32)})
    assert found["next"].tolist() == [[4] * 3] * 2
    assert found["minus"].tolist() == [-4]
    refuse(
        models,
        Code.INVALID_ARGUMENT,
        "input 'by': expected shape [1], found []",
        {"state": np.ones((2, 3), np.float32), "by": np.array(4, np.float32)},
    )


def test_a_model_whose_rows_depend_on_each_other_has_its_batch_in_its_shape(write, open_model):
    write(1, model=loudness_model())
    models = open_model()
    assert models.find(ModelSpec("m"), CALL).signature.inputs["x"].shape == (4, 4)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_allclose(ask(models, {"x": x})["y"], x / 15, rtol=1e-6)
    refuse(
        models,
        Code.INVALID_ARGUMENT,
        "input 'x': expected shape [4, 4], found [3, 4]",
        {"x": x[:3]},
    )


def test_rows_along_another_axis_are_of_any_number(write, open_model):
    write(1, model=steps_model(), batch_axis=1)
    models = open_model()
    signature = models.find(ModelSpec("m"), CALL).signature
    assert signature.inputs["x"].shape == (5, -1, 2)
    x = np.random.default_rng(0).standard_normal((5, 7, 2)).astype(np.float32)
    whole = ask(models, {"x": x})
    assert (whole["y"].shape, whole["last"].shape) == ((5, 7, 3), (7, 3))
    np.testing.assert_array_equal(ask(models, {"x": x[:, 2:3]})["y"], whole["y"][:, 2:3])


def test_whole_numbers_of_64_bits_are_the_models_32(write, open_model):
    write(1, model=gather_model())
    models = open_model()
    assert ask(models, {"ids": np.array([[9, 0]])})["rows"].tolist() == [[[27, 28, 29], [0, 1, 2]]]
    refuse(
        models, Code.INVALID_ARGUMENT, "input 'ids', row 1", {"ids": np.array([[1, 2], [3, 2**40]])}
    )
    refuse(
        models,
        Code.INTERNAL,
        "model 'm' could not compute the request",
        {"ids": np.array([[1, 99]])},
    )


def test_a_fused_model_takes_the_inputs_of_one_of_its_models(open_model, tmp_path):
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    models = []
    for seed in range(2):
        models.append(linear_model(seed=seed))
        for value in (*models[-1].graph.input, *models[-1].graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 2
    fused = Compiler.compile(
        MFConverter().convert(models), None, CompilerOptions(enable_model_fusion=True)
    )
    fused.export(folder / "executable.popef")
    models = open_model()
    signature = models.find(ModelSpec("m"), CALL).signature
    assert signature.optional == signature.inputs.keys() == {"index", "graph0/x", "graph1/x"}
    x = np.ones((2, 4), np.float32)
    for number in (0, 1):
        found = ask(models, {f"graph{number}/x": x})
        assert found.keys() == {f"graph{number}/y", f"graph{number}/z"}
        np.testing.assert_array_equal(found[f"graph{number}/z"], 2 * x)
    refuse(models, Code.INVALID_ARGUMENT, "model 'm'", {"index": np.zeros(1, np.int32)})


def test_zeros_before_a_version_do_not_count(write, open_model):
    folder = write(7)
    (folder / "7").rename(folder / "00000007")
    models = open_model(VersionPolicy(latest=None))
    assert states(models) == {7: VersionState.AVAILABLE}
    assert factor(models) == 7


CONFIGURED = """
max_batch_size: 8
input {{ name: "x" data_type: TYPE_FP32 dims: [3] }}
input {{ name: "n" data_type: TYPE_FP32 dims: {dims} {reshape} }}
output {{ name: "total" data_type: TYPE_FP32 dims: {dims} {reshape} }}
output {{ name: "m" data_type: TYPE_FP32 dims: {dims} {reshape} }}
"""


@pytest.mark.parametrize("dims", ["[1]", "[1, 1]"])
@pytest.mark.parametrize("reshape", ["reshape { }", "reshape { shape: [] }"])
@pytest.mark.parametrize("rows", [1, 5])
def test_an_empty_reshape_means_one_number_for_each_row(write, open_model, dims, reshape, rows):
    """Signatures are those of a TensorFlow model of (None,); clients that send Triton's axes are served, too."""
    write(1, model=SUM, config=CONFIGURED.format(dims=dims, reshape=reshape))
    models = open_model()
    signature = models.find(ModelSpec("m"), CALL).signature
    shapes = [spec.shape for spec in (signature.inputs["n"], *signature.outputs.values())]
    assert shapes == [(-1,)] * 3
    numbers = np.arange(rows, dtype=np.float32)
    for shape in ((rows,), (rows, *[1] * dims.count("1"))):
        inputs = {"x": np.full((rows, 3), 2, np.float32), "n": numbers.reshape(shape)}
        found = ask(models, inputs)
        assert (found["total"].tolist(), found["m"].tolist()) == ([6] * rows, (-numbers).tolist())
    with pytest.raises(ServingError, match=r"expected shape \[-1\]"):
        ask(models, {"x": inputs["x"], "n": numbers.reshape(rows, 1).repeat(2, 1)})


def test_one_value_that_is_no_scalar_of_the_model_keeps_its_axis(write, open_model):
    write(1, model=COLUMN)
    signature = open_model().find(ModelSpec("m"), CALL).signature
    assert (signature.inputs["x"].shape, signature.outputs["y"].shape) == ((-1, 1), (-1, 1))


COLUMN = make_model(
    [helper.make_node("Neg", ["x"], ["y"])], {"x": (F, ["batch", 1])}, {"y": (F, ["batch", 1])}, {}
)
