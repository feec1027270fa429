"""Factories of the usual predicates, under the two spellings in releases of the real library."""

from model_runtime.predicate_factory import anchor_callbacks
from model_runtime.predicate_factory.anchor_callbacks import (
    orBind,
    predProgramFlowMain,
    predProgramNotAssigned,
)

__all__ = ["anchor_callbacks", "orBind", "predProgramFlowMain", "predProgramNotAssigned"]
