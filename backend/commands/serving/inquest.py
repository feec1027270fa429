"""Which of the instances that have lost their process are dead: those that Triton still serves.

A process also ends in order, when its model is unloaded, is given fewer instances or did not load, or when it
was there to complete the configuration only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from commands.errors import ServerError
from commands.serving.endpoint import Endpoint
from commands.serving.stubs import Stub

_SERVED = "READY"
_GPU = re.compile(r"_gpu\d+$")


class Inquest:
    """Asks a server what it serves. Where it does not answer, every lost instance counts as dead.

    A server with models out of a store (`is_remote`) does not tell a stub which model it is of, where the
    instance group has a name of its own: then the group is looked for in the models' configurations.
    """

    def __init__(self, endpoint: Endpoint, *, is_remote: bool = False) -> None:
        self._endpoint = endpoint
        self._is_remote = is_remote

    def divide(self, lost: Iterable[Stub]) -> tuple[set[Stub], list[Stub]]:
        """The dead among these, under their models' names, and those whose instances are no more."""
        lost = list(lost)
        try:
            models = self._endpoint.list_models(served=True)
        except ServerError:
            return set(lost), []
        served = {(each.name, each.version) for each in models if each.state == _SERVED}
        dead, gone = set(), []
        groups: dict[str, Mapping[str, int]] = {}
        for stub in lost:
            known = self._name(stub, served, groups)
            if (known.model, known.version) in served and self._has(known, groups):
                dead.add(known)
            else:
                gone.append(stub)
        return dead, gone

    def _name(
        self, stub: Stub, served: Iterable[tuple[str, str]], groups: dict[str, Mapping[str, int]]
    ) -> Stub:
        """The stub under the name of its model."""
        names = {name for name, _ in served}
        if not self._is_remote or stub.model in names:
            return stub
        group = _split(stub.instance)[0]
        found = (name for name in sorted(names) if group in self._read_groups(name, groups))
        return replace(stub, model=next(found, stub.model))

    def _has(self, stub: Stub, groups: dict[str, Mapping[str, int]]) -> bool:
        """Whether its model has such an instance; where that cannot be known, yes."""
        known = self._read_groups(stub.model, groups)
        group, place = _split(stub.instance)
        return not known or place < known.get(group, 0)

    def _read_groups(self, model: str, groups: dict[str, Mapping[str, int]]) -> Mapping[str, int]:
        """How many instances each group of a model has; nothing where the server does not say."""
        if model not in groups:
            try:
                groups[model] = _count_instances(self._endpoint.read_config(model))
            except ServerError:
                groups[model] = {}
        return groups[model]


def _count_instances(config: Mapping[str, Any]) -> dict[str, int]:
    return {
        str(group.get("name", "")): int(group.get("count", 1)) for group in config.get("instance_group", ())
    }


def _split(instance: str) -> tuple[str, int]:
    """An instance's group and its place there."""
    group, _, place = _GPU.sub("", instance).rpartition("_")
    return group, int(place) if place.isdecimal() else 0
