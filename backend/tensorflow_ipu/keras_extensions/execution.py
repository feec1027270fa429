"""`predict` and `evaluate` of extended models, which run loops of steps on the IPU."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.platform import tf_logging as logging

from tensorflow_ipu.keras_extensions.data_handler import IPUDataHandler
from tensorflow_ipu.keras_extensions.delegation import accept_any_signature
from tensorflow_ipu.keras_extensions.dialects import dialect_of
from tensorflow_ipu.keras_extensions.placement import Placement
from tensorflow_ipu.keras_extensions.polling import (
    PollingThread,
    PollingThreadPredict,
    merge_into_batch_dimension,
)
from tensorflow_ipu.keras_extensions.step_functions import StepFunctions
from tensorflow_ipu.keras_extensions.training_errors import TrainingErrors


class Mode(enum.Enum):
    """Kind of execution."""

    FIT = 1
    EVALUATE = 2
    PREDICT = 3


_NAMES: Final = {Mode.EVALUATE: "test", Mode.PREDICT: "predict"}
"""Kind of execution to its name in callbacks."""
_HANDLER_OPTIONS: Final = ("max_queue_size", "workers", "use_multiprocessing")


class Execution(StepFunctions, TrainingErrors, Placement):
    """Execution of a model's steps."""

    def _build_with_dtypes(self, input_shape: Any, input_dtype: Any) -> None:
        """Build the model for inputs of the shapes and types of the data."""
        raise NotImplementedError

    def _predict_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _predict_delegate(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
        **options: Any,
    ) -> Any:
        self._check_mode("predict")
        with self.distribute_strategy.scope():
            handler = self._make_data_handler(options, x=x, batch_size=batch_size, steps=steps)
            run = _PredictRun(self, Mode.PREDICT, handler, callbacks, verbose)
            run.execute()
            return run.join_outputs()

    def _evaluate_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _evaluate_delegate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = 1,
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **options: Any,
    ) -> Any:
        dialect = dialect_of(self)
        dialect.check_compiled(self, "evaluate")
        self._check_mode("evaluate")
        with self.distribute_strategy.scope():
            handler = self._make_data_handler(
                options, x=x, y=y, batch_size=batch_size, steps=steps, sample_weight=sample_weight
            )
            dialect.prepare_evaluation(self, handler.element_spec)
            run = _EvaluateRun(self, Mode.EVALUATE, handler, callbacks, verbose)
            run.execute()
        return run.logs if return_dict else dialect.flatten_metrics(self, run.logs)

    def _check_mode(self, method: str) -> None:
        if getattr(self, "run_eagerly", False):
            raise RuntimeError(
                "Keras models cannot run eagerly when using `IPUStrategy`. Set `run_eagerly=False` "
                "when calling `compile`."
            )
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"Detected a call to `Model.{method}` inside a `tf.function`. `Model.{method} is a "
                f"high-level endpoint that manages its own `tf.function`. Please move the call to "
                f"`Model.{method}` outside of all enclosing `tf.function`s."
            )

    def _make_data_handler(self, options: dict[str, Any], **data: Any) -> IPUDataHandler:
        """Make the handler of the data, build the model for it, and find the replicas."""
        handler = IPUDataHandler(
            steps_per_epoch=data.pop("steps"),
            model=self,
            steps_per_execution=dialect_of(self).steps_per_execution(self),
            replication_factor=None,
            **data,
            **{name: options[name] for name in _HANDLER_OPTIONS if name in options},
        )
        self._build_with_dtypes(*self._get_x_shape_and_dtype(handler))
        # A subclassed model knows its pipeline stages, thus its replicas, only once it is built.
        handler.set_replication_factor(self._get_replication_factor())
        return handler

    def _get_x_shape_and_dtype(self, handler: IPUDataHandler) -> tuple[Any, Any]:
        """Return the shapes of the inputs, at least of rank 2, and their types."""
        specs, _, _ = dialect_of(self).unpack(handler.element_spec)

        def shape_of(spec: Any) -> tuple[int, ...]:
            shape = tuple(spec.shape.as_list())
            return (*shape, 1) if len(shape) == 1 else shape

        return (
            tf.nest.map_structure(shape_of, specs),
            tf.nest.map_structure(lambda spec: spec.dtype, specs),
        )

    def _log_steps_per_execution_warning(self, steps_per_execution: int) -> None:
        if steps_per_execution == 1:
            logging.info(
                f"The model `{self.name}` has been configured with only {steps_per_execution} "
                "steps per execution. Consider increasing the value for the `steps_per_execution` "
                "argument passed to the `compile()` method to improve performance."
            )


