"""A simulated device: a target that one engine at a time may use."""

from __future__ import annotations

from dataclasses import dataclass

from simipu.errors import LoadError
from simipu.executable import SimulatedExecutable
from simipu.target import Target


@dataclass(slots=True)
class Device:
    """The `target.num_ipus` simulated chips of one kind; `id` appears in messages."""

    target: Target
    id: int = 0

    def check_fits(self, executable: SimulatedExecutable, replication_factor: int = 1) -> None:
        """Raise LoadError unless `executable` was compiled for this kind of chip, with these tiles,
        and this number of chips.

        The number may count one replica's chips or those of all `replication_factor` replicas:
        files have both.
        """
        wanted, mine = executable.target, self.target
        numbers = {wanted.num_ipus, wanted.num_ipus * replication_factor}
        kinds = [(target.ipu_version, target.tiles_per_ipu) for target in (wanted, mine)]
        if mine.num_ipus not in numbers or kinds[0] != kinds[1]:
            raise LoadError(
                f"executable {executable.name!r} was compiled for {_describe(wanted)}, but device "
                f"{self.id} "
                f"is {_describe(mine)}; compile for this device or load it on a matching one"
            )


def _describe(target: Target) -> str:
    return f"{target.num_ipus} x {target.name} of {target.tiles_per_ipu} tiles"
