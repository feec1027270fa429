"""Optimizers with PopTorch's names: scripts make them before they run inference.

They hold their settings, as torch's do. Only training would use them, which is not supported.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

ACCUM_TYPES: Final = (torch.float32, torch.float16, None)


class VariableAttributes:
    """Names of an optimizer's settings that may change while a model trains."""

    def __init__(self, variable_attrs: Any = (), allowed_attributes: Any = ()) -> None:
        self._allowed = list(allowed_attributes)
        self._variable = set(variable_attrs)

    def isConstant(self, attr: str) -> bool:
        """Return whether a setting is constant."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Declare a setting constant."""
        self._check(attr)
        self._variable.discard(attr)

    def markAsVariable(self, attr: str) -> None:
        """Declare a setting variable."""
        self._check(attr)
        self._variable.add(attr)

    def _check(self, attr: str) -> None:
        assert attr in self._allowed, (
            f"Invalid attribute {attr!r}: expected one of {', '.join(self._allowed)}"
        )


class Optimizer:
    """What PopTorch's optimizers add to torch's: settings by name in each group of parameters."""

    defaults: dict[str, Any]
    param_groups: list[dict[str, Any]]
    variable_attrs: VariableAttributes

    def add_settings(self, **settings: Any) -> None:
        """Add settings to the defaults and to the groups of parameters."""
        for name, value in settings.items():
            if name.endswith("accum_type") and value not in ACCUM_TYPES:
                raise ValueError(f"{name} must be torch.float32 or torch.float16, found {value!r}")
            if not name.endswith("accum_type"):
                self.defaults[name] = value
                for group in self.param_groups:
                    group.setdefault(name, value)
            setattr(self, name, value)
        allowed = [name for name in self.defaults if name != "params"]
        self.variable_attrs = VariableAttributes(allowed, allowed)


class SGD(torch.optim.SGD, Optimizer):  # type: ignore[misc] # torch may be absent
    """Stochastic gradient descent."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool = False,
        accum_type: Any = None,
        velocity_accum_type: Any = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            maximize=maximize,
            foreach=foreach,
            differentiable=differentiable,
        )
        self.add_settings(
            loss_scaling=loss_scaling or 1.0,
            velocity_scaling=velocity_scaling or 1.0,
            max_grad_norm=math.inf if max_grad_norm is None else max_grad_norm,
            accum_type=accum_type,
            velocity_accum_type=velocity_accum_type,
        )
        self.use_combined_accum = use_combined_accum


class Adam(torch.optim.Adam, Optimizer):  # type: ignore[misc] # torch may be absent
    """Adam."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        loss_scaling: float | None = None,
        accum_type: Any = None,
        first_order_momentum_accum_type: Any = None,
        second_order_momentum_accum_type: Any = None,
        max_grad_norm: float | None = None,
        **torch_settings: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **torch_settings)
        self.add_settings(
            loss_scaling=loss_scaling or 1.0,
            max_grad_norm=math.inf if max_grad_norm is None else max_grad_norm,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )


class AdamW(torch.optim.AdamW, Optimizer):  # type: ignore[misc] # torch may be absent
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        loss_scaling: float | None = None,
        bias_correction: bool = True,
        accum_type: Any = None,
        first_order_momentum_accum_type: Any = None,
        second_order_momentum_accum_type: Any = None,
        max_grad_norm: float | None = None,
        **torch_settings: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **torch_settings)
        self.add_settings(
            loss_scaling=loss_scaling or 1.0,
            bias_correction=bias_correction,
            max_grad_norm=math.inf if max_grad_norm is None else max_grad_norm,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )


class RMSprop(torch.optim.RMSprop, Optimizer):  # type: ignore[misc] # torch may be absent
    """RMSprop."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        loss_scaling: float | None = None,
        accum_type: Any = None,
        first_order_momentum_accum_type: Any = None,
        second_order_momentum_accum_type: Any = None,
        use_tf_variant: bool = False,
        **torch_settings: Any,
    ) -> None:
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, centered, **torch_settings)
        self.add_settings(
            loss_scaling=loss_scaling or 1.0,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        self.use_tf_variant = use_tf_variant


class LAMB(torch.optim.Optimizer, Optimizer):  # type: ignore[misc] # torch may be absent
    """Layer-wise adaptive moments."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        bias_correction: bool = True,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: Any = None,
        first_order_momentum_accum_type: Any = None,
        second_order_momentum_accum_type: Any = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "max_weight_norm": math.inf if max_weight_norm is None else max_weight_norm,
        }
        super().__init__(params, defaults)
        self.add_settings(
            loss_scaling=loss_scaling or 1.0,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )

    def step(self, closure: Any = None) -> Any:
        """Raise NotImplementedError: the device of the real module makes the steps."""
        raise NotImplementedError(f"LAMB.step({closure or ''}): training is not supported")
