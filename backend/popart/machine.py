"""IPUs of the simulated machine, which devices hold and free.

The machine is this process's own: other processes have one each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

NUM_IPUS: Final = 64
"""IPUs of the simulated machine: a Pod64."""


class Machine:
    """IPUs, and which of them are held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[int, object] = {}

    def take(self, ipus: range, holder: object) -> bool:
        """Hold IPUs, unless another holder has one of them; return whether that succeeded."""
        with self._lock:
            if any(self._holders.get(ipu, holder) is not holder for ipu in ipus):
                return False
            self._holders.update(dict.fromkeys(ipus, holder))
            return True

    def release(self, ipus: range, holder: object) -> None:
        """Free the IPUs that a holder has; a finalizer calls this, so that it takes no lock."""
        for ipu in ipus:
            if self._holders.get(ipu) is holder:
                self._holders.pop(ipu, None)


def _iter_sets() -> Iterator[tuple[int, range]]:
    """Yield the sets of IPUs that can be a device, with their ids: single ones first."""
    number, size = 0, 1
    while size <= NUM_IPUS:
        for first in range(0, NUM_IPUS, size):
            yield number, range(first, first + size)
            number += 1
        size *= 2


SETS: Final = dict(_iter_sets())
"""IPUs of each device, by the device's id."""
MACHINE: Final = Machine()
