"""Profile of a compiled model, in the folder where Poplar writes its reports.

Poplar's `autoReport` options ask for it, as `Options.enableProfiling` and the variable
POPLAR_ENGINE_OPTIONS set them. The file is `NAME/profile.json`, the JSON of `poplar-triton
profile`: the modelled cycles and memory of operators and IPUs. PopVision's `profile.pop` is not
written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poprt.compile import profile_executable

from poptorch._logging import logger
from poptorch.errors import Error

if TYPE_CHECKING:
    from poptorch.compilation import Compilation
    from poptorch.options import Options

VARIABLE: Final = "POPLAR_ENGINE_OPTIONS"
_FILE_NAME: Final = "profile.json"
_ASKING: Final = (
    "autoReport.all",
    "autoReport.outputGraphProfile",
    "autoReport.outputExecutionProfile",
)
_DIRECTORY: Final = "autoReport.directory"
_DEFAULT_NAME: Final = "inference"
_NESTED: Final = (dict, list)


def write_profile(made: Compilation, options: Options) -> None:
    """Write the profile of a compiled model, if options of the engine ask for one.

    Args:
        made: The compiled model.
        options: Options of the model.

    Raises:
        Error: If POPLAR_ENGINE_OPTIONS is not valid, or the file cannot be written.
    """
    engine = {**options._Popart.options.get("engineOptions", {}), **_read_variable()}  # noqa: SLF001
    if not any(engine.get(name) == "true" for name in _ASKING):
        return
    name = options.model_name if options.exists("model_name") else _DEFAULT_NAME
    profiles = profile_executable(made.executable, made.compiled.options, name, made.model)
    file = Path(engine.get(_DIRECTORY, "."), name, _FILE_NAME)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(profiles[0].as_json(), indent=2) + "\n")
    except OSError as error:
        raise Error(f"the profile {file} cannot be written: {error}") from error
    logger.info("Profile of the model, as modelled: %s", file)


def _read_variable() -> dict[str, str]:
    """Return the options of the engine in the environment, which come before those of the model."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Error(f"{VARIABLE}: expected a JSON object, found {text[:100]!r}: {error}") from error
    if not isinstance(found, dict) or any(isinstance(each, _NESTED) for each in found.values()):
        raise Error(f"{VARIABLE}: expected a JSON object of texts, found {text[:100]!r}")
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
    }
