"""Which of the instances that have lost their process are dead: those that Triton still serves.

A process also ends in order, when its model is unloaded, is given fewer instances or did not load, or when it
was there to complete the configuration only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from commands.errors import ServerError
from commands.serving.endpoint import Endpoint
from commands.serving.stubs import Stub

_GPU = re.compile(r"_gpu\d+$")


class Inquest:
    """Asks a server what it serves. Where it does not answer, every lost instance counts as dead.

    Its repository index is not asked for that: it has Triton look into the repository, whose store may be
    away, and then nobody else is answered on that thread for half a minute.

    A server with models out of a store (`is_remote`) does not tell a stub which model it is of, where the
    instance group has a name of its own: then the group is looked for in the models' configurations.
    """

    def __init__(self, endpoint: Endpoint, *, is_remote: bool = False) -> None:
        self._endpoint = endpoint
        self._is_remote = is_remote
        self._names: set[str] = set()
        self._met: set[str] = set()

    def meet(self, living: Iterable[Stub]) -> None:
        """Learn the names of a store's models when one is new, which has just been loaded from there."""
        met = {stub.model for stub in living} if self._is_remote else set()
        if not met <= self._met:
            self._met = met
            with suppress(ServerError):
                self._names = {model.name for model in self._endpoint.list_models()}

    def divide(self, lost: Iterable[Stub]) -> tuple[set[Stub], list[Stub]]:
        """The dead among these, under their models' names, and those whose instances are no more."""
        dead, gone = set(), []
        for stub in lost:
            try:
                known = self._identify(stub)
                is_dead = self._has(known)
            except ServerError:
                known, is_dead = stub, True
            if is_dead:
                dead.add(known)
            else:
                gone.append(stub)
        return dead, gone

    def _identify(self, stub: Stub) -> Stub:
        """The stub under the name of its model."""
        if not self._is_remote or stub.model in self._names:
            return stub
        group = _split(stub.instance)[0]
        found = (name for name in sorted(self._names) if group in (self._read_groups(name) or ()))
        return replace(stub, model=next(found, stub.model))

    def _has(self, stub: Stub) -> bool:
        """Whether the server serves such an instance."""
        groups = self._read_groups(stub.model, stub.version)
        group, place = _split(stub.instance)
        return groups is not None and (not groups or place < groups.get(group, 0))

    def _read_groups(self, model: str, version: str = "") -> Mapping[str, int] | None:
        """How many instances each group of a model has; None where it is not served."""
        config = self._endpoint.read_config(model, version)
        return None if config is None else _count_instances(config)


def _count_instances(config: Mapping[str, Any]) -> dict[str, int]:
    return {
        str(group.get("name", "")): int(group.get("count", 1)) for group in config.get("instance_group", ())
    }


def _split(instance: str) -> tuple[str, int]:
    """An instance's group and its place there."""
    group, _, place = _GPU.sub("", instance).rpartition("_")
    return group, int(place) if place.isdecimal() else 0