class _Run:
    """One call of `predict` or `evaluate`."""

    accumulates = False
    """Whether results are those of all steps of an execution, divided by their number."""
    polling_thread: Callable[..., PollingThread] = PollingThread

    def __init__(
        self, model: Any, mode: Mode, handler: IPUDataHandler, callbacks: Any, verbose: Any
    ) -> None:
        self.model, self.mode, self.handler = model, mode, handler
        self.replicas = model._get_replication_factor()
        self.steps_per_execution = handler.steps_per_execution_value
        self.callbacks = self._make_callbacks(callbacks, verbose)
        # Neither sums of many steps nor synthetic data have results of each step.
        self.is_asynchronous = model._asynchronous_callbacks and not (
            self.accumulates or model._use_synthetic_data
        )

    def execute(self) -> None:
        """Run all steps, with callbacks."""
        model, name = self.model, _NAMES[self.mode]
        if hasattr(model, f"_{name}_counter"):
            getattr(model, f"_{name}_counter").assign(0)
        self.begin()
        outfeed = model._outfeed_manager.get_outfeed(self.mode, model._outfeed_kwargs)
        try:
            for _, iterator in self.handler.enumerate_epochs_with_reuse(
                model._infeed_manager, self.mode, model._infeed_kwargs
            ):
                function = model._make_step_function(name, self.steps_per_execution, self.replicas)
                model._log_steps_per_execution_warning(self.steps_per_execution)
                self._run_steps(function, iterator, outfeed)
        finally:
            model._outfeed_manager.clear(self.mode)
        self.end()

    def begin(self) -> None:
        """Call what comes before the first step."""
        raise NotImplementedError

    def end(self) -> None:
        """Call what comes after the last step."""
        raise NotImplementedError

    def collect(self, outfeed: Any) -> Any:
        """Take the results of an execution, keep them, and return them for callbacks."""
        raise NotImplementedError

    def begin_batch(self, step: int) -> None:
        """Call the callbacks before a step."""
        raise NotImplementedError

    def end_batch(self, step: int, data: Any) -> None:
        """Call the callbacks after a step."""
        raise NotImplementedError

    def keep_polled(self, thread: PollingThread) -> None:
        """Keep the results that a polling thread has taken."""
        raise NotImplementedError

    def is_stopped(self) -> bool:
        """Return whether a callback of Keras 3 has ended the run."""
        return False

    def _run_steps(self, function: Any, iterator: Any, outfeed: Any) -> None:
        thread = self._start_polling(outfeed) if self.is_asynchronous else None
        arguments = (self.steps_per_execution, iterator, outfeed)
        for step in self.handler.steps():
            if thread is None:
                self.begin_batch(step)
            try:
                self.model.distribute_strategy.run(function, args=arguments)
            except Exception:
                if thread is not None:
                    thread.cancel()
                raise
            counter = getattr(self.model, f"_{_NAMES[self.mode]}_counter", None)
            if counter is not None:
                counter.assign_add(self.steps_per_execution)
            if thread is None:
                self.end_batch(step + self.handler.step_increment, self.collect(outfeed))
            if self.is_stopped():
                break
        if thread is not None:
            if self.is_stopped():
                thread.cancel()
            thread.join()
            self.keep_polled(thread)

    def _start_polling(self, outfeed: Any) -> PollingThread:
        thread = self.polling_thread(
            outfeed,
            self.handler.inferred_steps,
            self.replicas,
            self.begin_batch,
            self.end_batch,
        )
        thread.start()
        return thread

    def _make_callbacks(self, callbacks: Any, verbose: Any) -> Any:
        callback_list = dialect_of(self.model).callback_list_class
        if isinstance(callbacks, callback_list):
            return callbacks
        verbose = 1 if verbose == "auto" else verbose
        return callback_list(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            model=self.model,
            verbose=verbose,
            epochs=1,
            steps=self.handler.inferred_steps,
        )

    def _take_results(self, outfeed: Any) -> Any:
        """Return what an execution has enqueued: zeros where the data is synthetic."""
        if self.model._use_synthetic_data:
            axes = [self.steps_per_execution, *([self.replicas] if self.replicas > 1 else [])]
            return tf.nest.map_structure(
                lambda spec: tf.zeros([*axes, *spec.shape], spec.dtype), outfeed._structure
            )
        return outfeed.dequeue()


