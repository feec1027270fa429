"""Execution accelerators of a model configuration, as Triton's onnxruntime backend reads them:
those of the CPU for instances on the CPU, those of the GPU for instances on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simipu.errors import AcceleratorError

from triton_poplar.errors import ModelConfigError

if TYPE_CHECKING:  # few configurations name accelerators
    from simipu.accelerators import ChosenAccelerator

_DEFAULT_ON_GPU = "cuda"


def read_accelerators(config: Mapping[str, Any], gpu: int | None) -> tuple[ChosenAccelerator, ...]:
    """Return the accelerators of an instance on GPU number `gpu` (None: on the CPU), from Triton's
    JSON form of the configuration.

    An instance on a GPU without a named accelerator uses CUDA. Both lists of the configuration are
    checked. Raises ModelConfigError for an unknown name or parameter, and for a bad value.
    """
    optimization = config.get("optimization") or {}
    accelerators = optimization.get("execution_accelerators") or {}
    on_cpu = _choose(config, accelerators.get("cpu_execution_accelerator") or [], None)
    on_gpu = _choose(config, accelerators.get("gpu_execution_accelerator") or [], gpu or 0)
    if gpu is None:
        return on_cpu
    return on_gpu or _choose(config, [{"name": _DEFAULT_ON_GPU}], gpu)


def _choose(
    config: Mapping[str, Any], entries: list[Mapping[str, Any]], gpu: int | None
) -> tuple[ChosenAccelerator, ...]:
    if not entries:
        return ()
    from simipu.accelerators import choose_accelerator

    kind = "cpu" if gpu is None else "gpu"
    chosen: dict[str, ChosenAccelerator] = {}
    device = {} if gpu is None else {"device_id": str(gpu)}
    try:
        for entry in entries:
            parameters = {**device, **entry.get("parameters", {})}
            accelerator = choose_accelerator(
                str(entry.get("name", "")), parameters, on_gpu=gpu is not None
            )
            if accelerator.name in chosen:
                raise AcceleratorError(f"accelerator {accelerator.name!r} is named twice")
            chosen[accelerator.name] = accelerator
    except AcceleratorError as error:
        raise ModelConfigError(
            f"model {config.get('name', '')!r}: {kind}_execution_accelerator: {error}"
        ) from error
    return tuple(chosen.values())
