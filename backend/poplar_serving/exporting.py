"""SavedModels: a PopEF file as an asset, and the graph that starts it, calls it, and runs functions
before and after it on the CPU."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from poplar_serving.description import ModelDescription, read_description
from poplar_serving.embedded_runtime import (
    check_tensors,
    embedded_runtime_call,
    embedded_runtime_start,
)
from poplar_serving.errors import ExportError
from poplar_serving.library import import_tensorflow, load_library

Step = Callable[..., Any]
Signature = Sequence[Any]
"""Sequence of TensorSpecs."""
PathLike = str | os.PathLike[str]


def export(
    popef: PathLike | Sequence[PathLike],
    export_dir: PathLike,
    predict_step_signature: Signature | None = None,
    input_dataset: Any = None,
    output_names: str | list[str] | None = None,
    preprocessing_step: Step | None = None,
    preprocessing_step_signature: Signature | None = None,
    postprocessing_step: Step | None = None,
    postprocessing_step_signature: Signature | None = None,
    purge_export_dir: bool = False,
    timeout: int | None = None,
) -> Any:
    """Write a SavedModel that runs a PopEF file.

    The parameters are those of `ipu.serving.export_single_step`, except those for the function that
    it would compile.

    Args:
        popef: the file, or the several that form one model; all of them go into the asset.
        export_dir: the folder of the SavedModel, which must be empty or absent unless
            `purge_export_dir` is set. For a server it is the folder of a version, such as
            my_model/1.
        predict_step_signature: a TensorSpec for each input of the file, in its order, which renames
            the input and checks its type and shape; by default the file's.
        input_dataset: a tf.data.Dataset to take the signature of the first step from.
        output_names: the outputs' names, by default output_0, output_1 and so on.
        preprocessing_step: function of tensors that runs on the CPU before and returns the file's
            inputs. Its variables become constants.
        preprocessing_step_signature: a TensorSpec for each parameter; optional for a tf.function
            that has an input_signature.
        postprocessing_step: function that runs on the CPU after and gets the file's outputs. Its
            variables become constants.
        postprocessing_step_signature: as for the preprocessing step.
        purge_export_dir: whether to empty export_dir, after every other check has passed.
        timeout: see embedded_runtime_start; the real function has no such parameter.

    Returns:
        The exported function, so that it can be tested.

    Raises:
        ExportError: for arguments that do not fit the file or each other.
        LibraryError: if the operators are not built.
        TypeError: for arguments of another type.
        ModelRuntimeError: for files that are not a model.
    """
    tensorflow = import_tensorflow()
    load_library()
    files = [popef] if isinstance(popef, (str, os.PathLike)) else list(popef)
    described = read_description(files)
    names = _read_names(output_names)
    _check_dataset(
        tensorflow,
        input_dataset,
        preprocessing_step,
        preprocessing_step_signature,
        predict_step_signature,
    )
    with_dataset = None if preprocessing_step is None else input_dataset
    before = _make_step(
        "preprocessing_step", preprocessing_step, preprocessing_step_signature, with_dataset
    )
    after = _make_step(
        "postprocessing_step", postprocessing_step, postprocessing_step_signature, None
    )
    if predict_step_signature is None and preprocessing_step is None and input_dataset is not None:
        predict_step_signature = _element_spec(input_dataset)
    own = _predict_signature(tensorflow, described, predict_step_signature)
    _check_steps(described, before, after)
    _check_folder(Path(export_dir), purge_export_dir)

    unique_name = str(uuid.uuid4())
    asset = f"application_{unique_name}.popef"

    make_model = partial(
        _make_model, tensorflow, unique_name, described, own, before, after, names, timeout
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / asset
        _gather(files, file)
        model = make_model(file)
        # Trace before anything is removed.
        signatures = {"serving_default": model.predict.get_concrete_function()}
        if purge_export_dir and Path(export_dir).exists():
            shutil.rmtree(export_dir)
        tensorflow.saved_model.save(model, os.fspath(export_dir), signatures)
    return make_model(Path(export_dir) / "assets" / asset).predict


class _Step(NamedTuple):
    """Function on the CPU, with its signature and results."""

    function: Any
    signature: Signature
    results: Signature


def _make_model(
    tensorflow: Any,
    unique_name: str,
    described: ModelDescription,
    own: Signature,
    before: _Step | None,
    after: _Step | None,
    names: list[str] | None,
    timeout: int | None,
    file: Path,
) -> Any:
    """Return the module to save, with the asset `filename`, the name `engine_name` and the function
    `predict`."""
    flatten = tensorflow.nest.flatten

    class EmbeddedModel(tensorflow.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.filename = tensorflow.saved_model.Asset(str(file))
            self.engine_name = f"engine_{unique_name}"
            self.predict = tensorflow.function(
                self._predict, input_signature=before.signature if before else own, autograph=False
            )

        def _predict(self, *args: Any) -> Any:
            context = embedded_runtime_start(
                self.filename.asset_path, [], self.engine_name, timeout, described
            )
            fed = flatten(before.function(*args)) if before else args
            results = embedded_runtime_call(fed, context)
            if after:
                results = flatten(after.function(*results))
            return _name_results(results, names)

    return EmbeddedModel()


def _name_results(results: Sequence[Any], names: list[str] | None) -> Any:
    if names is None:
        return list(results)
    if len(names) != len(results):
        raise ExportError(f"output_names: expected {len(results)} names, found {len(names)}")
    return dict(zip(names, results, strict=True))


def _read_names(names: str | list[str] | None) -> list[str] | None:
    if not names:
        return None
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list):
        raise TypeError(f"output_names: expected a str or a list, found {type(names).__name__}")
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(f"output_names: expected names, found {type(name).__name__}")
    twice = [name for name in listed if listed.count(name) > 1]
    if twice:
        raise ExportError(
            f"output_names: expected different names, found {twice[0]!r} {len(twice)} times"
        )
    return listed


def _predict_signature(
    tensorflow: Any, described: ModelDescription, signature: Signature | None
) -> Signature:
    """Return TensorSpecs of the file's inputs, under names that TensorFlow accepts."""
    if signature is not None:
        _check_signature("predict_step_signature", signature)
        check_tensors("predict_step_signature: input", signature, described.inputs)
    chosen = (
        [spec.name for spec in signature]
        if signature is not None
        else [None] * len(described.inputs)
    )
    names: dict[str, str] = {}
    specs = []
    for tensor, name in zip(described.inputs, chosen, strict=True):
        plain = _plain_name(name or tensor.name)
        if plain in names:
            raise ExportError(
                f"inputs {names[plain]!r} and {tensor.name!r}: expected different TensorFlow "
                f"names, found {plain!r} for both; rename them in predict_step_signature"
            )
        names[plain] = tensor.name
        specs.append(tensorflow.TensorSpec(tensor.shape, tensor.numpy_data_type(), plain))
    return specs


