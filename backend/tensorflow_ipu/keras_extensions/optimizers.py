"""Keras optimizers of the IPU: they can be made and given to `compile`, but not train."""

from __future__ import annotations

from typing import Any, ClassVar, Final, NoReturn

from tensorflow_ipu.keras_extensions.dialects import default_dialect, loaded_dialects
from tensorflow_ipu.training.refusals import refuse_training

_OPTIONS: Final = frozenset(
    {
        "initial_loss_scaling_factor",
        "update_frequency",
        "increase_factor",
        "max_loss_scaling_factor",
        "accumulate_statistics_over_update_period",
        "ratio_threshold",
        "captured_grads_only",
        "lpf_alpha",
        "histogram_bin_edge",
        "num_mini_batches",
        "offload_weight_update_variables",
        "replicated_optimizer_state_sharding",
        "dtype",
        "reduction_method",
    }
)
"""Options of the wrappers, which have no effect on inference."""


class ALSOptimizer:
    """An optimizer that scales its loss automatically.

    Args:
        opt: Keras' optimizer.
        options: Options of the scaling, without effect on inference.

    Returns:
        An optimizer of the class of `opt`, with its settings, that raises an error when it trains.

    Raises:
        TypeError: An option is unknown, or `opt` is no optimizer.
    """

    def __new__(cls, opt: Any, **options: Any) -> Any:
        name = options.pop("name", cls.__name__)
        unknown = sorted(options.keys() - _OPTIONS)
        if unknown:
            raise TypeError(f"{cls.__name__}: unknown option {unknown[0]!r}")
        if not hasattr(opt, "get_config"):
            raise TypeError(f"{cls.__name__}: opt: expected an optimizer, found {type(opt)}")

        def refuse(*_: Any, **__: Any) -> NoReturn:
            refuse_training(f"{cls.__name__}.apply_gradients")

        methods = dict.fromkeys(("apply_gradients", "minimize", "apply"), refuse)
        wrapped: Any = type(cls.__name__, (type(opt),), methods)
        return wrapped.from_config({**opt.get_config(), "name": name})


class GradientAccumulationOptimizer(ALSOptimizer):
    """An optimizer that accumulates gradients.

    Args:
        opt: Keras' optimizer.
        num_mini_batches: Number of batches.
        options: Further options, without effect on inference.
    """

    def __new__(cls, opt: Any, num_mini_batches: int, **options: Any) -> Any:
        return super().__new__(cls, opt, num_mini_batches=num_mini_batches, **options)


class ALSGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """An optimizer that scales its loss automatically and accumulates gradients."""


class _ALSOptimizerOf(ALSOptimizer):
    """An optimizer of a certain class that scales its loss automatically."""

    optimizer: ClassVar[str]
    """Name of the class."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        dialect = next(loaded_dialects(), None) or default_dialect()
        scaling = {key: options.pop(key) for key in sorted(_OPTIONS & options.keys())}
        name = options.pop("name", cls.__name__)
        opt = dialect.optimizer_class(cls.optimizer)(*args, **options)
        return super().__new__(cls, opt, **scaling, name=name)


class ALSOptimizerSGD(_ALSOptimizerOf):
    """SGD that scales its loss automatically. Its first arguments are those of SGD."""

    optimizer = "SGD"


class ALSOptimizerAdam(_ALSOptimizerOf):
    """Adam that scales its loss automatically. Its first arguments are those of Adam."""

    optimizer = "Adam"


class ALSOptimizerRMSProp(_ALSOptimizerOf):
    """RMSprop that scales its loss automatically. Its first arguments are those of RMSprop."""

    optimizer = "RMSprop"
