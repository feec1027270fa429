"""Names that scripts import and that do not work yet: using one says so."""

from __future__ import annotations

from typing import Any, NoReturn


def later(name: str, instead: str) -> Any:
    """A class that raises NotImplementedError, which is a RuntimeError, when it is made or called; `instead`
    says what there is."""

    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise NotImplementedError(f"poprt.{name} is not there yet; {instead}")

    short = name.rpartition(".")[2]
    members = {"__doc__": f"Not there yet: {instead}.", "__new__": refuse, "__module__": __name__}
    return type(short, (), members)
