"""Replicas that depend on each other: parameters that differ between them, and collectives.

A parameter with groups has their values along its first axis. The module is captured with the
first group's, as each replica sees one of them; popart then joins the graphs of all replicas.
"""

# ruff: noqa: SLF001 # torch names subclasses of parameters and their owners nowhere else

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import onnx
import popart
import torch
from popart import ReplicaGrouping
from popart.lowering import Joined, SplitWeight, join_replicas

from poptorch.capture.rewriting import convert_around_weights
from poptorch.enums import CommGroupType, VariableRetrievalMode
from poptorch.errors import Error

Grouping = tuple[CommGroupType, int, VariableRetrievalMode]
"""Type of the groups of replicas, their size, and the replicas whose copies are returned."""


class GroupedParameter(torch.nn.Parameter):  # type: ignore[misc]  # mypy sees no torch
    """A parameter of a wrapped module, whose values can differ between replicas."""

    _groupings: dict[str, Grouping]
    _name: str

    @classmethod
    def view(cls, parameter: Any, name: str, groupings: dict[str, Grouping]) -> GroupedParameter:
        """Return a parameter with the storage of another one.

        Args:
            parameter: The other parameter.
            name: Its name in the module.
            groupings: Groups of an executor's parameters, which `replicaGrouping` sets.
        """
        view: GroupedParameter = torch.Tensor._make_subclass(
            cls, parameter.detach(), parameter.requires_grad
        )
        view._name, view._groupings = name, groupings
        return view

    def replicaGrouping(
        self,
        comm_group_type: CommGroupType,
        shards: int,
        variable_retrieval_mode: VariableRetrievalMode,
    ) -> None:
        """Give each of several groups of replicas a value of its own, before the compilation.

        The parameter has the groups' values along its first axis, which `forward` does not see.

        Args:
            comm_group_type: Which replicas form a group; All leaves one value for all of them.
            shards: Number of replicas of a group.
            variable_retrieval_mode: Replicas whose copies are returned.
        """
        self._groupings[self._name] = (comm_group_type, shards, variable_retrieval_mode)


def split_parameters(
    model: Any, groupings: Mapping[str, Grouping], replicas: int
) -> dict[str, SplitWeight]:
    """Return the parameters of a module that differ between replicas, with their values.

    Args:
        model: The module.
        groupings: Groups of its parameters by name.
        replicas: Number of replicas.

    Returns:
        The parameters by name.

    Raises:
        Error: For a name that is no parameter's, a parameter without dimensions, and groups that
            do not divide the replicas or are not as many as the first axis has values.
    """
    parameters = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
    weights = {}
    for name, (kind, size, mode) in groupings.items():
        if name not in parameters:
            raise Error(
                f"replicaGrouping: the model has no parameter {name!r}; it has "
                f"{', '.join(parameters) or 'none'}"
            )
        if kind is CommGroupType.All:
            continue
        values = parameters[name].detach()
        if not values.dim():
            raise Error("Scalars cannot be passed as per-replica weight tensor values")
        groups = _find_groups(name, list(values.shape), (kind, size, mode), replicas)
        weights[name] = SplitWeight(groups, values.cpu().numpy())
    return weights


def _find_groups(name: str, shape: list[int], grouping: Grouping, replicas: int) -> ReplicaGrouping:
    kind, size, mode = grouping
    try:
        settings = popart.VariableSettings(
            popart.CommGroup(popart.CommGroupType(int(kind)), size),
            popart.VariableRetrievalMode(int(mode)),
        )
        groups = settings.getReplicaGrouping(replicas)
        if settings.numReplicasReturningVariable(replicas) != groups.getNumGroups():
            raise Error(
                f"replicaGrouping: parameter {name!r}: VariableRetrievalMode.AllReplicas is not "
                f"supported for groups of {groups.getGroupSize()} replicas, which share a value. "
                "Use OnePerGroup"
            )
        settings.shapeOnReplica(shape, replicas, name)
    except (popart.popart_exception, popart.popart_internal_exception) as error:
        raise Error(str(error), type=type(error).__name__) from error
    if groups.getNumGroups() != shape[0]:
        raise Error(
            f"replicaGrouping: parameter {name!r} has {shape[0]} values along its first axis, "
            f"expected one for each of {groups.getNumGroups()} groups of replicas"
        )
    return groups


@contextmanager
def one_replica(model: Any, names: Collection[str]) -> Iterator[None]:
    """Give parameters of a module their first group's values within.

    Args:
        model: The module.
        names: Names of the parameters.

    Yields:
        Nothing.
    """
    owners = []
    for name in names:
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        owners.append((owner, last, owner._parameters[last]))
    try:
        for owner, name, parameter in owners:
            owner._parameters[name] = torch.nn.Parameter(
                parameter.detach()[0].clone(), requires_grad=parameter.requires_grad
            )
        yield
    finally:
        for owner, name, parameter in owners:
            owner._parameters[name] = parameter


def join(
    model: onnx.ModelProto,
    weights: Collection[str],
    split: Mapping[str, SplitWeight],
    replicas: int,
) -> Joined:
    """Return the model of all replicas, as poprt converts it.

    Args:
        model: The model of one replica, with popart's marks of collectives.
        weights: Names of its weights.
        split: Weights that differ between replicas.
        replicas: Number of replicas.
    """
    joined = join_replicas(model, replicas, split)
    copies = {copy for name in split for copy in joined.inputs[name]}
    names = (set(weights) - split.keys()) | copies
    return replace(joined, model=convert_around_weights(joined.model, names))
