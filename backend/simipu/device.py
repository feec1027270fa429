"""A simulated device: a target that one engine at a time may hold."""

from __future__ import annotations

from dataclasses import dataclass

from simipu.errors import LoadError
from simipu.executable import Executable
from simipu.target import Target


@dataclass(slots=True)
class Device:
    """`num_ipus` simulated chips of one kind; `id` is what a user sees in messages."""

    target: Target
    id: int = 0

    def check_fits(self, executable: Executable) -> None:
        """Raise LoadError unless `executable` was compiled for exactly this kind and number of chips."""
        wanted = executable.target
        if (wanted.ipu_version, wanted.num_ipus) != (self.target.ipu_version, self.target.num_ipus):
            raise LoadError(
                f"executable {executable.name!r} was compiled for {wanted.num_ipus} x {wanted.name}, but device {self.id} "
                f"is {self.target.num_ipus} x {self.target.name}; compile for this device or load it on a matching one"
            )