def _plain_name(name: str) -> str:
    """Return a name that a parameter of a tf.function may have. TensorFlow replaces other names, or
    fails on them."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if re.match(r"[A-Za-z]", plain) else f"arg_{plain}"


def _check_dataset(
    tensorflow: Any, dataset: Any, step: Step | None, step_signature: Any, predict_signature: Any
) -> None:
    if dataset is None:
        return
    if not isinstance(dataset, tensorflow.data.Dataset):
        raise TypeError(
            f"input_dataset: expected a tf.data.Dataset, found {type(dataset).__name__}"
        )
    name, given = "predict_step_signature", predict_signature
    if step is not None:
        name, given = "preprocessing_step_signature", step_signature
    if given is not None:
        raise ExportError(f"{name} and input_dataset: expected one of them, found both")


def _make_step(
    name: str, step: Step | None, signature: Signature | None, dataset: Any
) -> _Step | None:
    """Return the step in the form in which it is exported, or None without a step."""
    if step is None:
        return None
    if not callable(step):
        raise TypeError(f"{name}: expected a function, found {type(step).__name__}")
    if signature is None and dataset is not None:
        signature = _element_spec(dataset)
    if signature is None:
        signature = getattr(step, "input_signature", None)
    if signature is None:
        raise ExportError(
            f"{name}_signature: expected a TensorSpec for each parameter of {name}, found none; "
            "give it, or make the function a tf.function with an input_signature"
        )
    _check_signature(f"{name}_signature", signature)
    return _freeze(name, step, signature)


def _freeze(name: str, step: Step, signature: Signature) -> _Step:
    tensorflow = import_tensorflow()
    parameters = list(inspect.signature(step).parameters)
    if len(parameters) != len(signature):
        raise ExportError(
            f"{name}_signature: expected {len(parameters)} TensorSpecs, one for each of "
            f"{', '.join(parameters) or 'no parameters'}, found {len(signature)}"
        )
    specs = [
        tensorflow.TensorSpec(spec.shape, spec.dtype, parameter)
        for spec, parameter in zip(signature, parameters, strict=True)
    ]
    function = tensorflow.function(lambda *args: step(*args), input_signature=specs)
    concrete = function.get_concrete_function()
    if concrete.variables:
        from tensorflow.python.framework.convert_to_constants import (
            convert_variables_to_constants_v2,
        )

        concrete = convert_variables_to_constants_v2(concrete)
        return _Step(lambda *args: concrete(*args), specs, concrete.outputs)
    return _Step(function, specs, concrete.outputs)


def _check_signature(name: str, signature: Any) -> None:
    tensorflow = import_tensorflow()
    if not isinstance(signature, (tuple, list)):
        raise TypeError(
            f"{name}: expected a tuple or list of TensorSpecs, found {type(signature).__name__}"
        )
    if not signature:
        raise ExportError(f"{name}: expected TensorSpecs, found none")
    for number, spec in enumerate(signature):
        if not isinstance(spec, tensorflow.TensorSpec):
            raise TypeError(f"{name}[{number}]: expected a TensorSpec, found {type(spec).__name__}")


def _element_spec(dataset: Any) -> Signature:
    spec = dataset.element_spec
    return tuple(spec) if isinstance(spec, (tuple, list)) else (spec,)


def _check_steps(described: ModelDescription, before: _Step | None, after: _Step | None) -> None:
    if before is not None:
        check_tensors("preprocessing_step: result for input", before.results, described.inputs)
    if after is not None:
        check_tensors(
            "postprocessing_step_signature: output",
            after.signature,
            described.outputs,
            "postprocessing_step must accept the model's outputs",
        )


def _check_folder(folder: Path, purge: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"export_dir {str(folder)!r}: expected a folder, found a file")
    if folder.is_symlink() and purge:
        raise ExportError(
            f"export_dir {str(folder)!r}: expected a folder to purge, found a link to one"
        )
    if not purge and folder.is_dir() and any(folder.iterdir()):
        raise ExportError(
            f"export_dir {str(folder)!r}: expected an empty folder, found files in it; choose "
            "another one, or set purge_export_dir to empty it"
        )


def _gather(files: Sequence[PathLike], asset: Path) -> None:
    """Write one file that holds all files of a model, one after the other."""
    if len(files) == 1:
        asset.symlink_to(Path(files[0]).resolve())
        return
    with asset.open("wb") as joined:
        for file in files:
            with open(file, "rb") as part:
                shutil.copyfileobj(part, joined)
