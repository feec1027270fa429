"""Cases of a bulk run: models, each under settings, and the part of them that belongs to a shard.

Cases that share a converted graph are one task, because converting takes ten times as long as
planning.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from popef._tools.text import escape
from popef._tools.version import __version__
from poplar_triton.errors import CommandError
from poplar_triton.profile.source import ProfileSettings
from poplar_triton.recipes import sha256

_SUFFIXES = (".onnx", ".popef")


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A future row of the table."""

    model: Path
    digest: str
    """SHA-256 of the model's file; "" if it cannot be read."""
    settings: ProfileSettings
    input_shape: Mapping[str, Sequence[int]]

    @property
    def key(self) -> str:
        """Key that identifies everything that `describe` returns."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        """Return the fields of the JSON that are known before profiling: the model, the settings,
        and the version of this program."""
        settings = {**asdict(self.settings), "input_shape": dict(self.input_shape)}
        return {
            "model": str(self.model),
            "sha256": self.digest,
            "version": __version__,
            "settings": settings,
        }


Task = tuple[ModelCase, ...]
"""Cases of one model, batch size and precision."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of the work, by number from 0. It has every `count`-th task, so that
    large models are spread over the parts."""

    number: int = 0
    count: int = 1


def find_models(paths: Iterable[Path]) -> list[Path]:
    """Return the given files and, for folders, the files below them that end in .onnx or .popef,
    sorted and each once.

    Raises CommandError for a path that does not exist, and for a folder without such files.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            if not path.is_file():
                raise CommandError(
                    f"{escape(path)}: expected a model file or a folder of models, found neither"
                )
            files[path] = None
            continue
        below = sorted(
            file for suffix in _SUFFIXES for file in path.rglob(f"*{suffix}") if file.is_file()
        )
        if not below:
            raise CommandError(
                f"{escape(path)}: expected files that end in {' or '.join(_SUFFIXES)} in this "
                "folder or its subfolders, found none"
            )
        files.update(dict.fromkeys(below))
    return list(files)


def make_tasks(
    models: Iterable[Path],
    points: Sequence[ProfileSettings],
    input_shape: Mapping[str, Sequence[int]],
    shard: Shard,
) -> list[Task]:
    """Return each model under each of the points, in their order, as far as they belong to the
    shard."""
    groups = [tuple(sharing) for _, sharing in itertools.groupby(points, lambda point: point.graph)]
    digests = _Digests()
    chosen = itertools.islice(itertools.product(models, groups), shard.number, None, shard.count)
    return [
        tuple(ModelCase(model, digests[model], point, input_shape) for point in sharing)
        for model, sharing in chosen
    ]


class _Digests(dict[Path, str]):
    """Digests of the files that are looked up, each read once."""

    def __missing__(self, model: Path) -> str:
        try:
            self[model] = sha256(model)
        except OSError:  # its rows will have the reason
            self[model] = ""
        return self[model]
