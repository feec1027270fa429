"""Export of models for TensorFlow Serving: SavedModels that run an executable of the IPU.

A step becomes a loop with an infeed and an outfeed, which is compiled with its variables as
constants. The SavedModel's function starts the executable, its asset, in the embedded runtime. All
this happens in eager mode, also where a script of TensorFlow 1 has disabled it.
"""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

Step = Callable[..., Any]
Signature = Sequence[Any]


def export_single_step(
    predict_step: Step,
    export_dir: str | os.PathLike[str],
    iterations: int,
    predict_step_signature: Signature | None = None,
    input_dataset: Any = None,
    output_names: str | list[str] | None = None,
    preprocessing_step: Step | None = None,
    preprocessing_step_signature: Signature | None = None,
    postprocessing_step: Step | None = None,
    postprocessing_step_signature: Signature | None = None,
    purge_export_dir: bool = False,
) -> Any:
    """Compile a function and write a SavedModel that runs it.

    Args:
        predict_step: The function, which the IPU computes.
        export_dir: Folder of the SavedModel.
        iterations: Number of iterations of the compiled loop.
        predict_step_signature: A TensorSpec for each argument of the function. It can be left out
            for a tf.function with an input_signature, and with `input_dataset`.
        input_dataset: A tf.data.Dataset with elements like the arguments of the first function.
        output_names: Names of the outputs; by default output_0, output_1 and so on.
        preprocessing_step: Function that the CPU computes before; its results are the arguments.
        preprocessing_step_signature: A TensorSpec for each of its arguments.
        postprocessing_step: Function that the CPU computes after, of the results.
        postprocessing_step_signature: A TensorSpec for each of its arguments.
        purge_export_dir: Whether to empty the folder.

    Returns:
        The exported function.

    Raises:
        ValueError: If the folder is not empty, or signatures are missing or contradict each other.
        TypeError: If an argument has another type.
    """
    plan = _Export(
        predict_step,
        export_dir,
        predict_step_signature,
        input_dataset,
        output_names,
        preprocessing_step,
        preprocessing_step_signature,
        postprocessing_step,
        postprocessing_step_signature,
        purge_export_dir,
    )
    infeed, outfeed = _make_feeds(plan.predict_signature)
    step = tf.function(predict_step) if not _is_function(predict_step) else predict_step

    def enqueue_step(*inputs: Any) -> Any:
        return outfeed.enqueue(step(*inputs))

    def loop() -> Any:
        from tensorflow_ipu.feeds import loops

        return loops.repeat(iterations, enqueue_step, [], infeed)

    return plan.write(loop)


def export_pipeline(
    computational_stages: Sequence[Step],
    export_dir: str | os.PathLike[str],
    iterations: int,
    inputs: Sequence[Any] | None = None,
    device_mapping: Sequence[int] | None = None,
    pipeline_schedule: Any = None,
    poplar_options: Any = None,
    name: str | None = None,
    predict_step_signature: Signature | None = None,
    input_dataset: Any = None,
    output_names: str | list[str] | None = None,
    preprocessing_step: Step | None = None,
    preprocessing_step_signature: Signature | None = None,
    postprocessing_step: Step | None = None,
    postprocessing_step_signature: Signature | None = None,
    purge_export_dir: bool = False,
) -> Any:
    """Compile a pipeline and write a SavedModel that runs it.

    Args:
        computational_stages: Functions; each gets the results of the one before.
        export_dir: Folder of the SavedModel.
        iterations: Number of batches of a run of the pipeline.
        inputs: First arguments of the first stage, which are compiled in.
        device_mapping: Number of the IPU of each stage.
        pipeline_schedule: Schedule of the pipeline.
        poplar_options: Options of each stage.
        name: Name of the pipeline.
        predict_step_signature: A TensorSpec for each argument of the first stage.
        input_dataset: As for `export_single_step`.
        output_names: As for `export_single_step`.
        preprocessing_step: As for `export_single_step`.
        preprocessing_step_signature: As for `export_single_step`.
        postprocessing_step: As for `export_single_step`.
        postprocessing_step_signature: As for `export_single_step`.
        purge_export_dir: As for `export_single_step`.

    Returns:
        The exported function.

    Raises:
        ValueError: As for `export_single_step`.
        TypeError: As for `export_single_step`.
    """
    plan = _Export(
        computational_stages[0],
        export_dir,
        predict_step_signature,
        input_dataset,
        output_names,
        preprocessing_step,
        preprocessing_step_signature,
        postprocessing_step,
        postprocessing_step_signature,
        purge_export_dir,
        inputs,
    )
    infeed, outfeed = _make_feeds(plan.predict_signature)

    def run_pipeline() -> Any:
        from tensorflow_ipu.operators import pipelining_ops

        return pipelining_ops.pipeline(
            computational_stages=list(computational_stages),
            gradient_accumulation_count=iterations,
            inputs=inputs,
            infeed_queue=infeed,
            outfeed_queue=outfeed,
            device_mapping=device_mapping,
            pipeline_schedule=pipeline_schedule,
            forward_propagation_stages_poplar_options=poplar_options,
            name=name,
        )

    return plan.write(run_pipeline)


