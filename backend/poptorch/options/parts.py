"""The parts of Options: PopART's, precision, training, distribution and tensor locations.

`options` has Options itself and says how the tables are read.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any, Final

import torch

from popef._tools.options import make_table
from poptorch import enums
from poptorch._logging import logger
from poptorch.options.settings import BOOL, DICT, INT, Option, OptionGroup, typed

_MIN_IO_TILES, _MAX_IO_TILES = 32, 192


def _check_reduction(value: Any) -> Any:
    if value not in (enums.ReductionType.Mean, enums.ReductionType.Sum):
        raise ValueError(
            "accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean "
            "or poptorch.ReductionType.Sum"
        )
    return value


def _read_location(value: Any) -> dict[str, int]:
    assert isinstance(value, TensorLocationSettings), (
        f"expected poptorch.TensorLocationSettings, found {value!r}"
    )
    return value.toDict()


def _check_io_tiles(value: Any) -> Any:
    assert isinstance(value, int), f"numIOTiles must be an integer, found {value!r}"
    assert _MIN_IO_TILES <= value <= _MAX_IO_TILES, _IO_TILES_TEXT
    assert value % 2 == 0, _IO_TILES_TEXT
    return value


_IO_TILES_TEXT: Final = "numIOTiles must be an even number between 32 and 192."


class PopartOptions:
    """PopART's options by name, `Options._Popart`; they are checked when a model is compiled."""

    def __init__(self) -> None:
        self._frozen = False
        self.options: dict[str, Any] = {"rearrangeAnchorsOnHost": False}

    def set(self, key: str, value: Any) -> PopartOptions:
        """Set one of `popart.SessionOptions`.

        Args:
            key: Name, as "engineOptions" or "batchSerializationSettings.factor".
            value: Value; enumerations as integers.

        Returns:
            This object.
        """
        self._check_frozen()
        self.options[key] = value
        return self

    def setPatterns(self, patterns: Mapping[str, bool], level: int = 2) -> PopartOptions:
        """Set which patterns PopART applies; accepted without effect."""
        assert isinstance(level, int), f"the level of patterns is an integer, found {level!r}"
        assert isinstance(patterns, dict), f"patterns are a dict, found {patterns!r}"
        return self.set("patterns_level", level).set("patterns", patterns)

    def setEngineOptions(self, engine_options: Mapping[str, str]) -> PopartOptions:
        """Set Poplar's options of the engine."""
        return self.set("engineOptions", dict(engine_options))

    def freeze(self) -> None:
        """Reject changes from now on."""
        self._frozen = True

    def _check_frozen(self) -> None:
        if self._frozen:
            raise AttributeError("Can't modify frozen Options")

    def __deepcopy__(self, memo: dict[int, Any]) -> PopartOptions:
        copied = PopartOptions()
        copied.options = copy.deepcopy(self.options, memo)
        return copied

    def __repr__(self) -> str:
        return f"_PopartOptions({self.options})"


class PopartGroup(OptionGroup):
    """Base of the groups that store some options among PopART's."""

    def __init__(self, popart: PopartOptions) -> None:
        super().__init__()
        self._popart_options = popart

    @property
    def popart(self) -> PopartOptions:
        """PopART's options."""
        return self._popart_options


class _JitOptions(OptionGroup):
    """Options of tracing, of which none is left."""

    def traceModel(self, trace_model: bool) -> _JitOptions:
        """Accept False; tracing with TorchScript is no longer supported."""
        if trace_model:
            raise ValueError(
                "Tracing with torch.jit.trace is no longer supported: remove Jit.traceModel(True)"
            )
        logger.warning("[Deprecated] Jit.traceModel(False) has no effect: remove it")
        return self


class _PrecisionOptions(PopartGroup):
    """Options of number formats, `Options.Precision`."""

    OPTIONS = make_table(
        Option(
            "enableFloatingPointChecks",
            "Whether an operation that gives no number raises an error.",
            setter="enableFloatingPointExceptions",
            kind=BOOL,
            popart=True,
        ),
        Option(
            "enableStochasticRounding",
            "Whether results are rounded to half at random.",
            setter="enableStochasticRounding",
            kind=BOOL,
            popart=True,
        ),
    )

    def setPartialsType(self, dtype: Any) -> _PrecisionOptions:
        """Set the type of partial sums: torch.float or torch.half."""
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise ValueError(
                "parameter to setPartialsType should be either torch.float or torch.half, "
                f"found {dtype!r}"
            )
        self.popart.set("partialsTypeMatMuls", names[dtype])
        self.popart.set("convolutionOptions", {"partialsType": names[dtype]})
        return self

    def halfFloatCasting(self, half_float_casting: Any) -> _PrecisionOptions:
        """Accept a way of casting; torch's rules always apply."""
        return self._ignore("halfFloatCasting", half_float_casting)

    def runningStatisticsAlwaysFloat(self, value: bool) -> _PrecisionOptions:
        """Accept a type of running statistics; they have the module's."""
        return self._ignore("runningStatisticsAlwaysFloat", value)

    def autocastEnabled(self, autocast_enabled: bool) -> _PrecisionOptions:
        """Accept automatic casting; types are the module's."""
        return self._ignore("autocastEnabled", autocast_enabled)

    def autocastPolicy(self, autocast_policy: Any) -> _PrecisionOptions:
        """Accept a policy of automatic casting; types are the module's."""
        return self._ignore("autocastPolicy", autocast_policy)

    def _ignore(self, name: str, value: Any) -> _PrecisionOptions:
        self.check_frozen()
        logger.warning("[Deprecated] Precision.%s(%s) has no effect: remove it", name, value)
        return self


