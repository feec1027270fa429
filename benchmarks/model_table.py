"""The real models of `models.json`: their sources, their inputs, and the options of poprt for them.

A shape has "B" at the axis of the rows of a batch; a model without one gets requests of its own
shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from poplar_triton import recipes
from poplar_triton.errors import RecipeError
from poplar_triton.recipes import Recipe

TABLE = Path(__file__).with_name("models.json")
CACHE = recipes.default_cache(Path(__file__).parents[1] / "model_repository")
BATCH = "B"
INSTALLED = "installed"
"""Value in place of a version: the file is in a package that this project needs anyway."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that goes into a model: its shape, and the kind of its values as `model_inputs` has
    them."""

    shape: tuple[int | str, ...]
    kind: str

    def sizes(self, rows: int) -> tuple[int, ...]:
        """Return the shape with `rows` rows."""
        return tuple(rows if size == BATCH else int(size) for size in self.shape)

    @property
    def axis(self) -> int | None:
        """Axis of the rows; None without rows."""
        return self.shape.index(BATCH) if BATCH in self.shape else None


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the table. `batch` is the compiled batch; `refused` names the precisions in which
    poprt is expected not to compile it; `recurrent` says that it goes step by step over time."""

    name: str
    recipe: Recipe
    batch: int
    inputs: Mapping[str, Input]
    refused: tuple[str, ...] = ()
    recurrent: bool = False

    @property
    def version(self) -> str:
        """Version of the package that holds the file."""
        return (
            metadata.version(self.recipe.package)
            if self.recipe.version == INSTALLED
            else self.recipe.version
        )

    def fetch(self) -> Path:
        """Return the ONNX file, whose SHA-256 is the table's; raises RecipeError if it is not
        available."""
        if self.recipe.version == INSTALLED:
            return self._find_installed()
        # A folder for each model: packages have files of the same name.
        return recipes.fetch(self.recipe, CACHE / self.name)

    def _find_installed(self) -> Path:
        spec = util.find_spec(self.recipe.package)
        assert spec is not None
        assert spec.origin is not None
        file = Path(spec.origin).parents[1] / self.recipe.file
        if not file.is_file():
            raise RecipeError(
                f"{self.name}: {self.recipe.package} {self.version} has no {self.recipe.file}"
            )
        if (digest := recipes.sha256(file)) != self.recipe.sha256:
            raise RecipeError(
                f"{self.name}: {file} has SHA-256 {digest}, models.json expects "
                f"{self.recipe.sha256}"
            )
        return file

    def arguments(self) -> list[str]:
        """Return poprt's arguments that fix shapes, batch axis and settings."""
        fed = {name: spec for name, spec in self.inputs.items() if name not in self.settings}
        arguments = [
            "--input_shape",
            *(f"{name}={','.join(map(str, spec.sizes(self.batch)))}" for name, spec in fed.items()),
        ]
        axes = {spec.axis for spec in fed.values()}
        if len(axes) == 1 and None not in axes:
            arguments += ["--batch_size", str(self.batch), "--batch_axis", str(axes.pop())]
        if self.settings:
            arguments += [
                "--fix_input",
                *(f"{name}={value}" for name, value in self.settings.items()),
            ]
        return arguments

    @property
    def settings(self) -> dict[str, str]:
        """Scalars that are always the same, and are fixed when the model is compiled: their values
        by name."""
        constant = {name: spec.kind.split() for name, spec in self.inputs.items() if not spec.shape}
        return {name: words[1] for name, words in constant.items() if words[0] == "constant"}

    def cast(
        self, arrays: Mapping[str, npt.NDArray[np.generic]], types: Mapping[str, np.dtype[Any]]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs that have a type, cast to it."""
        return {name: arrays[name].astype(types[name]) for name in self.inputs if name in types}


def read_models(only: Sequence[str] = ()) -> list[Model]:
    """Return the models of the table, or those named; raises SystemExit for an unknown name."""
    models = [
        model for package in json.loads(TABLE.read_text()) for model in _read_package(package)
    ]
    if unknown := sorted(set(only) - {model.name for model in models}):
        raise SystemExit(
            f"benchmarks: no model {', '.join(unknown)}; there are "
            f"{', '.join(model.name for model in models)}"
        )
    return [model for model in models if not only or model.name in only]


def _read_package(package: dict[str, Any]) -> list[Model]:
    origin = {name: package[name] for name in ("package", "version", "license", "source")}
    origin["wheel_sha256"] = package.get("wheel_sha256", "")  # an installed package needs none
    models = []
    for name, fields in package["models"].items():
        recipe = Recipe(
            CACHE / name, file=fields["file"], sha256=fields["sha256"], poprt=(), **origin
        )
        inputs = {
            key: Input(tuple(entry["shape"]), entry["kind"])
            for key, entry in fields["inputs"].items()
        }
        refused = tuple(fields.get("refused", ()))
        models.append(
            Model(name, recipe, fields["batch"], inputs, refused, fields.get("recurrent", False))
        )
    return models
