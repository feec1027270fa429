"""Stages, phases and execution strategies: which stage a block belongs to.

A strategy changes no result. `placement` has the blocks, and what a capture records of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from poptorch._logging import logger
from poptorch.enums import AutoStage, Liveness

BACKEND_NAMES: Final = frozenset(
    {"execution_mode", "separate_backward_phase", "tensors_liveness", "serial_phases_execution"}
)
"""Entries of `Options.toDict` that strategies have."""


class Stage:
    """One or more blocks that run on one IPU."""

    def __init__(self, *block_ids: str) -> None:
        assert all(isinstance(block, str) for block in block_ids), (
            f"Block IDs are supposed to be strings but got {block_ids}"
        )
        self._blocks = block_ids
        self.stage_id = -1
        self.phase_id = -1
        self.ipu_id: int | None = None

    @property
    def blocks(self) -> tuple[str, ...]:
        """Ids of the blocks of the stage."""
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        """Set the IPU that runs the stage; return the stage."""
        assert isinstance(ipu, int), f"an IPU is an integer, found {ipu!r}"
        self.ipu_id = ipu
        return self

    def __repr__(self) -> str:
        place = "" if self.ipu_id is None else f".ipu({self.ipu_id})"
        return f"Stage({', '.join(map(repr, self._blocks))}){place}"


class Phase:
    """Stages that run in parallel in one phase of phased execution."""

    def __init__(self, *arg: str | Stage) -> None:
        if all(isinstance(item, Stage) for item in arg):
            self.stages: Sequence[Any] = arg
            return
        assert all(isinstance(item, str) for item in arg), (
            "All arguments must either be block IDs (strings) or Stages: "
            f"{[type(item) for item in arg]}"
        )
        self.stages = [Stage(*(str(item) for item in arg))]

    def stage(self, idx: int) -> Any:
        """Return the stage at an index."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> None:
        """Set the IPU of each stage."""
        assert len(ipus) == len(self.stages), (
            f"Phase contains {len(self.stages)} stages but you provided {len(ipus)} ipus"
        )
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self.stages))})"


class ExecutionStrategy:
    """Base of the strategies: which stage a block belongs to."""

    def __init__(self, stages: dict[str, Stage], auto_stage: AutoStage) -> None:
        self._stages = stages
        self._auto_stage = auto_stage

    def stage(self, block_id: str) -> Stage:
        """Return the stage that a block was given to.

        Args:
            block_id: Id of the block.

        Returns:
            The stage.
        """
        assert block_id in self._stages, f"Unknown block {block_id}"
        return self._stages[block_id]

    def find_stage(self, block_id: str, ipu_id: int | None, begun: dict[str, Stage]) -> Stage:
        """Return the stage of a block that begins.

        Args:
            block_id: Id of the block.
            ipu_id: IPU that the block names, if any.
            begun: Stages made so far in this capture, by block; a new one is added.
        """
        if self._stages:
            assert block_id in self._stages, (
                f"Unknown Block '{block_id}' list of expected Blocks: {list(self._stages)}"
            )
            return self._stages[block_id]
        if block_id not in begun:
            stage = Stage(block_id)
            if self._auto_stage is AutoStage.SameAsIpu:
                assert ipu_id is not None, (
                    "poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for "
                    f"block {block_id}"
                )
                stage.stage_id = ipu_id
            else:
                stage.stage_id = len(begun) + 1
            begun[block_id] = stage
        return begun[block_id]

    def backend_options(self) -> dict[str, Any]:
        """Return the strategy's entries of `Options.toDict`."""
        return {}

    def __repr__(self) -> str:
        stages = list(dict.fromkeys(self._stages.values()))
        inner = ", ".join(map(repr, stages)) or str(self._auto_stage)
        return f"{type(self).__name__}({inner})"