def export_keras(
    model: Any,
    export_dir: str | os.PathLike[str],
    batch_size: int | None = None,
    output_names: str | list[str] | None = None,
    preprocessing_step: Step | None = None,
    preprocessing_step_signature: Signature | None = None,
    postprocessing_step: Step | None = None,
    postprocessing_step_signature: Signature | None = None,
    purge_export_dir: bool = False,
) -> Any:
    """Compile a Keras model and write a SavedModel that runs it.

    Args:
        model: The model, made in the scope of an IPUStrategy.
        export_dir: Folder of the SavedModel.
        batch_size: Rows of a batch, where the model does not say.
        output_names: As for `export_single_step`.
        preprocessing_step: As for `export_single_step`.
        preprocessing_step_signature: As for `export_single_step`.
        postprocessing_step: As for `export_single_step`.
        postprocessing_step_signature: As for `export_single_step`.
        purge_export_dir: As for `export_single_step`.

    Returns:
        The exported function.

    Raises:
        ValueError: If the model was not made in the scope of an IPUStrategy, and as for
            `export_single_step`.
    """
    if not hasattr(model, "export_for_ipu_serving"):
        raise ValueError(
            "Provided model was not created inside an IPU strategy, so it does not contain "
            "IPU-specific functions. Please wrap its creation inside an IPU strategy."
        )
    return model.export_for_ipu_serving(
        export_dir,
        batch_size,
        output_names,
        preprocessing_step,
        preprocessing_step_signature,
        postprocessing_step,
        postprocessing_step_signature,
        purge_export_dir,
    )


class _Export:
    """The checked arguments of an export."""

    def __init__(
        self,
        predict_step: Step,
        export_dir: str | os.PathLike[str],
        predict_signature: Signature | None,
        dataset: Any,
        output_names: str | list[str] | None,
        before: Step | None,
        before_signature: Signature | None,
        after: Step | None,
        after_signature: Signature | None,
        purge: bool,
        inputs: Sequence[Any] | None = None,
    ) -> None:
        folder = Path(export_dir)
        if folder.is_dir() and any(folder.iterdir()) and not purge:
            raise ValueError(
                f'Directory "{export_dir}" is not empty. Please specify an empty directory.'
            )
        _check_dataset(dataset)
        if before is None:
            _check_first("predict_step", predict_step, predict_signature, dataset)
        else:
            _check_first("preprocessing_step", before, before_signature, dataset)
            if predict_signature is None:
                _check_function("predict_step", predict_step)
        if after is not None and after_signature is None:
            _check_function("postprocessing_step", after)
        for name, signature in (
            ("preprocessing_step_signature", before_signature),
            ("postprocessing_step_signature", after_signature),
            ("predict_step_signature", predict_signature),
        ):
            _check_signature(name, signature)
        self._folder, self._purge, self._names = folder, purge, output_names
        self._before, self._after = before, after
        skipped = len(inputs or ())
        taken_from = None if before is not None else dataset
        self.predict_signature = _find_signature(
            predict_step, predict_signature, taken_from, skipped
        )
        self._before_signature = (
            None if before is None else _find_signature(before, before_signature, dataset)
        )
        self._after_signature = (
            None if after is None else _find_signature(after, after_signature, None)
        )

    def write(self, function: Step) -> Any:
        """Compile a function with feeds, and write the SavedModel.

        Returns:
            The exported function.
        """
        import poplar_serving

        from tensorflow_ipu.files.application_compile_op import (
            experimental_application_compile_op,
        )
        from tensorflow_ipu.files.application_runtime import load_operators

        load_operators()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "application.popef"
            with tf.init_scope(), context.eager_mode():
                experimental_application_compile_op(
                    function, output_path=file, freeze_variables=True
                )
                exported = poplar_serving.export(
                    file,
                    self._folder,
                    predict_step_signature=self.predict_signature,
                    output_names=self._names,
                    preprocessing_step=self._before,
                    preprocessing_step_signature=self._before_signature,
                    postprocessing_step=self._after,
                    postprocessing_step_signature=self._after_signature,
                    purge_export_dir=self._purge,
                )
        with tf.init_scope():
            return exported if tf.executing_eagerly() else _make_graph_function(exported)


