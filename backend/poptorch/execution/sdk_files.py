"""Blobs that the PopTorch of a real SDK has pickled: its classes as records, then as ours.

Layout of the blob (graphcore/poptorch, python/_poptorch_data.py, _args_parser.py, _options_impl.py
and options.py; pickle protocol 4):

    PoptorchData     version, executable_inputs, options, training, model, _optimizer,
                     optimizer_state, random_seed, rng_state ([seed, *state])
    ArgsParser.Args  _args, _arg_names, _kwargs
    Options          _values: the options by name; _popart.options: those of PopART;
                     _training, _distributed, _tensor_locations: groups with _values of their own;
                     _execution_strategy, whose class says which one it is

Classes of PopTorch whose layout is not ours become records of their attributes. All others, the
user's module among them, are imported as pickle imports them. Unpickling runs code of the file.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from poptorch._logging import logger
from poptorch._poptorch_data import CallInputs, PoptorchData
from poptorch.enums import AutoStage
from poptorch.errors import Error
from poptorch.options import model_options as options_module
from poptorch.options import strategies
from poptorch.options.settings import Option, OptionGroup

_RECORDED: Final = frozenset(
    {
        "poptorch._args_parser",
        "poptorch._options_impl",
        "poptorch._poptorch_data",
        "poptorch.autocasting",
        "poptorch.optim",
        "poptorch.options",
        "popdist.poptorch",
    }
)
"""Modules whose classes have another layout here."""
_RESTORING: Final = "_pickleRestoreWrapperIfPossible"
"""Function of poptorch._impl that pickles name; it returns its argument in another process."""
_GROUPS: Final = {
    "_training": "Training",
    "_distributed": "Distributed",
    "_tensor_locations": "TensorLocations",
}


class SdkRecord:
    """Attributes of an object of a class of the real PopTorch."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Make a record; constructor arguments are not kept."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, Mapping):
            self.__dict__.update(state)


class _SdkUnpickler(pickle.Unpickler):
    """Unpickler that finds PopTorch's classes as records, and says which classes are missing."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _RECORDED:
            return type(name.rpartition(".")[2], (SdkRecord,), {})
        if module == "poptorch._impl" and name == _RESTORING:
            return _return_argument
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            raise _missing_class(module, name, error) from error


def _return_argument(value: Any) -> Any:
    return value


def _missing_class(module: str, name: str, error: Exception) -> Error:
    if module.partition(".")[0] == "poptorch":
        return Error(
            f"the model needs {module}.{name} of a real SDK's PopTorch, which is not available here"
        )
    advice = (
        "define it in the script that loads the file, as the script that wrote it did"
        if module == "__main__"
        else f"install the package, or put the folder of the module {module} on Python's path"
    )
    return Error(f"the model needs {module}.{name}, which cannot be imported: {error}; {advice}")


def unpickle(blob: bytes) -> PoptorchData:
    """Unpickle a blob of a real SDK, which runs code that it names.

    Args:
        blob: The blob.

    Returns:
        What it holds, in our classes.

    Raises:
        Error: If a class is missing, or the blob holds something else.
        Exception: Whatever the unpickled code raises.
    """
    record = _SdkUnpickler(io.BytesIO(blob)).load()
    if not isinstance(record, SdkRecord) or type(record).__name__ != "PoptorchData":
        raise Error(f"expected PoptorchData, found {type(record).__name__}")
    attributes = vars(record)
    state = attributes.get("rng_state")
    return PoptorchData(
        str(attributes.get("version")),
        _make_inputs(attributes.get("executable_inputs")),
        _make_options(attributes.get("options")),
        attributes.get("training"),
        attributes.get("model"),
        int(state[0]) if state else attributes.get("random_seed"),
    )


def _make_inputs(record: Any) -> CallInputs:
    values = vars(record) if isinstance(record, SdkRecord) else {}
    args, kwargs = values.get("_args"), values.get("_kwargs")
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
        raise Error("the inputs that the model was compiled for are missing (executable_inputs)")
    return CallInputs(tuple(args), kwargs)


def _make_options(record: Any) -> options_module.Options:
    """Return options of ours with the values of a record; others are left out, with a warning."""
    options = options_module.Options()
    values = vars(record) if isinstance(record, SdkRecord) else {}
    unknown = _copy_values(options, values.get("_values", {}))
    for attribute, group in _GROUPS.items():
        inner = getattr(values.get(attribute), "_values", {})
        unknown += _copy_values(getattr(options, group), inner)
    for name, value in getattr(values.get("_popart"), "options", {}).items():
        options.popart.set(name, value)
    strategy = _make_strategy(values.get("_execution_strategy"))
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    if unknown:
        logger.warning("options of the file that have no meaning here: %s", ", ".join(unknown))
    return options


def _copy_values(group: OptionGroup, values: Mapping[str, Any]) -> list[str]:
    """Set the options that a group has; return the names of the others."""
    options = {name: option for name, option in group.OPTIONS.items() if not option.popart}
    for name in options.keys() & values.keys():
        try:
            group.set(**{name: _convert(options[name], values[name])})
        except (AssertionError, ValueError) as error:
            raise Error(f"option {name} of the file is {values[name]!r}: {error}") from error
    return sorted(values.keys() - options.keys())


def _convert(option: Option, value: Any) -> Any:
    """Return an option's value; releases before 3.0 stored enumerations as integers."""
    kind = option.kind.base
    return kind(value) if issubclass(kind, Enum) and isinstance(value, int) else value


def _make_strategy(record: Any) -> strategies.ExecutionStrategy | None:
    """Return a strategy of the same class; strategies with explicit stages cannot be pickled."""
    classes = {
        kind.__name__: kind for kind in (strategies.PipelinedExecution, strategies.ShardedExecution)
    }
    strategy_class = classes.get(type(record).__name__)
    if strategy_class is not None:
        return strategy_class(*_find_auto_stage(record))
    if record is not None:
        name = type(record).__name__
        logger.warning("the strategy %s of the file is left out: it changes no result", name)
    return None


def _find_auto_stage(record: SdkRecord) -> list[AutoStage]:
    """Return how a strategy, or its manager of stages, numbers the stages, if it says so."""
    values = [vars(value) for value in (record, *vars(record).values()) if _is_record(value)]
    stages = [
        value
        for attributes in values
        for value in attributes.values()
        if isinstance(value, AutoStage)
    ]
    return stages[:1]


def _is_record(value: Any) -> bool:
    return isinstance(value, SdkRecord)
