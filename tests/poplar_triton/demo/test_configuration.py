"""Tests that config.pbtxt, name_map.json, recipe.json and the ONNX file of each model agree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from poplar_triton import recipes
from poplar_triton.demo import examples
from poplar_triton.demo.example import read_lines
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

MODELS = ["magika", "sentence_similarity", "document_orientation", "text_recognition"]
# Types that the compiler makes of a tensor's type, by precision.
ANCHORS = {
    "fp32": {onnx.TensorProto.FLOAT: "TYPE_FP32"},
    "fp16": {onnx.TensorProto.FLOAT: "TYPE_FP16"},
}
INTEGERS = {onnx.TensorProto.INT64: "TYPE_INT32", onnx.TensorProto.INT32: "TYPE_INT32"}


def read_config(folder: Path) -> ModelConfig:
    return text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())


def option(recipe: recipes.Recipe, name: str) -> str:
    return recipe.poprt[recipe.poprt.index(name) + 1]


@pytest.fixture(params=MODELS)
def folder(request, repository):
    return repository / request.param


@pytest.fixture
def recipe(folder):
    return recipes.read_recipe(folder / "recipe.json")


def test_the_configuration_is_for_the_poplar_backend(folder):
    config = read_config(folder)
    assert (config.name, config.backend) == (folder.name, "poplar")
    assert config.HasField("dynamic_batching")
    assert config.parameters["synchronous_execution"].string_value == "1"


def test_the_largest_request_is_a_large_multiple_of_the_compiled_batch(folder, recipe):
    largest, batch = read_config(folder).max_batch_size, int(option(recipe, "--batch_size"))
    assert largest % batch == 0
    assert largest // batch >= 1000


def test_names_and_types_are_those_of_the_onnx_file(folder, recipe, repository):
    graph = onnx.load(
        recipes.fetch(recipe, recipes.default_cache(repository)), load_external_data=False
    ).graph
    config, names = read_config(folder), json.loads((folder / "1" / "name_map.json").read_text())
    removed = (
        option(recipe, "--remove_outputs").split(",") if "--remove_outputs" in recipe.poprt else []
    )
    anchors = ANCHORS[option(recipe, "--precision")] | INTEGERS
    for tensors, infos in ((config.input, graph.input), (config.output, graph.output)):
        kept = [info for info in infos if info.name not in removed]
        declared = {tensor.name: DataType.Name(tensor.data_type) for tensor in tensors}
        assert declared == {
            names[info.name]: anchors[info.type.tensor_type.elem_type] for info in kept
        }
    assert len(names) == len(config.input) + len(config.output)
    assert set(removed) < {info.name for info in graph.output}


def test_the_demonstrations_tensors_have_the_declared_shapes(folder, recipe, repository, reference):
    (example,) = (example for example in examples(repository) if example.model == folder.name)
    config = read_config(folder)
    (case, *_) = example.cases()
    arrays = {**case.inputs, **reference(folder.name).run(case)}
    for tensor in [*config.input, *config.output]:
        assert arrays[tensor.name].shape == (case.rows, *tensor.dims), tensor.name


def test_inputs_survive_the_cast_to_the_declared_type(folder, repository):
    (example,) = (example for example in examples(repository) if example.model == folder.name)
    for tensor in read_config(folder).input:
        for case in example.cases():
            array = case.inputs[tensor.name]
            if array.dtype.kind == "i":
                np.testing.assert_array_equal(array.astype(np.int32), array)
            else:
                assert np.isfinite(array.astype(np.float16)).all()


def test_label_files_have_a_line_for_each_value(folder):
    for tensor in read_config(folder).output:
        if tensor.label_filename:
            assert len(read_lines(folder / tensor.label_filename)) == tensor.dims[-1]


@pytest.mark.parametrize(
    ("model", "file", "around"),
    [
        ("document_orientation", "labels.txt", ([], [])),
        ("text_recognition", "characters.txt", (["blank"], [" "])),
    ],
)
def test_labels_are_those_in_the_onnx_files_metadata(repository, model, file, around):
    (recipe,) = recipes.read_recipes(repository, [model])
    loaded = onnx.load(recipes.fetch(recipe, recipes.default_cache(repository)))
    (labels,) = (
        entry.value.split("\n") for entry in loaded.metadata_props if entry.key == "character"
    )
    before, after = around
    assert read_lines(repository / model / file) == [*before, *labels, *after]


def test_every_folder_below_a_model_is_a_version(repository):
    folders = [path for path in repository.glob("*/*") if path.is_dir()]
    assert folders
    assert {path.name for path in folders} == {"1"}
