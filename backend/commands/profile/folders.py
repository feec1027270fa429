"""The file that is meant by a folder: of a model in a Triton repository, or one that just holds a model."""

from __future__ import annotations

from pathlib import Path

from poprt.triton_config import read_config
from simipu import CompileError

from popef.text import escape

_NAMES = ("executable.popef", "model.onnx")
"""What Triton's models and exporters are called: where they are, nothing else in the folder is looked at."""
_SUFFIXES = (".popef", ".onnx")
_MOST_NAMED = 5


def find_model_file(path: Path) -> Path:
    """The path itself if it is no folder; of a Triton model's folder the executable of its newest version,
    as its config.pbtxt has it; else executable.popef or model.onnx in the folder, or the only other one.

    Raises CompileError naming what is there where it is none or not one.
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
        files = sorted(each for each in folder.iterdir() if each.suffix in _SUFFIXES and each.is_file())
        if len(files) == 1:
            return files[0]
        if files:
            named = ", ".join(each.name for each in files[:_MOST_NAMED])
            raise CompileError(
                escape(f"folder {path} must hold exactly one model, found {named}; name the file")
            )
    raise CompileError(
        escape(
            f"folder {path}: expected {' or '.join(_NAMES)}, another file that ends in "
            f"{' or '.join(_SUFFIXES)}, or a folder of Triton's with a version such as 1 that has one; found "
            "none; name the file"
        )
    )


def _find_newest_version(path: Path) -> Path | None:
    """Of the folders that Triton takes for versions: those named by a number."""
    versions = [each for each in path.iterdir() if each.name.isdecimal() and each.is_dir()]
    return max(versions, key=lambda each: int(each.name), default=None)


def _find_configured(path: Path, places: list[Path]) -> Path | None:
    """What `executable_path` of config.pbtxt names: the first of them, in the version's folder or the
    model's."""
    file = path / "config.pbtxt"
    if not file.is_file():
        return None
    parameters = read_config(file).parameters
    if "executable_path" not in parameters:
        return None
    name = parameters["executable_path"].string_value.partition(",")[0].strip()
    found = next((folder / name for folder in places if (folder / name).is_file()), None)
    if name and found is None:
        raise CompileError(escape(f"{file}: executable_path {name!r} is not there; name the file to profile"))
    return found
