"""Utilities that export variables and data sets to PopEF files, and import variables."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from popef._tools.arrays import Array
from tensorflow_ipu.files.dataset_extractor import (
    dataset_extractor,
    export_variables,
    find_handle_name,
)
from tensorflow_ipu.files.variable_files import (
    AnyPath,
    make_folder,
    read_variables,
    select_variables,
    write_variables,
)

__all__ = [
    "export_dataset_to_file",
    "export_inputs_to_file",
    "export_variables_from_live_model",
    "export_variables_from_live_session",
    "import_data_in_live_model",
    "import_data_in_live_session",
]


def export_variables_from_live_session(
    session: Any, output_file: AnyPath, gc_metadata: AnyPath | None = None
) -> None:
    """Write the values of all global variables of a session's graph to a PopEF file.

    Args:
        session: The tf.compat.v1.Session, whose variables are initialized.
        output_file: Path of the file; its folder is made if it is missing.
        gc_metadata: Path of an executable's PopEF file, whose anchors the variables must match in
            name, shape and type; None checks nothing.

    Raises:
        InvalidArgumentError: If a variable does not match the metadata.
        ValueError: If a variable is no resource variable.
    """
    _write(_read_session(session), output_file, gc_metadata)


def export_variables_from_live_model(
    model: Any, output_file: AnyPath, gc_metadata: AnyPath | None = None
) -> None:
    """Write the values of all variables of a Keras model to a PopEF file.

    Args:
        model: The Keras model.
        output_file: Path of the file; its folder is made if it is missing.
        gc_metadata: Path of an executable's PopEF file, as for
            `export_variables_from_live_session`.

    Raises:
        InvalidArgumentError: If a variable does not match the metadata.
    """
    names = _name_variables(model.variables)
    values = _read_model(model)
    _write(dict(zip(names, values, strict=True)), output_file, gc_metadata)


def import_data_in_live_session(
    session: Any, data_files: Sequence[AnyPath], output_folder: AnyPath | None = None
) -> None:
    """Assign values from PopEF files to the global variables of a session's graph.

    Variables that the files have no value for keep theirs.

    Args:
        session: The tf.compat.v1.Session.
        data_files: Paths of the files.
        output_folder: Where to save a checkpoint of the session afterwards; None saves nothing.

    Raises:
        InvalidArgumentError: If a value has another shape or type than its variable.
    """
    variables = _find_variables(session.graph)
    for name, value in _select(variables, data_files).items():
        initializer = variables[name].initializer
        # Fed instead of assigned by a new operation: the graph may be finalized.
        session.run(initializer, {initializer.inputs[1]: value})
    if output_folder:
        with session.graph.as_default():
            tf.compat.v1.train.Saver().save(session, os.fspath(output_folder))


def import_data_in_live_model(
    model: Any, data_files: Sequence[AnyPath], output_folder: AnyPath | None = None
) -> None:
    """Assign values from PopEF files to the variables of a Keras model.

    Args:
        model: The Keras model.
        data_files: Paths of the files.
        output_folder: Where to save the model afterwards as a SavedModel; None saves nothing.

    Raises:
        InvalidArgumentError: If a value has another shape or type than its variable.
    """
    variables = dict(zip(_name_variables(model.variables), model.variables, strict=True))
    values = _select(variables, data_files)
    if tf.executing_eagerly():
        for name, value in values.items():
            variables[name].assign(value)
    else:
        session = tf.compat.v1.keras.backend.get_session()
        for name, value in values.items():
            variables[name].load(value, session)
    if output_folder:
        tf.saved_model.save(model, os.fspath(output_folder))


def export_dataset_to_file(
    dataset_or_infeed: Any,
    output_filename: AnyPath,
    num_elements: int,
    feed_name: str = "",
    apply_debug_options: bool = True,
) -> None:
    """Write elements of a data set or an infeed queue to a PopEF file.

    All tensors of an element go into the same file, as feeds `NAME.0`, `NAME.1` and so on.

    Args:
        dataset_or_infeed: The tf.data.Dataset or IPUInfeedQueue.
        output_filename: Path of the file.
        num_elements: Number of elements to write.
        feed_name: Name of the feeds; by default the infeed queue's, and `infeed` for a data set.
        apply_debug_options: Accepted, without effect.

    Raises:
        OutOfRangeError: If the data set has fewer elements.
        ValueError: If `num_elements` is below 1, or a shape is unknown.
    """
    del apply_debug_options
    dataset = dataset_or_infeed
    if not isinstance(dataset, tf.data.Dataset):
        dataset = dataset_or_infeed._dataset  # noqa: SLF001 - the name of the real library
        feed_name = feed_name or str(dataset_or_infeed._id)  # noqa: SLF001
    with tf.device("cpu"):
        extractor = dataset_extractor(dataset, num_elements, output_filename, feed_name)
        _run(extractor)


def export_inputs_to_file(
    inputs: Sequence[Any], output_filename: AnyPath, feed_dict: Mapping[Any, Any]
) -> None:
    """Write values of a graph's inputs to a PopEF file.

    Args:
        inputs: The tensors, under whose names the values are written.
        output_filename: Path of the file.
        feed_dict: Values of the graph's placeholders.
    """
    with tf.device("cpu"):
        names = [tensor.name for tensor in inputs]
        _run(export_variables(inputs, names, output_filename), feed_dict)


def _run(operation: Any, feed_dict: Mapping[Any, Any] | None = None) -> None:
    if not tf.executing_eagerly():
        with tf.compat.v1.Session() as session:
            session.run(operation, feed_dict)


def _find_variables(graph: Any) -> dict[str, Any]:
    with graph.as_default():
        variables = tf.compat.v1.global_variables()
    return dict(zip(_name_variables(variables), variables, strict=True))


def _name_variables(variables: Sequence[Any]) -> list[str]:
    """Return the names of variables; one that occurs again gets a number, as in executables."""
    counts: Counter[str] = Counter()
    names = []
    for name in map(find_handle_name, variables):
        names.append(f"{name}_{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return names


def _read_session(session: Any) -> dict[str, Array]:
    variables = _find_variables(session.graph)
    values = session.run(list(variables.values()))
    return dict(zip(variables, values, strict=True))


def _read_model(model: Any) -> list[Array]:
    if tf.executing_eagerly():
        return [np.asarray(variable.numpy()) for variable in model.variables]
    session = tf.compat.v1.keras.backend.get_session()
    return list(session.run(list(model.variables)))


def _write(values: Mapping[str, Array], output_file: AnyPath, gc_metadata: AnyPath | None) -> None:
    make_folder(output_file)
    try:
        write_variables(values, output_file, gc_metadata)
    except ValueError as error:
        raise _invalid(error) from error


def _select(variables: Mapping[str, Any], files: Sequence[AnyPath]) -> dict[str, Array]:
    expected = {
        name: (tuple(variable.shape), np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype))
        for name, variable in variables.items()
    }
    listed = [files] if isinstance(files, (str, os.PathLike)) else files
    try:
        return select_variables(read_variables(listed), expected)
    except ValueError as error:
        raise _invalid(error) from error


def _invalid(error: ValueError) -> Exception:
    fault: Exception = tf.errors.InvalidArgumentError(None, None, str(error))
    return fault
