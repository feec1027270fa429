"""Classification of instances that have lost their process: those that Triton still serves are
dead.

A process also ends in order: its model is unloaded, gets fewer instances or did not load, or the
process only completed the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from poplar_triton.errors import ServerError
from poplar_triton.serving.endpoint import Endpoint
from poplar_triton.serving.stubs import Stub

_GPU = re.compile(r"_gpu\d+$")


class DeadStubClassifier:
    """Queries a server for what it serves. If the server does not answer, every lost instance
    counts as dead.

    It does not use the repository index, because Triton reads the repository for it. If the
    repository's store is unreachable, Triton answers no other request on that thread for half a
    minute.

    A server with models from a store (`is_remote`) does not tell a stub the name of its model if
    the instance group has a name of its own. Then the group is looked up in the models'
    configurations.
    """

    def __init__(self, endpoint: Endpoint, *, is_remote: bool = False) -> None:
        self._endpoint = endpoint
        self._is_remote = is_remote
        self._names: set[str] = set()
        self._met: set[str] = set()

    def learn_models(self, living: Iterable[Stub]) -> None:
        """Learn the names of a store's models when one is new: it has just been loaded from
        there."""
        met = {stub.model for stub in living} if self._is_remote else set()
        if not met <= self._met:
            self._met = met
            with suppress(ServerError):
                self._names = {model.name for model in self._endpoint.list_models()}

    def classify(self, lost: Iterable[Stub]) -> tuple[set[Stub], list[Stub]]:
        """Return the dead stubs among these, under their models' names, and the stubs whose
        instances are no longer served."""
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
        """Return the stub under the name of its model."""
        if not self._is_remote or stub.model in self._names:
            return stub
        group = _split(stub.instance)[0]
        found = (name for name in sorted(self._names) if group in (self._read_groups(name) or ()))
        return replace(stub, model=next(found, stub.model))

    def _has(self, stub: Stub) -> bool:
        """Return whether the server serves such an instance."""
        groups = self._read_groups(stub.model, stub.version)
        group, place = _split(stub.instance)
        return groups is not None and (not groups or place < groups.get(group, 0))

    def _read_groups(self, model: str, version: str = "") -> Mapping[str, int] | None:
        """Return how many instances each group of a model has, or None if the model is not
        served."""
        config = self._endpoint.read_config(model, version)
        return None if config is None else _count_instances(config)


def _count_instances(config: Mapping[str, Any]) -> dict[str, int]:
    return {
        str(group.get("name", "")): int(group.get("count", 1))
        for group in config.get("instance_group", ())
    }


def _split(instance: str) -> tuple[str, int]:
    """Return an instance's group and its index there."""
    group, _, place = _GPU.sub("", instance).rpartition("_")
    return group, int(place) if place.isdecimal() else 0