def _make_graph_function(exported: Any) -> Any:
    """Return a function of a graph's tensors that calls a function of eager mode."""
    with context.eager_mode():
        results = exported.get_concrete_function().structured_outputs
    specs = tf.nest.flatten(results)

    def run(*arrays: Any) -> list[Any]:
        with context.eager_mode():
            outputs = exported(*(tf.constant(array) for array in arrays))
            return [tensor.numpy() for tensor in tf.nest.flatten(outputs)]

    def call(*inputs: Any) -> Any:
        outputs = tf.numpy_function(run, list(inputs), [spec.dtype for spec in specs])
        for tensor, spec in zip(outputs, specs, strict=True):
            tensor.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(results, outputs)

    return call


def _is_function(step: Any) -> bool:
    return hasattr(step, "get_concrete_function")


def _check_dataset(dataset: Any) -> None:
    if dataset is not None and not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "If `input_dataset` is provided, it should be an instance of tf.Dataset, found "
            f"{type(dataset).__name__}"
        )


def _check_first(name: str, step: Step, signature: Signature | None, dataset: Any) -> None:
    """Check that the signature of the first function is known, and only once."""
    if signature is not None and dataset is not None:
        raise ValueError(
            f"Both `{name}_signature` and `input_dataset` cannot be provided. Please pass only one "
            "of them."
        )
    if signature is None and dataset is None:
        _check_function(name, step, " or `input_dataset`")


def _check_function(name: str, step: Any, other: str = "") -> None:
    if not _is_function(step):
        raise ValueError(
            f"`input_signature` deduction from given `{name}` is not possible. Please mark it as "
            f"tf.function with `input_signature` parameter set or provide `{name}_signature`"
            f"{other}."
        )
    if step.input_signature is None:
        raise ValueError(
            f"Empty `input_signature` inside provided tf.function `{name}`. Please specify it or "
            f"provide `{name}_signature`{other}."
        )


def _check_signature(name: str, signature: Any) -> None:
    if signature is None:
        return
    if not isinstance(signature, (tuple, list)):
        raise TypeError(
            f"`{name}` must be an instance of tuple or list. Received {type(signature)}"
        )
    if not signature:
        raise ValueError(f"`{name}` must be not empty.")
    for place, spec in enumerate(signature):
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(f"`{name}[{place}]` is not an instance of TensorSpec")


def _find_signature(
    step: Any, signature: Signature | None, dataset: Any, skipped: int = 0
) -> list[Any]:
    """Return the TensorSpecs of a function's arguments, under the names of its parameters.

    `skipped` arguments are compiled in; a signature may have them or not.
    """
    if signature is None and dataset is not None:
        spec = dataset.element_spec
        signature = tuple(spec) if isinstance(spec, (tuple, list)) else (spec,)
    elif signature is None:
        signature = step.input_signature
    assert signature is not None
    parameters = list(inspect.signature(getattr(step, "python_function", step)).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        labels = [spec.name or f"input_{place}" for place, spec in enumerate(signature)]
    else:
        labels = [parameter.name for parameter in parameters][skipped:]
        if len(signature) > len(labels):
            signature = signature[skipped:]
    if len(labels) != len(signature):
        raise ValueError(
            f"Length of input_signature does not match the number of "
            f"{getattr(step, '__name__', 'function')} arguments, input_signature : {signature}, "
            f"names : {labels}"
        )
    return [
        tf.TensorSpec(spec.shape, spec.dtype, label)
        for spec, label in zip(signature, labels, strict=True)
    ]


def _make_feeds(signature: Sequence[Any]) -> tuple[Any, Any]:
    """Return an infeed of elements with a signature, and an outfeed."""
    from tensorflow_ipu.feeds.ipu_infeed_queue import IPUInfeedQueue
    from tensorflow_ipu.feeds.ipu_outfeed_queue import IPUOutfeedQueue

    with tf.init_scope(), context.eager_mode():
        zeros = tuple(tf.zeros(spec.shape, spec.dtype) for spec in signature)
        dataset = tf.data.Dataset.from_tensors(zeros).repeat()
        return IPUInfeedQueue(dataset), IPUOutfeedQueue()