class _TrainingOptions(PopartGroup):
    """Options of training, `Options.Training`; they have no effect on inference."""

    OPTIONS = make_table(
        Option(
            "gradient_accumulation",
            "Number of batches whose gradients are added; 1 for inference.",
            setter="gradientAccumulation",
            kind=INT,
            default=1,
            effect="Another value than 1 is an error for inference models.",
        ),
        Option(
            "accumulation_and_replication_reduction_type",
            "Reduction of gradients.",
            setter="accumulationAndReplicationReductionType",
            kind=typed(enums.ReductionType),
            default=enums.ReductionType.Mean,
            convert=_check_reduction,
        ),
        Option(
            "meanAccumulationAndReplicationReductionStrategy",
            "Time at which the mean of gradients is taken.",
            setter="setMeanAccumulationAndReplicationReductionStrategy",
            kind=typed(enums.MeanReductionStrategy),
            default=enums.MeanReductionStrategy.Post,
        ),
        Option(
            "automaticLossScalingSettings.enabled",
            "Whether the loss is scaled automatically.",
            setter="setAutomaticLossScaling",
            kind=BOOL,
            popart=True,
        ),
    )


class _DistributedOptions(OptionGroup):
    """Options of runs in several processes, `Options.Distributed`."""

    OPTIONS = make_table(
        Option(
            "num_distributed_processes",
            "Number of processes.",
            kind=INT,
            default=1,
            effect="A DataLoader loads this process's part of the data set.",
        ),
        Option(
            "distributed_process_id",
            "Number of this process.",
            kind=INT,
            default=0,
            effect="A DataLoader loads this process's part of the data set.",
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> _DistributedOptions:
        """Run in one process."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> _DistributedOptions:
        """Read the number of processes and this one's from environment variables."""
        return self.configureProcessId(
            int(os.environ.get(var_process_id, "0")), int(os.environ.get(var_num_processes, "1"))
        )

    def configureProcessId(self, process_id: int, num_processes: int) -> _DistributedOptions:
        """Set the number of this process and of all of them."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """Number of this process."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return int(self.num_distributed_processes)


class TensorLocationSettings(OptionGroup):
    """Place of tensors, on or off the chip; accepted without effect."""

    OPTIONS = make_table(
        Option(
            "minElementsForOffChip",
            setter="minElementsForOffChip",
            kind=INT,
        ),
        Option(
            "minElementsForReplicatedTensorSharding",
            setter="minElementsForReplicatedTensorSharding",
            kind=INT,
        ),
        Option(
            "onChip",
            kind=INT,
        ),
        Option(
            "useReplicatedTensorSharding",
            setter="useReplicatedTensorSharding",
            kind=INT,
            argument=True,
        ),
        Option(
            "useIOTilesToLoad",
            setter="useIOTilesToLoad",
            kind=INT,
            argument=True,
        ),
        Option(
            "useIOTilesToStore",
            setter="useIOTilesToStore",
            kind=INT,
            argument=True,
        ),
    )

    def useOnChipStorage(self, use: bool | None = True) -> TensorLocationSettings:
        """Set whether tensors stay on the chip; None leaves it open."""
        if use is None:
            self.check_frozen()
            self._values.pop("onChip", None)
        else:
            self.set(onChip=int(use))
        return self

    def toDict(self) -> dict[str, int]:
        """Return the settings by name."""
        return {name: int(value) for name, value in self._values.items()}


class _TensorLocationOptions(OptionGroup):
    """Places of tensors by kind, `Options.TensorLocations`; accepted without effect."""

    OPTIONS = make_table(
        *(
            Option(
                f"location_{kind.lower()}",
                f"Place of {kind.lower()}s.",
                setter=f"set{kind}Location",
                kind=DICT,
                convert=_read_location,
            )
            for kind in ("Activation", "Weight", "Optimizer", "Accumulator")
        ),
        Option(
            "num_io_tiles",
            "Number of tiles that only transfer data.",
            setter="numIOTiles",
            kind=INT,
            convert=_check_io_tiles,
        ),
    )
