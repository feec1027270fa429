"""The model file in a folder, which is a model of a Triton repository or just holds a model."""

from __future__ import annotations

from pathlib import Path

from poprt.triton.config import read_config
from simipu import CompileError

from popef._tools.text import escape

_NAMES = ("executable.popef", "model.onnx")
"""File names that Triton's models and exporters use. If one exists, no other file of the folder is
considered."""
_SUFFIXES = (".popef", ".onnx")
_MAX_NAMED = 5


def find_model_file(path: Path) -> Path:
    """Return the model's file at a path: the path itself if it is no folder.

    In a Triton model's folder it is the executable of the newest version, as config.pbtxt names it.
    In another folder it is executable.popef or model.onnx, or else the only model file. Raises
    CompileError if there is none or more than one; the message names the files there.
    """
    if not path.is_dir():
        return path
    version = _find_newest_version(path)
    places = [version, path] if version else [path]
    if found := _find_configured(path, places):
        return found
    for folder in places:
        if found := next((folder / name for name in _NAMES if (folder / name).is_file()), None):
            return found
    for folder in places:
        files = sorted(
            each for each in folder.iterdir() if each.suffix in _SUFFIXES and each.is_file()
        )
        if len(files) == 1:
            return files[0]
        if files:
            named = ", ".join(each.name for each in files[:_MAX_NAMED])
            raise CompileError(
                escape(f"folder {path} must hold exactly one model, found {named}; name the file")
            )
    raise CompileError(
        escape(
            f"folder {path}: expected {' or '.join(_NAMES)}, another file that ends in "
            f"{' or '.join(_SUFFIXES)}, or a Triton model folder with a version such as 1 that "
            "contains one; found none; name the file"
        )
    )


def _find_newest_version(path: Path) -> Path | None:
    """Return the newest of the folders that Triton takes for versions, which are those named by a
    number."""
    versions = [each for each in path.iterdir() if each.name.isdecimal() and each.is_dir()]
    return max(versions, key=lambda each: int(each.name), default=None)


def _find_configured(path: Path, places: list[Path]) -> Path | None:
    """Return the first file that `executable_path` of config.pbtxt names, in the version's folder
    or the model's."""
    file = path / "config.pbtxt"
    if not file.is_file():
        return None
    parameters = read_config(file).parameters
    if "executable_path" not in parameters:
        return None
    name = parameters["executable_path"].string_value.partition(",")[0].strip()
    found = next((folder / name for folder in places if (folder / name).is_file()), None)
    if name and found is None:
        raise CompileError(
            escape(f"{file}: executable_path {name!r} does not exist; name the file to profile")
        )
    return found
