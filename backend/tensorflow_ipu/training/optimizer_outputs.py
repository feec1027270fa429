"""What an optimizer function of a pipeline returns: checked and kept, for training is refused."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.training import gradient_capture

_NAME = "OptimizerFunctionOutput"


class OptimizerFunctionOutput:
    """Result of the optimizer function of a pipeline that trains."""

    def __init__(
        self,
        opt: Any,
        loss: Any,
        compute_gradients_args: tuple[Any, ...] | None = None,
        compute_gradients_kwargs: dict[str, Any] | None = None,
        apply_gradients_args: tuple[Any, ...] | None = None,
        apply_gradients_kwargs: dict[str, Any] | None = None,
        variables: Any = None,
        tape: Any = None,
        gradient_capture_context: Any = None,
        captured_gradient_outfeed: Any = None,
    ) -> None:
        """Keep the parts of the result.

        Args:
            opt: The optimizer.
            loss: Tensor with the loss.
            compute_gradients_args: Positional arguments of `compute_gradients`.
            compute_gradients_kwargs: Named arguments of `compute_gradients`.
            apply_gradients_args: Positional arguments of `apply_gradients`.
            apply_gradients_kwargs: Named arguments of `apply_gradients`.
            variables: Variables to train, for an optimizer of Keras.
            tape: GradientTape, for an optimizer of Keras.
            gradient_capture_context: GradientCaptureContext.
            captured_gradient_outfeed: IPUOutfeedQueue that gets captured gradients.

        Raises:
            TypeError: For a part of another type.
            ValueError: For parts that exclude each other.
        """
        self.opt = opt
        self.loss = loss
        self.compute_gradients_args = compute_gradients_args or ()
        self.compute_gradients_kwargs = compute_gradients_kwargs or {}
        self.apply_gradients_args = apply_gradients_args or ()
        self.apply_gradients_kwargs = apply_gradients_kwargs or {}
        self.variables = variables or ()
        self.tape = tape
        self.gradient_capture_context = gradient_capture_context
        self.captured_gradient_outfeed = captured_gradient_outfeed

    def __setattr__(self, name: str, value: Any) -> None:
        _CHECKS[name](self, value)
        super().__setattr__(name, value)

    def _check_opt(self, value: Any) -> None:
        is_plain = isinstance(value, tf.compat.v1.train.Optimizer)
        if not is_plain and not is_keras_optimizer(value):
            raise TypeError(
                f"{_NAME}.opt must be a TensorFlow Optimizer or Keras OptimizerV2 object."
            )

    def _check_loss(self, value: Any) -> None:
        if not tf.is_tensor(value):
            raise TypeError(f"{_NAME}.loss must be a TensorFlow Tensor object.")

    def _check_compute_args(self, value: Any) -> None:
        self._check_arguments("compute_gradients_args", value, tuple, only_plain=True)

    def _check_compute_kwargs(self, value: Any) -> None:
        self._check_arguments("compute_gradients_kwargs", value, dict, only_plain=True)

    def _check_apply_args(self, value: Any) -> None:
        self._check_arguments("apply_gradients_args", value, tuple)

    def _check_apply_kwargs(self, value: Any) -> None:
        self._check_arguments("apply_gradients_kwargs", value, dict)

    def _check_arguments(
        self, name: str, value: Any, kind: type, *, only_plain: bool = False
    ) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"{_NAME}.{name} must be a {kind.__name__}.")
        if value and only_plain and is_keras_optimizer(self.opt):
            raise ValueError(f"{_NAME}.{name} may not be used with OptimizerV2 instances.")

    def _check_variables(self, value: Any) -> None:
        if not isinstance(value, (tuple, list)):
            raise TypeError(f"{_NAME}.variables must be a tuple or list.")
        if value and not is_keras_optimizer(self.opt):
            raise ValueError(f"{_NAME}.variables may only be used with OptimizerV2.")
        if getattr(self, "tape", None):
            raise ValueError(f"{_NAME}.variables must be empty when {_NAME}.tape is used.")

    def _check_tape(self, value: Any) -> None:
        if not value:
            return
        if not isinstance(value, tf.GradientTape):
            raise TypeError(f"{_NAME}.tape must be a GradientTape.")
        if not is_keras_optimizer(self.opt):
            raise ValueError(f"{_NAME}.tape may only be used with OptimizerV2.")
        if getattr(self, "variables", None):
            raise ValueError(f"{_NAME}.tape may not be used when {_NAME}.variables is nonempty.")
        if getattr(self, "gradient_capture_context", None):
            raise ValueError(
                f"{_NAME}.tape may not be used when {_NAME}.gradient_capture_context is nonempty."
            )

    def _check_context(self, value: Any) -> None:
        if not value:
            return
        kind = getattr(gradient_capture, "GradientCaptureContext", ())
        if not isinstance(value, kind):
            raise TypeError(
                f"{_NAME}.gradient_capture_context must be an "
                "ipu.eager.backprop.GradientCollectionContext."
            )
        if getattr(self, "tape", None):
            raise ValueError(
                f"{_NAME}.gradient_capture_context may not be used when {_NAME}.tape is nonempty."
            )

    def _check_outfeed(self, value: Any) -> None:
        from tensorflow_ipu.feeds.ipu_outfeed_queue import IPUOutfeedQueue

        if not value:
            return
        if not isinstance(value, IPUOutfeedQueue):
            raise TypeError(
                f"{_NAME}.captured_gradient_outfeed must be an instance of IPUOutfeedQueue."
            )
        kind = getattr(gradient_capture, "GradientCaptureTape", ())
        if not isinstance(self.tape, kind) and not self.gradient_capture_context:
            raise ValueError(
                f"{_NAME}.captured_gradient_outfeed may not be used when neither an "
                "ipu.eager.backprop.GradientCollectionContext, nor an "
                "ipu.eager.backprop.GradientCollectionTape is also used."
            )


_CHECKS = {
    "opt": OptimizerFunctionOutput._check_opt,  # noqa: SLF001
    "loss": OptimizerFunctionOutput._check_loss,  # noqa: SLF001
    "compute_gradients_args": OptimizerFunctionOutput._check_compute_args,  # noqa: SLF001
    "compute_gradients_kwargs": OptimizerFunctionOutput._check_compute_kwargs,  # noqa: SLF001
    "apply_gradients_args": OptimizerFunctionOutput._check_apply_args,  # noqa: SLF001
    "apply_gradients_kwargs": OptimizerFunctionOutput._check_apply_kwargs,  # noqa: SLF001
    "variables": OptimizerFunctionOutput._check_variables,  # noqa: SLF001
    "tape": OptimizerFunctionOutput._check_tape,  # noqa: SLF001
    "gradient_capture_context": OptimizerFunctionOutput._check_context,  # noqa: SLF001
    "captured_gradient_outfeed": OptimizerFunctionOutput._check_outfeed,  # noqa: SLF001
}


def is_keras_optimizer(value: Any) -> bool:
    """Return whether a value is an optimizer of any Keras."""
    return any(
        "Optimizer" in kind.__name__ and "keras" in kind.__module__ for kind in type(value).__mro__
    )
