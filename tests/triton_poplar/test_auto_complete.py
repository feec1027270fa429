"""Missing parts of a configuration come from the PopEF file; its own parts stay."""

import sys

import numpy as np
import pytest
from frozen_inputs import scale_model, write_data
from onnx import TensorProto, helper
from poprt import Compiler
from sample_models import make_model
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState, complete_config


@pytest.fixture
def folder(linear, compile_popef, tmp_path):
    compile_popef(linear, name="linear/1/executable.popef")
    return tmp_path / "linear" / "1"


X = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}
Y = {"name": "y", "data_type": "TYPE_FP32", "dims": [3]}
Z = {"name": "z", "data_type": "TYPE_FP32", "dims": [4]}


def test_a_config_with_a_backend_only_gets_everything(folder):
    added = complete_config({"backend": "poplar"}, folder)
    assert added == {"max_batch_size": 4000, "dynamic_batching": {}, "input": [X], "output": [Y, Z]}
    ModelState({**added}, folder).validate()


def test_friendly_names_are_used(folder):
    (folder / "name_map.json").write_text('{"x": "picture"}')
    assert complete_config({}, folder)["input"] == [{**X, "name": "picture"}]


@pytest.mark.parametrize(
    ("config", "added"),
    [
        (
            {"max_batch_size": 8},
            {"max_batch_size": 8, "dynamic_batching": {}, "input": [X], "output": [Y, Z]},
        ),
        (
            {"max_batch_size": 8, "sequence_batching": {}},
            {"max_batch_size": 8, "input": [X], "output": [Y, Z]},
        ),
        (
            {"input": [X], "max_batch_size": 8},
            {"max_batch_size": 8, "dynamic_batching": {}, "output": [Y, Z]},
        ),
        (
            {"input": [{**X, "dims": [4, 4]}]},
            {"max_batch_size": 0, "output": [{**Y, "dims": [4, 3]}, {**Z, "dims": [4, 4]}]},
        ),
        (
            {"input": [X], "output": [Y], "max_batch_size": 1},
            {"max_batch_size": 1, "dynamic_batching": {}},
        ),
    ],
)
def test_fields_of_the_user_are_kept(folder, config, added):
    assert complete_config(config, folder) == added
    ModelState({**config, **added}, folder).validate()


def test_a_model_without_batch_gets_no_batching(compile_popef, tmp_path):
    model = make_model(
        [
            helper.make_node("ReduceSum", ["state"], ["total"], keepdims=0),
            helper.make_node("Neg", ["state"], ["next"]),
        ],
        {"state": (TensorProto.FLOAT, [2, 3])},
        {"total": (TensorProto.FLOAT, []), "next": (TensorProto.FLOAT, [2, 3])},
        {},
    )
    compile_popef(model, name="state/1/executable.popef", batch=None)
    added = complete_config({}, tmp_path / "state" / "1")
    assert added["max_batch_size"] == 0
    assert "dynamic_batching" not in added
    assert [entry["dims"] for entry in added["output"]] == [[1], [2, 3]]
    ModelState({**added}, tmp_path / "state" / "1").validate()


def test_scalars_of_a_batch_are_reshaped(compile_popef, tmp_path):
    model = make_model(
        [helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0)],
        {"x": (TensorProto.FLOAT, ["n", 3])},
        {"total": (TensorProto.FLOAT, ["n"])},
        {"axes": np.array([1])},
    )
    compile_popef(model, name="sum/1/executable.popef")
    added = complete_config({}, tmp_path / "sum" / "1")
    assert added["output"] == [
        {"name": "total", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}
    ]
    ModelState({**added}, tmp_path / "sum" / "1").validate()


def test_bad_files_are_named(folder):
    (folder / "executable.popef").write_bytes(b"garbage")
    with pytest.raises(ModelConfigError, match=r"executable\.popef"):
        complete_config({}, folder)


def test_completing_loads_no_native_runtime(folder):
    """If the process in which Triton completes configurations dies, the server hangs."""
    import subprocess

    code = (
        "import sys, pathlib; from triton_poplar.model_state import "
        f"complete_config;complete_config({{}}, pathlib.Path({str(folder)!r}));print([name for "
        "name in ('onnxruntime', 'onnx', 'google.protobuf', 'model_runtime', 'simipu.engine', "
        "'asyncio', 'tempfile', 'simipu.accelerators', 'difflib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_input_whose_data_the_files_hold_is_no_input(tmp_path):
    folder = tmp_path / "scaled" / "1"
    folder.mkdir(parents=True)
    Compiler.compile(scale_model()).export(folder / "executable.popef")
    write_data(folder / "weights.popef", {"scale": np.ones(3, np.float32)})
    rows = {"data_type": "TYPE_FP32", "dims": [4, 3]}
    added = complete_config({"backend": "poplar"}, folder)
    assert added == {
        "max_batch_size": 0,
        "input": [{"name": "x", **rows}],
        "output": [{"name": "y", **rows}],
    }
    ModelState(added, folder).validate()
    scale = {"name": "scale", "data_type": "TYPE_FP32", "dims": [3]}
    with pytest.raises(
        ModelConfigError, match="input 'scale', but the PopEF files contain its data"
    ):
        ModelState({**added, "input": [*added["input"], scale]}, folder).validate()
