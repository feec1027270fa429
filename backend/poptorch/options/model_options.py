"""Options of PopTorch models.

All facts about an option stand in its row of a table: names, type, default, and what it changes
here. Options without an effect are accepted; docs/poptorch.md lists them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from popef._tools.options import make_table
from popef._tools.variables import ENGINE_OPTIONS as ENGINE_VARIABLE
from poptorch import enums
from poptorch._logging import logger
from poptorch.options import config_files, strategies
from poptorch.options.parts import (
    PopartGroup,
    PopartOptions,
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from poptorch.options.settings import BOOL, DICT, INT, TEXT, Option, OptionGroup, typed

_ENGINE_OPTIONS: Final = ("debug.allowOutOfMemory", "autoReport.directory", "autoReport.all")
_OFFLINE_VERSIONS: Final = (1, 2, 21)
_RANDOM_NORMAL: Final = 2
"""Value of popart's SyntheticDataMode."""
_SOURCE_EXCLUDES: Final = ["install/poptorch", "site-packages/torch", "site-packages/poptorch"]


def _of_class(kind: type) -> Callable[[Any], Any]:
    """Return a check that a value is a member of an enumeration."""

    def check(value: Any) -> Any:
        assert isinstance(value, kind), f"expected a poptorch.{kind.__name__}, found {value!r}"
        return value

    return check


def _check_seed(value: Any) -> Any:
    assert isinstance(value, int), f"a random seed is an integer, found {value!r}"
    torch.manual_seed(value)
    return value


