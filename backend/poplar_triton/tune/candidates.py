"""Configurations that are compared: engines, threads, instances, batching and the mode of
execution. Everything else of a model's configuration stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from poprt.triton import ModelConfig

from poplar_triton.errors import CommandError

ONNXRUNTIME, OPENVINO = "onnxruntime", "openvino"
_THREADS, _SYNCHRONOUS = "sim_threads", "synchronous_execution"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings of a configuration. `threads` 0: the cores are divided among the instances."""

    engine: str
    threads: int
    instances: int
    batches: bool
    is_synchronous: bool

    def cells(self) -> list[str]:
        """Return the settings in words, in the order of COLUMNS."""
        return [
            self.engine,
            str(self.threads or "shared"),
            str(self.instances),
            "yes" if self.batches else "no",
            "synchronous" if self.is_synchronous else "asynchronous",
        ]

    def apply(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration with these settings."""
        changed = type(config)()
        changed.CopyFrom(config)
        if self == read_candidate(config):
            return changed
        changed.optimization.execution_accelerators.ClearField("cpu_execution_accelerator")
        if self.engine != ONNXRUNTIME:
            accelerators = changed.optimization.execution_accelerators
            accelerators.cpu_execution_accelerator.add(name=self.engine)
        elif not changed.optimization.execution_accelerators.ByteSize():
            changed.optimization.ClearField("execution_accelerators")
            if not changed.optimization.ByteSize():
                changed.ClearField("optimization")
        _set_parameter(changed, _THREADS, str(self.threads) if self.threads else "")
        _set_parameter(changed, _SYNCHRONOUS, "1" if self.is_synchronous else "0")
        _set_instances(changed, self.instances)
        if self.batches and not changed.HasField("dynamic_batching"):
            changed.dynamic_batching.SetInParent()
        elif not self.batches:
            changed.ClearField("dynamic_batching")
        return changed


COLUMNS = ("engine", "threads", "instances", "batches", "execution")


def read_candidate(config: ModelConfig) -> Candidate:
    """Return the settings of a configuration. Raises CommandError for one that is not served on
    the CPU, or whose scheduler cannot be chosen."""
    if config.WhichOneof("scheduling_choice") not in (None, "dynamic_batching"):
        raise CommandError(
            f"model {config.name!r}: expected dynamic_batching or no scheduler, found "
            f"{config.WhichOneof('scheduling_choice')}; tune measures single requests"
        )
    gpu = config.instance_group and config.instance_group[0].KIND_GPU
    if any(group.kind == gpu for group in config.instance_group):
        raise CommandError(
            f"model {config.name!r} has instances of KIND_GPU; tune measures the CPU only: set "
            "KIND_CPU"
        )
    chosen = config.optimization.execution_accelerators.cpu_execution_accelerator
    return Candidate(
        chosen[0].name if chosen else ONNXRUNTIME,
        int(_read_parameter(config, _THREADS) or 0),
        sum(group.count or 1 for group in config.instance_group) or 1,
        config.HasField("dynamic_batching"),
        _read_parameter(config, _SYNCHRONOUS).strip().lower() in ("1", "true"),
    )


def find_engines() -> list[str]:
    """Return the engines that are installed here."""
    return [ONNXRUNTIME, *([OPENVINO] if find_spec("openvino") else [])]


def list_layouts(current: Candidate, cores: int, engines: Sequence[str]) -> list[Candidate]:
    """Return the current settings, then others with each engine, and the cores as threads of one
    instance, as instances of one thread, and both in between."""
    layouts = [(cores // instances, instances) for instances in _iter_divisors(cores)]
    layouts.append((1, 1))
    candidates = [
        replace(current, engine=engine, threads=threads, instances=instances)
        for threads, instances in layouts
        for engine in engines
    ]
    return list(dict.fromkeys([current, *candidates]))


def list_modes(best: Candidate, *, may_batch: bool) -> list[Candidate]:
    """Return the best settings so far with the other mode of execution, and with batching on or
    off."""
    modes = [replace(best, is_synchronous=not best.is_synchronous)]
    return [*modes, replace(best, batches=not best.batches)] if may_batch else modes


def _iter_divisors(cores: int) -> Iterator[int]:
    """Yield at most four numbers of instances among which the cores are divided evenly."""
    divisors = [number for number in range(1, cores + 1) if cores % number == 0]
    yield from dict.fromkeys([1, *divisors[1:3], cores])


def _set_instances(config: ModelConfig, count: int) -> None:
    if sum(group.count or 1 for group in config.instance_group) == count:
        return
    first: Any = config.instance_group[0] if config.instance_group else None
    settings = type(config)()
    if first is not None:
        settings.instance_group.add().CopyFrom(first)
    else:
        settings.instance_group.add(kind="KIND_CPU")
    settings.instance_group[0].count = count
    config.ClearField("instance_group")
    config.instance_group.extend(settings.instance_group)


def _read_parameter(config: ModelConfig, name: str) -> str:
    return config.parameters[name].string_value if name in config.parameters else ""


def _set_parameter(config: ModelConfig, name: str, text: str) -> None:
    if text:
        config.parameters[name].string_value = text
    elif name in config.parameters:
        del config.parameters[name]
