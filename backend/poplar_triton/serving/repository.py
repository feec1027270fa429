"""Model repositories: folders of this machine, whose form is checked before a server starts, and
addresses of remote stores."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from popef._tools.text import escape, find_near, find_shell_fault
from poplar_triton.errors import ServerError

MODEL_FILE = "config.pbtxt"
STORES = ("s3://", "gs://", "as://")
"""Prefixes of repositories from which Triton itself copies models."""
_KNOWN = {
    "backend": (
        "poplar python onnxruntime openvino pytorch tensorflow tensorrt tensorrtllm vllm dali fil "
        "identity repeat square ensemble"
    ).split(),
    "platform": (
        "onnxruntime_onnx pytorch_libtorch tensorflow_savedmodel tensorflow_graphdef tensorrt_plan "
        "ensemble"
    ).split(),
}
"""Names of Triton's own backends and platforms, and of ours, by the field that has them."""
_MIN_SIMILARITY = 0.75
"""Minimum similarity (difflib) at which a name is a misspelling."""
_MAX_CONFIG_BYTES = 1 << 20
_MAX_QUOTED = 100
_WORD = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\w+|[^\s\w]""")
"""Comment, text in quotes, name or number, or another character of a configuration."""
_STORE = re.compile(r"s3://(?:https?://)?([^/:\[\]]+|\[[^/\]]+\]):(\d{1,5})/")


def is_remote(repository: Path | str) -> bool:
    """Return whether Triton copies the models of a repository from a remote store."""
    return str(repository).startswith(STORES)


def find_store(repository: Path | str) -> tuple[str, int] | None:
    """Return the address and port of the store that a repository names, as in
    s3://HOST:PORT/BUCKET. Return None for other stores, which their libraries find."""
    match = _STORE.match(str(repository))
    return (match[1].strip("[]"), int(match[2])) if match else None


def find_repository(text: str) -> Path | str:
    """Return the repository that a word of the command line names; a store's address stays
    unchanged."""
    return text if is_remote(text) else Path(text)


def check_repository(repository: Path, *, may_be_empty: bool = False) -> None:
    """Raise ServerError unless `repository` is a folder that has model folders."""
    if not repository.is_dir():
        is_file = repository.exists()
        fault = "expected a folder of model folders, found a file" if is_file else "no such folder"
        raise ServerError(f"model repository {repository}: {fault}")
    folders = [entry for entry in repository.iterdir() if entry.is_dir()]
    if (repository / MODEL_FILE).is_file() or any(folder.name.isdecimal() for folder in folders):
        raise ServerError(
            f"{repository} looks like a model folder; serve its parent, "
            f"{repository.resolve().parent}"
        )
    if not may_be_empty and not any(is_model_folder(folder) for folder in folders):
        raise ServerError(
            f"no models in {repository}: expected folders with a {MODEL_FILE} or a version folder "
            "such as 1, found none; `poprt --triton_model_dir` writes one"
        )


def check_paths(repository: Path) -> None:
    """Raise ServerError if a shell would not read the path of a model folder as one word.

    Triton starts the process of a Python-based model through a shell, with this path unquoted: it
    would run commands that the path contains, or wait for ever for a process that cannot start.
    """
    folders = [entry for entry in repository.iterdir() if entry.is_dir()]
    for path in (repository, *filter(is_model_folder, folders)):
        if fault := find_shell_fault(str(path)):
            raise ServerError(f"{path}: {fault}; rename it, or serve a link to it (ln -s)")


def check_backends(repository: Path, installed: Collection[str] = ()) -> None:
    """Raise ServerError for a model whose backend or platform is a misspelt known one.

    Triton would try to load it again and again while the server starts. A name that is like no
    other, or that of an `installed` backend, is Triton's to judge.
    """
    for folder in sorted(filter(Path.is_dir, repository.iterdir())):
        file = folder / MODEL_FILE
        if not file.is_file():
            continue
        for field, value in _iter_top_fields(file):
            near = find_near(value, _KNOWN[field], _MIN_SIMILARITY)
            if near not in (None, value) and value not in installed:
                raise ServerError(
                    f"{file}: {field} {escape(repr(value), _MAX_QUOTED)} is not known; did you "
                    f"mean {near}?"
                )


def _iter_top_fields(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the fields `backend` and `platform` of a model's configuration with their values.

    The text is only split into words: its parser, which needs protobuf and numpy, would stay in the
    memory of the server's supervisor. Triton itself reports a file that it cannot read.
    """
    with file.open("rb") as stream:
        text = stream.read(_MAX_CONFIG_BYTES).decode("utf-8", "replace")
    depth = 0
    words = [match[0] for match in _WORD.finditer(text) if not match[0].startswith("#")]
    for word, after, value in zip(words, words[1:], words[2:], strict=False):
        depth += (word in "{[") - (word in "}]")
        if depth == 0 and word in _KNOWN and after == ":" and value[0] in "\"'":
            yield word, value[1:-1]


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder of a repository is the folder of a model."""
    return (folder / MODEL_FILE).is_file() or any(
        entry.name.isdecimal() and entry.is_dir() for entry in folder.iterdir()
    )
