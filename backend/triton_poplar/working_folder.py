"""The folder that a user started the server from.

Triton's stub puts its working directory first on Python's path, before the standard library: a
user's model.py, json.py or numpy.py there would be imported in the place of the one that is meant.
So `poplar-triton serve` starts tritonserver in an empty folder and names the user's folder in an
environment variable. The stub returns to it once its path no longer has the working directory, so
that relative paths mean what they meant. The stubs of Python models beside ours do it, too, in
environments of their own, so this module needs the standard library only.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

VARIABLE = "POPLAR_WORKING_FOLDER"
"""Name of the environment variable with the user's folder."""


def return_to_users_folder() -> None:
    """Make the user's folder the working directory, but let no module come from there. A server
    that was started otherwise stays in its own."""
    folder = os.environ.pop(VARIABLE, "")
    if folder:
        sys.path[:] = filter(None, sys.path)
        with suppress(OSError):  # it is gone; only relative paths need it
            os.chdir(folder)
