"""Export of models for TensorFlow Serving."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import tensorflow as tf

from tensorflow_ipu.keras_extensions.dialects import dialect_of
from tensorflow_ipu.keras_extensions.pipelines import make_stages


def export_model(
    model: Any,
    export_dir: str,
    batch_size: int | None = None,
    output_names: Any = None,
    preprocessing_step: Any = None,
    preprocessing_step_signature: Any = None,
    postprocessing_step: Any = None,
    postprocessing_step_signature: Any = None,
    purge_export_dir: bool = False,
) -> Any:
    """Export a model as a SavedModel that runs its executable.

    Args:
        model: The extended model.
        export_dir: Folder to write to.
        batch_size: Rows of a batch, where the model does not say.
        output_names: Name, or names, of the outputs.
        preprocessing_step: Function that is called before the model, on the CPU.
        preprocessing_step_signature: TensorSpecs of its arguments.
        postprocessing_step: Function that is called after the model, on the CPU.
        postprocessing_step_signature: TensorSpecs of its arguments.
        purge_export_dir: Whether to empty the folder first.

    Returns:
        The function that was exported.

    Raises:
        ValueError: The rows of a batch are not known, or the folder is not empty.
    """
    serving = import_module("tensorflow_ipu.serving")
    signature = _find_signature(model, batch_size)
    options = {
        "output_names": output_names,
        "preprocessing_step": preprocessing_step,
        "preprocessing_step_signature": preprocessing_step_signature,
        "postprocessing_step": postprocessing_step,
        "postprocessing_step_signature": postprocessing_step_signature,
        "purge_export_dir": purge_export_dir,
        "predict_step_signature": signature,
    }
    iterations = dialect_of(model).steps_per_execution(model)
    if model._is_pipelined():
        first, *others = make_stages(model, tuple(signature), evaluates=False)
        stages = [lambda *inputs: first(_pack_inputs(inputs)), *others]
        mapping = model._pipelining_device_mapping
        return serving.export_pipeline(
            stages, export_dir, iterations, device_mapping=mapping, **options
        )

    def predict_step(*inputs: Any) -> Any:
        return model(_pack_inputs(inputs))

    return serving.export_single_step(
        tf.function(predict_step, autograph=False), export_dir, iterations, **options
    )


def _pack_inputs(inputs: tuple[Any, ...]) -> Any:
    return inputs[0] if len(inputs) == 1 else list(inputs)


def _find_signature(model: Any, batch_size: int | None) -> list[tf.TensorSpec]:
    """Return the TensorSpecs of a model's inputs, with the rows of a batch."""
    specs = dialect_of(model).input_specs(model)
    if specs is None:
        raise RuntimeError(
            "Cannot get model's input signature. Please specify the input shape using "
            "`model.build()` or invoke your model using real data."
        )
    if batch_size is not None:
        rows = int(batch_size)
        return [tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype, spec.name) for spec in specs]
    if not all(spec.shape.is_fully_defined() for spec in specs):
        raise ValueError(
            "Not all dimensions of inputs can be determined. Please specify batch size in model's "
            "input layer or specify `batch_size` parameter when exporting model."
        )
    return list(specs)
