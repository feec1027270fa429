"""Training of extended models: the checks of the data and options, then a clear error."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from tensorflow_ipu.keras_extensions.delegation import accept_any_signature
from tensorflow_ipu.keras_extensions.dialects import dialect_of

_REMEDY: Final = (
    "TensorFlow for the IPU runs inference here: use `predict` or `evaluate`, or train a model "
    "that was made outside of the strategy's scope, and load its weights."
)
_DATA: Final = ("x", "y", "sample_weight", "batch_size")


class TrainingErrors:
    """Methods of a model that train."""

    def _fit_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _fit_delegate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, *_: Any, **options: Any
    ) -> NoReturn:
        model: Any = self
        dialect_of(self).check_compiled(self, "fit")
        model._check_mode("fit")
        options.update(x=x, y=y, batch_size=batch_size)
        with model.distribute_strategy.scope():
            data = {name: options.get(name) for name in _DATA}
            handler = model._make_data_handler(
                options, **data, steps=options.get("steps_per_epoch")
            )
            model._verify_and_get_gradient_accumulation_steps_per_replica(
                handler.steps_per_execution_value
            )
        _refuse(model, "fit")

    def _train_on_batch_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _train_on_batch_delegate(self, *_: Any, **__: Any) -> NoReturn:
        dialect_of(self).check_compiled(self, "train_on_batch")
        _refuse(self, "train_on_batch")

    def _verify_and_get_gradient_accumulation_steps_per_replica(
        self, steps_per_execution: int
    ) -> int:
        """Return the number of steps that training would accumulate gradients for.

        Raises:
            ValueError: A pipelined model has no such number.
            RuntimeError: The steps for each execution are not a multiple of it.
        """
        model: Any = self
        if model._is_pipelined():
            kind, steps = "pipelined ", model._pipelining_gradient_accumulation_steps_per_replica
            if steps is None:
                raise ValueError(
                    "The model which you are attempting to train is pipelined, however "
                    "`gradient_accumulation_steps_per_replica` has not been set through "
                    "`set_pipelining_options()`. You need to set this value as pipelined models "
                    "will perform gradient accumulation when training."
                )
        else:
            kind, steps = "", model._gradient_accumulation_steps_per_replica or 1
        if steps_per_execution % steps:
            raise RuntimeError(
                f"The {kind}model has been configured to use gradient accumulation for training, "
                f"however the current `steps_per_execution` value (set to {steps_per_execution}) "
                f"is not divisible by `gradient_accumulation_steps_per_replica` ({steps}). You "
                "need to adjust either `steps_per_execution` or"
                "`gradient_accumulation_steps_per_replica` to make sure that "
                "`steps_per_execution` is divisible by `gradient_accumulation_steps_per_replica`."
            )
        return int(steps)


def _refuse(model: Any, method: str) -> NoReturn:
    raise NotImplementedError(
        f"Training is not supported: `{method}` of the model `{model.name}`, which was made in the "
        f"scope of an IPUStrategy. {_REMEDY}"
    )
