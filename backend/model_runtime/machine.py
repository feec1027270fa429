"""IPUs of a simulated machine, which devices hold and free.

A machine is this process's own: other processes have one each. PopART's devices, PopTorch's and
those of ModelRuntime hold IPUs here.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count, islice
from threading import Lock

from simipu import FORKS


class Machine:
    """IPUs of a machine, and who holds them.

    Args:
        num_ipus: number of IPUs; None means no limit.
    """

    def __init__(self, num_ipus: int | None = None) -> None:
        self.num_ipus = num_ipus
        self._lock = Lock()
        self._holders: dict[int, object] = {}
        FORKS.watch(self)

    def forget_parent(self) -> None:
        """Replace the lock in a fork, because another thread of the parent may have held it."""
        self._lock = Lock()

    @property
    def num_held(self) -> int:
        """Number of IPUs that are held."""
        return len(self._holders)

    def take(self, ipus: Collection[int], holder: object) -> bool:
        """Hold IPUs, unless another holder has one of them; return whether that succeeded."""
        with self._lock:
            if any(self._holders.get(ipu, holder) is not holder for ipu in ipus):
                return False
            self._holders.update(dict.fromkeys(ipus, holder))
            return True

    def take_any(self, num_ipus: int, holder: object) -> bool:
        """Hold as many free IPUs; return whether there were enough."""
        with self._lock:
            numbers = count() if self.num_ipus is None else range(self.num_ipus)
            free = list(islice((ipu for ipu in numbers if ipu not in self._holders), num_ipus))
            if len(free) < num_ipus:
                return False
            self._holders.update(dict.fromkeys(free, holder))
            return True

    def release(self, holder: object) -> None:
        """Free the IPUs that a holder has. Finalizers call this, so that it takes no lock: each
        change of the dict is one operation."""
        for ipu, owner in self._holders.copy().items():
            if owner is holder:
                self._holders.pop(ipu, None)