class _PredictRun(_Run):
    """One call of `predict`."""

    polling_thread = PollingThreadPredict

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._outputs: list[Any] = []

    def begin(self) -> None:
        self.model.__dict__["stop_predicting"] = False
        self.callbacks.on_predict_begin()

    def begin_batch(self, step: int) -> None:
        self.callbacks.on_predict_batch_begin(step)

    def end_batch(self, step: int, data: Any) -> None:
        self.callbacks.on_predict_batch_end(step, {"outputs": data})

    def collect(self, outfeed: Any) -> Any:
        results = merge_into_batch_dimension(self._take_results(outfeed), self.replicas)
        self._outputs.append(results)
        return results

    def keep_polled(self, thread: PollingThread) -> None:
        self._outputs.extend(thread.get_result() or ())

    def is_stopped(self) -> bool:
        return bool(self.model.__dict__.get("stop_predicting"))

    def end(self) -> None:
        if not self._outputs:
            raise ValueError("Expect x to be a non-empty array or dataset.")
        self.callbacks.on_predict_end()

    def join_outputs(self) -> Any:
        """Return the outputs of all executions, as numpy arrays."""
        return tf.nest.map_structure(
            lambda *parts: np.concatenate([part.numpy() for part in parts]), *self._outputs
        )


class _EvaluateRun(_Run):
    """One call of `evaluate`."""

    def __init__(self, model: Any, *arguments: Any) -> None:
        self.accumulates = bool(
            model._is_pipelined_or_unknown() and model._pipelining_accumulate_outfeed
        )
        super().__init__(model, *arguments)
        self.logs: dict[str, Any] = {}

    def begin(self) -> None:
        self.model.__dict__["stop_evaluating"] = False
        self.callbacks.on_test_begin()
        self.model.reset_metrics()

    def begin_batch(self, step: int) -> None:
        self.callbacks.on_test_batch_begin(step)

    def end_batch(self, step: int, data: Any) -> None:
        self.callbacks.on_test_batch_end(step, data)

    def collect(self, outfeed: Any) -> Any:
        results = self._take_results(outfeed)
        results = tf.nest.map_structure(lambda tensor: tensor[-1], results)
        if self.replicas > 1:
            results = tf.nest.map_structure(lambda tensor: tensor[-1], results)
        if self.accumulates and isinstance(results, (list, tuple)):
            results = results[0]
        self.logs = results
        return results

    def keep_polled(self, thread: PollingThread) -> None:
        self.logs = thread.get_result() or {}

    def is_stopped(self) -> bool:
        return bool(self.model.__dict__.get("stop_evaluating"))

    def end(self) -> None:
        self.logs = dialect_of(self.model).to_numbers(self.logs)
        self.callbacks.on_test_end(logs=self.logs)