def _add_blocks(stages: dict[str, Stage], stage: Stage, what: str) -> None:
    """Note the blocks of a stage; a block has one stage."""
    for block in stage.blocks:
        assert block not in stages, f"{block} associated with more than one stage"
        place = "" if stage.ipu_id is None else f" on IPU {stage.ipu_id}"
        logger.debug("block %s added to %s%s", block, what, place)
        stages[block] = stage


class PipelinedExecution(ExecutionStrategy):
    """Stages run as a pipeline: each IPU works on another batch."""

    def __init__(self, *args: AutoStage | Stage | str | Sequence[str]) -> None:
        stages: dict[str, Stage] = {}
        auto_stage = AutoStage.SameAsIpu
        if len(args) == 1 and isinstance(args[0], AutoStage):
            auto_stage = args[0]
            args = ()
        for number, arg in enumerate(args):
            stage = self._make_stage(arg)
            stage.stage_id = number
            _add_blocks(stages, stage, f"stage {number}")
        super().__init__(stages, auto_stage)

    @staticmethod
    def _make_stage(given: Any) -> Stage:
        match given:
            case Stage():
                return given
            case str():
                return Stage(given)
            case list() | tuple():
                return Stage(*given)
        raise AssertionError(
            f"a stage is a poptorch.Stage, a block's id or a list of ids, found {given!r}"
        )

    def backend_options(self) -> dict[str, Any]:
        """Return the strategy's entries of `Options.toDict`."""
        return {"execution_mode": 0}


class ShardedExecution(PipelinedExecution):
    """Stages run one after the other, each on its IPU."""

    def backend_options(self) -> dict[str, Any]:
        """Return the strategy's entries of `Options.toDict`."""
        return {"execution_mode": 1}


class _PhasedExecution(ExecutionStrategy):
    """Base of the strategies that run blocks in phases."""

    serial = False

    def __init__(self, *phases: Phase | Sequence[Any] | str) -> None:
        assert phases, (
            "There is currently no AutoStage for PhasedExecution, please explicitly specify the "
            "phases"
        )
        self._liveness = Liveness.AlwaysLive
        self._separate_backward_phase = False
        self._phases = [self._make_phase(phase) for phase in phases]
        stages: dict[str, Stage] = {}
        for number, phase in enumerate(self._phases):
            for stage in phase.stages:
                stage.phase_id = number
                _add_blocks(stages, stage, f"phase {number}")
        super().__init__(stages, AutoStage.SameAsIpu)

    @staticmethod
    def _make_phase(given: Any) -> Phase:
        if isinstance(given, Phase):
            return given
        return Phase(*given) if isinstance(given, (list, tuple)) else Phase(given)

    def phase(self, phase: int) -> Phase:
        """Return the phase with a number."""
        assert isinstance(phase, int), f"Phases are identified by positive integers: {phase!r}"
        assert phase >= 0, f"Phases are identified by positive integers: {phase!r}"
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Any:
        """Set whether the backward pass has phases of its own (training only)."""
        assert isinstance(use, bool), f"useSeparateBackwardPhase expects a bool, found {use!r}"
        self._separate_backward_phase = use
        return self

    def backend_options(self) -> dict[str, Any]:
        """Return the strategy's entries of `Options.toDict`."""
        return {
            "execution_mode": 2,
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._liveness.value,
            "serial_phases_execution": self.serial,
        }


class ParallelPhasedExecution(_PhasedExecution):
    """Phases alternate between two groups of IPUs."""

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> ParallelPhasedExecution:
        """Set whether tensors leave the chip after the forward pass."""
        assert isinstance(off_chip, bool), f"expected a bool, found {off_chip!r}"
        self._liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self


class SerialPhasedExecution(_PhasedExecution):
    """All phases run on the same group of IPUs, one after the other."""

    serial = True

    def setTensorsLiveness(self, liveness: Liveness) -> SerialPhasedExecution:
        """Set how long tensors stay on the chip."""
        assert isinstance(liveness, Liveness), f"expected a poptorch.Liveness, found {liveness!r}"
        self._liveness = liveness
        return self