def _check_positive(name: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        assert not isinstance(value, int) or value > 0, f"{name} must be positive, found {value}"
        return value

    return check


class Options(PopartGroup):
    """How a model is compiled and run; pass it to inferenceModel and DataLoader.

    Setters return the object itself, so that calls can be chained. The options are frozen when a
    model or a DataLoader gets them.

    Example:
        >>> options = Options().deviceIterations(4)
        >>> options.device_iterations
        4
    """

    OPTIONS = make_table(
        Option(
            "replication_factor",
            "Number of replicas of the model.",
            setter="replicationFactor",
            kind=INT,
            default=1,
            effect="A call computes this many parts of its inputs at once.",
            convert=_check_positive("replicationFactor"),
        ),
        Option(
            "input_group_size",
            "Replicas that share a part of the inputs.",
            kind=INT,
            default=1,
        ),
        Option(
            "input_group_comm_type",
            "Which replicas share a part of the inputs.",
            kind=typed(enums.CommGroupType),
            default=enums.CommGroupType.Consecutive,
        ),
        Option(
            "device_iterations",
            "Number of batches that one call computes.",
            setter="deviceIterations",
            kind=INT,
            default=1,
            effect="A call computes this many parts of its inputs one after the other.",
            convert=_check_positive("deviceIterations"),
        ),
        Option(
            "log_dir",
            "Folder of log files.",
            setter="logDir",
            kind=TEXT,
            default=".",
        ),
        Option(
            "max_repeat_logs",
            "Number of times that a log line is repeated; None for no limit.",
            kind=typed((int, type(None))),
            default=4,
        ),
        Option(
            "auto_round_num_ipus",
            "Whether more IPUs are reserved where no device has the number used.",
            setter="autoRoundNumIPUs",
            kind=BOOL,
            default=False,
            effect="Without it, a number of IPUs that is no power of two is an error.",
            argument=True,
        ),
        Option(
            "anchored_tensors",
            "Tensors that getAnchoredTensor returns.",
            kind=DICT,
            default={},
        ),
        Option(
            "output_mode",
            "Iterations whose outputs a call returns.",
            kind=typed(enums.OutputMode),
            default=enums.OutputMode.Default,
            effect="Which of the iterations' outputs a call returns.",
        ),
        Option(
            "output_return_period",
            "Period of the output mode EveryN.",
            kind=INT,
            default=1,
        ),
        Option(
            "connection_type",
            "Time at which a model attaches to its device.",
            setter="connectionType",
            kind=typed(enums.ConnectionType),
            default=enums.ConnectionType.Always,
            effect="A model with ConnectionType.Never compiles but does not run.",
            convert=_of_class(enums.ConnectionType),
        ),
        Option(
            "sync_pattern",
            "Way in which IPUs synchronize.",
            setter="syncPattern",
            kind=typed(enums.SyncPattern),
            default=enums.SyncPattern.Full,
            convert=_of_class(enums.SyncPattern),
        ),
        Option(
            "available_memory_proportion",
            "Memory proportion by IPU.",
            kind=DICT,
            default={},
        ),
        Option(
            "broadcast_buffers",
            "Whether all replicas have the same buffers.",
            setter="broadcastBuffers",
            kind=BOOL,
            default=True,
            effect="Buffers that change need False if there are several replicas.",
            argument=True,
        ),
        Option(
            "model_name",
            'Name of the model; by default "inference".',
            setter="modelName",
            kind=TEXT,
            effect="The folder that enableProfiling writes the model's profile to.",
        ),
        Option(
            "use_model",
            "Whether to use the IPU Model instead of IPUs.",
            setter="useIpuModel",
            kind=BOOL,
            effect="The IPU Model counts no cycles.",
        ),
        Option(
            "ipu_id",
            "Id of the device.",
            setter="useIpuId",
            kind=INT,
            effect="The device of the simulated machine that the model attaches to.",
        ),
        Option(
            "ipu_version",
            "Version of the offline IPU: 1, 2 or 21.",
            kind=INT,
        ),
        Option(
            "random_seed",
            "Seed of random numbers; torch's seed is set too.",
            setter="randomSeed",
            kind=INT,
            effect="Seed of the random operators.",
            convert=_check_seed,
        ),
        Option(
            "enableStableNorm",
            "Whether norms are computed in a more precise way.",
            setter="enableStableNorm",
            kind=BOOL,
            popart=True,
        ),
        Option(
            "syntheticDataMode",
            "Whether the device makes up the inputs.",
            setter="enableSyntheticData",
            kind=INT,
            convert=lambda enabled: _RANDOM_NORMAL if enabled else 0,
            popart=True,
        ),
        Option(
            "instrumentWithHardwareCycleCounter",
            "Whether cycleCount() is available.",
            setter="logCycleCount",
            kind=BOOL,
            effect="cycleCount() returns the modelled cycles.",
            popart=True,
        ),
    )

    def __init__(self) -> None:
        super().__init__(PopartOptions())
        self._jit = _JitOptions()
        self._precision = _PrecisionOptions(self._popart_options)
        self._training = _TrainingOptions(self._popart_options)
        self._distributed = _DistributedOptions()
        self._tensor_locations = _TensorLocationOptions()
        self._execution_strategy: strategies.ExecutionStrategy = strategies.PipelinedExecution()
        self._updatable_named_buffers: list[str] = []
        self._show_progress_bar = True
        self._module_namescope = True
        self._source_location_excludes = list(_SOURCE_EXCLUDES)
        cache = os.environ.get("POPTORCH_CACHE_DIR", "")
        if cache:
            logger.info("POPTORCH_CACHE_DIR is set: setting cache path to %s", cache)
            self.enableExecutableCaching(cache)
        config_files.load_defaults(self)

    @property
    def Jit(self) -> _JitOptions:
        """Options of tracing."""
        return self._jit

    @property
    def Precision(self) -> _PrecisionOptions:
        """Options of number formats."""
        return self._precision

    @property
    def Training(self) -> _TrainingOptions:
        """Options of training."""
        return self._training

    @property
    def Distributed(self) -> _DistributedOptions:
        """Options of runs in several processes."""
        return self._distributed

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Places of tensors."""
        return self._tensor_locations

    @property
    def _Popart(self) -> PopartOptions:
        """PopART's options."""
        return self._popart_options

    @property
    def execution_strategy(self) -> strategies.ExecutionStrategy:
        """Strategy that `setExecutionStrategy` set."""
        return self._execution_strategy

    @property
    def updatable_named_buffers(self) -> list[str]:
        """Buffers that `updatableNamedBuffers` named."""
        return self._updatable_named_buffers

    @property
    def shows_progress_bar(self) -> bool:
        """Whether compiling shows its progress."""
        return self._show_progress_bar

    @property
    def has_module_namescope(self) -> bool:
        """Whether operators are named after the modules they stand in."""
        return self._module_namescope

    def parts(self) -> tuple[Any, ...]:
        """Return the groups of options within this one."""
        return (
            self._jit,
            self._precision,
            self._training,
            self._distributed,
            self._tensor_locations,
            self._popart_options,
        )

    def setExecutionStrategy(self, strategy: strategies.ExecutionStrategy) -> Options:
        """Set the strategy that places blocks on IPUs."""
        assert isinstance(strategy, strategies.ExecutionStrategy), (
            f"expected a strategy as poptorch.PipelinedExecution(), found {strategy!r}"
        )
        self._execution_strategy = strategy
        return self

    def outputMode(
        self, output_mode: enums.OutputMode, output_return_period: int | None = None
    ) -> Options:
        """Set the iterations whose outputs a call returns.

        Args:
            output_mode: All, Final, Sum or EveryN.
            output_return_period: N of EveryN.

        Returns:
            The options.
        """
        assert isinstance(output_mode, enums.OutputMode), (
            f"expected a poptorch.OutputMode, found {output_mode!r}"
        )
        if output_mode is enums.OutputMode.EveryN:
            assert output_return_period is not None, _PERIOD_TEXT
            assert output_return_period > 0, _PERIOD_TEXT
        elif output_return_period:
            logger.info("output_return_period has no effect with output mode %s", output_mode.name)
        self.set(output_mode=output_mode, output_return_period=output_return_period or 1)
        return self

    anchorMode = outputMode
    anchorReturnType = outputMode

    def defaultOutputMode(self) -> bool:
        """Return whether no output mode is set."""
        return bool(self.output_mode == enums.OutputMode.Default)

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: enums.OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> Options:
        """Name a tensor that getAnchoredTensor returns.

        Args:
            short_name: Name for getAnchoredTensor.
            long_name: Name of the tensor, one of getTensorNames.
            output_mode: Iterations whose values are returned; by default as for the outputs.
            output_return_period: N of EveryN.

        Returns:
            The options.
        """
        self.check_frozen()
        period = output_return_period if output_mode is enums.OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]
        return self

    def inputReplicaGrouping(
        self, input_group_size: int, input_group_comm_type: enums.CommGroupType
    ) -> Options:
        """Let replicas share parts of the inputs.

        Args:
            input_group_size: Number of replicas of a group.
            input_group_comm_type: Consecutive or Orthogonal.

        Returns:
            The options.
        """
        self.set(input_group_size=input_group_size, input_group_comm_type=input_group_comm_type)
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: Any) -> Options:
        """Set the memory proportion by IPU, as {"IPU0": 0.5}."""
        proportions = {}
        for key, value in available_memory_proportion.items():
            assert key.startswith("IPU"), (
                'Available memory proportions are expected to be in a dictionary of {"IPU0": 0.5} '
                f"where the 0 in IPU is the index of the IPU. Invalid key: {key}"
            )
            proportions[int(key.removeprefix("IPU"))] = value
        self.set(available_memory_proportion=proportions)
        return self

    def maxRepeatLogs(self, max_lines: int | None) -> Options:
        """Set how often a log line is repeated; accepted without effect."""
        self.set(max_repeat_logs=max_lines)
        return self

    def updatableNamedBuffers(self, buffers: Sequence[str]) -> Options:
        """Name the buffers that copyNamedBuffersToDevice uploads."""
        self._updatable_named_buffers = list(buffers)
        self._popart_options.set("updatableNamedBuffers", list(buffers))
        return self

    def enableExecutableCaching(self, path: str | None) -> Options:
        """Set the folder of compiled models; None for no cache."""
        if path is not None:
            self._popart_options.set("cachePath", str(path))
        self._popart_options.set("enableEngineCaching", path is not None)
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Options:
        """Compile for an IPU that is not there, of version 1, 2 or 21."""
        assert ipu_version in _OFFLINE_VERSIONS, (
            f"ipu_version must be one of {_OFFLINE_VERSIONS}, found {ipu_version!r}"
        )
        self.connectionType(enums.ConnectionType.Never)
        self.set(ipu_version=ipu_version)
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> Options:
        """Write the model's profile.json and profile.pop to NAME in a folder, by default "."."""
        text = os.environ.get(ENGINE_VARIABLE, "")
        if any(name in text for name in _ENGINE_OPTIONS):
            logger.warning(
                "Profiling setting overriden by environment variable. "
                "Check content of POPLAR_ENGINE_OPTIONS."
            )
        values = ("true", profile_dir or ".", "true")
        engine = {
            **self._popart_options.options.get("engineOptions", {}),
            **dict(zip(_ENGINE_OPTIONS, values, strict=True)),
        }
        self._popart_options.setEngineOptions(engine)
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Options:
        """Set whether compiling shows its progress."""
        self._show_progress_bar = show
        return self

    def disableModuleNamescope(self) -> Options:
        """Name operators without the modules they stand in."""
        self._module_namescope = False
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Options:
        """Accept whether checks of optimizers are relaxed; training only."""
        self.check_frozen()
        logger.debug("relaxOptimizerAttributesChecks(%s) has no effect", relax)
        return self

    def sourceLocationExcludes(self, excludes: Sequence[str]) -> Options:
        """Set which source files are left out of locations; accepted without effect."""
        self._source_location_excludes = list(excludes)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Options:
        """Add source files that are left out of locations; accepted without effect."""
        self._source_location_excludes = [*self._source_location_excludes, *excludes]
        return self

    def loadFromFile(self, filepath: str) -> Options:
        """Set options from a file with a setter a line, as `deviceIterations(1)`.

        Args:
            filepath: The file.

        Returns:
            The options.
        """
        config_files.load_options(self, filepath)
        return self

    def toDict(self) -> dict[str, Any]:
        """Return all options by name, those of the parts and PopART's too."""
        assert not self.defaultOutputMode(), "An output mode must be picked before serialisation"
        values = {**self._execution_strategy.backend_options(), **self._popart_options.options}
        values.update(self._values)
        for part in (self._training, self._distributed, self._tensor_locations):
            values.update(part.toDict())
        return {name: value for name, value in values.items() if value is not None}

    def clone(self) -> Any:
        """Return a copy that can be changed."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self._values.items()]
        parts = [f"{type(part).__name__.strip('_')}={part!r}" for part in self.parts()]
        strategy = f"execution_strategy={self._execution_strategy!r}"
        return f"{type(self).__name__}({', '.join([*values, strategy, *parts])})"


_PERIOD_TEXT: Final = "EveryN anchor must have output_return_period set to valid positive integer"
GROUPS: Final[dict[str, type[OptionGroup]]] = {
    "Options": Options,
    "Options.Precision": _PrecisionOptions,
    "Options.Training": _TrainingOptions,
    "Options.Distributed": _DistributedOptions,
    "Options.TensorLocations": _TensorLocationOptions,
    "TensorLocationSettings": TensorLocationSettings,
}
"""Groups of options by the name that scripts use."""


def known_names() -> set[str]:
    """Return the names of PopTorch's own entries of `Options.toDict`."""
    names = {
        option.name
        for group in GROUPS.values()
        for option in group.OPTIONS.values()
        if not option.popart
    }
    return names.union(strategies.BACKEND_NAMES)
