"""PopART's exceptions, and the formats that their messages share: operators and shapes.

The classes and their tree are those that the real module registers. Scripts catch them by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from popart.enums import RecoveryAction


class popart_exception(Exception):
    """A model, an option or a call that PopART rejects."""


class popart_internal_exception(popart_exception):
    """A state that PopART does not expect."""


class popart_runtime_error(popart_exception):
    """A call that is wrong at run time: arrays of another size, missing tensors."""


class OutOfMemoryException(popart_exception):
    """A model that does not fit into the device's memory.

    Attributes:
        summaryReport: Report of the memory that the model needs.
        profilePath: Folder of the profile, or "".
    """

    def __init__(self, message: str, summaryReport: str = "", profilePath: str = "") -> None:
        super().__init__(message)
        self.summaryReport = summaryReport
        self.profilePath = profilePath

    def getSummaryReport(self) -> str:
        """Return the report of the memory that the model needs."""
        return self.summaryReport

    def getProfilePath(self) -> str:
        """Return the folder of the profile, or ""."""
        return self.profilePath


class poplibs_exception(Exception):
    """An error of Poplar's libraries."""


class poplar_exception(Exception):
    """An error of Poplar."""


class poplar_runtime_error(poplar_exception):
    """An error of Poplar at run time."""


class poplar_application_runtime_error(poplar_runtime_error):
    """A program that ended itself, as Abort does."""


class poplar_system_runtime_error(poplar_runtime_error):
    """An error of the IPU system."""


class poplar_recoverable_runtime_error(poplar_system_runtime_error):
    """An error of the IPU system that a reset mends.

    Attributes:
        recoveryAction: The reset that mends it.
    """

    recoveryAction = RecoveryAction.IPU_RESET


class poplar_unrecoverable_runtime_error(poplar_system_runtime_error):
    """An error of the IPU system that no reset mends."""


class poplar_unknown_runtime_error(poplar_system_runtime_error):
    """An error of the IPU system of unknown kind."""


def format_shape(shape: Iterable[int]) -> str:
    """Return a shape as PopART prints it: `[3 4]`."""
    return f"[{' '.join(map(str, shape))}]"


def format_operator(
    domain: str,
    op_type: str,
    version: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str = "",
) -> str:
    """Return an operator as PopART prints it.

    Args:
        domain: Domain; "" is "ai.onnx".
        op_type: Type, as "MatMul".
        version: Opset version that introduced the operator.
        inputs: Ids of the input tensors; absent optional inputs ("") are not printed.
        outputs: Ids of the output tensors.
        name: The node's name, printed in front if it is not empty.

    Returns:
        Text as `Op(ai.onnx.MatMul:9, inputs=[a, b], outputs=[MatMul:0])`.
    """
    identifier = f"{domain or 'ai.onnx'}.{op_type}:{version}"
    shown = f"{name} ({identifier})" if name else identifier
    read, written_ids = (", ".join(filter(None, ids)) for ids in (inputs, outputs))
    return f"Op({shown}, inputs=[{read}], outputs=[{written_ids}])"
